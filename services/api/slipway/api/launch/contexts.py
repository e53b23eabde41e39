"""Uploaded archives: received, checked, stored in pieces, and read again for the ranks.

Limits the cost of an upload: its bytes are in memory once, in the pieces that will be stored. There are limits on
concurrent uploads (of all users, and of one user), on the bytes that a workspace stores, and on the cache for reads.
`slipway.inside.fetch` defines what an archive may contain. It unpacks and checks the archive while it arrives, so that
an archive that is too large is refused before the rest of it is received.

Invariants: nothing is stored before the whole archive was checked. An archive is valid only after its index states that
it is complete. Its id is the SHA-256 of the bytes, so an upload may be repeated at any time and writes only the missing
pieces.

Not promised: that a workspace never exceeds its limit of bytes. Uploads that are checked at the same moment do not see
each other, so the workspace may exceed the limit by the number of concurrent uploads.

The event loop receives the bytes, and a thread unpacks and checks them while they arrive (`UploadBuffer`). The thread
gets every byte once and in order. While more than `AHEAD_BYTES` are unread, the sender waits. The thread's wait ends
with `end` or `abandon`, and the loop's wait with `stop_reading`.
"""

import asyncio
import contextlib
import hashlib
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

import msgspec

from slipway.api.http.errors import ArchiveRefusedError, BodyTooLargeError, MalformedError
from slipway.api.ports import Kube
from slipway.errors import (
    AlreadyExistsError,
    FieldError,
    InvalidError,
    NotFoundError,
    QuotaExceededError,
    StaleError,
    ThrottledError,
    UnavailableError,
)
from slipway.inside import fetch
from slipway.kube.resources import CONFIG_MAPS
from slipway.model.times import format_time
from slipway.pods import context
from slipway.pods.context import INDEX_MAPS, INDEX_SELECTOR, PIECE_BYTES, PIECE_KEY, PIECE_MAPS, Index, IndexMap
from slipway.runtime import retry
from slipway.runtime.clock import Clock, Random
from slipway.runtime.tasks import TaskGroup

AHEAD_BYTES = 4 * 1024 * 1024


class UploadBuffer:
    """A file that coroutines of one loop write and one thread reads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._changed = threading.Condition()
        self._parts: deque[bytes] = deque()
        self._unread = 0
        self._is_whole = self._is_abandoned = self._is_stopped = False

    async def add(self, part: bytes) -> None:
        """Append the next part. Wait while too much is unread and the thread still reads."""
        await self._has_room.wait()
        with self._changed:
            if self._is_stopped or not part:
                return
            self._parts.append(part)
            self._unread += len(part)
            if self._unread > AHEAD_BYTES:
                self._has_room.clear()
            self._changed.notify()

    def end(self) -> None:
        """Mark the end of the file: all parts have arrived."""
        with self._changed:
            self._is_whole = True
            self._changed.notify()

    def abandon(self) -> None:
        """Give the upload up: the next read of the thread raises OSError."""
        with self._changed:
            self._is_abandoned = True
            self._parts.clear()
            self._changed.notify()

    def read(self, size: int = -1) -> bytes:
        """Return at most the rest of one part; empty at the end. The thread calls it. Raises OSError if abandoned."""
        with self._changed:
            while not (self._parts or self._is_whole or self._is_abandoned):
                self._changed.wait()
            if self._is_abandoned:
                raise OSError("the upload was abandoned")
            if not self._parts:
                return b""
            part = self._parts.popleft()
            if 0 <= size < len(part):
                self._parts.appendleft(part[size:])
                part = part[:size]
            was_full = self._unread > AHEAD_BYTES
            self._unread -= len(part)
            if was_full and self._unread <= AHEAD_BYTES:
                self._loop.call_soon_threadsafe(self._has_room.set)
            return part

    def stop_reading(self) -> None:
        """Stop the sender's wait. The thread calls it when it will not read again."""
        with self._changed:
            self._is_stopped = True
            self._parts.clear()
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._has_room.set)


SILENCE_S = 30.0
"""How long an upload may pause."""
CALLS_MAX = 4
"""Limit of pieces of one upload that are written concurrently."""
TOUCH_S = 600.0
"""The shortest time between two writes of the annotation that marks an archive as used."""
BUSY_S = 5.0
FULL_S = 600.0
"""The Retry-After when a workspace is full: an upload fits only after an archive is deleted, an hour after its use."""
_MIB = 1024 * 1024


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """A valid archive, in the pieces in which it is stored."""

    id: str
    pieces: tuple[bytes, ...]
    totals: fetch.Totals

    @property
    def size(self) -> int:
        """The number of bytes."""
        return sum(len(piece) for piece in self.pieces)


