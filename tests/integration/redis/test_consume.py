"""`slipway.sdk.consume` on a real server, under the account `reader`: as a separate program, and in this process."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Unpack, cast

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from slipway.errors import DeniedError, InvalidError
from slipway.local.valkey import ValkeyProcess
from slipway.model.events import AllocationEvent
from slipway.model.lifecycle import Event
from slipway.sdk import async_consume, consume
from slipway.sdk.subscriptions import ConsumeOptions, Subscription
from slipway.streams.accounts import READER
from slipway.streams.ports import StreamEntry, Streams
from tests.support.clock import wait_until
from tests.support.receiver import PAGE
from tests.support.redis import RedisBackend, an_event, server_process

PASSWORD = "s3cret"
USED: dict[str, Any] = {"slots": 2, "seconds": {"Running": 30.0, "Pending": 4.0}}
SOON_S = 20.0
FAST: ConsumeOptions = {"block_s": 0.05, "retry_first_s": 0.01, "retry_max_s": 0.02, "deliveries_max": 2}


def quick(**options: Unpack[ConsumeOptions]) -> ConsumeOptions:
    """Those options with short times."""
    return {**FAST, **options}


@asynccontextmanager
async def a_server() -> AsyncGenerator[tuple[ValkeyProcess, RedisBackend, str]]:
    """A server with the account of readers: the process, an operator, and the URL for a program."""
    async with server_process() as server:
        operator = RedisBackend(server.url)
        await operator.everywhere("ACL", "SETUSER", READER.name, "on", f">{PASSWORD}", *READER.arguments())
        yield server, operator, server.url.replace("://", f"://{READER.name}:{PASSWORD}@")
        await operator.aclose()


async def publish(streams: Streams, *events: AllocationEvent) -> None:
    await streams.events.append([StreamEntry(event=event) for event in events])


def program(tmp_path: Path) -> Path:
    """The program of the page, as a file."""
    [source] = re.findall(r"```python\n(# billing\.py.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    found = tmp_path / "billing.py"
    found.write_text(source)
    return found


async def start(file: Path, url: str) -> asyncio.subprocess.Process:
    env = {**os.environ, "SLIPWAY_REDIS_URL": url}
    return await asyncio.create_subprocess_exec(
        sys.executable, str(file), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=env
    )


async def test_the_program_of_the_page(tmp_path: Path) -> None:
    """It bills ended allocations, survives a restart of Redis, reports that it waits, and ends cleanly on SIGTERM."""
    async with a_server() as (server, operator, url), asyncio.timeout(SOON_S * 2):
        streams = operator.connect()
        await publish(streams, an_event(1), an_event(2, type=Event.TERMINATED, data=USED))
        process = await start(program(tmp_path), url)
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert await process.stdout.readline() == b"default/train: 60 GPU seconds\n"
            await server.stop()
            assert b"redis is unavailable" in await process.stderr.readline()
            await server.start()
            await operator.everywhere("ACL", "SETUSER", READER.name, "on", f">{PASSWORD}", *READER.arguments())
            await publish(streams, an_event(1, name="tune", type=Event.TERMINATED, data=USED))
            assert await process.stdout.readline() == b"default/tune: 60 GPU seconds\n"
            process.send_signal(signal.SIGTERM)
            out, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
    assert out == b"2 events handled, 0 dead letters\n"
    assert process.returncode == 0


async def test_failures_become_dead_letters_which_can_be_handled_again() -> None:
    """Each letter has its reason; one whose event succeeds later is removed."""
    wrong = [True]
    seen: list[str] = []

    @consume("mail", **quick(workspace="default"))
    def mail(event: AllocationEvent) -> None:
        if event.name == "train" and wrong:
            raise ValueError("no address")
        seen.append(event.event_id)

    async with a_server() as (_, operator, url), asyncio.timeout(SOON_S):
        mail._redis = url  # pyright: ignore[reportPrivateUsage]
        streams, stop = operator.connect(), asyncio.Event()
        await publish(streams, an_event(1), an_event(1, name="tune"), an_event(1, name="far", namespace="other"))
        running = asyncio.ensure_future(mail.run_async(stop=stop))
        await wait_until(lambda: mail.status is not None and mail.status.dead == 1 and len(seen) == 1, "a dead letter")
        stop.set()
        done = await running
        assert (done.handled, done.failures, done.dead) == (1, 2, 1)
        [letter] = await asyncio.to_thread(mail.dead_letters)
        assert letter.cause == "ValueError: no address"
        assert await asyncio.to_thread(mail.handle_dead_letters) == (0, 1)
        wrong.clear()
        assert await asyncio.to_thread(mail.handle_dead_letters) == (1, 0)
        assert await asyncio.to_thread(mail.dead_letters) == []
    assert seen == [an_event(1, name="tune").event_id, an_event(1).event_id]


async def test_a_flush_while_events_are_in_hand_ends_nothing() -> None:
    """The event in hand is handled once, although its group is gone and it is delivered again; later events are
    handled too."""
    going, begun, seen = asyncio.Event(), asyncio.Event(), list[int]()

    async def slow(event: AllocationEvent) -> None:
        begun.set()
        await going.wait()
        seen.append(event.seq)

    async with a_server() as (_, operator, url), asyncio.timeout(SOON_S):
        streams, stop = operator.connect(), asyncio.Event()
        await publish(streams, an_event(1))
        options = quick(redis=url, keep_s=0.02, min_idle_s=0.5)
        running = asyncio.ensure_future(async_consume("flush", slow, stop=stop, **options))
        await begun.wait()
        for _ in range(5):
            await operator.flush()
            await publish(streams, an_event(1), an_event(2))
            await asyncio.sleep(0.05)  # several times the interval of the heartbeat
        going.set()
        await wait_until(lambda: seen == [1, 2], "both are handled")
        stop.set()
        done = await running
    assert (done.handled, done.dead) == (2, 0)


async def test_each_call_of_the_handler_is_a_span_linked_to_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The span is of the program's own OpenTelemetry, and current while the handler runs, in a thread too."""
    kept, inside = InMemorySpanExporter(), list[int]()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(otel, "get_tracer", provider.get_tracer)
    cause = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    def handle(_: AllocationEvent) -> None:
        inside.append(otel.get_current_span().get_span_context().span_id)
        if len(inside) == 1:
            raise ValueError("not yet")
        stop_soon()

    async with a_server() as (_, operator, url), asyncio.timeout(SOON_S):
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        def stop_soon() -> None:
            loop.call_soon_threadsafe(stop.set)

        await publish(operator.connect(), an_event(1, traceparent=cause))
        await async_consume("traces", handle, stop=stop, **quick(redis=url))
    failed, span = kept.get_finished_spans()
    assert failed.context is not None
    assert span.context is not None
    assert inside == [failed.context.span_id, span.context.span_id]
    assert (failed.status.is_ok, span.status.is_ok) == (False, True), "a failure is to be seen"
    assert [(each.attributes or {})["slipway.delivery"] for each in (failed, span)] == [1, 2]
    assert span.context.trace_id != 0x0AF7651916CD43DD8448EB211C80319C, "a link, and no child"
    [link] = span.links
    assert (link.context.trace_id, link.context.span_id) == (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    assert span.kind is otel.SpanKind.CONSUMER


async def test_a_refused_account_is_an_error_that_says_so() -> None:
    """The consumer does not wait for a refused account."""
    async with a_server() as (_, _, url), asyncio.timeout(SOON_S):
        with pytest.raises(DeniedError, match="refuses our account"):
            await async_consume("g", lambda _: None, redis=url.replace(PASSWORD, "wrong"), stop=asyncio.Event())


@pytest.mark.parametrize(
    ("options", "field", "said"),
    [
        ({"group": "a b"}, "/group", "letters, digits"),
        ({"group": "webhooks"}, "/group", "a group of Slipway itself"),
        ({"types": ["done"]}, "/types", "write one of requested"),
        ({"prefetc": 9}, "/prefetc", "write one of concurrency"),
    ],
)
def test_bad_options_name_the_field(options: dict[str, Any], field: str, said: str) -> None:
    """The error lists the allowed names."""
    with pytest.raises(InvalidError, match=said) as found:
        cast("Any", Subscription)(**{"group": "g", "handler": print, **options})
    assert [each.pointer for each in found.value.fields] == [field]


def test_without_a_redis_it_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error appears when neither an option, nor a variable, nor a stack of this machine names a Redis."""
    monkeypatch.delenv("SLIPWAY_REDIS_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(InvalidError, match="SLIPWAY_REDIS_URL"):
        consume("g", print)
