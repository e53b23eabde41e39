"""The real client of the Kubernetes API: the only module that imports the `kubernetes` package.

Owns configuration (a kubeconfig or the pod's own account), credentials and their renewal, TLS, the HTTP session and the
translation of its faults. `rest.py` has the verbs.

The client uses the library for the kubeconfig rules, exec, OIDC and cloud credentials, the in-cluster account, TLS and
the aiohttp session. It does not use the typed calls: with models, a call costs 1 ms and a LIST of 500 pods half a
second, against 0.1 ms and 9 ms with structs. A normal import of the library loads `requests`, `oauthlib`, `pydantic`
and a second, synchronous client, because its packages import all their modules: 57 MiB and 1 s. That is too much for
four services that use less than 90 MiB when idle. So `_library` imports only the five modules that are needed, below
bare parent packages, and then removes all of them from the import system again. This takes 41 MiB and 0.4 s; Python
with asyncio and aiohttp is 37 MiB of that. A normal `import kubernetes` works before and after. The version is pinned,
and a test fails when the library moves these modules.

Calls use our own connections (`connections.py`), at less than half of the cost. Watches and logs use the aiohttp
session, as all requests do when a proxy is configured. Commands in containers use WebSockets (`exec_socket.py`).

Invariants: the client sends a request once, with two exceptions. It repeats a request once after a 401, with renewed
credentials, because the server did nothing. It repeats a GET, PUT or DELETE once when an idle connection turns out to
be closed. If the server had applied that PUT nevertheless, the repetition gives Conflict, as after any lost response.
Proxies in the environment are ignored. Redirects are not followed. Credentials never appear in a log or an error.

Not promised: new client certificates from an exec plugin. They are read only when the client opens; tokens are renewed.
"""

import asyncio
import contextlib
import importlib.util
import io
import os
import re
import ssl
import sys
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec
import yaml
import yarl

from slipway.errors import ControlPlaneError, DeadlineError, InvalidError, UnavailableError
from slipway.kube.connections import KubeConnections, RawResponse
from slipway.kube.errors import Verb, explain, read_retry_after, read_status
from slipway.kube.exec_socket import RefusedUpgrade, SocketOptions, open_channels
from slipway.kube.ports import ContainerChannels
from slipway.kube.rest import KubeRequest, RestApi, Timeouts
from slipway.model.times import http_date
from slipway.runtime import log, telemetry
from slipway.runtime.clock import Clock, DisciplinedClock, Random

