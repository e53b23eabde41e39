"""The lifecycle reference: the transition table as a diagram and in words, and the closed sets of reasons."""

from enum import StrEnum

from slipway.model.lifecycle import TRANSITIONS, Event, Kind, Phase, RankState, Writer, diagram, writer_of
from slipway.model.reasons import INFRASTRUCTURE, Gate, Reason, Result
from tools.reference.markdown import code, table

TOP = """# The life of an allocation

One table (`shared/slipway/model/lifecycle.py`) defines the legal transitions, and which service may write each. This
page, the rules inside the custom resource and an exhaustive test are generated from it. Within one attempt the phase
only moves forward. `Terminated` is final. Only `restarted` begins the next attempt.
"""
REASONS = """## Why something ended

`status.result` is how an allocation ended, `status.reason` is why. A reason that is marked as infrastructure was not
the user's fault: such an end does not count against `maxRestarts`.
"""
GATES = """## Why something waits

The first closed gate, in this order, is the reason. It is in the condition `Admitted=False` of the Allocation, in the
`code` of `GET /api/v1/allocations/{id}/explain`, in logs and in a label of the metric `slipway_pending`.
"""


def page() -> str:
    """Return the diagram, events, phases, results, reasons and gates."""
    return "\n".join(
        [
            TOP,
            f"```mermaid\n{diagram()}```\n",
            "## Events\n",
            table(("event", "from", "to", "written by"), [_event(event) for event in Event]),
            "## Words\n",
            table(("of", "words"), _words()),
            REASONS,
            table(("reason", "infrastructure"), [_reason(reason) for reason in Reason if reason]),
            GATES,
            "\n".join(f"{number}. `{gate}`" for number, gate in enumerate(Gate, 1)),
        ]
    )


def _event(event: Event) -> tuple[str, str, str, str]:
    row = next((row for row in TRANSITIONS if row.event is event), None)
    if row is None:
        return code(event), "(nothing)", code(Phase.PENDING), _writer(event)
    sources = ", ".join(code(phase) for phase in Phase if phase in row.sources)
    return code(event), sources, code(row.target) if row.target else "(stays)", _writer(event)


def _writer(event: Event) -> str:
    # The first transition is derived from the object, which the api or any other client creates.
    return "the client that creates the object" if writer_of(event) is Writer.API else writer_of(event).value


def _words() -> list[tuple[str, str]]:
    sets: dict[str, type[StrEnum]] = {"kind": Kind, "phase": Phase, "rank": RankState, "result": Result}
    return [(name, ", ".join(code(member.value) for member in words)) for name, words in sets.items()]


def _reason(reason: Reason) -> tuple[str, str]:
    return code(reason), "yes" if reason in INFRASTRUCTURE else ""
