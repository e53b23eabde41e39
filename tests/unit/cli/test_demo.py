"""The parts of the demo that have logic of their own: the program of its gang, and its small Redis client."""

import io
import os
import socket
import subprocess
import sys
import threading
from importlib import resources

import pytest

from slipway.cli.demo import allreduce
from slipway.cli.demo.story import DemoStage, xrange
from slipway.cli.terminal import Terminal
from tests.support.ports import free_port

RANKS = 3


def test_the_ranks_agree() -> None:
    """Every rank ends with the sum of all vectors, although no rank received more than its neighbours' parts."""
    program = resources.files("slipway.cli.demo").joinpath("allreduce.py").read_text(encoding="utf-8")
    base = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program], env={**base, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(RANKS)
    ]
    said = [rank.communicate(timeout=30)[0] for rank in ranks]
    wanted = f"round {allreduce.ROUNDS}: sum {allreduce.expected(RANKS) * allreduce.ROUNDS:.0f} ok"
    assert [rank.returncode for rank in ranks] == [0] * RANKS
    assert all(wanted in text for text in said)


def a_server(answer: bytes) -> tuple[str, threading.Thread, list[bytes]]:
    """One connection, one answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with listener, connection:
            heard.append(connection.recv(4096))
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return f"redis://127.0.0.1:{listener.getsockname()[1]}/0", thread, heard


def test_entries_of_a_stream() -> None:
    """Entries of a stream are read with ids and fields, also with non-ASCII text."""
    entry = "*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\na\r\n$2\r\né\r\n"
    url, thread, heard = a_server(f"*1\r\n{entry}".encode())
    assert xrange(url, "key") == [("1-1", {"a": "é"})]
    thread.join()
    assert heard == [b"*4\r\n$6\r\nXRANGE\r\n$3\r\nkey\r\n$1\r\n-\r\n$1\r\n+\r\n"]


def test_an_error_of_the_server() -> None:
    """An error of the server is raised as an error."""
    url, thread, _ = a_server(b"-NOAUTH Authentication required.\r\n")
    with pytest.raises(ConnectionError, match="NOAUTH"):
        xrange(url, "key")
    thread.join()


def test_long_titles_and_checks_are_broken_at_the_width() -> None:
    """Long titles and findings of checks are broken, so that no line of the demo is wider than the terminal."""
    out = io.StringIO()
    stage = DemoStage(Terminal(out, io.StringIO()), "http://127.0.0.1:1")
    stage.title("a scene " * 20)
    assert not stage.check("a long name " * 5, is_ok=False, found="much " * 40)
    lines = out.getvalue().splitlines()
    assert len(lines) > 6
    assert max(map(len, lines)) <= 80
