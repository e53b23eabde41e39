"""The secret values of a launch: removed from its body before any other code reads it, and stored in a Secret.

Owns the write-only field `secretValues`, and the Secret that an allocation owns. A value travels from the body of the
request through the memory of this process into that Secret; from there the kubelet passes it to the ranks. The
Allocation contains only the names (`secretVariables`), and so does everything that is derived from it: hashes,
previews, events, logs, backups. The hash of the request covers only the names, because a short value could be guessed
from a hash.

The Allocation is created first and the Secret second, so that the Secret has its owner from the start:
- A crash between both leaves an allocation without a Secret, never a Secret without an owner. The same request with the
  same Idempotency-Key creates the missing Secret. Without that request the ranks wait for the Secret, report it, and
  are given up as with any other missing Secret.
- A rank that starts before the Secret exists waits for it, because the kubelet does.
- When the Secret is refused, the allocation is deleted again and the launch fails.
- Kubernetes deletes the Secret with its owner, even if the owner was deleted before the Secret was created. The watcher
  deletes it sooner, once no rank runs any more. No service has to list Secrets, so no account may read them.

Invariants: the name contains the uid of the allocation, so that a create is idempotent and cannot touch another object;
the Secret is immutable; no text of ours repeats a value.
"""

import base64
import contextlib
from typing import Any, cast

from slipway.api.http.decoding import summary
from slipway.api.ports import Kube
from slipway.crd.bounds import ENV_MAX
from slipway.crd.fielderrors import Findings, pointer
from slipway.crd.kinds import RESERVED_ENV_PREFIX
from slipway.crd.meta import (
    GROUP_VERSION,
    LABEL_ALLOCATION,
    LABEL_ALLOCATION_UID,
    LABEL_MANAGED_BY,
    MANAGED_BY,
    RawObject,
)
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.crd.validate import check_env_name
from slipway.errors import (
    AlreadyExistsError,
    ControlPlaneError,
    FieldError,
    InvalidError,
    NotFoundError,
    StaleError,
    TransientError,
)
from slipway.kube.resources import ALLOCATIONS, SECRETS
from slipway.model import ids
from slipway.model.lifecycle import Phase
from slipway.runtime import retry
from slipway.runtime.clock import Clock, Random

Json = dict[str, Any]

FIELD, NAMES = "secretValues", "secretVariables"
BYTES_MAX = 64 * 1024
"""The most bytes of one value: Linux passes a program at most 128 KiB in one variable."""
TOTAL_BYTES_MAX = 512 * 1024
"""The most bytes of all values: half the size limit of a Secret."""
HIDDEN = "***"
_SHORT = 4
"""The least characters of a value that is replaced in other texts: a shorter one would occur in any text."""


