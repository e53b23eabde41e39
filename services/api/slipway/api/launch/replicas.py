"""`replicas` of a launch: the number of allocations that it creates, and the fields that differ between them. Pure.

Owns the names and the environment variable of the replicas. Each replica is an ordinary allocation; the replicas share
only the Service that the launch names. A client may send the launch again with more replicas and the same
Idempotency-Key. Then only the new replicas are launched: the body of a replica does not contain the number of replicas,
so the bodies of the first ones have not changed.
"""

from typing import Any, Final

from slipway.api.allocations.batch_schemas import LAUNCHES_MAX
from slipway.api.http.decoding import summary
from slipway.api.launch.overlays import merged
from slipway.errors import FieldError, InvalidError

Json = dict[str, Any]

FIELD: Final = "replicas"
VARIABLE: Final = "REPLICA_INDEX"
"""The environment variable of each rank with the number of its replica, counted from 0."""


def errors_of(launch: Json) -> list[FieldError]:
    """Return why this launch body cannot become replicas; the pointers refer to the body."""
    count, name = launch.get(FIELD), launch.get("name")
    errors: list[FieldError] = []
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= LAUNCHES_MAX:
        errors.append(FieldError(f"/{FIELD}", f"must be a whole number from 1 to {LAUNCHES_MAX}"))
    if not launch.get("service"):
        detail = "replicas share one Service; add service with name and port, such as {name: llm, port: 8000}"
        errors.append(FieldError(f"/{FIELD}", detail))
    if not isinstance(name, str) or not name:
        errors.append(FieldError("/name", "is missing: replicas are called NAME-0, NAME-1 and so on; add name"))
    return errors


def first_of(launch: Json) -> Json:
    """Return the launch body of the first replica, for a dry run; a body without `replicas` is returned unchanged.

    Raises:
        InvalidError: the body cannot become replicas.
    """
    if FIELD not in launch:
        return launch
    if errors := tuple(errors_of(launch)):
        raise InvalidError(summary("the launch", errors), fields=errors)
    rest = {name: value for name, value in launch.items() if name != FIELD}
    return merged(rest, differences_of({**launch, FIELD: 1})[0])


def differences_of(launch: Json) -> list[Json]:
    """Return the fields to merge over a valid launch body for each of its replicas."""
    name = launch["name"]
    return [{"name": f"{name}-{index}", "env": {VARIABLE: str(index)}} for index in range(launch[FIELD])]
