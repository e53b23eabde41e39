"""`AsyncClient`: the API for programs on asyncio. It adds the asyncio IO to the modules without IO.

Owns the connection and the waiting. `calls`, `retries`, `refusals` and `watches` decide what is sent and what an answer
means. `client.py` is the same client without asyncio; a test checks that both have the same methods.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import aclosing, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from slipway.api.allocations.batch_schemas import BatchAnswer, LaunchesAnswer
from slipway.api.queues.job_schemas import JobChanged, JobView
from slipway.api.schemas import (
    AllocationList,
    AllocationView,
    ExplainView,
    LogLineView,
    Me,
    NodeView,
    PodView,
    PoolView,
    QueueView,
    TimelineView,
)
from slipway.errors import (
    ControlPlaneError,
    DeadlineError,
    InvalidError,
    NotFoundError,
    TransientError,
    UnavailableError,
)
from slipway.model.events import AllocationEvent
from slipway.model.lifecycle import Kind, Phase
from slipway.sdk import calls, commands, launches, refusals, watches
from slipway.sdk.calls import ApiCall, ListFilters, LogFilters, UsageFilters
from slipway.sdk.client import CALL_S, LOOK_S, Page
from slipway.sdk.commands import CommandOutput, CommandResult, RankCommand
from slipway.sdk.retries import RetryBudget, Tries, chance
from slipway.sdk.runs import RunState
from slipway.sdk.server_version import ServerVersion
from slipway.sdk.watches import Watch

if TYPE_CHECKING:
    from slipway.api.usage.usage_view import UsageView

Json = dict[str, Any]
T = TypeVar("T")


class AsyncClient:
    """The API of one server.

    The server, the token and the user are found as the `slipway` command finds them. The order is: the arguments, the
    environment (`SLIPWAY_SERVER`, `SLIPWAY_API_TOKEN`, `SLIPWAY_USER`), the current login context, the local stack.
    Every call ends within `timeout_s`, its retries included. A launch is never made twice.

    Raises:
        ControlPlaneError: every method may raise it; its `code`, `fields` and `next_step` say more.
    """

    def __init__(
        self, server: str = "", *, token: str = "", context: str = "", user: str = "", timeout_s: float = CALL_S
    ) -> None:
        import httpx2

        from slipway.sdk import transport

        self._transport = transport
        self._settings = transport.settings_of(server, token, context, user, timeout_s)
        address = self._settings.server
        self._http = httpx2.AsyncClient(
            base_url=transport.base_url(address), verify=transport.verify_of(address), trust_env=False
        )
        self._budget = RetryBudget()
        self._server_version = ServerVersion(address.url)

    def __repr__(self) -> str:
        return f"<AsyncClient of {self._settings.server.url}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    @property
    def server_version(self) -> str:
        """The version of the server, read from its last answer; empty before the first answer.

        The client warns once (`VersionWarning`) when the server has another minor version.
        """
        return self._server_version.value

    # --- launch -------------------------------------------------------------------------------------------------------

    def launch(self, kind: Kind | str, *, key: str = "", **fields: Any) -> "AsyncLaunch":
        """Launch a workload of any kind: notebook, shell, command, tensorboard or training.

        `fields` are the fields of a launch body in snake_case, and the short forms `ranks=4`, `gpus=1`, `cpus=2` and
        `memory="4Gi"` (of each rank). Calls with the same `key` launch once. Without a `key`, each call launches anew.
        """
        body = launches.body_of(str(kind), fields)
        call = calls.launch(body, key or f"sdk-{uuid.uuid4().hex}")
        return AsyncLaunch(self, self._call(call))

    def run(self, command: Sequence[str], *, key: str = "", **fields: Any) -> "AsyncLaunch":
        """Run a command on one or many ranks, as `slipway run` does."""
        return self.launch(Kind.TRAINING, key=key, command=command, **fields)

    async def launch_many(
        self, kind: Kind | str, each: Sequence[Mapping[str, Any]] = (), *, key: str = "", **common: Any
    ) -> LaunchesAnswer:
        """Launch many similar workloads in one request: `launch_many("training", [{"name": "a"}], image="i")`.

        Each item of `each` has a `name` and the fields of `launch` that differ from `common`. The answer has one item
        for each launch; a refused launch raises nothing. One request launches at most 200. With the same `key`, each
        name is launched once. A call with `replicas`, a `name` and a `service` needs no `each`.
        """
        body = launches.body_of(str(kind), common)
        different = [launches.difference_of(str(kind), fields) for fields in each]
        return await self._call(calls.launch_many(body, different, key or f"sdk-{uuid.uuid4().hex}"))

    async def preview(self, kind: Kind | str, **fields: Any) -> Json:
        """Return what a launch would become, and whether it fits now; launches nothing."""
        return await self._call(calls.preview(launches.body_of(str(kind), fields)))

    # --- look ---------------------------------------------------------------------------------------------------------

    async def attach(self, id_: str) -> "AsyncRun":
        """Return the run with this id, name or unique prefix of an id."""
        return AsyncRun(self, await self.get(id_))

    async def get(self, id_: str) -> AllocationView:
        """Return one allocation."""
        return await self._call(calls.get(id_))

    def list(self, **filters: Unpack[ListFilters]) -> "AsyncPages":
        """Return the allocations, loaded page by page during the iteration."""
        return AsyncPages(lambda cursor: self._call(calls.list_page(filters, cursor)))

    async def explain(self, id_: str, *, foresee: bool = False) -> ExplainView:
        """Explain the allocation's state and what would help; `foresee` also requests the planner's forecast."""
        return await self._call(calls.explain(id_, foresee=foresee))

    async def timeline(self, id_: str) -> TimelineView:
        """Return how long the allocation was in each phase."""
        return await self._call(calls.timeline(id_))

    async def pods(self, id_: str) -> Sequence[PodView]:
        """Return the pods of the allocation."""
        return (await self._call(calls.pods(id_))).items

    def logs(
        self, id_: str, *, follow: bool = False, after: str = "", **filters: Unpack[LogFilters]
    ) -> "AsyncEntryStream[LogLineView]":
        """Return the log lines of the ranks; with `follow` also new lines, until the allocation has ended.

        A gap in the log is a line whose `missing` is the number of lost lines. After a lost connection the stream
        continues where it was.
        """
        if follow:
            watch = watches.watch_lines(calls.log_stream_path(id_), calls.parameters(filters), after=after)
            return AsyncEntryStream(lambda: watch.cursor, self._entries(watch, lambda: self._has_ended(id_)))
        return AsyncEntryStream[LogLineView].paged(after, lambda cursor: self._log_page(id_, filters, cursor))

    def events(
        self, id_: str = "", *, follow: bool = False, after: str = "", workspace: str = "", types: str = ""
    ) -> "AsyncEntryStream[AllocationEvent]":
        """Return the transitions of one allocation; without an id, follow the transitions of all allocations forever.

        With `follow`, the stream of one allocation ends when the allocation has ended.

        Another stream, also one in another process, continues at the `cursor` of this stream (`after`). `workspace` and
        `types` (`running,terminated`) filter the transitions of all allocations.
        """
        if id_ and (workspace or types):
            raise InvalidError("events: workspace and types filter the events of all allocations; leave the id out")
        if id_ and not follow:
            return AsyncEntryStream[AllocationEvent].paged(after, lambda cursor: self._event_page(id_, cursor))
        query = {"workspace": workspace, "type": types}
        watch = watches.watch_events(calls.event_stream_path(id_), query, after=after, ends=bool(id_))
        return AsyncEntryStream(lambda: watch.cursor, self._entries(watch, _over(watch)))

    async def wait(self, id_: str, *, until: str = "ended", timeout_s: float | None = None) -> AllocationView:
        """Wait until the allocation is `running`, `ready` or has `ended`, or has ended before that.

        Raises:
            DeadlineError: the allocation has not reached that state after `timeout_s`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        view = await self.get(id_)
        watch = watches.watch_of(view, calls.event_stream_path(view.id), until, deadline)
        try:
            if not watches.has_reached(view, until):
                async with aclosing(self._entries(watch, _over(watch))) as news:
                    async for _ in news:
                        view = await self.get(view.id)
                        if watches.has_reached(view, until):
                            break
            while not watches.has_reached(view, until):
                await asyncio.sleep(LOOK_S)
                watch.is_to_reopen(time.monotonic())
                view = await self.get(view.id)
        except DeadlineError as error:
            raise watches.late(view, until, timeout_s) from error
        return view

    async def exec(
        self,
        id_: str,
        command: Sequence[str],
        *,
        rank: int = 0,
        container: str = "",
        stdin: bytes | None = None,
        timeout_s: float | None = None,
    ) -> CommandResult:
        """Run a command in a running rank, and collect its output: `exec(id, ["nvidia-smi"], rank=1)`.

        The exit code is in the result; an exit code other than zero raises nothing. Without `timeout_s` the server
        limits how long the command may take. After `timeout_s` the connection is closed, and it is unknown whether the
        command continues.

        Raises:
            PermanentError: the command cannot run: the rank does not run, or its image has no such program.
            UnavailableError: the connection was lost. DeadlineError: the command has not ended after `timeout_s`.
        """
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        class NoRedirects(connect):
            """Treats a redirect as a refusal: the input of a command is sent to the configured server only."""

            def process_redirect(self, exc: Exception) -> Exception | str:
                return exc

        settings, output = self._settings, CommandOutput()
        wanted = RankCommand(id_, tuple(command), rank=rank, container=container, stdin=stdin is not None)
        try:
            url = self._transport.socket_url(settings.server, wanted.path)
            async with (
                asyncio.timeout(timeout_s),
                NoRedirects(url, **self._transport.socket_options(settings, await self._token())) as socket,
            ):

                async def pass_on() -> None:
                    with suppress(WebSocketException):
                        for message in commands.input_messages(stdin or b""):
                            await socket.send(message)

                # The output is read while the input is sent. A command that answers each line would otherwise block for
                # ever.
                sending = asyncio.ensure_future(pass_on()) if stdin is not None else None
                try:
                    while not output.take(await socket.recv()):
                        pass
                finally:
                    if sending is not None:
                        sending.cancel()
                        await asyncio.gather(sending, return_exceptions=True)
        except TimeoutError as error:
            raise commands.late(wanted, timeout_s) from error
        except (WebSocketException, OSError) as error:
            raise self._transport.refused_socket(error, settings.server) from error
        return output.result

    # --- change -------------------------------------------------------------------------------------------------------

    async def kill(self, id_: str, *, grace: str = "", force: bool = False) -> AllocationView:
        """End the allocation; its ranks have `grace` (`30s`) to end, with `force` none."""
        return await self._call(calls.kill(id_, grace=grace, force=force))

    async def terminate(self, id_: str, *, reason: str = "") -> AllocationView:
        """End the allocation, but let it save its work when it can."""
        return await self._call(calls.terminate(id_, reason))

    async def preempt(self, id_: str, *, reason: str = "") -> AllocationView:
        """Ask the ranks to save their work and end."""
        return await self._call(calls.preempt(id_, reason))

    async def hold(self, id_: str) -> AllocationView:
        """Keep the allocation from starting; a running one saves its work, then is held."""
        return await self._call(calls.hold(id_))

    async def release(self, id_: str) -> AllocationView:
        """Let a held allocation start (again)."""
        return await self._call(calls.release(id_))

    async def change(self, id_: str, **fields: Any) -> AllocationView:
        """Change the priority, the queue or limits, or the workload of a held allocation: `change(id, priority=80)`."""
        return await self._call(calls.change(id_, fields))

    async def batch(self, verb: str, *, key: str = "", **fields: Any) -> BatchAnswer:
        """Apply one verb to many allocations: `batch("hold", ids=[...])`, or with `selector=`.

        The verbs are kill, hold, resume, priority, move and delete. The answer has one item for each allocation; a
        refused item raises nothing. One request changes at most 1,000 (moves: 100).
        """
        return await self._call(calls.batch(verb, key or f"sdk-{uuid.uuid4().hex}", fields))

    async def delete(self, id_: str) -> AllocationView:
        """Delete the allocation; a running one is ended first."""
        return await self._call(calls.delete(id_))

    # --- the cluster --------------------------------------------------------------------------------------------------

    async def jobs(self, *, workspace: str = "", queue: str = "", state: str = "") -> Sequence[JobView]:
        """Return the jobs (groups of allocations), in their queue order."""
        return (await self._call(calls.jobs(workspace=workspace, queue=queue, state=state))).items

    async def job(self, name: str, *, workspace: str = "") -> JobView:
        """Return one job with its members."""
        return await self._call(calls.job(name, workspace))

    async def create_job(self, name: str, *, workspace: str = "", **fields: Any) -> JobView:
        """Create a job, which launches can name: `create_job("sweep", max_slots=8, weight=2)`."""
        return await self._call(calls.create_job(name, workspace, fields))

    async def change_job(self, name: str, *, workspace: str = "", **fields: Any) -> JobChanged:
        """Change the limits, the priority, the weight or the queue of a job."""
        return await self._call(calls.change_job(name, workspace, fields))

    async def queues(self) -> Sequence[QueueView]:
        """Return the queues."""
        return (await self._call(calls.queues())).items

    async def queue(self, name: str) -> QueueView:
        """Return one queue and its waiting allocations, in order."""
        return await self._call(calls.queue(name))

    async def pools(self) -> Sequence[PoolView]:
        """Return the pools."""
        return (await self._call(calls.pools())).items

    async def nodes(self) -> Sequence[NodeView]:
        """Return the nodes, and what is placed on them."""
        return (await self._call(calls.nodes())).items

    async def node(self, name: str) -> NodeView:
        """Return one node."""
        return await self._call(calls.node(name))

    async def usage(
        self, by: str = "user", *, first_day: str = "", last_day: str = "", **filters: Unpack[UsageFilters]
    ) -> "UsageView":
        """Return the usage, summed by user, queue, pool, workspace, kind, day or month (several with commas)."""
        return await self._call(calls.usage(by, first_day, last_day, filters))

    async def me(self) -> Me:
        """Return the caller as the server knows it, and what the caller may do."""
        return await self._call(calls.me())

    # --- how it gets there --------------------------------------------------------------------------------------------

    async def _call(self, call: ApiCall[T]) -> T:
        settings, content = self._settings, call.content
        url = calls.target(settings.server.prefix, call.path, call.query)
        tries = Tries(
            self._budget, is_repeatable=call.is_repeatable, now=time.monotonic(), timeout_s=settings.timeout_s
        )
        import httpx2

        while True:
            timeout = self._transport.timeout_of(tries.left_s(time.monotonic()))
            headers = await self._headers(call.headers, has_body=content is not None)
            try:
                answer = await self._http.request(call.method, url, content=content, headers=headers, timeout=timeout)
            except httpx2.HTTPError as exc:
                error, was_sent = self._transport.translated(exc, settings.server)
                error.__cause__ = exc
            else:
                self._server_version.heard(answer.headers)
                if answer.status_code < 300:
                    self._budget.earn()
                    return call.decode(answer.content)
                error, was_sent = refusals.error_of(answer.status_code, answer.headers, answer.content), True
            now, drawn = time.monotonic(), chance()
            await asyncio.sleep(tries.pause_after(error, was_sent=was_sent, now=now, chance=drawn))

    async def _entries(self, watch: Watch[T], is_over: Callable[[], Awaitable[bool]]) -> AsyncGenerator[T]:
        """Yield the entries of a stream across its connections."""
        import httpx2

        url = calls.target(self._settings.server.prefix, watch.path, watch.query)
        while True:
            try:
                timeout = self._transport.stream_timeout(watch.open(time.monotonic()))
                headers = await self._headers(watch.headers, has_body=False)
                async with self._http.stream("GET", url, headers=headers, timeout=timeout) as answer:
                    self._server_version.heard(answer.headers)
                    if answer.status_code == 204:
                        return
                    if answer.status_code >= 300:
                        raise refusals.error_of(answer.status_code, answer.headers, await answer.aread())
                    async with aclosing(answer.aiter_bytes()) as chunks:
                        async for chunk in chunks:
                            for entry, value in watch.feed(chunk, time.monotonic()):
                                watch.passed(entry)
                                yield value
                            if watch.is_to_reopen(time.monotonic()):
                                break
                        else:
                            if await is_over():
                                return
                            raise UnavailableError(f"{self._settings.server.url} ended the stream too early")
                continue
            except httpx2.HTTPError as exc:
                broken: Exception = self._transport.translated(exc, self._settings.server)[0]
            except TransientError as exc:
                broken = exc
            await asyncio.sleep(watch.pause_after(broken, time.monotonic()))

    async def _headers(self, extra: Any, *, has_body: bool) -> dict[str, str]:
        return self._transport.headers_of(self._settings, await self._token(), extra, has_body=has_body)

    async def _token(self) -> str:
        credential = self._settings.server.credential
        # The credential may call kubectl, which blocks.
        return await asyncio.to_thread(credential.token) if credential is not None else ""

    async def _has_ended(self, id_: str) -> bool:
        try:
            return (await self.get(id_)).phase is Phase.TERMINATED
        except NotFoundError:
            # The allocation is deleted; its log is in the archive.
            return True

    async def _log_page(self, id_: str, filters: LogFilters, cursor: str) -> "Page[LogLineView]":
        page = await self._call(calls.log_page(id_, filters, cursor))
        return Page(page.items, page.metadata.continue_ or cursor, calls.is_last_log_page(page, filters, cursor))

    async def _event_page(self, id_: str, cursor: str) -> "Page[AllocationEvent]":
        page = await self._call(calls.event_page(id_, cursor))
        found = [event for each in page.items if (event := watches.event_of(each)) is not None]
        return Page(found, page.metadata.continue_ or cursor, not page.items)


