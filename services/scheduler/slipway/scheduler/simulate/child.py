"""A simulation as a process of its own: one request on standard input, one answer on standard output, both JSON.
A forecast has its answer twice, each on a line: without the likely start, and as soon as that is known with it.

Owns its own bounds: the memory that it may use is set before anything large is read, so that a request that is too
large ends this process and no other. Whoever starts it owns the deadline. The api starts it
(`python -m slipway.scheduler.simulate.child BYTES`): planning never runs on an event loop that serves others, and the
process that serves never loads the planner.
"""

import json
import resource
import sys
from typing import Any

import msgspec

from slipway.errors import InvalidError
from slipway.scheduler.simulate import answer, live
from slipway.scheduler.simulate.run import simulate
from slipway.scheduler.simulate.scenario import checked
from slipway.scheduler.simulate.support import check_scores, unsupported


class SimulationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: `body` as a client sent it. With a `scenario` in it, `facts` are not looked at. Or `explain`, the
    key of an allocation of `pool` that waits."""

    body: dict[str, Any] = {}
    explain: str = ""
    pool: str = ""
    now: float = 0.0
    facts: dict[str, dict[str, msgspec.Raw]] = {}
    past: live.PoolPast | None = None
    """with `explain`: what is known of the pool's past"""


def main() -> int:
    """Answer one request: `{"answer": ...}`, or `{"error": ...}` with what is wrong with it."""
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        request = msgspec.json.decode(sys.stdin.buffer.read(), type=SimulationRequest)
        said = {"answer": _foreseen(request) if request.explain else answered(request)}
    except InvalidError as exc:
        said = {"error": str(exc)}
    except MemoryError:
        said = {"error": "it needs more memory than a simulation may use; ask for less"}
    _say(said)
    return 0


def _foreseen(request: SimulationRequest) -> dict[str, Any]:
    """The forecast of one allocation. What is certain is said at once, on a line of its own: the likely bounds cost
    many times as much, and the process may be ended before they are there."""
    standing = live.standing_of(request.facts, request.pool)
    answer = live.foreseen(standing, request.explain, request.now)
    if request.past is None:
        return answer
    _say({"answer": answer})
    try:
        return live.with_likely(answer, standing, request.explain, request.now, request.past)
    except MemoryError:
        return answer


def _say(said: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(said, allow_nan=False) + "\n")
    sys.stdout.flush()


def answered(request: SimulationRequest) -> dict[str, Any]:
    """The answer to a body.

    Raises:
        InvalidError: the request is not valid; the message starts with the path of the field.
    """
    if "scenario" not in request.body:
        return live.answer(request.facts, request.body, request.now)
    others = sorted(name for name in request.body if name != "scenario")
    if others:
        raise InvalidError(f"{others[0]}: not together with scenario, which is about a world of its own")
    try:
        scenario = checked(request.body["scenario"])
        check_scores(scenario)
    except InvalidError as exc:
        text = str(exc)
        whole = "the file: "
        raise InvalidError(f"scenario: {text[len(whole) :]}" if text.startswith(whole) else f"scenario.{text}") from exc
    return answer.as_json(simulate(scenario), unsupported(scenario))


if __name__ == "__main__":
    raise SystemExit(main())
