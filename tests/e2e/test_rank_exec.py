"""Commands in ranks, files and SSH, over the whole system."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from slipway.sdk import Client
from tests.support import openssh
from tests.support.local_stack import RunningStack, cli_words
from tests.support.names import fresh
from tests.support.ports import free_port
from tests.support.terminals import at_terminal
from tests.support.wait import wait_until

SLEEP = ["sh", "-c", "while true; do sleep 0.2; done"]


def a_gang(stack: RunningStack, ranks: int = 2, **body: Any) -> str:
    """The id of a running gang."""
    roles = [{"name": "worker", "count": ranks, "resources": {"cpu": "100m", "memory": "64Mi"}}]
    id_ = stack.launch(
        {"kind": "training", "name": fresh("exec"), "image": "x", "command": SLEEP, "ranks": roles, **body}
    )
    stack.wait_for(id_, "Running")
    return id_


@pytest.fixture(scope="module")
def gang(stack: RunningStack) -> Generator[str]:
    """A gang for the tests that do not change it."""
    id_ = a_gang(stack)
    yield id_
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))


def piped(stack: RunningStack, data: bytes, *words: str) -> tuple[int, bytes, bytes]:
    """Run `slipway ...` with an input; return (exit code, output, errors)."""
    done = subprocess.run(
        cli_words(*words), input=data, env=stack.cli_environment(), capture_output=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_a_command_in_a_pipe(stack: RunningStack, gang: str) -> None:
    """The command runs in its rank with its outputs, input and exit code; an error names a command that cannot be
    run."""
    ran = stack.command("exec", gang, "--rank", "1", "--", "sh", "-c", "echo $RANK; echo bad >&2; exit 7")
    assert (ran.code, ran.out, ran.err) == (7, "1\n", "bad\n")
    data = os.urandom(3_000_000)
    assert piped(stack, data, "exec", gang, "-i", "--", "cat") == (0, data, b"")
    assert piped(stack, data, "exec", gang, "--", "cat") == (0, b"", b"")
    ran = stack.command("exec", gang, "--", "no-such-program")
    assert (ran.code, "no program 'no-such-program'" in ran.err) == (127, True)
    ran = stack.command("exec", gang, "ls", "-a")
    assert ran.code == 2
    ran = stack.command("exec", gang, "ls")
    assert (ran.code, f"slipway exec {gang} -- ls" in ran.err) == (2, True)
    assert stack.command("exec", gang, "--rank", "9", "--", "ls").code == 3
    ran = stack.command("exec", "no-such-id", "--", "ls")
    assert (ran.code, "`slipway ps` lists what there is" in ran.err) == (3, True)


def test_on_a_terminal(stack: RunningStack, gang: str) -> None:
    """The shell has the size of the window, Ctrl-C goes to it, and afterwards the terminal is restored."""
    script = 'stty -g > before; "$@"; echo "code-$?"; stty -g > after; cmp before after && echo as-it-was'
    folder = stack.command("exec", gang, "--", "pwd").out.strip()
    words = ["/bin/sh", "-c", f"cd {folder}; {script}", "sh", *cli_words("exec", gang, "--", "sh")]
    with at_terminal(words, stack.cli_environment()) as person:
        person.type("stty size; echo ready-$((1+1))\n")
        assert "24 80" in person.until("ready-2")
        person.resize(40, 100)
        person.type("sleep 0.3; stty size\n")
        person.until("40 100")
        # The shell is busy by itself: while it starts a program it may hold the key back until that program ends.
        person.type("echo runs-$((1+1)); while :; do :; done\n")
        person.until("runs-2")
        person.type("\x03")
        person.type("echo still-$((1+1)); exit 5\n")
        person.until("still-2")
        person.until("code-5")
        person.until("as-it-was")
        assert person.to_end() == 0


def test_files_there_and_back(stack: RunningStack, gang: str, tmp_path: Path) -> None:
    """A folder is copied with its whole content; into an existing folder, or under a new name."""
    source, there = tmp_path / "source", tmp_path / "there"
    (source / "sub").mkdir(parents=True)
    there.mkdir()
    (source / "big").write_bytes(os.urandom(2_000_000))
    (source / "sub/a b").write_text("text")
    (source / "sub/run").write_text("x")
    (source / "sub/run").chmod(0o750)
    (source / "in").symlink_to("sub/a b")
    (source / "out").symlink_to("/etc/passwd")
    assert stack.command("cp", str(source), f"{gang}:{there}").code == 0
    ran = stack.command("cp", f"{gang}/1:{there}/source", str(tmp_path / "back"))
    assert (ran.code, "left out: out (a link that leads or may lead out of the copy" in ran.err) == (0, True)
    back = tmp_path / "back"
    assert (back / "big").read_bytes() == (source / "big").read_bytes()
    assert (back / "in").read_text() == "text"
    assert (back / "sub/run").stat().st_mode & 0o777 == 0o750
    assert stack.command("cp", str(source / "big"), f"{gang}:{there}/one").code == 0
    assert (there / "one").stat().st_size == 2_000_000
    assert sorted(each.name for each in there.iterdir()) == ["one", "source"]
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


def test_a_copy_that_fails_leaves_nothing(stack: RunningStack, gang: str, tmp_path: Path) -> None:
    """Nothing is left on either side, and the error gives the reason."""
    (tmp_path / "file").write_text("x")
    for words, why in (
        ((f"{gang}:{tmp_path}/none", f"{tmp_path}/new"), "there is no"),
        ((f"{gang}:{tmp_path}/file", f"{tmp_path}/no/new"), "there is no folder"),
        ((f"{tmp_path}/file", f"{gang}:{tmp_path}/no/new"), "there is no such folder in the rank"),
        ((f"{tmp_path}/file", f"{tmp_path}/new"), "one side must be in a rank"),
        ((f"{gang}:a", f"{gang}:b"), "one side must be on this machine"),
    ):
        ran = stack.command("cp", *words)
        assert ran.code in (2, 3), ran
        assert why in ran.err
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_an_image_without_tar_is_said(stack: RunningStack, tmp_path: Path) -> None:
    """The error says what works without tar."""
    (tmp_path / "bin").mkdir()
    for program in ("sh", "sleep"):
        (tmp_path / "bin" / program).symlink_to(f"/bin/{program}")
    id_ = a_gang(stack, 1, env={"PATH": f"{tmp_path}/bin"})
    for words in ((f"{id_}:/etc/hostname", str(tmp_path)), (__file__, f"{id_}:{tmp_path}")):
        ran = stack.command("cp", *words)
        assert (ran.code, "has no tar" in ran.err) == (1, True), ran
    ran = stack.command("ssh", id_, "--", "true")
    assert ran.code != 0
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))


def test_a_command_ends_with_its_rank(stack: RunningStack) -> None:
    """The command line reports it, and does not wait for ever."""
    id_ = a_gang(stack, 1)
    argv = cli_words("exec", id_, "--", "sh", "-c", "echo here; sleep 600")
    with subprocess.Popen(argv, env=stack.cli_environment(), stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"here\n"
        assert stack.command("kill", id_).code == 0
        assert running.wait(60) != 0
    ran = stack.command("exec", id_, "--", "true")
    assert ran.code == 1


def test_the_sdk(stack: RunningStack, gang: str) -> None:
    """The same works from Python."""
    token = stack.headers.get("Authorization", "").removeprefix("Bearer ")
    with Client(stack.url, token=token) as client:
        found = client.attach(gang).exec(["sh", "-c", "cat; echo $RANK"], rank=1, stdin=b"in ")
    assert (found.exit_code, found.text) == (0, "in 1\n")


@pytest.fixture
def with_sshd(tmp_path: Path) -> Mapping[str, str]:
    """The environment of a rank whose image has sshd and rsync."""
    found = openssh.environment(tmp_path)
    if found is None:
        pytest.skip("no OpenSSH server to be had (Debian: apt install openssh-server rsync)")
    return found


class _Ssh:
    """The real SSH clients of this machine, with what `slipway ssh-config` wrote for a gang of one rank."""

    def __init__(self, stack: RunningStack, id_: str, folder: Path) -> None:
        self.folder = folder
        self.env = {**stack.cli_environment(), "SLIPWAY_CONFIG_DIR": str(folder / "config")}
        self.config, self.host = folder / "ssh.conf", f"slipway-{id_}"
        code, out, err = self.ran(*cli_words("ssh-config", id_))
        assert code == 0, err
        self.config.write_text(out)

    def ran(self, *argv: str, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """Run a command and return (exit code, stdout, stderr)."""
        whole = {**self.env, **(env or {})}
        done = subprocess.run(argv, env=whole, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    def argv(self, *options: str) -> list[str]:
        """The `ssh` command line to the rank, with options."""
        return ["ssh", "-F", str(self.config), *options, self.host]


def test_ssh(stack: RunningStack, with_sshd: Mapping[str, str], tmp_path: Path) -> None:
    """ssh runs a command with the rank's environment and exit code, and scp works; a wrong host key is refused."""
    id_ = a_gang(stack, 1, env={**with_sshd, "COLOUR": "red blue"})
    ssh = _Ssh(stack, id_, tmp_path)
    code, out, err = ssh.ran(*cli_words("ssh", id_, "--", 'echo "$COLOUR" $RANK; exit 4'))
    assert (code, out) == (4, "red blue 0\n"), err
    (tmp_path / "file").write_bytes(os.urandom(500_000))
    code, _, err = ssh.ran("scp", "-F", str(ssh.config), str(tmp_path / "file"), f"{ssh.host}:{tmp_path}/copy")
    assert code == 0, err
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "file").read_bytes()
    # Another host key than the rank's is refused.
    (tmp_path / "config/ssh" / id_ / "known_hosts").write_text(f"{ssh.host} ssh-ed25519 {'A' * 68}\n")
    code, _, err = ssh.ran(*ssh.argv(), "true")
    assert (code, "verification failed" in err) == (255, True), err
    temporary = Path(stack.command("exec", id_, "--", "sh", "-c", "echo $TMPDIR").out.strip())
    wait_until(lambda: not list(temporary.glob("slipway-ssh*")), "the keys are removed from the rank")
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))


