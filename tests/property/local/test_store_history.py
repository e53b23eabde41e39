"""The history of the store against a model: any past version, any watch, any page."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.paging import ListQuery
from slipway.local.apiserver.status import StatusError
from tests.contract.kube.samples import a_config
from tests.unit.local.apiserver.support import a_core

Step = tuple[str, str, str]
STEPS = st.lists(
    st.tuples(st.sampled_from(["create", "patch", "delete"]), st.sampled_from("abcd"), st.sampled_from("01")),
    max_size=30,
)
State = dict[str, Any]


def _play(steps: list[Step]) -> tuple[Any, list[tuple[int, State]]]:
    """Play the steps; return the core, and every state as {name: label}, with its version."""
    core = a_core()
    states: list[tuple[int, State]] = [(core.version, {})]
    for verb, name, label in steps:
        try:
            match verb:
                case "create":
                    core.create("configmaps", "default", a_config(name, labels={"on": label}))
                case "patch":
                    core.patch("configmaps", "default", name, {"metadata": {"labels": {"on": label}}})
                case _:
                    core.delete("configmaps", "default", name)
        except StatusError:
            continue
        states.append((core.version, _labels(core.list("configmaps", "default").items)))
    return core, states


def _labels(objs: Any) -> State:
    return {obj["metadata"]["name"]: obj["metadata"]["labels"]["on"] for obj in objs}


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_every_past_version_can_be_listed(steps: list[Step]) -> None:
    """A list at an exact version shows the state of that version."""
    core, states = _play(steps)
    for version, state in states:
        query = ListQuery(version=version, exact=True)
        assert _labels(core.list("configmaps", "default", query).items) == state


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(min_value=0, max_value=30))
def test_a_selecting_watch_leads_to_the_selected_list(steps: list[Step], start: int) -> None:
    """From any version: the selected state at that version, plus the events, is the selected state now."""
    core, states = _play(steps)
    version, state = states[min(start, len(states) - 1)]
    known = {name for name, label in state.items() if label == "1"}
    for event in core.watch_since("configmaps", version, "default", labels="on=1"):
        name = event.obj["metadata"]["name"]
        assert (name in known) == (event.type != "ADDED")
        known = known - {name} if event.type == "DELETED" else known | {name}
    assert known == {name for name, label in states[-1][1].items() if label == "1"}


@settings(max_examples=60, deadline=None)
@given(STEPS, STEPS, st.integers(min_value=1, max_value=3))
def test_pages_are_one_snapshot(before: list[Step], between: list[Step], limit: int) -> None:
    """The pages together are the list at the first page's version, whatever is written between them."""
    core, _ = _play(before)
    whole = [obj["metadata"]["name"] for obj in core.list("configmaps").items]
    page = core.list("configmaps", None, ListQuery(limit=limit))
    found = [obj["metadata"]["name"] for obj in page.items]
    pending = list(between)
    while page.continue_token:
        if pending:
            _, name, label = pending.pop()
            config, mine = a_config(name, labels={"on": label}), WriteOptions(writer="me", force=True)
            core.patch("configmaps", "default", name, config, media=_APPLY, options=mine)
        page = core.list("configmaps", None, ListQuery(limit=limit, continue_token=page.continue_token))
        found += [obj["metadata"]["name"] for obj in page.items]
    assert found == whole


_APPLY = "application/apply-patch+yaml"