class SecretValues:
    """{variable: value}; no repr or log shows the values."""

    def __init__(self, values: dict[str, str] | None = None) -> None:
        self._values = values or {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def __repr__(self) -> str:
        return f"SecretValues({len(self._values)})"

    @property
    def names(self) -> list[str]:
        """The variables, in order."""
        return sorted(self._values)

    def encoded(self) -> dict[str, str]:
        """The values as the data of a Secret."""
        return {name: base64.b64encode(value.encode()).decode() for name, value in self._values.items()}

    def without(self, text: str) -> str:
        """Return `text` with each value replaced by `***`: an admission webhook may repeat values that it refused."""
        found = {*self._values.values(), *self.encoded().values()}
        for value in sorted((each for each in found if len(each) >= _SHORT), key=len, reverse=True):
            text = text.replace(value, HIDDEN)
        return text


def split(body: Json) -> tuple[Json, SecretValues]:
    """Return the body with the names of its secret values in place of the values, and the values.

    Raises:
        InvalidError: with pointers into the body, and without any value.
    """
    if NAMES in body:
        raise _refused([FieldError(f"/{NAMES}", f"is set by the API; give the values in {FIELD}: {{NAME: VALUE}}")])
    if FIELD not in body:
        return body, SecretValues()
    given = body[FIELD]
    if not isinstance(given, dict):
        raise _refused([FieldError(f"/{FIELD}", "must be an object of names and texts, such as {HF_TOKEN: ...}")])
    found = cast("dict[str, Any]", given)
    errors = _errors(found, body)
    if errors:
        raise _refused(errors)
    values = SecretValues(found)
    rest = {name: value for name, value in body.items() if name != FIELD}
    return ({**rest, NAMES: values.names} if values else rest), values


class ValueSecrets:
    """Stores the secret values of launches."""

    def __init__(self, kube: Kube, *, clock: Clock, random: Random) -> None:
        self._kube = kube
        self._clock = clock
        self._random = random

    async def keep(self, allocation: Allocation, values: SecretValues, *, is_new: bool) -> None:
        """Store the values for the ranks of the allocation; a second call changes nothing.

        Raises:
            ControlPlaneError: the values could not be stored; a new allocation was deleted again, if possible.
        """
        if not values or allocation.status.phase is Phase.TERMINATED:
            return

        async def create() -> None:
            try:
                await self._kube.create(SECRETS, secret_of(allocation, values))
            except AlreadyExistsError:
                return
            except StaleError as error:
                # The Secret is new and cannot be stale, so the conflict is in a quota that changed at the same time.
                raise TransientError(values.without(str(error))) from None
            except ControlPlaneError as error:
                raise _as(error, values.without(str(error))) from None

        try:
            await retry.call(retry.QUICK, create, clock=self._clock, random=self._random)
        except ControlPlaneError as error:
            raise await self._failed(allocation, error, is_new=is_new) from None

    async def _failed(self, allocation: Allocation, error: ControlPlaneError, *, is_new: bool) -> ControlPlaneError:
        """Delete a new allocation again, if possible; return the error to report."""
        id_ = id_of(allocation)
        words = f"the secret values of the launch could not be stored: {error}"
        if not is_new:
            return _as(error, f"{words}; {id_} waits for them: send the same request again")
        meta = allocation.metadata
        try:
            with contextlib.suppress(NotFoundError):
                await self._kube.delete(ALLOCATIONS, meta.name, namespace=meta.namespace, uid=meta.uid)
        except ControlPlaneError:
            return _as(error, f"{words}; {id_} was created and cannot run: end it with slipway kill {id_}")
        return _as(error, f"{words}; nothing was launched")


def secret_of(allocation: Allocation, values: SecretValues) -> RawObject:
    """Return the Secret that the allocation owns."""
    meta = allocation.metadata
    owner = {"apiVersion": GROUP_VERSION, "kind": "Allocation", "name": meta.name, "uid": meta.uid}
    return {
        "metadata": {
            "name": ids.values_name(meta.uid),
            "namespace": meta.namespace,
            "labels": {
                LABEL_ALLOCATION: str(id_of(allocation)),
                LABEL_ALLOCATION_UID: meta.uid,
                LABEL_MANAGED_BY: MANAGED_BY,
            },
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": False}],
        },
        "type": "Opaque",
        "immutable": True,
        "data": values.encoded(),
    }


def _errors(found: dict[str, Any], body: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    size = 0
    if len(found) > ENV_MAX:
        errors.append(FieldError(f"/{FIELD}", f"has {len(found)} variables; at most {ENV_MAX} are allowed"))
    for name, value in found.items():
        at = f"/{FIELD}{pointer(name)}"
        findings = Findings()
        check_env_name(name, at, findings)
        errors += findings.errors
        if name.startswith((RESERVED_ENV_PREFIX, ".")):
            errors.append(FieldError(at, f"names that begin with {RESERVED_ENV_PREFIX} or a dot cannot have a value"))
        for field in ("env", "secrets"):
            beside: Any = body.get(field)
            if isinstance(beside, dict) and name in beside:
                errors.append(FieldError(at, f"{field} sets {name} too: leave one of them out"))
        if not isinstance(value, str):
            errors.append(FieldError(at, "must be text"))
            continue
        size += len(value.encode())
        if "\0" in value:
            errors.append(FieldError(at, "must not contain a NUL character"))
        if len(value.encode()) > BYTES_MAX:
            errors.append(
                FieldError(at, f"has more than {BYTES_MAX} bytes; create a Secret of the workspace for a file")
            )
    if size > TOTAL_BYTES_MAX:
        errors.append(FieldError(f"/{FIELD}", f"the values have {size} bytes; at most {TOTAL_BYTES_MAX} are allowed"))
    return errors


def _refused(errors: list[FieldError]) -> InvalidError:
    return InvalidError(summary("the launch", tuple(errors)), fields=tuple(errors))


def _as(error: ControlPlaneError, words: str) -> ControlPlaneError:
    """Return an error of the same class with other words, without the server's own text about the Secret."""
    if isinstance(error, TransientError):
        return type(error)(words, retry_after_s=error.retry_after_s)
    return type(error)(words)
