"""A service of a pod, with a reporter beside it.

A notebook's reporter reports whether the notebook is used. A TensorBoard's reporter reports whether there is anything
to show.

This module owns the service's process: signals are passed on, orphans are reaped, and its exit code is ours. A report
is only a hint. A failed report is repeated at the next look, and never disturbs the service. Standard library only.

Source: Jupyter Server REST API, `/api/kernels` and `/api/terminals`.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, cast

from slipway.inside import signals
from slipway.inside.client import OPENER, ApiRefusedError, Client, NotInTimeError
from slipway.inside.home import with_home

NOTEBOOK_LOOK_S = 20.0
BOARD_LOOK_S = 1.0
ANSWER_S = 5.0
ENV_TOKEN = "SLIPWAY_WORKLOAD_TOKEN"  # noqa: S105 - the name of a variable
NO_TOKEN = "--IdentityProvider.token="  # noqa: S105 - says that there is none
EVENTS_MARK = "tfevents"
IDLE_TYPES = ("activity", "kernels_or_terminals", "kernel_connections")
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

Report = Callable[[], bool]
"""A function that looks once and reports the result. It returns False when no further look is needed."""


def main(words: list[str]) -> int:
    """Run `notebook PORT PROGRAM...` or `tensorboard PROGRAM...`, with its reporter."""
    what, *rest = words
    client = Client()
    env = with_home(dict(os.environ))
    if what == "notebook":
        port, *argv = rest
        return run(*opened_by_proxy(argv, env), NotebookActivity(client, env, port).look, every_s=NOTEBOOK_LOOK_S)
    board = BoardActivity(client, os.environ.get("TENSORBOARD_LOGDIR", ""))
    return run(rest, env, board.look, every_s=BOARD_LOOK_S)


def opened_by_proxy(argv: list[str], env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and the environment of a Jupyter server that accepts only the proxy, when there is a token
    for it.

    The token is put into the environment, because every account of a machine can read the arguments. Without a token
    nothing is changed.
    """
    token = env.get(ENV_TOKEN, "")
    if not token or NO_TOKEN not in argv:
        return argv, env
    return [word for word in argv if word != NO_TOKEN], {**env, "JUPYTER_TOKEN": token}


def run(argv: list[str], env: dict[str, str], look: Report, *, every_s: float) -> int:
    """Run the service to its end, and return its exit code."""
    try:
        child = signals.started(lambda: subprocess.Popen(argv, env=env), _PASSED_ON)  # noqa: S603 - the pod's service
    except OSError as error:
        sys.stderr.write(f"{argv[0]} cannot be run: {error.strerror}; is it in this image?\n")
        return 127
    over = threading.Event()
    threading.Thread(target=_report, args=(look, every_s, over), daemon=True, name="reporter").start()
    while True:
        # Wait for every ended process, because orphans in a container become children of its first process.
        pid, status = os.waitpid(-1, 0)
        if pid == child.pid:
            over.set()
            child.returncode = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            return child.returncode


def _report(look: Report, every_s: float, over: threading.Event) -> None:
    while True:
        try:
            if not look():
                return
        except (ApiRefusedError, NotInTimeError, OSError, ValueError):
            pass  # the next look repeats the report
        if over.wait(every_s):
            return


class NotebookActivity:
    """Reports whether a Jupyter server is used, judged by its kernels and terminals.

    `NOTEBOOK_IDLE_TYPE` selects what means use: `activity` (a kernel computes, or there was activity in a kernel or a
    terminal), `kernels_or_terminals` (at least one exists), `kernel_connections` (a page is connected to a kernel).
    """

    def __init__(self, client: Client, env: dict[str, str], port: str) -> None:
        self._client = client
        self._root = f"http://{env.get('SLIPWAY_POD_IP', '127.0.0.1')}:{port}{env.get('SLIPWAY_PROXY_PREFIX', '')}/api"
        self._type = env.get("NOTEBOOK_IDLE_TYPE", IDLE_TYPES[0])
        self._last = ""
        token = env.get(ENV_TOKEN, "")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def look(self) -> bool:
        kernels, terminals = self._get("kernels"), self._get("terminals")
        if self._is_used(kernels, terminals):
            self._client.activity()
        return True

    def _is_used(self, kernels: list[dict[str, Any]], terminals: list[dict[str, Any]]) -> bool:
        if self._type == "kernels_or_terminals":
            return bool(kernels or terminals)
        if self._type == "kernel_connections":
            return any(kernel.get("connections", 0) for kernel in kernels)
        last = max((str(each.get("last_activity") or "") for each in (*kernels, *terminals)), default="")
        has_moved, self._last = last > self._last, max(last, self._last)
        return has_moved or any(kernel.get("execution_state") == "busy" for kernel in kernels)

    def _get(self, what: str) -> list[dict[str, Any]]:
        try:
            asked = urllib.request.Request(f"{self._root}/{what}", headers=self._headers)  # noqa: S310 - our own pod
            with OPENER.open(asked, timeout=ANSWER_S) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            return []  # a server without terminals has no such list
        except http.client.HTTPException as error:
            raise OSError(f"no answer of the notebook: {error}") from error
        listed = cast("list[Any]", found) if isinstance(found, list) else []
        return [each for each in listed if isinstance(each, dict)]


class BoardActivity:
    """Reports whether there is an event file to show, and looks until there is one."""

    def __init__(self, client: Client, folder: str) -> None:
        self._client, self._folder = client, folder
        self._told = False

    def look(self) -> bool:
        if "://" in self._folder or self._has_events():
            if self._told:
                self._client.waiting(False)
            return False
        if not self._told:
            self._client.waiting(True)
            self._told = True
        return True

    def _has_events(self) -> bool:
        return any(EVENTS_MARK in name for _, _, names in os.walk(self._folder, followlinks=True) for name in names)