class AsyncLaunch:
    """A launch that is under way: `run = await client.run(...)`, or `async with client.run(...) as run:`."""

    def __init__(self, client: AsyncClient, call: Coroutine[Any, Any, AllocationView]) -> None:
        self._client = client
        self._call = call
        self._run: AsyncRun | None = None

    def __await__(self) -> Generator[Any, None, "AsyncRun"]:
        return self._launched().__await__()

    async def _launched(self) -> "AsyncRun":
        if self._run is None:
            self._run = AsyncRun(self._client, await self._call)
        return self._run

    async def __aenter__(self) -> "AsyncRun":
        return await self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await (await self).__aexit__(kind, error, trace)


class AsyncRun(RunState):
    """One allocation and its operations. As a context manager, it kills the allocation when the block raises."""

    def __init__(self, client: AsyncClient, view: AllocationView) -> None:
        super().__init__(view)
        self._client = client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        try:
            await self.kill()
        except ControlPlaneError as failed:
            error.add_note(f"{self.id} could not be killed: {failed}")

    async def refresh(self) -> Self:
        """Read the allocation again."""
        self.view = await self._client.get(self.id)
        return self

    async def wait(self, *, until: str = "ended", timeout_s: float | None = None) -> Self:
        """Wait until the allocation is `running`, `ready` or has `ended` (`AsyncClient.wait`)."""
        self.view = await self._client.wait(self.id, until=until, timeout_s=timeout_s)
        return self

    def logs(
        self, *, follow: bool = False, after: str = "", **filters: Unpack[LogFilters]
    ) -> "AsyncEntryStream[LogLineView]":
        """Return the log lines of the ranks (`AsyncClient.logs`)."""
        return self._client.logs(self.id, follow=follow, after=after, **filters)

    def events(self, *, follow: bool = False, after: str = "") -> "AsyncEntryStream[AllocationEvent]":
        """Return the transitions of the allocation (`AsyncClient.events`)."""
        return self._client.events(self.id, follow=follow, after=after)

    async def exec(
        self,
        command: Sequence[str],
        *,
        rank: int = 0,
        container: str = "",
        stdin: bytes | None = None,
        timeout_s: float | None = None,
    ) -> CommandResult:
        """Run a command in one of the ranks (`AsyncClient.exec`)."""
        return await self._client.exec(
            self.id, command, rank=rank, container=container, stdin=stdin, timeout_s=timeout_s
        )

    async def explain(self, *, foresee: bool = False) -> ExplainView:
        """Explain the state of the allocation."""
        return await self._client.explain(self.id, foresee=foresee)

    async def timeline(self) -> TimelineView:
        """Return how long the allocation was in each phase."""
        return await self._client.timeline(self.id)

    async def kill(self, *, grace: str = "", force: bool = False) -> Self:
        """End the allocation."""
        self.view = await self._client.kill(self.id, grace=grace, force=force)
        return self

    async def preempt(self, *, reason: str = "") -> Self:
        """Ask the ranks to save their work and end."""
        self.view = await self._client.preempt(self.id, reason=reason)
        return self

    async def hold(self) -> Self:
        """Keep the allocation from starting."""
        self.view = await self._client.hold(self.id)
        return self

    async def release(self) -> Self:
        """Let the held allocation start (again)."""
        self.view = await self._client.release(self.id)
        return self

    async def change(self, **fields: Any) -> Self:
        """Change the priority, the queue or limits, or the workload of a held allocation."""
        self.view = await self._client.change(self.id, **fields)
        return self


