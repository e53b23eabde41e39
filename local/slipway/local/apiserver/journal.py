"""Persistence: an append-only log of commits and a snapshot, one JSON document per line.

Owns the files in the data folder. Knows the store's changes, but no rules about objects. Invariants: a commit is in the
log before its request is answered; a kill -9 at any instant loses no answered commit (a torn last line was never
answered); versions continue where they stopped; once a commit could not be logged, no later commit is logged. The
journal survives the death of the process, but not of the machine: only the snapshot is synced to disk.
"""

import os
from pathlib import Path
from typing import Any

import msgspec

from slipway.errors import InvariantError
from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.fields import ownership
from slipway.local.apiserver.store import ChangeType, Commit, ObjectVersion
from slipway.runtime import private_files

SNAPSHOT_EVERY = 20_000
_LOG = "log.jsonl"
_SNAPSHOT = "snapshot.json"


class _Entry(msgspec.Struct, array_like=True):
    version: int
    type: ChangeType
    resource: str
    obj: dict[str, Any]


class _Snapshot(msgspec.Struct):
    version: int
    objects: list[_Entry]


_decode_entry = msgspec.json.Decoder(_Entry).decode


class Journal:
    """Restores `core` (which must be empty) from `folder`, then logs its commits.

    snapshot_every: number of commits between two snapshots.
    """

    def __init__(self, folder: Path, core: ClusterCore, *, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        private_files.fix_modes(folder)
        self._folder = folder
        self._core = core
        self._snapshot_every = snapshot_every
        self._written = 0
        self._is_broken = False
        self._restore()
        self._log = os.open(folder / _LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._snapshot()
        self._end = core.store.subscribe(self._append)

    def close(self) -> None:
        """Stop logging; later commits of the core are not stored."""
        self._end()
        os.close(self._log)

    def _restore(self) -> None:
        base = self._folder / _SNAPSHOT
        if base.exists():
            snapshot = msgspec.json.decode(base.read_bytes(), type=_Snapshot)
            for entry in snapshot.objects:
                self._put(entry)
            self._core.store.start_at(snapshot.version)
        log = self._folder / _LOG
        if not log.exists():
            return
        for line in log.read_bytes().split(b"\n"):
            try:
                entry = _decode_entry(line)
            except msgspec.DecodeError:
                return  # a torn last line: its commit was never answered
            if entry.version > self._core.version:
                self._put(entry)

    def _put(self, entry: _Entry) -> None:
        claims = ownership.read(entry.obj["metadata"].pop("managedFields", ()))
        change = self._core.store.restore(entry.resource, entry.type, entry.obj, entry.version, claims)
        self._core.follow_definitions(change)
        self._core.controllers.note(change)

    def _append(self, change: Commit) -> None:
        """Log one commit.

        Once a commit could not be logged, all later commits are refused: a log that misses one of them is not replayed
        correctly.
        """
        head = msgspec.json.encode([change.version, change.type, change.resource])[:-1]
        line = head + b"," + change.record.whole + b"]\n"
        message = f"the log in {self._folder} cannot be written: changes are no longer stored"
        if self._is_broken:
            raise InvariantError(message)
        self._is_broken = True
        try:
            if os.write(self._log, line) != len(line):
                raise InvariantError(message)
            self._written += 1
            if self._written >= self._snapshot_every:
                self._snapshot()
        except OSError as error:
            raise InvariantError(f"{message}: {error}") from error
        self._is_broken = False

    def _snapshot(self) -> None:
        """Write a new snapshot of all objects and empty the log.

        After a crash between the two, `_restore` skips the log entries that the snapshot already contains.
        """
        store = self._core.store
        records: list[tuple[str, ObjectVersion]] = sorted(
            ((resource, record) for resource in store.resources() for record in store.scan(resource)),
            key=lambda item: item[1].version,
        )
        entries = [
            _Entry(record.version, "ADDED", resource, record.ownership.shown_on(record.obj))
            for resource, record in records
        ]
        temporary = self._folder / (_SNAPSHOT + ".new")
        with open(temporary, "wb", opener=private_files.opener) as file:
            file.write(msgspec.json.encode(_Snapshot(store.version, entries)))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._folder / _SNAPSHOT)
        os.ftruncate(self._log, 0)
        self._written = 0
