"""The part of `slipway doctor` that needs a client of Kubernetes or Redis: connect, query, judge. It writes nothing.

This module owns the clients and the order of the checks. The caller requests the api's report about itself over HTTP
and passes it in.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import msgspec

from slipway.errors import ControlPlaneError, InvalidError
from slipway.kube import client
from slipway.kube.client import KubeClient
from slipway.model.times import parse_time
from slipway.ops.doctor.finding import Finding, failed, judge_skew, ok, skipped, warning
from slipway.ops.doctor.installed import InstalledRelease, judge_version
from slipway.ops.doctor.running import RunningSystem, judge_redis, judge_task_listener
from slipway.runtime.clock import Clock, Random, SystemClock, SystemRandom
from slipway.runtime.service import version
from slipway.streams.factory import open_streams
from slipway.streams.ports import ServerHealth

AGENT = "slipway-doctor"
KUBERNETES_FLOOR = (1, 31)
WITHIN_S = 60.0
RESOLVE_S = 3.0
ISSUER_SKEW_S = 10.0
"""A third of the difference that the api allows."""
HALF_SECOND = 0.5
"""A Date header is truncated to whole seconds, so half a second is added."""


class ApiIssuerCondition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The api's report about the issuer of single sign-on. `ahead_s`: the issuer's clock minus the api's."""

    issuer: str
    keys: int = 0
    error: str = ""
    ahead_s: float | None = None


class ApiCondition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The api's report about itself (`GET /api/v1/condition`)."""

    version: str = ""
    time: str = ""
    auth: str = "none"
    exec_enabled: bool = False
    has_redis: bool = False
    redis: ServerHealth | None = None
    redis_error: str = ""
    issuer: ApiIssuerCondition | None = None
    task_listen: str = ""
    task_door_answers: bool | None = None


class DoctorTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The system to examine.

    `kubeconfig`: None leaves out Kubernetes; empty means the pod's own account, or kubectl's file. `is_local`: a stack
    of processes, without accounts and Deployments.
    """

    kubeconfig: str | None = None
    redis_url: str = ""
    namespace: str = "slipway-system"
    inside: ApiCondition | None = None
    is_local: bool = False


def diagnose(place: DoctorTarget) -> list[Finding]:
    """Return every finding."""
    return asyncio.run(examine(place, SystemClock(), SystemRandom()))


def api_condition_of(answer: object) -> ApiCondition:
    """Decode the api's report; missing fields get their defaults. Raises InvalidError."""
    try:
        return msgspec.convert(answer, ApiCondition)
    except msgspec.ValidationError as error:
        raise InvalidError(f"the api sent an unexpected answer: {error}") from error


async def examine(place: DoctorTarget, clock: Clock, random: Random) -> list[Finding]:
    """Return every finding, with these clocks."""
    findings: list[Finding] = []
    if place.kubeconfig is None:
        findings.append(skipped("kubernetes", "not checked", "set KUBECONFIG, or give --kubeconfig FILE"))
    else:
        findings += await _kubernetes(place, clock, random)
    findings += await _redis(place, clock, random)
    if place.inside is not None:
        findings += _inside(place.inside, clock)
    return findings


async def _kubernetes(place: DoctorTarget, clock: Clock, random: Random) -> list[Finding]:
    findings: list[Finding] = []
    try:
        async with asyncio.timeout(WITHIN_S), AsyncExitStack() as resources:
            kube = await resources.enter_async_context(
                client.connect(place.kubeconfig or None, clock=clock, random=random, user_agent=AGENT)
            )
            ahead_s = await _server(kube, clock, findings)
            await _cluster(kube, place, clock, ahead_s, findings)
    except (ControlPlaneError, TimeoutError) as error:
        said = str(error) or f"not finished within {WITHIN_S:.0f} s"
        findings.append(failed("kubernetes", said, "kubectl cluster-info; is the kubeconfig the right one?"))
    return findings


async def _server(kube: KubeClient, clock: Clock, findings: list[Finding]) -> float:
    """Check the version and the clock of the API server. Return by how many seconds its clock is ahead of ours."""
    before = clock.now()
    about = await kube.about()
    halfway = (before + clock.now()) / 2
    floor = ".".join(map(str, KUBERNETES_FLOOR))
    if about.numbers < KUBERNETES_FLOOR:
        found = f"{about.version}, older than {floor}"
        findings.append(failed("kubernetes", found, f"upgrade the cluster to {floor} or newer"))
    else:
        findings.append(ok("kubernetes", about.version))
    if about.time is None:
        findings.append(skipped("clock of kubernetes", "its answer has no date"))
        return 0.0
    ahead_s = about.time + HALF_SECOND - halfway
    findings.append(judge_skew("clock of kubernetes", ahead_s, "the API server's machine", margin_s=1.0))
    return ahead_s