class StoredArchive(msgspec.Struct, frozen=True, kw_only=True):
    """A stored archive of a workspace; `created` is false when it existed before the request."""

    map: IndexMap
    index: Index
    created: bool = False


class ContextArchives:
    """Stores and reads archives."""

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        random: Random,
        *,
        bytes_max: int,
        uploads_max: int,
        uploads_per_user: int,
        workspace_bytes: int,
        cache_bytes: int,
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._random = random
        self._bytes_max = bytes_max
        self._uploads_max = uploads_max
        self._uploads_per_user = uploads_per_user
        self._workspace_bytes = workspace_bytes
        self.uploads = 0
        self._uploads_of: Counter[str] = Counter()
        # The executor is separate, because each thread is blocked for as long as its upload takes.
        self._judges = ThreadPoolExecutor(max_workers=uploads_max, thread_name_prefix="archive")
        self._cache = PieceCache(cache_bytes)
        self.policy = retry.KUBE_READ

    async def upload(
        self, body: AsyncIterator[bytes], announced: int | None, workspace: str, wanted: str, *, user: str = ""
    ) -> StoredArchive:
        """Receive and store an archive; `wanted` is its id when the client knows it, else empty.

        An empty `user` is an unknown user, for whom only the limit of all uploads applies.

        Raises:
            BodyTooLargeError: the archive is too long.
            MalformedError: the upload stopped, or has another checksum.
            ArchiveRefusedError: it is no archive, or contains something that is not allowed.
            ThrottledError: there are too many concurrent uploads.
            QuotaExceededError: the workspace would store more bytes than its limit.
        """
        if announced is not None and announced > self._bytes_max:
            raise self._too_large(announced)
        if wanted and (found := await self._kept(wanted, workspace)) is not None:
            return found
        with self._turn(user):
            await self._check_room(workspace, wanted, announced or 0)
            return await self._store(await self._receive(body, wanted), workspace)

    @contextlib.contextmanager
    def _turn(self, user: str) -> Generator[None]:
        """Count one upload while the `with` block runs. Raises ThrottledError."""
        if user and self._uploads_of[user] >= self._uploads_per_user:
            raise ThrottledError(
                f"{user[:128]} has {self._uploads_of[user]} uploads under way at this process, and one user may have "
                "no more (SLIPWAY_CONTEXT_UPLOADS_PER_USER_MAX); try again when one has ended",
                retry_after_s=BUSY_S,
            )
        if self.uploads >= self._uploads_max:
            raise ThrottledError(
                f"{self.uploads} uploads are under way, and this process receives no more at a time "
                "(SLIPWAY_CONTEXT_UPLOADS_MAX); try again",
                retry_after_s=BUSY_S,
            )
        self.uploads += 1
        self._uploads_of[user] += 1
        try:
            yield
        finally:
            self.uploads -= 1
            self._uploads_of[user] -= 1
            if not self._uploads_of[user]:
                del self._uploads_of[user]

    async def _check_room(self, workspace: str, id_: str, size: int) -> None:
        """Raise QuotaExceededError unless the workspace may store `size` more bytes besides its other archives."""
        if not self._workspace_bytes:
            return
        listed = await self._kube.list(INDEX_MAPS, namespace=workspace, label_selector=INDEX_SELECTOR)
        others = [found.index for found in listed.items if found.index is not None and found.index.id != id_]
        stored = sum(index.bytes for index in others)
        if stored + size > self._workspace_bytes:
            raise QuotaExceededError(
                f"workspace {workspace} stores {stored // _MIB} MiB in {len(others)} archives, and with {size} bytes "
                f"more it would have more than {self._workspace_bytes // _MIB} MiB "
                "(SLIPWAY_CONTEXT_WORKSPACE_BYTES_MAX). An archive is deleted an hour after the last allocation that "
                "uses it was deleted. Leave out what is not needed (.slipwayignore), delete allocations that have "
                "ended, or ask an administrator",
                retry_after_s=FULL_S,
            )

    async def find(self, id_: str, workspace: str) -> StoredArchive:
        """Return the archive. Raises NotFoundError when the workspace does not have it, or not completely."""
        found = await self._complete(id_, workspace)
        if found is None:
            raise NotFoundError(_missing(id_, workspace))
        return found

    async def use(self, id_: str, workspace: str) -> None:
        """Mark the archive as used by a launch. Raises InvalidError at `/context` when it does not exist."""
        if await self._kept(id_, workspace) is None:
            detail = _missing(id_, workspace)
            raise InvalidError(f"context: {detail}", fields=(FieldError("/context", detail),))

    async def read(self, stored: StoredArchive) -> AsyncIterator[bytes]:
        """Yield the bytes of the archive, piece by piece. Raises NotFoundError when a piece is missing."""
        meta = stored.map.metadata
        for number in range(stored.index.pieces):
            name = context.piece_name(stored.index.id, number)

            async def load(name: str = name) -> bytes:
                async def get() -> bytes:
                    piece = await self._kube.get(PIECE_MAPS, name, namespace=meta.namespace)
                    return piece.binary_data.get(PIECE_KEY, b"")

                return await retry.call(retry.QUICK, get, clock=self._clock, random=self._random)

            yield await self._cache.get((meta.uid, number), load)

    # --- receiving ------------------------------------------------------------------------------------------------

    async def _receive(self, body: AsyncIterator[bytes], wanted: str) -> Archive:
        digest = hashlib.sha256()
        pieces: list[bytes] = []
        held = bytearray()
        size = 0
        arriving = UploadBuffer()
        judging = asyncio.get_running_loop().run_in_executor(self._judges, _judged, arriving)
        try:
            while not judging.done():
                try:
                    async with asyncio.timeout(SILENCE_S):
                        part = await anext(body)
                except StopAsyncIteration:
                    break
                except TimeoutError as error:
                    raise MalformedError(f"the upload sent nothing for {SILENCE_S:.0f} s; send it again") from error
                size += len(part)
                if size > self._bytes_max:
                    raise self._too_large(None)
                digest.update(part)
                await arriving.add(part)
                held += part
                while len(held) >= PIECE_BYTES:
                    pieces.append(bytes(held[:PIECE_BYTES]))
                    del held[:PIECE_BYTES]
            else:
                # The check has already refused the archive, so its rest and its checksum do not matter.
                raise self._refused(await judging)
            if held:
                pieces.append(bytes(held))
            id_ = digest.hexdigest()
            if wanted and wanted != id_:
                raise MalformedError(f"what arrived ({size} bytes) has the SHA-256 {id_}, not {wanted}; send it again")
            arriving.end()
            judged = await judging
            if isinstance(judged, fetch.ArchiveError):
                raise self._refused(judged)
            return Archive(id=id_, pieces=tuple(pieces), totals=judged)
        finally:
            arriving.abandon()

    def _refused(self, judged: "fetch.Totals | fetch.ArchiveError") -> ArchiveRefusedError:
        return ArchiveRefusedError(
            f"the archive is refused: {judged}. Create it from plain files: tar --dereference -czf - -C FOLDER ."
        )

    def _too_large(self, size: int | None) -> BodyTooLargeError:
        has = f"has {size} bytes" if size else "is too long"
        return BodyTooLargeError(
            f"the archive {has}; at most {self._bytes_max} bytes are allowed. Leave out what is not needed (a file "
            ".slipwayignore says what the command line skips), and put data on a volume or into the image"
        )

    # --- storing --------------------------------------------------------------------------------------------------

    async def _store(self, received: Archive, workspace: str) -> StoredArchive:
        found = await self._kept(received.id, workspace)
        if found is not None:
            return found
        await self._check_room(workspace, received.id, received.size)
        index = Index(
            id=received.id,
            bytes=received.size,
            pieces=len(received.pieces),
            files=received.totals.files,
            unpacked_bytes=received.totals.unpacked_bytes,
        )
        home = await self._begin(index, workspace)
        calls = asyncio.Semaphore(CALLS_MAX)

        async def put(number: int, piece: bytes) -> None:
            async with calls:
                await self._put(home, received.id, number, piece)

        try:
            async with TaskGroup() as tasks:
                for number, piece in enumerate(received.pieces):
                    tasks.create_task(put(number, piece))
        except ExceptionGroup as group:
            raise group.exceptions[0] from group
        index = msgspec.structs.replace(index, complete=True)
        manifest = context.index_manifest(index, workspace, self._now())
        change = {"metadata": {"annotations": manifest["metadata"]["annotations"]}, "data": manifest["data"]}
        done = await self._kube.patch(INDEX_MAPS, home.metadata.name, change, namespace=workspace)
        return StoredArchive(map=done, index=index, created=True)

    async def _begin(self, index: Index, workspace: str) -> IndexMap:
        """Create the index, before the pieces; if another upload of the same archive created it, return that one."""
        try:
            return await self._kube.create(INDEX_MAPS, context.index_manifest(index, workspace, self._now()))
        except AlreadyExistsError:
            return await self._kube.get(INDEX_MAPS, context.index_name(index.id), namespace=workspace)

    async def _put(self, home: IndexMap, id_: str, number: int, piece: bytes) -> None:
        """Store one piece unless it is stored already; a piece of a deleted index is replaced."""

        async def attempt() -> None:
            try:
                await self._kube.create(PIECE_MAPS, context.piece_manifest(home, id_, number, piece))
            except AlreadyExistsError:
                await self._check(home, id_, number, piece)

        await retry.call(self.policy, attempt, clock=self._clock, random=self._random)

    async def _check(self, home: IndexMap, id_: str, number: int, piece: bytes) -> None:
        name = context.piece_name(id_, number)
        try:
            found = await self._kube.get(PIECE_MAPS, name, namespace=home.metadata.namespace)
        except NotFoundError as error:
            raise UnavailableError(f"ConfigMap {name} was deleted while it was read", retry_after_s=0.0) from error
        if context.is_of(found, home) and found.binary_data.get(PIECE_KEY) == piece:
            return
        meta = found.metadata
        with contextlib.suppress(NotFoundError, StaleError):
            await self._kube.delete(CONFIG_MAPS, name, namespace=meta.namespace, uid=meta.uid)
        raise UnavailableError(f"ConfigMap {name} belonged to an archive that was deleted", retry_after_s=0.0)

    async def _complete(self, id_: str, workspace: str) -> StoredArchive | None:
        try:
            found = await self._kube.get(INDEX_MAPS, context.index_name(id_), namespace=workspace)
        except NotFoundError:
            return None
        index = found.index
        is_whole = index is not None and index.complete and index.id == id_
        return StoredArchive(map=found, index=index) if index is not None and is_whole else None

    async def _kept(self, id_: str, workspace: str) -> StoredArchive | None:
        """Return the archive, and mark it as used so that it is not deleted; None when it does not exist any more."""
        stored = await self._complete(id_, workspace)
        if stored is None or self._clock.now() - stored.map.used_at < TOUCH_S:
            return stored
        meta = stored.map.metadata
        change = {"metadata": {"uid": meta.uid, "annotations": {context.ANNOTATION_USED: self._now()}}}
        try:
            await self._kube.patch(INDEX_MAPS, meta.name, change, namespace=meta.namespace)
        except (NotFoundError, StaleError):
            return None
        return stored

    def _now(self) -> str:
        return format_time(self._clock.now(), "seconds")


