"""`SlipwayExecutor`: a `concurrent.futures.Executor` whose calls are launches. Needs `slipway-ai[executor]`.

Owns how a function is sent to its ranks, how its result is returned, and the thread that waits for all calls. A call is
sent in the files of its launch. Its result is returned in lines of its log, or through a folder that this machine and
the ranks share.

Promises: a call is launched once. A future ends after its allocation; if the api, the log store or the folder does not
answer for `AWAY_S`, it ends with an error, and its allocation continues. The error of a failed call contains the reason
and the id. Not promised: that a new process can continue a call after this process has ended. Its allocation continues,
but its result is available only in `folder`.

A result is unpickled here, so the creator of a result can run code in this process. Therefore each call has a key in
the files of its launch, and the rank signs its result with this key. An attacker who can write to the log store, the
log archive or the folder, but cannot read the files of the launch, cannot create a valid result. Not promised:
protection against a rank, an image or an api that an attacker controls.
"""

import base64
import contextlib
import hmac
import json
import pickle
import secrets
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from slipway.api.schemas import AllocationView
from slipway.errors import ControlPlaneError, InvalidError, NotFoundError, PermanentError, TransientError
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from slipway.sdk import Client, Run

P = ParamSpec("P")
T = TypeVar("T")
Json = dict[str, Any]

LOOK_S = 1.0
"""Seconds between two checks for ended calls; one check is one request for all calls."""
PAGE = 500
CALL_BYTES_MAX = 120 * 1024
"""Maximum size of a pickled call in the files of a launch, without a shared folder."""
RESULT_BYTES_MAX = 256 * 1024
"""Maximum size of a pickled result in the lines of a log, without a shared folder."""
LOG_LATE_S = 20.0
"""Seconds after the end of a call in which missing log lines are still awaited."""
AWAY_S = 3600.0
"""Seconds for which the api, the log store or the folder may fail without a break before the waiting calls fail."""
LABEL = "slipway-executor"
_CALL, _SCRIPT = "slipway_call.b64", "slipway_call.py"
_PIECE_CHARS = 4_000
_KEY_BYTES = 32
_BY_ITSELF = (Result.SUCCEEDED, Result.FAILED)
_FORGED = (
    "text",
    b"what came back is not signed with the key of the call, so it was not read: its rank did not write it",
)

_PROGRAM = '''"""Runs one call of SlipwayExecutor in a rank: reads it, calls it, and says or stores what came of it."""
import base64, hmac, json, os, pickle, sys, traceback

MARK, VERSION, FOLDER, RESULT_BYTES_MAX, PIECE = {mark!r}, {version!r}, {folder!r}, {bytes_max}, {piece}
KEY, RANK = bytes.fromhex({key!r}), int(os.environ.get("RANK", "0"))

def tell(kind, data):
    if not FOLDER and len(data) > RESULT_BYTES_MAX:
        limit = "its result has %d bytes pickled, and a log brings back %d: give SlipwayExecutor a shared folder"
        kind, data = "text", (limit % (len(data), RESULT_BYTES_MAX)).encode()
    code = hmac.new(KEY, ("%d %s " % (RANK, kind)).encode() + data, "sha256").hexdigest()
    if FOLDER:
        # Renamed when it is whole: the reader sees all of it or nothing.
        part = os.path.join(FOLDER, "result-%d.part" % RANK)
        with open(part, "wb") as file:
            file.write(json.dumps([kind, code, base64.b64encode(data).decode()]).encode())
        os.replace(part, os.path.join(FOLDER, "result-%d" % RANK))
        return
    text = base64.b64encode(data).decode()
    pieces = [text[at:at + PIECE] for at in range(0, len(text), PIECE)] or [""]
    for number, piece in enumerate(pieces):
        print(MARK + json.dumps([RANK, number, len(pieces), kind, code, piece]), flush=True)

def main():
    if list(sys.version_info[:2]) != VERSION:
        tell("text", b"the call was pickled by Python %d.%d, and the image has %d.%d: use an image with the same one"
             % (*VERSION, *sys.version_info[:2]))
        return 1
    try:
        import cloudpickle
    except ImportError:
        tell("text", b"the image has no cloudpickle: install it there")
        return 1
    try:
        if FOLDER:
            with open(os.path.join(FOLDER, "call"), "rb") as file:
                function, args, kwargs = cloudpickle.load(file)
        else:
            with open({call!r}, "rb") as file:
                function, args, kwargs = cloudpickle.loads(base64.b64decode(file.read()))
        told = ("result", cloudpickle.dumps(function(*args, **kwargs)))
    except BaseException as error:
        said = traceback.format_exc()
        sys.stderr.write(said)
        try:
            told = ("error", cloudpickle.dumps((error, said)))
        except Exception:
            told = ("text", said.encode())
    tell(*told)
    return 0 if told[0] == "result" else 1

sys.exit(main())
'''

