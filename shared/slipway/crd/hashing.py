"""Hashes and the names derived from them: the one canonical form of JSON, and the fields that each hash leaves out.

Pure. Invariants: the order of keys does not change a hash. A name derived from a key is the same on every replica, so
that a repeated request finds the object of the first one.
"""

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from slipway.crd.meta import ANNOTATION_SPEC_HASH
from slipway.crd.v1alpha1 import AllocationSpec
from slipway.model.lifecycle import Kind

KEY_CHARACTERS = 10
"""50 bits: two keys of a workspace give the same name with a probability of one in a million billion."""
NAME_PREFIXES: Mapping[Kind, str] = {
    Kind.NOTEBOOK: "notebook-",
    Kind.SHELL: "shell-",
    Kind.COMMAND: "command-",
    Kind.TENSORBOARD: "tensorboard-",
    Kind.TRAINING: "run-",
}
_OUTSIDE_SPEC_HASH = (
    *("desired", "hold", "priority", "queue", "queuePosition", "signals", "requestHash"),
    *("maxRuntime", "maxRuntimeOverride", "idleTimeout", "pendingTimeout"),
)
_SERVER_METADATA = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
)


def canonical_json(value: Any) -> bytes:
    """Return the canonical form of a JSON value: keys sorted, no blanks."""
    return msgspec.json.encode(msgspec.to_builtins(value), order="sorted")


def sha256_hex(value: bytes | str) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(value.encode() if isinstance(value, str) else value).hexdigest()


def request_hash(body: Any) -> str:
    """Return the hash of a client's launch body as received, before templates and defaults are merged."""
    return sha256_hex(canonical_json(body))


def key_hash(key: str) -> str:
    """Return the hash of an Idempotency-Key, as the annotation contains it."""
    return sha256_hex(key)


def spec_hash(spec: AllocationSpec) -> str:
    """Return the hash of a resolved spec, without the fields that may change while the allocation waits or runs."""
    fields: dict[str, Any] = msgspec.to_builtins(spec)
    for field in _OUTSIDE_SPEC_HASH:
        fields.pop(field, None)
    return sha256_hex(msgspec.json.encode(fields, order="sorted"))


def object_hash(manifest: Mapping[str, Any]) -> str:
    """Return the hash of a manifest that we send to the API server for creation.

    It does not include the status, metadata that the server sets, and the annotation with the hash. An existing object
    is adopted when its annotation equals the hash of the manifest that we would send. The stored object is never
    hashed, because the server has added defaults.
    """
    metadata = {name: value for name, value in manifest.get("metadata", {}).items() if name not in _SERVER_METADATA}
    annotations = {name: text for name, text in metadata.pop("annotations", {}).items() if name != ANNOTATION_SPEC_HASH}
    body = {name: value for name, value in manifest.items() if name not in ("metadata", "status")}
    return sha256_hex(canonical_json({**body, "metadata": {**metadata, "annotations": annotations}}))


def name_from_key(workspace: str, user: str, key: str, kind: Kind) -> str:
    """Return the name derived from an Idempotency-Key, such as `run-k3x7q2m5ab`."""
    parts = (workspace, user, key)
    return name_from_bytes(kind, hashlib.sha256("".join(f"{len(part)}:{part}" for part in parts).encode()).digest())


def name_from_bytes(kind: Kind, entropy: bytes, *, characters: int = KEY_CHARACTERS) -> str:
    """Return a readable name from at least `characters` * 5 bits of hash or randomness."""
    return NAME_PREFIXES[kind] + base64.b32encode(entropy).decode().lower().rstrip("=")[:characters]