WRONG_S = 2.0
"""A warning is logged when the machine's clock is wrong by more than this number of seconds."""
_log = log.get_logger(__name__)
_NUMBERS = re.compile(r"v?(\d+)\.(\d+)")


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`version` as kubectl shows it; `time` in whole epoch seconds, rounded down, or None when the server does not send
    it."""

    version: str
    time: float | None

    @property
    def numbers(self) -> tuple[int, int]:
        """Major and minor version; (0, 0) when `version` cannot be parsed."""
        found = _NUMBERS.match(self.version)
        return (int(found[1]), int(found[2])) if found else (0, 0)


class _Version(msgspec.Struct):
    gitVersion: str = ""


def server_facts(body: bytes, date: str) -> ServerFacts:
    """Return the facts from a response of `/version` and its Date header. Raises InvalidError."""
    try:
        version = msgspec.json.decode(body, type=_Version).gitVersion
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidError(f"the address is not a Kubernetes API server: {error}") from error
    return ServerFacts(version=version, time=http_date(date))


class ServerDates:
    """Adjusts a clock to the Date headers of the server's responses, and logs when the machine's clock is wrong."""

    def __init__(self, clock: DisciplinedClock) -> None:
        self._clock = clock
        self._date = ""
        self._seconds: float | None = None
        """that Date in epoch seconds"""
        self._is_wrong = False

    def take(self, date: str, *, sent: float) -> None:
        """Process the Date header of a response that has just arrived; the request was sent at `sent` (monotonic)."""
        if date != self._date:
            self._date, self._seconds = date, http_date(date)
            self._judge()
        if self._seconds is None:
            return
        self._clock.learn(int(self._seconds), sent=sent, received=self._clock.monotonic())

    def _judge(self) -> None:
        """Compare the clocks; called once for each second of the server."""
        off_s = self._clock.off_s
        telemetry.CLOCK_OFF.set(off_s)
        is_wrong = abs(off_s) > WRONG_S
        if is_wrong and not self._is_wrong:
            _log.warning("this machine's clock is wrong: the API server's time is used", ahead_s=off_s)
        elif self._is_wrong and not is_wrong:
            _log.info("this machine's clock is right again")
        self._is_wrong = is_wrong


POOL_SIZE = 64
ABOUT_S = 10.0
RENEW_S = 60.0
"""Seconds after which credentials that can expire are read again: a pod's own token, files and plugins of a
kubeconfig."""
_BARE_PACKAGES = ("kubernetes", "kubernetes.aio", "kubernetes.aio.utils", "kubernetes.aio.config")
_MODEL_CLIENT = "kubernetes.aio.client.api_client"
_WHOLE_BYTES_MAX = 512 * 1024
"""Larger bodies are written in pieces, so that other tasks run in between."""
_REPEATABLE = ("GET", "PUT", "DELETE")
_FAULTS = (aiohttp.ClientError, OSError)


class KubeClient(RestApi):
    """`KubeApi` over HTTP. Open it with `async with`; see `connect`."""

    def __init__(
        self,
        kubeconfig: str | None,
        *,
        clock: Clock,
        random: Random,
        timeouts: Timeouts | None = None,
        pool_size: int = POOL_SIZE,
        user_agent: str = "slipway",
    ) -> None:
        timeouts = timeouts or Timeouts()
        self._http = _HttpTransport(kubeconfig, clock, pool_size, user_agent, connect_s=timeouts.connect_s)
        super().__init__(self._http, random, timeouts)

    async def open(self) -> None:
        """Read the configuration; no request is sent. Raises InvalidError when there is no usable configuration."""
        await self._http.open()

    async def close(self) -> None:
        """Close every connection."""
        await self._http.close()

    async def about(self) -> ServerFacts:
        """Return the version and the time of the API server. Raises the same errors as every call."""
        request = KubeRequest(verb=Verb.GET, resource="version", method="GET", target="/version")
        answer = await self._http.exchange(request, timeout_s=ABOUT_S)
        return server_facts(answer.body, answer.date)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def connect(
    kubeconfig: str | None = None,
    *,
    clock: Clock,
    random: Random,
    timeouts: Timeouts | None = None,
    pool_size: int = POOL_SIZE,
    user_agent: str = "slipway",
) -> KubeClient:
    """Return a client for that kubeconfig; None means the pod's own account, or outside a pod the default kubeconfig.

    Use it as `async with connect(...) as kube`. `pool_size` limits the concurrent calls; watches and logs are not
    included.
    """
    return KubeClient(
        kubeconfig, clock=clock, random=random, timeouts=timeouts, pool_size=pool_size, user_agent=user_agent
    )


class _HttpTransport:
    """One aiohttp session that the library creates, with credentials on each request."""

    def __init__(
        self, kubeconfig: str | None, clock: Clock, pool_size: int, user_agent: str, *, connect_s: float
    ) -> None:
        self._connect_s = connect_s
        self._kubeconfig = kubeconfig
        self._clock = clock
        self._dates = ServerDates(clock) if isinstance(clock, DisciplinedClock) else None
        self._slots = asyncio.Semaphore(pool_size)
        self._headers = {"Accept-Encoding": "identity", "User-Agent": user_agent}
        self._direct: _DirectHttp | None = None
        self._account: _Credentials | None = None
        self._session: aiohttp.ClientSession | None = None
        self._options: dict[str, Any] = {}
        self._tls: ssl.SSLContext | None = None

    async def open(self) -> None:
        if self._session is not None:
            return
        self._account = await _load(self._kubeconfig, self._clock)
        configuration = self._account.configuration
        configuration.connection_pool_maxsize = 0  # the semaphore bounds calls; watches must not starve them
        configuration.client_session_kwargs = {
            "trust_env": False,
            "timeout": aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s),
            "cookie_jar": aiohttp.DummyCookieJar(),
            "headers": self._headers,
        }
        if configuration.tls_server_name:
            self._options["server_hostname"] = configuration.tls_server_name
        if configuration.proxy:
            self._options["proxy"] = configuration.proxy
        try:
            self._session, tls = _library().open_session(configuration)
        except (OSError, ValueError) as error:
            raise InvalidError(f"the certificates of {_source(self._kubeconfig)} cannot be used: {error}") from error
        self._tls = tls
        if not configuration.proxy:
            url = yarl.URL(configuration.host, encoded=True)
            self._direct = _DirectHttp(
                url, tls, configuration.tls_server_name or None, self._headers, connect_s=self._connect_s
            )

    async def close(self) -> None:
        session, self._session = self._session, None
        if self._direct is not None:
            self._direct.close()
        if session is not None:
            await session.close()

    async def send(self, request: KubeRequest, *, timeout_s: float) -> bytes:
        return (await self.exchange(request, timeout_s=timeout_s)).body

    async def exchange(self, request: KubeRequest, *, timeout_s: float) -> RawResponse:
        """Return a complete 2xx response; raises the same errors as `send`."""
        start, outcome = self._clock.monotonic(), "cancelled"
        span = telemetry.calling(request.method, request.resource, request.target)
        try:
            async with asyncio.timeout(timeout_s), self._slots:
                sent = self._clock.monotonic()
                answer = await self._answer(request)
                if self._dates is not None:
                    self._dates.take(answer.date, sent=sent)
                outcome = str(answer.status)
                return answer
        except ControlPlaneError as error:
            outcome = type(error).__name__
            raise
        except aiohttp.ConnectionTimeoutError as error:  # a TimeoutError too, but nothing was sent
            outcome = "fault"
            raise _unreachable(request, error) from error
        except TimeoutError as error:
            outcome = "timeout"
            raise DeadlineError(f"{request.method} {request.resource}: no answer in {timeout_s:g} s") from error
        except _FAULTS as error:
            outcome = "fault"
            raise _unreachable(request, error) from error
        finally:
            _count(request, outcome, self._clock.monotonic() - start)
            if span is not None:
                telemetry.called(span, outcome)

    async def stream(self, request: KubeRequest, *, timeout_s: float, silence_s: float) -> AsyncGenerator[bytes, None]:
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._ask(request)
            async with response:
                while True:
                    async with asyncio.timeout(silence_s):
                        chunk = await response.content.readany()
                    if not chunk:
                        return
                    yield chunk
        except aiohttp.ConnectionTimeoutError as error:
            raise _unreachable(request, error) from error
        except TimeoutError as error:
            raise UnavailableError(
                f"{request.verb} of {request.resource} received nothing within its time limit"
            ) from error
        except _FAULTS as error:
            raise _unreachable(request, error) from error

    @contextlib.asynccontextmanager
    async def upgrade(self, request: KubeRequest, *, timeout_s: float) -> AsyncGenerator[ContainerChannels, None]:
        account, session = self._account, self._session
        if account is None or session is None:
            raise UnavailableError("the client is not open")
        options = SocketOptions(
            tls=self._tls,
            server_hostname=str(self._options.get("server_hostname") or ""),
            proxy=str(self._options.get("proxy") or ""),
            user_agent=self._headers["User-Agent"],
        )
        url, start, outcome = account.configuration.host + request.target, self._clock.monotonic(), "cancelled"
        try:
            channels = await open_channels(url, await account.headers(), options, timeout_s=timeout_s)
            if channels.status == 401 and await account.renew():
                channels = await open_channels(url, await account.headers(), options, timeout_s=timeout_s)
            outcome = str(channels.status)
            if isinstance(channels, RefusedUpgrade):
                retry_after_s = read_retry_after(channels.retry_after)
                raise explain(request.verb, channels.status, read_status(channels.body), retry_after_s)
        except TimeoutError as error:
            outcome = "timeout"
            raise DeadlineError(f"{request.verb} of {request.resource}: no answer in {timeout_s:g} s") from error
        except OSError as error:
            outcome = "fault"
            raise _unreachable(request, error) from error
        finally:
            _count(request, outcome, self._clock.monotonic() - start)
        try:
            yield channels
        finally:
            await channels.close()

    async def _answer(self, request: KubeRequest) -> RawResponse:
        """Return a complete 2xx response; raise any other response as its error."""
        account, lean = self._account, self._direct
        if account is None or self._session is None:
            raise UnavailableError("the client is not open")
        if lean is None:
            async with await self._ask(request) as response:
                return RawResponse(response.status, None, await response.read(), response.headers.get("Date", ""))
        answer = await lean.ask(request, await account.headers())
        if answer.status == 401 and await account.renew():
            answer = await lean.ask(request, await account.headers())
        if answer.status < 300:
            return answer
        raise explain(request.verb, answer.status, read_status(answer.body), read_retry_after(answer.retry_after))

    async def _ask(self, request: KubeRequest) -> aiohttp.ClientResponse:
        """Return a 2xx response, which the caller must release; raise any other response as its error."""
        account, session = self._account, self._session
        if account is None or session is None:
            raise UnavailableError("the client is not open")
        url = yarl.URL(account.configuration.host + request.target, encoded=True)
        response = await self._once(session, account, url, request)
        if response.status == 401 and await account.renew():
            response.release()
            response = await self._once(session, account, url, request)
        if response.status < 300:
            return response
        async with response:
            retry_after_s = read_retry_after(response.headers.get("Retry-After"))
            raise explain(request.verb, response.status, read_status(await response.read()), retry_after_s)

    async def _once(
        self, session: aiohttp.ClientSession, account: "_Credentials", url: yarl.URL, request: KubeRequest
    ) -> aiohttp.ClientResponse:
        headers, body = await account.headers(), request.body
        headers["Accept"] = request.accept
        if body is not None:
            headers["Content-Type"] = request.content_type
        data = io.BytesIO(body) if body is not None and len(body) > _WHOLE_BYTES_MAX else body
        return await session.request(
            request.method, url, data=data, headers=headers, allow_redirects=False, **self._options
        )


class _DirectHttp:
    """Encodes requests and sends them over our own connections."""

    def __init__(
        self,
        url: yarl.URL,
        tls: ssl.SSLContext,
        server_hostname: str | None,
        headers: Mapping[str, str],
        *,
        connect_s: float,
    ) -> None:
        is_secure = url.scheme == "https"
        port = url.port or (443 if is_secure else 80)
        host = url.host or ""
        self._prefix = url.raw_path.rstrip("/")
        self._fixed = "".join(f"{name}: {value}\r\n" for name, value in {"Host": url.authority, **headers}.items())
        self._connections = KubeConnections(
            host, port, tls=tls if is_secure else None, server_hostname=server_hostname, connect_s=connect_s
        )

    async def ask(self, request: KubeRequest, headers: Mapping[str, str]) -> RawResponse:
        """Send one request with the credentials in `headers`."""
        lines = [f"{request.method} {self._prefix}{request.target} HTTP/1.1\r\n", self._fixed]
        lines.append(f"Accept: {request.accept}\r\n")
        lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
        body = request.body
        if body is not None:
            lines.append(f"Content-Type: {request.content_type}\r\nContent-Length: {len(body)}\r\n")
        elif request.method != "GET":
            lines.append("Content-Length: 0\r\n")
        lines.append("\r\n")
        head = "".join(lines).encode("latin-1")
        is_repeatable = request.method in _REPEATABLE
        return await self._connections.ask(head if body is None else head + body, is_repeatable=is_repeatable)

    def close(self) -> None:
        """Close the unused connections."""
        self._connections.close()


class _Credentials:
    """Our credentials for the server: the library's configuration, and how to renew the parts that expire."""

    def __init__(self, configuration: Any, clock: Clock, load: Callable[[Any], Awaitable[None]] | None) -> None:
        self.configuration = configuration
        self._clock = clock
        self._load = load
        self._loaded_at = clock.monotonic()
        self._loading = asyncio.Lock()

    async def headers(self) -> dict[str, str]:
        """Return new headers with the current credentials."""
        if self._load is not None and self._clock.monotonic() - self._loaded_at >= RENEW_S:
            await self.renew()
        token: str | None = await self.configuration.get_api_key_with_prefix("BearerToken")
        # A token file that a person wrote usually ends with a newline.
        token = token.strip() if token else ""
        if not (token.isascii() and token.isprintable()):
            raise InvalidError("the token of the account has characters that are not allowed in a header")
        return {"Authorization": token} if token else {}

    async def renew(self) -> bool:
        """Load the credentials again; return False when they never change or cannot be read now.

        In that case the earlier credentials stay in use: the server refuses them when they are too old, and a file may
        just be replaced.
        """
        if self._load is None:
            return False
        before = self._loaded_at
        async with self._loading:
            if self._loaded_at == before:
                try:
                    await self._load(self.configuration)
                except (_library().config_error, OSError):
                    return False
                finally:
                    self._loaded_at = self._clock.monotonic()
        return True


