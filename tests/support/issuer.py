"""The issuer of `issuer_app.py` as a test controls it: started as a process, commanded, and asked for what it has
seen."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import httpx2

from tests.support.plain_http import NO_TLS
from tests.support.ports import free_port

Json = dict[str, Any]
WEB, CLI = "slipway-web", "slipway-cli"
SECRET = "the secret of the web client"
END_S = 10


class RunningIssuer:
    """One issuer process; `url` is the issuer's name."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._process: subprocess.Popen[str] | None = None
        self._http = httpx2.Client(base_url=self.url, verify=NO_TLS, trust_env=False, timeout=10)

    def start(self) -> None:
        """Start the process and wait until it answers. The keys, codes and tokens of an earlier process are lost."""
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.support.issuer_app", str(self.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == "ready"

    def stop(self) -> None:
        """Stop the process at once."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(END_S)
            assert process.stdout is not None
            process.stdout.close()

    def close(self) -> None:
        self.stop()
        self._http.close()

    def tell(self, what: str, body: Json | None = None) -> Json:
        """Send one command to `/control`; return its answer."""
        answer = self._http.post(f"/control/{what}", json=body or {}).raise_for_status()
        return answer.json() if answer.content else {}

    def reset(self) -> None:
        """Remove all faults, and set the initial user."""
        self.tell("faults")
        self.user(sub="ada", groups=["ml"])

    def user(self, **claims: Any) -> None:
        """Set the claims of the user that signs in from now on."""
        self.tell("user", claims)

    def faults(self, **faults: Any) -> None:
        """Set the faults of the issuer from now on."""
        self.tell("faults", faults)

    def token(self, *, key: str = "current", header: Json | None = None, **claims: Any) -> str:
        """Return a token with these claims in addition to iss, aud, sub, iat and exp; None removes a claim."""
        return str(self.tell("token", {"key": key, "header": header or {}, "claims": claims})["token"])

    def seen(self) -> Json:
        """{counts: {path: calls}, refresh: tokens that are valid, ended: queries of ended sessions}"""
        return self._http.get("/control/seen").json()

    def calls(self, path: str) -> int:
        return int(self.seen()["counts"].get(path, 0))

    def visit(self, url: str) -> str:
        """Return the URL to which the issuer redirects a signed-in browser."""
        answer = self._http.get(url)
        assert answer.status_code == 302, answer.text
        return answer.headers["Location"]


@contextmanager
def running_issuer() -> Generator[RunningIssuer]:
    """An issuer that answers until the end of the context."""
    issuer = RunningIssuer(free_port())
    try:
        issuer.start()
        issuer.reset()
        yield issuer
    finally:
        issuer.close()