def _missing(id_: str, workspace: str) -> str:
    return (
        f"workspace {workspace} has no context {id_[:80]}; an unused archive is kept for an hour. Upload it first: "
        f"slipway run -c FOLDER, or PUT /api/v1/contexts?workspace={workspace}"
    )


def _judged(arriving: UploadBuffer) -> "fetch.Totals | fetch.ArchiveError":
    """Check an archive, in a thread. Return its totals, or the error for which it is refused."""
    try:
        return fetch.check(arriving)
    except fetch.ArchiveError as error:
        return error
    finally:
        arriving.stop_reading()


class PieceCache:
    """A cache of the pieces that were read last, up to `bytes_max`; concurrent reads of a piece load it once."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._loading: WeakValueDictionary[tuple[str, int], asyncio.Lock] = WeakValueDictionary()

    async def get(self, key: tuple[str, int], load: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the piece. An error of `load` is raised to the caller that loads; waiting callers then try in turn."""
        lock = self._loading.setdefault(key, asyncio.Lock())
        async with lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            piece = await load()
            self._keep(key, piece)
            return piece

    def _keep(self, key: tuple[str, int], piece: bytes) -> None:
        self._kept[key] = piece
        self._bytes += len(piece)
        while self._bytes > self._bytes_max and self._kept:
            _, gone = self._kept.popitem(last=False)
            self._bytes -= len(gone)