ReportedValue = tuple[str, bytes]
"""(kind, data): a pickled result, a pickled error, or a text."""
_Line = tuple[int, int, int, str, str, str]
"""Rank, number of the piece, number of pieces, kind, code, piece."""
_JSON = json.JSONDecoder()


class CallFailedError(PermanentError):
    """A call has no result: it was killed, its node was lost, or its result cannot be read. The message contains the
    id."""


class RunFuture(Future[T]):
    """The future of one call. `allocation_id` is empty until it is launched."""

    def __init__(self, cancel: "Callable[[RunFuture[Any]], None]") -> None:
        super().__init__()
        self.allocation_id = ""
        self._kill = cancel

    @property
    def is_waiting(self) -> bool:
        """Whether its call has neither started nor ended."""
        return not self.running() and not self.done()

    def cancel(self) -> bool:
        """Cancel the call if it does not run yet, and end its allocation. Return whether it was cancelled."""
        was_cancelled = self.cancelled()
        done = super().cancel()
        if done and not was_cancelled:
            self._kill(self)
        return done


class _FailureTimer:
    """How long something has failed without a break."""

    def __init__(self) -> None:
        self._since_s = 0.0
        """since when it fails, in monotonic seconds; 0 while it does not"""

    def is_over(self) -> bool:
        """Note a failure. Return whether it has lasted for `AWAY_S`."""
        now = time.monotonic()
        self._since_s = self._since_s or now
        return now - self._since_s >= AWAY_S

    def renew(self) -> None:
        """Note a success."""
        self._since_s = 0.0


class _Call:
    """One call that was launched."""

    def __init__(self, future: RunFuture[Any], mark: str, key: bytes) -> None:
        self.future, self.mark, self.key = future, mark, key
        self.ended_s = 0.0
        """when its end was first seen, in monotonic seconds; 0 before"""
        self.patience = _FailureTimer()


