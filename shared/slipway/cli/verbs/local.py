"""`slipway up`, `down`, `demo`: the whole system on this machine.

Owns the process that supervises a stack: its signals, its output, and how another process ends it.
`slipway.local.stack` owns the processes of the stack.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from slipway.cli import main
from slipway.cli.terminal import Terminal
from slipway.cli.verb import OWN_COMMAND, CliSession, CliVerb, whole_number
from slipway.cli.verbs import open_wait
from slipway.errors import InvalidError, UnavailableError
from slipway.local.layout import Layout, StackState, default_folder, is_alive
from slipway.sdk.address import ENV_SERVER

UP_S = 60.0
DOWN_S = 30.0
LOOK_S = 0.05
IS_UP = "Slipway is up"


def _add_folder(parser: argparse.ArgumentParser) -> None:
    where = f"folder of its data (default: {default_folder()})"
    parser.add_argument("--data", metavar="DIR", default="", help=where)


def configure_up(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `up`."""
    parser.add_argument("--nodes", metavar="N", type=whole_number, default=2, help="number of local nodes (default: 2)")
    parser.add_argument(
        "--gpus", metavar="N", type=whole_number, default=8, help="simulated GPUs of each node (default: 8)"
    )
    parser.add_argument("--cpus", metavar="N", type=whole_number, default=4, help="CPUs of each node (default: 4)")
    parser.add_argument("--memory", metavar="SIZE", default="16Gi", help="memory of each node (default: 16Gi)")
    parser.add_argument(
        "--port", metavar="P", type=whole_number, default=8080, help="port of the API (default: 8080; 0: any)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the data for the next `up` (--data keeps it too)")
    parser.add_argument(
        "--no-redis", action="store_true", help="run without Redis: slower, and logs are read from the pods only"
    )
    parser.add_argument("--kubeconfig", metavar="FILE", default="", help="run on this cluster instead of a local one")
    parser.add_argument("--redis-url", metavar="URL", default="", help="use this Redis instead of a local Valkey")
    parser.add_argument("--detach", action="store_true", help="return when it is ready; `slipway down` ends it")
    parser.add_argument("--demo", action="store_true", help="run the demo on it, then stay up")
    _add_folder(parser)


def up(arguments: argparse.Namespace, session: CliSession) -> int:
    """Start the stack and run until Ctrl-C."""
    if arguments.detach:
        return _detached(arguments, session.terminal)
    return asyncio.run(_supervise(arguments, session.terminal))


async def _supervise(arguments: argparse.Namespace, terminal: Terminal) -> int:
    from slipway.local.stack import Stack, StackOptions

    options = StackOptions(
        folder=_folder(arguments),
        nodes=arguments.nodes,
        cpus=arguments.cpus,
        memory=arguments.memory,
        gpus=arguments.gpus,
        port=arguments.port,
        keep=arguments.keep or bool(arguments.data),
        redis=not arguments.no_redis,
        kubeconfig=arguments.kubeconfig,
        redis_url=arguments.redis_url,
    )
    stop = _stop_on_signals()
    stack = Stack(options, say=terminal.note)
    begin = time.monotonic()
    terminal.live("starting a cluster, a Valkey and the four services...")
    if not await _unless_stopped(stack.start(), stop):
        return main.DETACHED
    terminal.clear()
    code = main.OK
    try:
        took_s = time.monotonic() - begin
        link = await asyncio.to_thread(browser_link, terminal, stack.api_url)
        terminal.note(welcome(stack.api_url, stack.kubeconfig, arguments, took_s, link))
        if arguments.demo:
            from slipway.cli.demo.story import tell

            code = await _in_thread(lambda: tell(terminal, stack.api_url, stack.redis_url), stop)
        await stop.wait()
    finally:
        terminal.live("stopping...")
        await stack.stop()
        terminal.clear()
    terminal.note("stopped; nothing is left running")
    return code