def test_rsync(stack: RunningStack, with_sshd: Mapping[str, str], tmp_path: Path) -> None:
    """A folder is copied there, only changes are copied back, and deleted files are deleted."""
    id_ = a_gang(stack, 1, env=with_sshd)
    ssh = _Ssh(stack, id_, tmp_path)
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "deep").mkdir(parents=True)
    (here / "deep/weights.bin").write_bytes(os.urandom(2_000_000))
    (here / "notes.txt").write_text("one\n")
    program = next(str(found) for part in with_sshd["PATH"].split(":") if (found := Path(part) / "rsync").exists())
    words = (program, "-a", "--delete", "--stats", "-e", f"ssh -F {ssh.config}")
    libraries = {"LD_LIBRARY_PATH": with_sshd["LD_LIBRARY_PATH"]}
    code, _, err = ssh.ran(*words, f"{here}/", f"{ssh.host}:{there}/", env=libraries)
    assert code == 0, err
    assert (there / "deep/weights.bin").read_bytes() == (here / "deep/weights.bin").read_bytes()
    (there / "notes.txt").unlink()
    (there / "result.txt").write_text("two\n")
    code, out, err = ssh.ran(*words, f"{ssh.host}:{there}/", f"{here}/", env=libraries)
    assert code == 0, err
    assert "Number of regular files transferred: 1\n" in out
    assert sorted(each.name for each in here.rglob("*")) == ["deep", "result.txt", "weights.bin"]
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))