class SlipwayExecutor(Executor):
    """Runs each call as a launch: `with SlipwayExecutor(image=..., gpus=1) as pool: pool.submit(train, lr=0.1)`.

    `launch` are the fields of a launch (`Client.run`): image, gpus, cpus, memory, queue, env and so on. With `ranks=N`
    each rank calls the function, and the result is the list of their results, by rank. The image needs Python of the
    same minor version and `cloudpickle`. `python` is the command that starts it there.

    Leave the `with` block, or call `shutdown`, before the program ends. Otherwise calls that still run continue, and
    their results are lost.

    `folder` is a path that this machine and the ranks share (a volume that the launch mounts). Without it, a call may
    have 120 KiB and a result 256 KiB, pickled, and results need the logs, which need Redis.

    Raises:
        InvalidError: `submit` got a call that is too large. `submit` also raises the errors of `Client.run`.
    """

    def __init__(
        self, client: Client | None = None, *, folder: str = "", python: tuple[str, ...] = ("python",), **launch: Any
    ) -> None:
        import cloudpickle

        if reserved := sorted({"command", "files", "key"} & launch.keys()):
            raise InvalidError(f"{reserved[0]}: the executor sets it for each call; leave it out")
        if folder and not Path(folder).is_absolute():
            raise InvalidError("folder: must be an absolute path, the same here and in the ranks")
        self._dumps: Callable[[Any], bytes] = cloudpickle.dumps  # pyright: ignore[reportUnknownMemberType] - it has no types
        self._client = client or Client()
        self._owns_client = client is None
        self._folder, self._python, self._launch = folder, python, dict(launch)
        self._token = uuid.uuid4().hex[:16]
        self._ranks = launch["ranks"] if isinstance(launch.get("ranks"), int) else 1
        self._lock = threading.Condition()
        self._calls: dict[str, _Call] = {}
        """{allocation id: its call}"""
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._patience = _FailureTimer()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Launch one call; the future has its `allocation_id`."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
        future: RunFuture[T] = RunFuture(self._end)
        mark = f"slipway-result-{uuid.uuid4().hex}:"
        key = secrets.token_bytes(_KEY_BYTES)
        run = self._launched(mark, key, self._dumps((fn, args, kwargs)))
        future.allocation_id = run.id
        with self._lock:
            # After a shutdown during the launch, the thread may have ended, and nothing would wait for this call.
            is_late = self._is_closed
            if not is_late:
                self._calls[run.id] = _Call(future, mark, key)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._wait, name="slipway-executor", daemon=True)
                    self._thread.start()
                self._lock.notify_all()
        if is_late:
            self._end(future)
            raise RuntimeError("cannot schedule new futures after shutdown")
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. With `cancel_futures`, calls that do not run yet are cancelled."""
        with self._lock:
            self._is_closed = True
            waiting = [call.future for call in self._calls.values()] if cancel_futures else []
            thread = self._thread
            self._lock.notify_all()
        for future in waiting:
            future.cancel()
        if wait and thread is not None:
            thread.join()
        if thread is None and self._owns_client:
            self._client.close()

    # --- a call, out and back -----------------------------------------------------------------------------------------

    def _launched(self, mark: str, key: bytes, call: bytes) -> Run:
        folder = ""
        files: list[Json] = []
        if self._folder:
            folder = str(Path(self._folder, mark.rstrip(":")))
            Path(folder).mkdir(parents=True)
            Path(folder, "call").write_bytes(call)
        elif len(call) > CALL_BYTES_MAX:
            detail = f"the call has {len(call)} bytes pickled, and a launch accepts at most {CALL_BYTES_MAX}"
            raise InvalidError(f"{detail}; give SlipwayExecutor a shared folder, or pass where the data are")
        else:
            files = [{"path": _CALL, "content": base64.b64encode(call).decode()}]
        program = program_of(mark, key, folder)
        labels = {**self._launch.get("labels", {}), LABEL: self._token}
        rest = {name: value for name, value in self._launch.items() if name != "labels"}
        files.append({"path": _SCRIPT, "content": program})
        return self._client.run([*self._python, _SCRIPT], key=mark.rstrip(":"), files=files, labels=labels, **rest)

    def _told(self, id_: str, call: _Call) -> dict[int, ReportedValue]:
        """Return {rank: its result} of the ranks whose results are complete, signed or not."""
        if self._folder:
            return self._from_folder(call)
        lines = self._client.logs(id_, search=call.mark, stream="stdout")
        told = values_in((line.text for line in lines), call.mark, call.key)
        return {rank: each for rank, each in told.items() if each is not _FORGED or rank in range(self._ranks)}

    def _outcome(self, view: AllocationView, told: Mapping[int, ReportedValue]) -> Any:
        """Return the result of a call that has ended. Raises the exception of the call, or CallFailedError."""
        id_ = view.id
        for rank, (kind, data) in sorted(told.items(), key=lambda each: (each[1] is _FORGED, each[0])):
            where = f"rank {rank} of {id_}"
            if kind == "text":
                raise CallFailedError(f"{where}: {data.decode(errors='replace')}")
            if kind == "error":
                error, said = pickle.loads(data)  # noqa: S301 - see the head of the module
                error.add_note(f"in {where}:\n{said}")
                raise error
        if view.result is not Result.SUCCEEDED or len(told) < self._ranks:
            how = view.result.value if view.result is not None else view.phase.value
            why = f" ({view.reason})" if view.reason else ""
            said = view.message or "its result was not received"
            raise CallFailedError(f"{id_}: {how}{why}: {said}; see: slipway logs {id_}")
        results = [pickle.loads(told[rank][1]) for rank in range(self._ranks)]  # noqa: S301 - see the head of the module
        return results if "ranks" in self._launch else results[0]

    def _from_folder(self, call: _Call) -> dict[int, ReportedValue]:
        found: dict[int, ReportedValue] = {}
        for rank in range(self._ranks):
            with contextlib.suppress(FileNotFoundError):
                raw = Path(self._folder, call.mark.rstrip(":"), f"result-{rank}").read_bytes()
                try:
                    kind, code, text = msgspec.json.decode(raw, type=tuple[str, str, str])
                except (msgspec.DecodeError, UnicodeDecodeError):
                    found[rank] = _FORGED
                else:
                    found[rank] = _checked(rank, kind, code, text, call.key)
        return found

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Check which calls run and which have ended, until the executor is shut down and no call remains."""
        while True:
            with self._lock:
                if self._is_closed and not self._calls:
                    break
                self._lock.wait(LOOK_S if self._calls else None)
                calls = dict(self._calls)
            if not calls:
                continue
            selector = f"{LABEL}={self._token}"
            try:
                listed = self._client.list(active=True, label_selector=selector, limit=PAGE)
                lives = {view.id: view.phase for view in listed}
            except TransientError as error:
                if self._patience.is_over():
                    self._give_up(calls, error)
                    self._patience.renew()
                continue
            except ControlPlaneError as error:
                # A repetition would be refused too, for example because the login has expired. The allocations
                # continue.
                self._give_up(calls, error)
                continue
            self._patience.renew()
            for id_, call in calls.items():
                if id_ not in lives:
                    self._ended(id_, call)
                elif lives[id_] is Phase.RUNNING and call.future.is_waiting:
                    call.future.set_running_or_notify_cancel()
        if self._owns_client:
            self._client.close()

    def _ended(self, id_: str, call: _Call) -> None:
        """Settle a call that is not listed any more. If it ended by itself, its last lines may arrive a little
        later."""
        try:
            view = self._client.get(id_)
            if view.phase is not Phase.TERMINATED:
                return
            told = self._told(id_, call)
            call.patience.renew()
            signed = {rank: each for rank, each in told.items() if each is not _FORGED}
            call.ended_s = call.ended_s or time.monotonic()
            is_late = self._folder or time.monotonic() - call.ended_s > LOG_LATE_S
            # A line that no rank has signed ends no wait: the lines of the ranks may still arrive.
            if len(signed) < self._ranks and view.result in _BY_ITSELF and not is_late and not _has_failure(signed):
                return
            self._settle(id_, call, lambda: self._outcome(view, told))
        except (TransientError, OSError) as error:
            if call.patience.is_over():
                said = f"its result could not be read for {AWAY_S / 60:.0f} minutes: {error}; see: slipway logs {id_}"
                self._settle(id_, call, CallFailedError(f"{id_}: {said}"))
        except NotFoundError:
            self._settle(id_, call, CallFailedError(f"{id_}: it was deleted before its result was read"))
        except ControlPlaneError as error:
            self._settle(id_, call, error)

    def _give_up(self, calls: Mapping[str, _Call], error: ControlPlaneError) -> None:
        for id_, call in calls.items():
            self._settle(id_, call, error)

    def _settle(self, id_: str, call: _Call, outcome: "Callable[[], Any] | Exception") -> None:
        with self._lock:
            self._calls.pop(id_, None)
        future = call.future
        if future.cancelled() or (future.is_waiting and not future.set_running_or_notify_cancel()):
            return
        try:
            if isinstance(outcome, Exception):
                raise outcome
            result = outcome()
        except BaseException as error:  # noqa: BLE001 - the caller of the future gets it
            future.set_exception(error)
        else:
            future.set_result(result)
        if self._folder:
            shutil.rmtree(Path(self._folder, call.mark.rstrip(":")), ignore_errors=True)

    def _end(self, future: RunFuture[Any]) -> None:
        """End the allocation of a call that was cancelled."""
        if not future.allocation_id:
            return
        try:
            self._client.kill(future.allocation_id)
        except ControlPlaneError:
            return  # it has ended, or `_wait` still sees it