async def _load(kubeconfig: str | None, clock: Clock) -> _Credentials:
    """Read a kubeconfig, or the pod's own account. Raises InvalidError."""
    library = _library()
    configuration = library.configuration()
    if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        try:
            await library.load_pod_account(configuration)
        except (library.config_error, OSError) as error:
            raise InvalidError(f"the pod's own account cannot be used: {error}") from error
        return _Credentials(configuration, clock, library.load_pod_account)
    path = _kubeconfig_path(kubeconfig or "~/.kube/config")
    try:
        loader = await library.load_kubeconfig(path, configuration)
    except (library.config_error, yaml.YAMLError, LookupError, AttributeError, TypeError, ValueError, OSError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise InvalidError(f"the kubeconfig at {path} cannot be used: {why}") from error
    return _Credentials(configuration, clock, loader.load_and_set if _expires(loader) else None)


def _source(kubeconfig: str | None) -> str:
    return f"the kubeconfig at {kubeconfig}" if kubeconfig else "the account"


def _kubeconfig_path(given: str) -> str:
    path = os.path.expanduser(given)
    if not any(os.path.isfile(part) for part in path.split(os.pathsep)):
        raise InvalidError(f"there is no kubeconfig at {path}; set KUBECONFIG")
    return path


def _expires(loader: Any) -> bool:
    user = loader._user  # the library has no public attribute for this
    return user is not None and any(key in user for key in ("exec", "auth-provider", "tokenFile"))


class _Library:
    """The parts of the `kubernetes` package that we use, under our names."""

    def __init__(self) -> None:
        with _bare_packages():
            rest: Any = import_module("kubernetes.aio.client.rest")
            kubeconfig: Any = import_module("kubernetes.aio.config.kube_config")
            self.configuration: Any = import_module("kubernetes.aio.client.configuration").Configuration
            self._load_in_cluster: Any = import_module("kubernetes.aio.config.incluster_config").load_incluster_config
            self.config_error: Any = import_module("kubernetes.aio.config.config_exception").ConfigException

        class Session(rest.RESTClientObject):
            """Makes the library's session factory accessible, which only subclasses can call."""

            def open(self) -> aiohttp.ClientSession:
                return self._create_pool_manager()

        self._session_factory: Any = Session
        self._load_kube_config: Any = kubeconfig.load_kube_config

    def open_session(self, configuration: Any) -> tuple[aiohttp.ClientSession, ssl.SSLContext]:
        """Return the library's session and its TLS context."""
        factory = self._session_factory(configuration)
        return factory.open(), factory.ssl_context

    async def load_pod_account(self, configuration: Any) -> None:
        """Fill the configuration from the account that the kubelet has mounted.

        The library's own renewal is not used: it runs at most once a minute, even when the server has refused the
        token.
        """
        self._load_in_cluster(configuration, try_refresh_token=False)

    async def load_kubeconfig(self, path: str, configuration: Any) -> Any:
        """Fill the configuration and return the library's loader. The file is never written."""
        return await self._load_kube_config(path, client_configuration=configuration, persist_config=False)


_loaded: list[_Library] = []


def _library() -> _Library:
    if not _loaded:
        _loaded.append(_Library())
    return _loaded[0]


@contextlib.contextmanager
def _bare_packages() -> Generator[None, None, None]:
    """While inside, replace the parent packages by empty ones with a search path, so that an import loads only that
    submodule.

    The kubeconfig module also imports the model client, for functions that we do not call, so a placeholder replaces
    it. On leaving, all these modules are removed from the import system, so that a normal import starts from scratch.
    """
    if "kubernetes" in sys.modules:
        yield
        return
    spec = importlib.util.find_spec("kubernetes")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("the kubernetes package is not installed")
    root = Path(next(iter(spec.submodule_search_locations)))
    for name in _BARE_PACKAGES:
        bare = types.ModuleType(name)
        bare.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = bare
    placeholder: Any = types.ModuleType(_MODEL_CLIENT)
    placeholder.ApiClient = None
    sys.modules[_MODEL_CLIENT] = placeholder
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "kubernetes"]:
            del sys.modules[name]


_meters: dict[tuple[str, str, str], tuple[Any, Any]] = {}


def _count(request: KubeRequest, outcome: str, spent_s: float) -> None:
    key = (request.verb, request.resource, outcome)
    meters = _meters.get(key)
    if meters is None:
        calls = telemetry.KUBE_CALLS.labels(verb=request.verb, resource=request.resource, code=outcome)
        duration = telemetry.KUBE_DURATION.labels(verb=request.verb, resource=request.resource)
        meters = _meters[key] = calls, duration
    meters[0].inc()
    meters[1].observe(spent_s)


def _unreachable(request: KubeRequest, error: BaseException) -> UnavailableError:
    return UnavailableError(f"{request.method} {request.resource}: {type(error).__name__}: {error}"[:500])
