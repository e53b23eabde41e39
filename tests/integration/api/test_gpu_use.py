"""The use of GPUs, queried from a real Prometheus that scrapes an exporter with DCGM's series, and shown by the
command."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slipway.api.settings import Settings
from slipway.api.usage.prometheus import Prometheus, PrometheusError
from slipway.cli import main
from slipway.model.times import format_time
from tests.support.api_world import ApiWorld, api_world
from tests.support.cli import CliUser
from tests.support.http_stub import serve, serve_app
from tests.support.ports import free_port
from tests.support.prometheus import find, remember, running_prometheus
from tests.support.wait import wait_until

IDLE_S = 5.0
GPU = {"ranks": [{"count": 2, "resources": {"cpu": "1", "nvidia.com/gpu": "1"}}]}


class Exporter:
    """A page of DCGM's series as dcgm-exporter writes them: {pod: the use of each of its GPUs, in percent}."""

    def __init__(self) -> None:
        self.use: dict[str, list[float]] = {}
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = page.text().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                del format, args

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"

    def text(self) -> str:
        lines = ["# TYPE DCGM_FI_DEV_GPU_UTIL gauge"]
        for pod, gpus in self.use.items():
            for gpu, percent in enumerate(gpus):
                labels = f'gpu="{gpu}",UUID="{pod}-{gpu}",container="main",namespace="default",pod="{pod}"'
                lines.append(f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {percent}")
        return "\n".join([*lines, ""])


@pytest.fixture(scope="module")
def exporter() -> Generator[Exporter]:
    found = Exporter()
    thread = threading.Thread(target=found.server.serve_forever, daemon=True)
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join(10)


@asynccontextmanager
async def an_api_with_user(**settings: Any) -> AsyncGenerator[tuple[ApiWorld, CliUser]]:
    """A user of an api that has a Prometheus."""
    async with api_world(Settings(**settings)) as world, serve_app(world.app, before_stop=world.stop.set) as url:
        yield world, CliUser(url)


async def a_gang(world: ApiWorld, user: str) -> str:
    """The id of a gang of two ranks with a GPU each that has run for a minute."""
    launched = await world.launch(headers={"x-slipway-user": user}, **GPU)
    since = format_time(world.clock.now() - 60.0, "seconds")
    await world.run(launched["name"], slots=2, started_at=since)
    return str(launched["id"])


async def test_use_is_shown_beside_who_holds_and_the_idle_are_named(
    exporter: Exporter, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """`describe`, `usage --gpu-use` and `top` show a busy gang with its slow rank, an idle one, and one without
    data."""
    program = find()
    if not program:
        pytest.skip("needs Prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with running_prometheus(program, folder, {"dcgm": exporter.address}, [], token="t") as prometheus:
        async with an_api_with_user(prometheus_url=prometheus.url, gpu_idle_s=IDLE_S) as (world, cli_user):
            busy, idle, unseen = [await a_gang(world, user) for user in ("ada", "bob", "eve")]
            exporter.use = {f"{busy}-1-0": [90], f"{busy}-1-1": [10], f"{idle}-1-0": [0], f"{idle}-1-1": [1]}
            counted = "min(count_over_time(DCGM_FI_DEV_GPU_UTIL[5s]))"
            enough = lambda: [value for _, value in prometheus.ask(counted)] >= [4.0]  # noqa: E731
            await asyncio.to_thread(wait_until, enough, "each GPU was looked at for some seconds", timeout_s=60.0)
            view = (await world.get("/gpu-use")).json()
            assert [(row["user"], row["percent"], row["isIdle"]) for row in view["items"]] == [
                ("bob", 0.5, True),
                ("ada", 50.0, False),
                ("eve", None, False),
            ]
            assert (await world.get("/gpu-use?idle=true&user=ada")).json()["items"] == []
            said = (await cli_user.run("describe", busy)).out
            assert "50 % over 5m; least on rank 1: 10 %" in said
            said = (await cli_user.run("describe", idle)).out
            assert "0 % over 5m; idle: no GPU did any work for 5.0s" in " ".join(said.split())
            assert "Prometheus has no figures of its pods" in (await cli_user.run("describe", unseen)).out
            lines = (await cli_user.run("usage", "--gpu-use")).out.splitlines()
            assert lines[0].split()[:4] == ["ID", "USER", "QUEUE", "GPUS"]
            assert lines[1].split()[:4] == [idle, "bob", "default", "2"]
            assert "idle, running for 1m" in lines[1]
            page = (await cli_user.run("top", "--once", "--owner", "*")).out
            assert "(2 of them idle)" in page
            assert "GPUs idle for 5.0s" in page
            wrong = await asyncio.to_thread(_refusal, prometheus.url)
            assert "SLIPWAY_GPU_USE_QUERY" in wrong


HELD_S = 4 * 3_600
DAY_S = 86_400


async def test_days_gone_by_say_what_was_held_and_what_was_used(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Usage of past days is shown by type of GPU, user and queue; a pod of no allocation has no user, and a GPU
    without a pod is not held."""
    program = find()
    if not program:
        pytest.skip("needs Prometheus")
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    async with an_api_with_user(prometheus_url=f"http://127.0.0.1:{port}") as (world, cli_user):
        busy = await a_gang(world, "ada")
        begun_s = int(world.clock.now() // DAY_S - 1) * DAY_S
        day = format_time(begun_s)[:10]
        await asyncio.to_thread(remember, folder, _past(busy, begun_s))
        with running_prometheus(program, folder, {}, [], token="t", port=port):
            ask = f"/gpu-use/days?from={day}&to={day}"
            assert await _told(world, f"{ask}&by=gpuType") == [("A100", HELD_S, 50.0), ("H100", 2 * HELD_S, 60.0)]
            assert await _told(world, f"{ask}&by=user,queue") == [
                ("", "", HELD_S, 50.0),
                ("ada", "default", 2 * HELD_S, 60.0),
            ]
            assert await _told(world, f"{ask}&by=day&user=ada") == [(day, 2 * HELD_S, 60.0)]
            assert (await world.get(f"{ask}&user=nobody")).json()["items"] == []
            total = (await world.get(ask)).json()["total"]
            assert total["usedSeconds"] == pytest.approx(HELD_S * 1.7)
            words = ("usage", "--gpu-use", "--by", "day,gpuType", "--from", day, "--to", day)
            lines = [line.split() for line in (await cli_user.run(*words)).out.splitlines()]
            assert lines[0] == ["DAY", "GPUTYPE", "GPU", "TIME", "HELD", "GPU", "TIME", "USED", "BUSY"]
            assert [line[:2] + line[-2:] for line in lines[1:3]] == [[day, "A100", "50", "%"], [day, "H100", "60", "%"]]
            assert lines[3][0] == "total"
            before = format_time(begun_s - 5 * DAY_S)[:10]
            nothing = await cli_user.run("usage", "--gpu-use", "--from", before, "--to", before)
            assert f"no GPU was held from {before} to {before}" in nothing.err


def _past(busy: str, begun_s: int) -> list[str]:
    """The series of one day: a sample a minute for as long as the GPUs were held."""
    series = {
        f'gpu="0",modelName="H100",namespace="default",pod="{busy}-1-0"': 90,
        f'gpu="1",modelName="H100",namespace="default",pod="{busy}-1-1"': 30,
        'gpu="2",modelName="A100",namespace="default",pod="gone-12345678-1-0"': 50,
        'gpu="3",modelName="A100"': 0,
        'gpu="4",modelName="A100",namespace="kube-system",pod="other-1-0"': 100,
    }
    lines = ["# TYPE DCGM_FI_DEV_GPU_UTIL gauge"]
    for labels, percent in series.items():
        times = range(begun_s, begun_s + HELD_S - 300, 60)
        lines += [f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {percent} {at}" for at in times]
    return lines


async def _told(world: ApiWorld, path: str) -> list[tuple[Any, ...]]:
    return [
        (*row["by"].values(), row["heldSeconds"], row["percent"]) for row in (await world.get(path)).json()["items"]
    ]


@pytest.mark.parametrize("query", ["by=kind", "from=2026-01-01&to=2026-02-01", "from=yesterday"])
async def test_bad_questions_about_days_are_named(query: str) -> None:
    """An unknown grouping, too many days, and an invalid day are refused by name."""
    async with an_api_with_user() as (world, _):
        answer = await world.get(f"/gpu-use/days?{query}")
        assert (answer.status_code, query.partition("=")[0] in answer.json()["detail"]) == (400, True)
        bare = (await world.get("/gpu-use/days")).json()
        assert (bare["isConfigured"], bare["items"], bare["by"]) == (False, [], ["day"])


def _refusal(url: str) -> str:
    async def ask() -> None:
        client = Prometheus(url)
        try:
            await client.ask("DCGM_FI_DEV_GPU_UTIL{")
        finally:
            await client.aclose()

    with pytest.raises(PrometheusError) as caught:
        asyncio.run(ask())
    return str(caught.value)


async def test_a_prometheus_that_is_away_costs_its_figures_only(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The answer names the server that does not answer; `describe` and `top` show everything else."""
    async with an_api_with_user(prometheus_url=f"http://127.0.0.1:{free_port()}") as (world, cli_user):
        busy = await a_gang(world, "ada")
        answer = await world.get("/gpu-use")
        assert answer.status_code == 503
        assert "Prometheus (SLIPWAY_PROMETHEUS_URL) cannot be reached" in answer.json()["detail"]
        described = await cli_user.run("describe", busy)
        assert described.code == main.OK
        assert "GPU use" in described.out
        assert "cannot be reached" in described.out
        assert busy in (await cli_user.run("top", "--once", "--owner", "ada")).out


async def test_a_token_is_sent_and_a_file_that_is_missing_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The token is sent to a Prometheus behind an authenticating proxy; the file is read each time, because it may
    be renewed."""
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text("abc\n", encoding="utf-8")

    async def answer(_request: Request) -> Response:
        return JSONResponse({"status": "success", "data": {"resultType": "vector", "result": []}})

    async with serve(answer) as stub:
        client = Prometheus(stub.url, token_file=str(file))
        assert await client.ask("up") == []
        assert stub.requests[0].headers["authorization"] == "Bearer abc"
        file.unlink()
        with pytest.raises(PrometheusError, match=r"SLIPWAY_PROMETHEUS_TOKEN_FILE: .*token cannot be read"):
            await client.ask("up")
        await client.aclose()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"status": "success", "data": {"resultType": "scalar", "result": []}}, "is not a list of series"),
        ({"status": "error", "error": "bad\x1b[31m data"}, "refuses the query (SLIPWAY_GPU_USE_QUERY): bad[31m data"),
        (["no"], "answers 200, which is not an answer of Prometheus"),
    ],
)
async def test_an_answer_that_is_none_is_refused_in_words(body: Any, words: str) -> None:
    """An invalid answer (a login page, a number in place of series, an error) gives a printable error."""

    async def answer(_request: Request) -> Response:
        return JSONResponse(body)

    async with serve(answer) as stub:
        client = Prometheus(stub.url)
        with pytest.raises(PrometheusError) as caught:
            await client.ask("up")
        await client.aclose()
    assert words in str(caught.value)