SERVER = """
import http.server, os, socketserver, tempfile, threading
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"of rank " + os.environ["RANK"].encode())
    def log_message(self, *words): pass
    def address_string(self): return "-"
class OnSocket(socketserver.ThreadingUnixStreamServer): pass
port = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
path = tempfile.mkdtemp(prefix="e", dir="/tmp") + "/s"
threading.Thread(target=OnSocket(path, Page).serve_forever, daemon=True).start()
print("listening on", port.server_port, path, os.getpid(), flush=True)
port.serve_forever()
"""


@pytest.fixture
def short() -> Generator[str]:
    """A folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="ssh", dir="/tmp") as folder:
        yield folder


def test_what_an_editor_needs_of_ssh(
    stack: RunningStack, with_sshd: Mapping[str, str], short: str, tmp_path: Path
) -> None:
    """Works as VS Code Remote-SSH needs it: a script on stdin starts a server, which is reached through a SOCKS proxy.

    A second command and a socket file of the rank at a local port use the same connection.
    """
    id_ = a_gang(stack, 1, env=with_sshd)
    ssh = _Ssh(stack, id_, tmp_path)
    # Not below the folder of the test, because the path of a socket has at most about a hundred characters.
    control = ("-o", f"ControlPath={short}/c")
    socks = free_port()
    main = ssh.argv("-T", "-D", f"127.0.0.1:{socks}", "-M", *control)
    script = f"uname >&2\nexec {sys.executable} -u -c '{SERVER}'\n"
    with subprocess.Popen(
        [*main, "sh"], env=ssh.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as session:
        try:
            assert session.stdin is not None
            assert session.stdout is not None
            session.stdin.write(script.encode())
            session.stdin.close()
            words = session.stdout.readline().decode().split()
            assert words[:2] == ["listening", "on"], words
            assert _over_socks(socks, int(words[2])).endswith(b"of rank 0")
            code, out, err = ssh.ran(*ssh.argv(*control), "echo beside")
            assert (code, out) == (0, "beside\n"), err
            local = free_port()
            code, _, err = ssh.ran(*ssh.argv(*control, "-O", "forward", "-L", f"127.0.0.1:{local}:{words[3]}"))
            assert code == 0, err
            with socket.create_connection(("127.0.0.1", local), timeout=20) as found:
                assert _got(found).endswith(b"of rank 0")
        finally:
            session.terminate()
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))
    # sshd gives sessions their own process group and HOME: the server ends with its rank all the same.
    wait_until(lambda: not Path(f"/proc/{words[4]}").exists(), "what ran over ssh has ended", timeout_s=60)


def _over_socks(port: int, target: int) -> bytes:
    """The answer of the rank's target port, through a SOCKS5 proxy (RFC 1928)."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as found:
        found.sendall(b"\x05\x01\x00")
        assert found.recv(2) == b"\x05\x00"
        found.sendall(b"\x05\x01\x00\x01" + socket.inet_aton("127.0.0.1") + target.to_bytes(2, "big"))
        assert found.recv(10)[:2] == b"\x05\x00"
        return _got(found)


def _got(found: socket.socket) -> bytes:
    found.sendall(b"GET / HTTP/1.0\r\n\r\n")
    parts: list[bytes] = []
    while part := found.recv(4096):
        parts.append(part)
    return b"".join(parts)
