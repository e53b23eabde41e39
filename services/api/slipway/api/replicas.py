"""`replicas` of a launch: how many allocations it becomes, and what is different in each. Pure.

Owns the names and the variable of the replicas. Each is an allocation as any other; what they have in common is the
Service that the launch names. A launch with more replicas, sent again with the same Idempotency-Key, launches those
that are new: nothing in a replica says how many there are.
"""

from typing import Any, Final

from slipway.api.batch_schemas import LAUNCHES_MAX
from slipway.api.decoding import summary
from slipway.api.overlays import merged
from slipway.errors import FieldError, InvalidError

Json = dict[str, Any]

FIELD: Final = "replicas"
VARIABLE: Final = "REPLICA_INDEX"
"""Of the environment of each rank: which replica it belongs to, counted from 0."""


def errors_of(launch: Json) -> list[FieldError]:
    """Why this launch body cannot become replicas; pointers into it."""
    count, name = launch.get(FIELD), launch.get("name")
    errors: list[FieldError] = []
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= LAUNCHES_MAX:
        errors.append(FieldError(f"/{FIELD}", f"must be a whole number from 1 to {LAUNCHES_MAX}"))
    if not launch.get("service"):
        detail = "replicas stand behind one Service; add service with name and port, such as {name: llm, port: 8000}"
        errors.append(FieldError(f"/{FIELD}", detail))
    if not isinstance(name, str) or not name:
        errors.append(FieldError("/name", "is missing: replicas are called NAME-0, NAME-1 and so on; add name"))
    return errors


def first_of(launch: Json) -> Json:
    """The launch body of the first replica, of which a dry run tells; a body without replicas is as it was.

    Raises:
        InvalidError: it cannot become replicas.
    """
    if FIELD not in launch:
        return launch
    if errors := tuple(errors_of(launch)):
        raise InvalidError(summary("the launch", errors), fields=errors)
    rest = {name: value for name, value in launch.items() if name != FIELD}
    return merged(rest, differences_of({**launch, FIELD: 1})[0])


def differences_of(launch: Json) -> list[Json]:
    """What is different in each replica of a launch body without errors: fields that are laid over it."""
    name = launch["name"]
    return [{"name": f"{name}-{index}", "env": {VARIABLE: str(index)}} for index in range(launch[FIELD])]
