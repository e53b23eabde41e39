"""The secret values of a launch: removed from its body before any other code reads it, and stored in a Secret.

Owns the write-only field `secretValues`, and the Secret that an allocation owns. A value travels from the body of the
request through the memory of this process into that Secret, and from there to the ranks by the kubelet. The Allocation
has the names only (`secretVariables`), and so has everything that is made of it: hashes, previews, events, logs,
backups. The hash of the request covers the names and not the values: a short value could be guessed from it.

The Allocation is created first and the Secret second, so that the Secret is born with its owner:
- A crash between both leaves an allocation without a Secret, never a Secret without an owner. The same request with the
  same Idempotency-Key completes it. Without that its ranks wait for the Secret, say so, and are given up as with any
  other Secret that is missing.
- A rank that is quicker than the Secret waits for it, as kubelets do.
- When the Secret is refused, the allocation is deleted again and the launch has failed.
- Kubernetes deletes the Secret with its owner, also where the owner was gone before the Secret was made; the watcher
  deletes it sooner, as soon as nothing runs any more. Nobody has to list Secrets, so no account may read them.

Invariants: the name holds the uid of the allocation, so that a create is idempotent and hits nothing else; the Secret
is immutable; no text of ours repeats a value.
"""

import base64
import contextlib
from typing import Any, cast

from slipway.api.decoding import summary
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
"""The most bytes of all values: half of what one Secret may hold."""
HIDDEN = "***"
_SHORT = 4
"""Characters of a value that is looked for in other texts: a shorter one would be found in any."""


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
        """`text`, in which no value stands any more: a webhook of the cluster may repeat what it refused."""
        found = {*self._values.values(), *self.encoded().values()}
        for value in sorted((each for each in found if len(each) >= _SHORT), key=len, reverse=True):
            text = text.replace(value, HIDDEN)
        return text


def split(body: Json) -> tuple[Json, SecretValues]:
    """The body with names in the place of its secret values, and the values.

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
    """Keeps the values of launches."""

    def __init__(self, kube: Kube, *, clock: Clock, random: Random) -> None:
        self._kube = kube
        self._clock = clock
        self._random = random

    async def keep(self, allocation: Allocation, values: SecretValues, *, is_new: bool) -> None:
        """Put the values where the ranks of the allocation find them; a second time changes nothing.

        Raises:
            ControlPlaneError: they could not be kept; a new allocation was deleted again, if that was possible.
        """
        if not values or allocation.status.phase is Phase.TERMINATED:
            return

        async def create() -> None:
            try:
                await self._kube.create(SECRETS, secret_of(allocation, values))
            except AlreadyExistsError:
                return
            except StaleError as error:
                # Not of the object, which is new, but of a quota that was counted at the same time.
                raise TransientError(values.without(str(error))) from None
            except ControlPlaneError as error:
                raise _as(error, values.without(str(error))) from None

        try:
            await retry.call(retry.QUICK, create, clock=self._clock, random=self._random)
        except ControlPlaneError as error:
            raise await self._failed(allocation, error, is_new=is_new) from None

    async def _failed(self, allocation: Allocation, error: ControlPlaneError, *, is_new: bool) -> ControlPlaneError:
        """The error to tell, after the launch was taken back as far as it can be."""
        id_ = id_of(allocation)
        words = f"the secret values of the launch could not be kept: {error}"
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
    """The Secret that the allocation owns."""
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
    """An error of the same class with other words: what the server said of the Secret stays behind."""
    if isinstance(error, TransientError):
        return type(error)(words, retry_after_s=error.retry_after_s)
    return type(error)(words)
