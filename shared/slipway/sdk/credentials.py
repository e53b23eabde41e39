"""The source of an API token: a fixed token, or a token that kubectl issues and that is renewed before it expires.

Owns where a token comes from. Invariants: a token is never an argument of a process and never printed. It is sent only
to the server that it was issued for. Every kubectl call has a deadline.
"""

import base64
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from slipway.errors import DeniedError, InvalidError, UnavailableError
from slipway.model.numbers import seconds_in
from slipway.runtime.clock import SystemClock

ENV_TOKEN = "SLIPWAY_API_TOKEN"  # noqa: S105 - the name of a variable
AUDIENCE = "slipway-api"
LIFE_S = 3600
AHEAD_S = 60.0
"""A token that expires within this many seconds is renewed."""
KUBECTL_S = 30.0
Json = dict[str, Any]


class Kubernetes(NamedTuple):
    """How kubectl gets a token: for an account (`namespace/name`), else with the login of the kubeconfig."""

    account: str = ""
    audience: str = AUDIENCE
    context: str = ""


class Credential:
    """Provides the token for each request. `ask` obtains a new token, which is cached until it expires."""

    def __init__(self, ask: Callable[[], str]) -> None:
        self._ask = ask
        self._token = ""
        self._ends_at = 0.0

    def __repr__(self) -> str:
        return "Credential(***)"

    def token(self) -> str:
        """Return a token that remains valid for at least `AHEAD_S` when its issuer allows it.

        Raises:
            ControlPlaneError: no token can be obtained.
        """
        if not self._token or SystemClock().now() > self._ends_at - AHEAD_S:
            self._token = checked(self._ask())
            self._ends_at = ends_at(self._token) or float("inf")
        return self._token


def fixed(token: str) -> Credential:
    """Return a credential that always provides this token."""
    return Credential(lambda: token)


def of_file(path: Path) -> Credential:
    """Return a credential that reads its token from a file, once per command."""

    def read() -> str:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InvalidError(f"the token file {path} cannot be read: {why}") from error

    return Credential(read)


def of_kubernetes(wanted: Kubernetes) -> Credential:
    """Return a credential with tokens from kubectl."""
    return Credential(lambda: token_of(wanted))


def checked(text: str) -> str:
    """Return the token without surrounding white space. Raises InvalidError when the text cannot be a token."""
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidError("invalid token: it must be one word of printable ASCII characters")
    return token


def ends_at(token: str) -> float:
    """Return when a JWT expires, in seconds since the epoch; 0 when the token does not say."""
    parts = token.split(".")
    if len(parts) != 3:
        return 0.0
    try:
        said = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return seconds_in(said.get("exp")) or 0.0
    except (ValueError, AttributeError, TypeError, RecursionError):
        return 0.0


def token_of(wanted: Kubernetes) -> str:
    """Return a token of Kubernetes. Raises DeniedError or UnavailableError with kubectl's message."""
    context = ["--context", wanted.context] if wanted.context else []
    if wanted.account:
        namespace, _, name = wanted.account.partition("/")
        audience = ["--audience", wanted.audience] if wanted.audience else []
        return kubectl(
            [*context, "create", "token", name, "--namespace", namespace, *audience, f"--duration={LIFE_S}s"]
        )
    told = kubectl([*context, "config", "view", "--raw", "--minify", "--output", "json"])
    try:
        return _of_kubeconfig(json.loads(told))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        # The text of a faulty answer may contain the token, so only the kind of the error is shown.
        why = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise InvalidError(
            f"the login of the kubeconfig cannot be used: its token file or its plug-in gives no token ({why})"
        ) from None


def kubectl(words: Sequence[str], *, given: str = "") -> str:
    """Return the output of `kubectl WORDS`; `given` is its input."""
    return _run(["kubectl", *words], given=given)


def _of_kubeconfig(config: Json) -> str:
    users = cast("list[Json]", config.get("users") or [{}])
    user = cast("Json", users[0].get("user") or {})
    if user.get("token"):
        return str(user["token"])
    if user.get("tokenFile"):
        return Path(str(user["tokenFile"])).read_text(encoding="utf-8")
    plugin = cast("Json | None", user.get("exec"))
    if plugin is None:
        raise InvalidError(
            "this kubeconfig has no token, only for example a certificate, which only the Kubernetes API accepts; "
            "name an account: slipway login --kubernetes --account NAMESPACE/NAME"
        )
    info = {"apiVersion": plugin.get("apiVersion"), "kind": "ExecCredential", "spec": {"interactive": False}}
    named = cast("list[dict[str, str]]", plugin.get("env") or [])
    env = {**{each["name"]: each["value"] for each in named}, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    told: Json = json.loads(_run([str(plugin["command"]), *map(str, plugin.get("args") or [])], env=env))
    token = str(cast("Json", told.get("status") or {}).get("token") or "")
    if not token:
        raise InvalidError(
            f"the plug-in {plugin['command']} of this kubeconfig gives no token; name an account instead"
        )
    return token


def _run(argv: Sequence[str], *, env: Mapping[str, str] | None = None, given: str = "") -> str:
    try:
        done = subprocess.run(  # noqa: S603 - kubectl, or the plug-in that the user's own kubeconfig names
            list(argv),
            env={**os.environ, **(env or {})},
            input=given,
            capture_output=True,
            text=True,
            timeout=KUBECTL_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise InvalidError(
            f"{argv[0]} is not installed; a token needs none: slipway login --token-file FILE"
        ) from error
    except OSError as error:
        raise InvalidError(f"{argv[0]} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{argv[0]} did not answer within {KUBECTL_S:.0f} s") from error
    if done.returncode != 0:
        words = done.stderr.strip() or f"it ended with {done.returncode}"
        raise DeniedError(f"{argv[0]}: {words}")
    return done.stdout