async def _cluster(
    kube: KubeClient, place: DoctorTarget, clock: Clock, ahead_s: float, findings: list[Finding]
) -> None:
    installed = InstalledRelease(kube, place.namespace, version())
    running = RunningSystem(kube, clock, place.namespace, ahead_s)
    accounts = {} if place.is_local else await installed.accounts()
    findings += await installed.definitions()
    elastic = await running.elastic_pools()
    if accounts:
        inside = place.inside or ApiCondition()
        used = {"auth=kubernetes": inside.auth == "kubernetes", "execEnabled=true": inside.exec_enabled}
        used["autoscaling=true"] = bool(elastic)
        settings = [setting for setting, is_used in used.items() if is_used]
        findings += await installed.rights(accounts, await running.workspaces(), settings)
        findings += await installed.services()
        findings += await installed.policies()
    elif not place.is_local:
        said = f"no service account of Slipway in namespace {place.namespace}: the services use a kubeconfig, or run "
        "elsewhere"
        findings.append(warning("accounts", said, "name the right namespace: slipway doctor --namespace NAME"))
    findings += await running.basic_objects()
    findings += await running.autoscaling(elastic)
    findings += await running.leases()


async def _redis(place: DoctorTarget, clock: Clock, random: Random) -> list[Finding]:
    inside = place.inside
    if place.redis_url:
        return await _own_redis(place.redis_url, clock, random)
    if inside is None:
        return [
            skipped(
                "redis",
                "not checked",
                "set SLIPWAY_REDIS_URL, or make the api reachable: it reports the state of Redis",
            )
        ]
    if not inside.has_redis:
        return [
            warning(
                "redis",
                "none: everything works with LISTs, but slower and without stored logs",
                "set SLIPWAY_REDIS_URL",
            )
        ]
    if inside.redis is None:
        return [failed("redis", f"the api: {inside.redis_error}", "is it up, and is SLIPWAY_REDIS_URL right?")]
    return list(judge_redis(inside.redis))


async def _own_redis(url: str, clock: Clock, random: Random) -> list[Finding]:
    unknown = await _unresolved(url)
    if unknown:
        return [
            failed("redis", f"no address for the name {unknown}", f"getent hosts {unknown}; check SLIPWAY_REDIS_URL")
        ]
    try:
        streams = open_streams(url, clock=clock, random=random, name="doctor")
        try:
            return list(judge_redis(await streams.conditions.look()))
        finally:
            await streams.aclose()
    except ControlPlaneError as error:
        return [failed("redis", str(error), "is it up, and is SLIPWAY_REDIS_URL right? redis-cli -u URL PING")]


async def _unresolved(url: str) -> str:
    """Return the host of a URL when it has no address; empty when it has one, or when there is no host."""
    host = urlsplit(url).hostname if url.startswith(("redis://", "rediss://")) else None
    if not host:
        return ""
    try:
        async with asyncio.timeout(RESOLVE_S):
            await asyncio.get_running_loop().getaddrinfo(host, None)
    except (socket.gaierror, TimeoutError):
        return host
    return ""


def _inside(inside: ApiCondition, clock: Clock) -> Iterator[Finding]:
    yield judge_version("version of the api", inside.version, version(), "use the command of the same release")
    if inside.time:
        yield judge_skew("clock of the api", parse_time(inside.time) - clock.now(), "the api's node", margin_s=1.0)
    if inside.issuer is not None:
        yield from judge_issuer(inside.issuer)
    yield judge_task_listener(inside.task_listen, inside.task_door_answers)


def judge_issuer(issuer: ApiIssuerCondition) -> Iterator[Finding]:
    """Check that the api reaches the issuer, can use its published keys, and agrees with it on the time."""
    if issuer.error:
        known = f" ({issuer.keys} keys are cached)" if issuer.keys else ""
        mend = "can the api's pods reach it, and is SLIPWAY_OIDC_ISSUER_URL what its discovery document names?"
        yield failed("issuer", f"{issuer.issuer}: {issuer.error}{known}", mend)
    else:
        yield ok("issuer", f"{issuer.issuer}, keys: {issuer.keys}")
    if issuer.ahead_s is not None:
        said = f"{abs(issuer.ahead_s):.1f} s {'ahead of' if issuer.ahead_s > 0 else 'behind'} the api's"
        mend = "on the api's nodes: timedatectl set-ntp true; tokens are refused when it is more than 30 s wrong"
        off = abs(issuer.ahead_s) > ISSUER_SKEW_S
        yield warning("clock of the issuer", said, mend) if off else ok("clock of the issuer", said)
