"""A simulation in its own process: one request on standard input, one answer on standard output, both JSON.

A forecast for which the past of the pool is given is answered twice, each time in one line: first without the likely
start, then with it, as soon as it is known.

Owns its memory limit, which is set before the request is read, so that a request that is too large ends only this
process. The parent process owns the deadline. The api starts it (`python -m slipway.scheduler.simulate.child BYTES`):
so planning never blocks an event loop that serves requests, and the serving process never loads the planner.
"""

import json
import resource
import sys
from typing import Any

import msgspec

from slipway.errors import InvalidError
from slipway.scheduler.simulate import answer, what_if
from slipway.scheduler.simulate.run import simulate
from slipway.scheduler.simulate.scenario import check_scores, checked, unsupported


class SimulationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request: either `body`, as a client sent it, or `explain`, the key of a waiting allocation of `pool`.

    If `body` contains a `scenario`, `facts` are ignored.
    """

    body: dict[str, Any] = {}
    explain: str = ""
    pool: str = ""
    now: float = 0.0
    facts: dict[str, dict[str, msgspec.Raw]] = {}
    past: what_if.PoolPast | None = None
    """with `explain`: the known past of the pool; None for a forecast without the likely start"""


def main() -> int:
    """Answer one request: `{"answer": ...}`, or `{"error": ...}` with the reason why it is invalid."""
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        request = msgspec.json.decode(sys.stdin.buffer.read(), type=SimulationRequest)
        said = {"answer": _forecast(request) if request.explain else answered(request)}
    except InvalidError as exc:
        said = {"error": str(exc)}
    except MemoryError:
        said = {"error": "it needs more memory than a simulation may use; simulate less"}
    _say(said)
    return 0


def _forecast(request: SimulationRequest) -> dict[str, Any]:
    """Return the forecast of one allocation.

    The certain part is written at once, in its own line: the likely bounds cost many times as much, and the process may
    be killed before they are known.
    """
    standing = what_if.standing_of(request.facts, request.pool)
    answer = what_if.forecast_of(standing, request.explain, request.now)
    if request.past is None:
        return answer
    _say({"answer": answer})
    try:
        return what_if.with_likely(answer, standing, request.explain, request.now, request.past)
    except MemoryError:
        return answer


def _say(said: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(said, allow_nan=False) + "\n")
    sys.stdout.flush()


def answered(request: SimulationRequest) -> dict[str, Any]:
    """Return the answer to a body.

    Raises:
        InvalidError: the request is not valid; the message starts with the path of the field.
    """
    if "scenario" not in request.body:
        return what_if.answer(request.facts, request.body, request.now)
    others = sorted(name for name in request.body if name != "scenario")
    if others:
        raise InvalidError(f"{others[0]}: cannot be combined with scenario")
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