def _stop_on_signals() -> asyncio.Event:
    """Return an event that Ctrl-C, SIGTERM and SIGHUP set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _unless_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Whether the work finished before the user stopped the command; else the work is cancelled and cleans up."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        working.cancel()
        await asyncio.wait({working})
        return False
    working.result()
    return True


async def _in_thread(work: Callable[[], int], stop: asyncio.Event) -> int:
    """Return what `work` returns. After a stop the thread is abandoned: its calls fail, and it holds no resource."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[int] = loop.create_future()

    def run() -> None:
        code = work()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the result is no longer needed
            loop.call_soon_threadsafe(lambda: done.done() or done.set_result(code))

    threading.Thread(target=run, name="story", daemon=True).start()
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({done, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    return done.result() if done.done() else main.DETACHED


def browser_link(terminal: Terminal, api: str) -> str:
    """Return a link that logs a browser in, once."""
    session = CliSession(terminal, server=api)
    try:
        return open_wait.login_link(session)
    finally:
        session.close()


def welcome(api: str, kubeconfig: str, arguments: argparse.Namespace, took_s: float, link: str) -> str:
    """Return the text of `up` when all parts are ready."""
    lines = [
        f"{IS_UP} ({took_s:.1f} s)",
        f"  API         {api}  (reference at {api}/docs)",
        f"  kubeconfig  {kubeconfig}",
        f"  browser     {link}",
        "              (valid once, for five minutes; `slipway open` prints another)",
        "",
        "Next, in another terminal:",
        "  slipway notebook start",
        "  slipway run --ranks 4 -- python -c 'import os; print(os.environ[\"RANK\"])'",
        f"  kubectl --kubeconfig {kubeconfig} get alloc",
    ]
    if arguments.data:
        lines.insert(7, f"  export {ENV_SERVER}={api}")
    where = f" --data {arguments.data}" if arguments.data else ""
    return "\n".join([*lines, "", f"`slipway down{where}` stops it." if arguments.detach else "Ctrl-C stops it."])


def _folder(arguments: argparse.Namespace) -> Path:
    return Path(arguments.data).expanduser().absolute() if arguments.data else default_folder()


# --- detached ---------------------------------------------------------------------------------------------------------


def _detached(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Start a supervisor that outlives this process, and wait until it reports that all parts are ready."""
    layout = Layout(_folder(arguments))
    begin = time.monotonic()
    terminal.live("starting a cluster, a Valkey and the four services...")
    descriptor, name = tempfile.mkstemp(prefix="slipway-up-", suffix=".log")
    log = Path(name)
    with open(descriptor, "wb") as out:  # the supervisor has its own copy of the descriptor
        process = subprocess.Popen(  # noqa: S603 - ourselves
            [*OWN_COMMAND, *_same_again(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    while time.monotonic() < begin + UP_S and process.poll() is None:
        state = layout.read_state()
        if state is not None and IS_UP in log.read_text(encoding="utf-8"):
            terminal.clear()
            link = browser_link(terminal, state.api)
            terminal.note(welcome(state.api, state.kubeconfig, arguments, time.monotonic() - begin, link))
            log.unlink()
            return main.OK
        time.sleep(LOOK_S)
    process.terminate()
    try:
        process.wait(DOWN_S)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            f"it was not ready in time, and process {process.pid} did not stop within {DOWN_S:.0f} s; its output: {log}"
        ) from error
    said = log.read_text(encoding="utf-8").strip()
    log.unlink()
    said = said.rpartition("error: ")[2] or "it was not ready in time"
    raise InvalidError(said) if process.returncode == main.USAGE else UnavailableError(said)


def _same_again(arguments: argparse.Namespace) -> list[str]:
    """Return the words of an equal `up` in the foreground."""
    words = ["up"]
    for option in ("nodes", "gpus", "cpus", "memory", "port"):
        words += [f"--{option}", str(getattr(arguments, option))]
    for option in ("data", "kubeconfig", "redis_url"):
        value = str(getattr(arguments, option))
        words += [f"--{option.replace('_', '-')}", value] if value else []
    words += ["--keep"] if arguments.keep else []
    return words + (["--no-redis"] if arguments.no_redis else [])


def configure_down(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `down`."""
    _add_folder(parser)


def down(arguments: argparse.Namespace, session: CliSession) -> int:
    """Stop the processes that `up` started."""
    terminal = session.terminal
    layout = Layout(_folder(arguments))
    state = layout.read_state()
    if state is None or not _lives(state):
        layout.state.unlink(missing_ok=True)
        terminal.note(f"no stack runs in {layout.folder}")
        return main.OK
    terminal.live("stopping...")
    if _is_supervisor(state.supervisor):
        os.kill(state.supervisor, signal.SIGTERM)
    else:
        _end_members(state, signal.SIGTERM)
    until = time.monotonic() + DOWN_S
    while (_lives(state) or _is_supervisor(state.supervisor)) and time.monotonic() < until:
        time.sleep(LOOK_S)
    left = [member.name for member in state.members if is_alive(member)]
    if left:
        _end_members(state, signal.SIGKILL)
        terminal.note(f"{', '.join(left)} did not stop in time and were killed")
    layout.state.unlink(missing_ok=True)
    terminal.clear()
    terminal.note("stopped; nothing is left running")
    return main.OK


def _lives(state: StackState) -> bool:
    return any(is_alive(member) for member in state.members)


def _is_supervisor(pid: int) -> bool:
    """Whether that process is one of our supervisors, and not a later process with the same number."""
    try:
        return b"slipway" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _end_members(state: StackState, how: signal.Signals) -> None:
    for member in reversed(state.members):
        if is_alive(member):
            os.kill(member.pid, how)


# --- demo -------------------------------------------------------------------------------------------------------------


def configure_demo(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `demo`."""
    parser.add_argument("--stay", action="store_true", help="keep running after the demo, until Ctrl-C")


def demo(arguments: argparse.Namespace, session: CliSession) -> int:
    """Start a stack, run the demo, stop the stack."""
    folder = Path(tempfile.mkdtemp(prefix="slipway-demo-"))
    begin = time.monotonic()
    code, pids = asyncio.run(_demo(arguments, session.terminal, folder))
    left = [pid for pid in pids if pid and _is_supervisor(pid)]
    if left or folder.exists():
        session.terminal.note(f"left behind: {left or folder}")
        return main.FAILED
    session.terminal.note(f"stopped; nothing is left running ({time.monotonic() - begin:.1f} s in all)")
    return code


async def _demo(arguments: argparse.Namespace, terminal: Terminal, folder: Path) -> tuple[int, list[int]]:
    """Run the demo; return (exit code, the pids of the stack's processes)."""
    from slipway.cli.demo.story import tell
    from slipway.local.stack import Stack, StackOptions

    stop = _stop_on_signals()
    stack = Stack(StackOptions(folder=folder, port=0, nodes=2, gpus=8), say=terminal.note)
    begin = time.monotonic()
    terminal.note("starting a cluster, a Valkey, two nodes and the four services, as processes")
    if not await _unless_stopped(stack.start(), stop):
        return main.DETACHED, []
    code, pids = main.DETACHED, [child.pid for child in stack.children.values()]
    try:
        terminal.note(f"up after {time.monotonic() - begin:.1f} s: API {stack.api_url}")
        terminal.note(f"kubeconfig {stack.kubeconfig}")
        code = await _in_thread(lambda: tell(terminal, stack.api_url, stack.redis_url), stop)
        if arguments.stay and not stop.is_set():
            terminal.note(f"{stack.api_url} stays up; Ctrl-C stops it")
            await stop.wait()
        if code == main.FAILED:
            kept = Path(tempfile.mkdtemp(prefix="slipway-demo-logs-"))
            await asyncio.to_thread(shutil.copytree, stack.layout.logs, kept, dirs_exist_ok=True)
            terminal.note(f"the logs of all processes are in {kept}")
    finally:
        await stack.stop()
    return code, pids


VERBS = {"up": CliVerb(configure_up, up), "down": CliVerb(configure_down, down), "demo": CliVerb(configure_demo, demo)}