class AsyncPages:
    """Allocations, loaded page by page during the iteration; each `for` begins with the first page."""

    def __init__(self, fetch: Callable[[str], Awaitable[AllocationList]]) -> None:
        self._fetch = fetch

    async def __aiter__(self) -> AsyncIterator[AllocationView]:
        cursor = ""
        while True:
            page = await self._fetch(cursor)
            for view in page.items:
                yield view
            cursor = page.metadata.continue_
            if not cursor:
                return


class AsyncEntryStream(Generic[T]):
    """Lines or events in their order, for one `for`; another stream can continue at `cursor`."""

    def __init__(self, cursor: Callable[[], str], entries: AsyncGenerator[T]) -> None:
        self._cursor = cursor
        self._entries = entries

    @classmethod
    def paged(cls, after: str, fetch: Callable[[str], Awaitable[Page[T]]]) -> "AsyncEntryStream[T]":
        """Return a stream over the existing entries, page by page."""
        at = [after]

        async def entries() -> AsyncGenerator[T]:
            is_last = False
            while not is_last:
                found, cursor, is_last = await fetch(at[0])
                for value in found:
                    yield value
                at[0] = cursor

        return AsyncEntryStream(lambda: at[0], entries())

    @property
    def cursor(self) -> str:
        """The cursor after the last delivered entry; for a list that is read in pages, after the last complete page."""
        return self._cursor()

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        return await anext(self._entries)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connection."""
        await self._entries.aclose()


def _over(watch: Watch[Any]) -> Callable[[], Awaitable[bool]]:
    async def is_over() -> bool:
        return watch.is_over

    return is_over
