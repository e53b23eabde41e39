"""Commands in ranks: finds the container, limits the sessions of a user, and relays messages between both sides.

Owns the lookup from a rank to its container, the limits of a session, and the message to the client when a session ends
early. Knows neither HTTP nor permissions. The messages are those of Kubernetes (`model/exec_channels.py`). They are
relayed unchanged, so that no message is lost between two framings.

Invariants: each message is relayed once and in order; a side that reads slowly makes the other side wait; a message is
buffered whole, so its size is limited; a session without traffic ends, and so does one whose pod is gone or whose node
does not answer; the client receives the reason.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from slipway.api.allocations.explain import state_sentence
from slipway.api.cluster.cluster_view import is_node_silent
from slipway.api.cluster.seen_nodes import SeenNode
from slipway.api.http.errors import ConflictError
from slipway.api.http.streaming import first_of
from slipway.api.ports import Kube, ShutdownSignal
from slipway.api.queues.queue_view import gate_of, is_waiting
from slipway.crd.members import departed_ranks, pod_uids, rank_count
from slipway.crd.resolve import template_of
from slipway.crd.roleresources import MAIN_CONTAINER, containers_of, main_container
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import (
    DeniedError,
    FieldError,
    InvalidError,
    NotFoundError,
    ThrottledError,
    TransientError,
    UnavailableError,
)
from slipway.kube.objects import ContainerState, Pod
from slipway.kube.ports import ContainerChannels
from slipway.kube.resources import PODS
from slipway.model import exec_channels
from slipway.model.ids import pod_name
from slipway.model.lifecycle import Phase
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import UnitTurns

SHELL = ("sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash || exec sh")
"""The command when the client names none: bash if the image has it, else sh."""
NORMAL, GOING_AWAY, WRONG_TYPE, TOO_BIG = 1000, 1001, 1003, 1009
_FROM_CLIENTS = (exec_channels.STDIN, exec_channels.RESIZE, exec_channels.CLOSE)
AGAIN_S = 5.0
LOOK_S = 30.0
"""How long a container may be silent before the session looks for its pod and its node, and the time between looks."""
CLOSE_S = 5.0
"""How long a client may take to read the reason for the end."""


class ExecRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The command that a client wants to run; an empty `container` means the main container."""

    rank: int
    command: tuple[str, ...]
    container: str = ""
    stdin: bool = False
    tty: bool = False


class RankContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A running container."""

    namespace: str
    pod: str
    pod_uid: str
    container: str


class ExecSessions:
    """Counts the sessions of each user at this process; a user has at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    @contextlib.contextmanager
    def held(self, user: str) -> Generator[None]:
        """Count a session while the context is open. Raises ThrottledError when the user has too many."""
        if self._open[user] >= self._limit:
            raise ThrottledError(
                f"you have {self._limit} sessions in ranks already (SLIPWAY_EXEC_SESSIONS_MAX); close one",
                retry_after_s=AGAIN_S,
            )
        self._open[user] += 1
        try:
            yield
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]


async def find_container(kube: Kube, allocation: Allocation, wanted: ExecRequest) -> RankContainer:
    """Find the running container for a request.

    Raises:
        NotFoundError: there is no such rank. InvalidError: there is no such container.
        ConflictError: the rank or the container does not run yet, or does not run any more.
    """
    id_, count, rank = id_of(allocation), rank_count(allocation), wanted.rank
    if rank >= count:
        known = "only rank 0" if count == 1 else f"ranks 0 to {count - 1}"
        raise NotFoundError(f"allocation {id_} has no rank {rank}; it has {known}")
    if allocation.status.phase is Phase.TERMINATED:
        raise ConflictError(f"{id_} has {state_sentence(allocation)}; slipway logs {id_} shows its output")
    if is_waiting(allocation):
        raise ConflictError(f"{id_} does not run yet: {gate_of(allocation)[1]}")
    if rank in departed_ranks(allocation):
        raise ConflictError(f"rank {rank} of {id_} does not run: it was evicted for another allocation")
    name, namespace = pod_name(id_, allocation.status.attempt, rank), allocation.metadata.namespace
    try:
        pod = await kube.get(PODS, name, namespace=namespace)
    except NotFoundError:
        raise ConflictError(f"rank {rank} of {id_} has no pod now ({state_sentence(allocation)})") from None
    # Any pod may have this name, so its uid must be in the release, which lists the pods of the attempt.
    if pod.metadata.uid not in pod_uids(allocation):
        raise ConflictError(f"rank {rank} of {id_} is not released yet ({state_sentence(allocation)})")
    container = _running(pod, allocation, wanted)
    return RankContainer(namespace=namespace, pod=name, pod_uid=pod.metadata.uid, container=container)


async def why_lost(kube: Kube, nodes: Callable[[], Awaitable[Iterable[SeenNode]]], place: RankContainer) -> str:
    """Return why nothing will come from the container any more; empty while its pod is there and its node reports.

    A node that dies closes no connection, so its silence looks like that of a program.
    """
    try:
        pod = await kube.get(PODS, place.pod, namespace=place.namespace)
        if pod.metadata.uid != place.pod_uid:
            return "its pod is gone"
        silent = {node.metadata.name for node in await nodes() if is_node_silent(node)}
    except NotFoundError:
        return "its pod is gone"
    except (TransientError, DeniedError):
        return ""  # that the API server does not answer says nothing about the pod
    return f"its node {pod.spec.node_name} does not answer" if pod.spec.node_name in silent else ""