def program_of(mark: str, key: bytes, folder: str = "") -> str:
    """Return the program that a rank runs.

    It reads the call from its files or from the folder. It prints a line that begins with `mark` for each piece of the
    result, which is signed with `key`; or it writes the result to the folder.
    """
    return _PROGRAM.format(
        mark=mark,
        key=key.hex(),
        version=list(sys.version_info[:2]),
        folder=folder,
        bytes_max=RESULT_BYTES_MAX,
        piece=_PIECE_CHARS,
        call=_CALL,
    )


def values_in(texts: Iterable[str], mark: str, key: bytes) -> dict[int, ReportedValue]:
    """Return {rank: its result} from these lines of the log, for the ranks whose results are complete."""
    pieces: dict[tuple[int, int, str, str], dict[int, str]] = {}
    for text in texts:
        _, is_marked, said = text.partition(mark)
        try:
            # Another thread of the program may have printed to the same line.
            rank, number, count, kind, code, piece = msgspec.convert(_JSON.raw_decode(said)[0], _Line)
        except (ValueError, RecursionError, msgspec.ValidationError):
            continue
        if is_marked:
            pieces.setdefault((rank, count, kind, code), {})[number] = piece
    found: dict[int, ReportedValue] = {}
    for (rank, count, kind, code), parts in pieces.items():
        if len(parts) == count and sorted(parts) == list(range(count)):
            told = _checked(rank, kind, code, "".join(parts[number] for number in range(count)), key)
            # Another writer may have added lines; a signed result has precedence.
            found[rank] = found.get(rank, told) if told is _FORGED else told
    return found


def _checked(rank: int, kind: str, code: str, text: str, key: bytes) -> ReportedValue:
    """Return the result of a rank if it has signed it, else an error text."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        return _FORGED
    signed = hmac.new(key, f"{rank} {kind} ".encode() + data, "sha256").hexdigest()
    return (kind, data) if hmac.compare_digest(signed.encode(), code.encode()) else _FORGED


def _has_failure(told: Mapping[int, ReportedValue]) -> bool:
    return any(kind != "result" for kind, _ in told.values())