def _running(pod: Pod, allocation: Allocation, wanted: ExecRequest) -> str:
    states = {each.name: each.state for each in (*pod.status.container_statuses, *pod.status.init_container_statuses)}
    names = [each.name for each in (*pod.spec.containers, *pod.spec.init_containers)]
    name = wanted.container or _main(allocation, wanted.rank)
    if name not in names:
        known = ", ".join(names)
        detail = f"{name[:64]!r} is not a container of its pods; they have {known}"
        raise InvalidError(f"parameter container: {detail}", fields=(FieldError("", f"?container= {detail}"),))
    state = states.get(name, ContainerState())
    if state.running is None:
        where = f"container {name} of rank {wanted.rank} of {id_of(allocation)}"
        raise ConflictError(f"{where} is not running: {_why(state, pod)}")
    return name


def _main(allocation: Allocation, rank: int) -> str:
    """Return the main container of a rank: the template of its role, if it has one, replaces that of the allocation."""
    template, first = allocation.spec.template, 0
    for role in allocation.spec.ranks:
        if first <= rank < first + role.count:
            template = template_of(allocation.spec, role)
        first += role.count
    containers = [str(each.get("name")) for each in containers_of(template)]
    return containers[main_container(template)] if containers else MAIN_CONTAINER


def _why(state: ContainerState, pod: Pod) -> str:
    if state.terminated is not None:
        return f"it has ended with exit code {state.terminated.exit_code}"
    if state.waiting is not None and (state.waiting.message or state.waiting.reason):
        return state.waiting.message or state.waiting.reason
    return f"its pod is {pod.status.phase}"


@contextlib.asynccontextmanager
async def opened(kube: Kube, place: RankContainer, wanted: ExecRequest) -> AsyncGenerator[ContainerChannels]:
    """Start the command; yield its channels.

    Raises:
        DeniedError: the message names the permission to grant.
        ControlPlaneError: as every call of Kubernetes does.
    """
    async with contextlib.AsyncExitStack() as stack:
        try:
            channels = await stack.enter_async_context(
                kube.exec(
                    place.namespace,
                    place.pod,
                    container=place.container,
                    command=wanted.command,
                    stdin=wanted.stdin,
                    tty=wanted.tty,
                )
            )
        except DeniedError as error:
            raise DeniedError(
                f"the account of the api may not run commands in workspace {place.namespace}: it needs the verbs "
                f"create and get on pods/exec, which the chart grants with api.settings.execEnabled=true ({error})"
            ) from error
        yield channels


class ExecSession:
    """Relays between one client and one command; `touch` is called for each message.

    `look` is called while the container is silent, and returns why the session must end, or an empty text.
    """

    def __init__(
        self,
        socket: WebSocket,
        channels: ContainerChannels,
        *,
        clock: Clock,
        stop: ShutdownSignal,
        idle_s: float,
        touch: Callable[[], None],
        look: Callable[[], Awaitable[str]],
    ) -> None:
        self._socket = socket
        self._channels = channels
        self._clock = clock
        self._stop = stop
        self._idle_s = idle_s
        self._touch = touch
        self._look = look
        self._used_at = self._heard_at = clock.monotonic()
        self._has_ended = False
        self._is_idle = False
        self._lost = ""

    async def run(self) -> None:
        """Relay messages until the command has ended, the client has left, the session is idle or the process stops.

        It also ends when the container is lost.
        """
        relays = (self._to_client(), self._to_container())
        # The connection to the container may break while input is sent to it: then `_close` says so.
        with contextlib.suppress(WebSocketDisconnect, UnavailableError):
            await first_of(*relays, self._stop.wait(), self._until_idle(), self._until_lost())
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._close()

    async def _to_client(self) -> None:
        turns = UnitTurns()
        while message := await self._channels.receive():
            self._use()
            self._heard_at = self._clock.monotonic()
            await self._socket.send_bytes(message)
            await turns.passed()
            if message[0] == exec_channels.STATUS:
                self._has_ended = True
                return

    async def _to_container(self) -> None:
        turns = UnitTurns()
        while True:
            await turns.passed()
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            if data is None:
                await self._socket.close(WRONG_TYPE, f"messages are binary ({exec_channels.PROTOCOL})")
                return
            if len(data) > exec_channels.MESSAGE_BYTES_MAX:
                await self._socket.close(TOO_BIG, f"a message has at most {exec_channels.MESSAGE_BYTES_MAX} bytes")
                return
            if data and data[0] in _FROM_CLIENTS:
                self._use()
                await self._channels.send(data)

    async def _until_idle(self) -> None:
        while (left_s := self._used_at + self._idle_s - self._clock.monotonic()) > 0:
            await self._clock.sleep(left_s)
        self._is_idle = True

    async def _until_lost(self) -> None:
        while not self._lost:
            await self._clock.sleep(LOOK_S)
            if self._clock.monotonic() - self._heard_at >= LOOK_S:
                self._lost = await self._look()

    def _use(self) -> None:
        self._used_at = self._clock.monotonic()
        self._touch()

    async def _close(self) -> None:
        if self._socket.application_state is not WebSocketState.CONNECTED:
            return
        if not self._has_ended:
            words, is_stopping = "the connection to the container was lost", self._stop.is_set()
            if self._is_idle:
                words = f"there was no input and no output for {self._idle_s:g} s (SLIPWAY_EXEC_IDLE_S)"
            elif is_stopping:
                words = "the api is restarting, or you may no longer run commands here"
            elif self._lost:
                words = f"the container was lost: {self._lost}"
            await self._socket.send_bytes(bytes((exec_channels.STATUS,)) + exec_channels.failure(words))
        await self._socket.close(GOING_AWAY if self._stop.is_set() else NORMAL)
