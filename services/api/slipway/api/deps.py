"""All dependencies of the routes, created once by the composition root."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from starlette.requests import HTTPConnection

from slipway.api.allocations.changes import SpecWriter
from slipway.api.allocations.event_feed import EventFeed, SharedFirehose
from slipway.api.allocations.log_feed import LogFeed
from slipway.api.allocations.lookup import Lookup
from slipway.api.allocations.rank_exec import ExecSessions
from slipway.api.allocations.seen_allocations import SeenAllocations
from slipway.api.auth.ended_sessions import EndedSessions
from slipway.api.auth.issuer import ClientLogin, Issuer
from slipway.api.auth.issuer_rules import TokenRules
from slipway.api.auth.kubernetes_auth import KubernetesReviews
from slipway.api.auth.oidc_auth import Grants, ListedRoles, OidcAuth, RoleBindings
from slipway.api.auth.principal import Authenticator, NoAuth
from slipway.api.auth.rate_limit import LimitedAuth, RateLimiter, RefusalLimiter
from slipway.api.auth.session import BrowserSessions, CookieAuth, LoginLinks, SealKeys
from slipway.api.auth.sign_ins import SignIns
from slipway.api.auth.token_auth import TokenAuth
from slipway.api.cluster.seen_nodes import BY_ADDRESS, SEEN_NODES, SeenNode, of_address
from slipway.api.cluster.simulation import ConcurrencyLimit, Simulator
from slipway.api.cluster.watched import WatchedObjects
from slipway.api.http.batch import BatchLimits
from slipway.api.http.networks import parse_networks
from slipway.api.http.streaming import OpenStreams
from slipway.api.http.ttl_cache import LoadingCache, Throttle
from slipway.api.launch.catalog import Catalog
from slipway.api.launch.contexts import ContextArchives
from slipway.api.launch.launcher import AllocationLauncher
from slipway.api.launch.publish import LaunchPublisher
from slipway.api.ports import Kube, ShutdownSignal, WatchingKube
from slipway.api.proxy.http import HttpForwarder
from slipway.api.proxy.target import Targets
from slipway.api.queues.workspaces import Workspaces
from slipway.api.settings import Settings
from slipway.api.tasks.gather import AllGather
from slipway.api.tasks.rendezvous import Rendezvous
from slipway.api.tasks.task_auth import TaskTokens
from slipway.api.usage.gpu_days import GpuDay
from slipway.api.usage.gpu_use import PodGpuUse, PodKey
from slipway.api.usage.prometheus import Prometheus
from slipway.api.webhooks.registry import WebhookRegistry
from slipway.api.webhooks.sender import Sender
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import InvariantError
from slipway.logarchive.archive import LogArchive
from slipway.logarchive.objects import open_archive
from slipway.logarchive.reader import ArchivedLogs
from slipway.runtime.clock import Clock, Random
from slipway.streams.decisions import DecisionLog
from slipway.streams.ports import Activity, DeadLetters, Firehose, ServerHealthReader, Streams, TraceLog
from slipway.streams.producer import BestEffortWriter
from slipway.streams.webhooks import Webhooks

HISTORIES_MAX = 3
"""Limit of concurrent requests about the past: one may read the whole firehose, which takes some seconds."""
ACTIVITY_S = 0.5
"""Shortest interval between two records of activity of one allocation; an idle timeout may fire that much too early."""
MET_S = 5.0
"""Shortest interval between two records that the ranks of one allocation have met."""
PARTS_KEY = "slipway.parts"
GPU_USE_TTL_S = 10.0
"""How long GPU figures are cached: they are averages over minutes, so Prometheus needs no query per reader."""
GPU_DAYS_TTL_S = 300.0
"""How long the GPU figures of a day are cached: a day is an expensive query over all GPUs."""
GPU_DAYS_MAX = 100
POLL_TTL_S = 0.9
"""How long a polled allocation is cached: a thousand ranks that poll one allocation cost one read a second."""


@dataclass(frozen=True, kw_only=True)
class ApiDeps:
    """The connected components of the api."""

    settings: Settings
    clock: Clock
    random: Random
    stop: ShutdownSignal
    kube: Kube
    """the client for the objects that the caller of a request may see"""
    whole: Kube
    """the client for all objects, for the order of shared queues; a route must not show names that it reads here"""
    access: Authenticator
    rates: RateLimiter
    refusals: RefusalLimiter
    tokens: TokenAuth | None
    """the tokens of mode `token`; None in other modes"""
    issuer: Issuer | None
    """the issuer of single sign-on; None when it is not set up"""
    sign_ins: SignIns | None
    links: LoginLinks
    sessions: BrowserSessions
    catalog: Catalog
    nodes: WatchedObjects[SeenNode]
    seen: SeenAllocations
    """the allocations of all workspaces; a route must not show an allocation that its caller may not see"""
    contexts: ContextArchives
    workspaces: Workspaces
    lookup: Lookup
    launcher: AllocationLauncher
    changes: SpecWriter
    batches: BatchLimits
    announcer: LaunchPublisher
    event_feed: EventFeed
    log_feed: LogFeed
    log_archive: LogArchive | None
    behind: BestEffortWriter
    firehose: Firehose
    traces: TraceLog
    activity: Activity
    dead: DeadLetters
    conditions: ServerHealthReader
    decisions: DecisionLog
    simulator: Simulator
    webhooks: WebhookRegistry
    deliveries: Webhooks
    sender: Sender
    open_streams: OpenStreams
    exec_sessions: ExecSessions
    polled: LoadingCache[tuple[str, str], Allocation]
    targets: Targets
    forwarder: HttpForwarder
    touched: Throttle
    rendezvous: Rendezvous
    gather: AllGather
    tasks: TaskTokens
    readied: Throttle
    prometheus: Prometheus | None
    gpu_use: LoadingCache[str, Mapping[PodKey, PodGpuUse]]
    gpu_days: LoadingCache[str, list[GpuDay]]
    on_broken: Callable[[InvariantError], None]
    history_places: ConcurrencyLimit = field(
        default_factory=lambda: ConcurrencyLimit(HISTORIES_MAX, "questions about the past", retry_s=2.0)
    )
    totals_places: ConcurrencyLimit = field(
        default_factory=lambda: ConcurrencyLimit(HISTORIES_MAX, "questions about many days", retry_s=2.0)
    )
    gpu_days_places: ConcurrencyLimit = field(
        default_factory=lambda: ConcurrencyLimit(HISTORIES_MAX, "questions about GPUs on past days", retry_s=2.0)
    )


def connect(
    *,
    settings: Settings,
    clock: Clock,
    random: Random,
    stop: ShutdownSignal,
    kube: WatchingKube,
    streams: Streams,
    behind: BestEffortWriter,
    on_broken: Callable[[InvariantError], None],
) -> ApiDeps:
    """Connect all components over these clients."""
    nodes, contexts = _watched_nodes(kube, clock, random), _contexts(settings, kube, clock, random)
    catalog, (seen, announcer) = Catalog(kube, clock, nodes), _publishing(streams, kube, clock=clock, random=random)
    lookup, refusals = Lookup(kube, brief=seen.brief), _refusals(settings, clock)
    ways = _authentication(settings, kube, catalog, streams, refusals, clock=clock, random=random)
    return ApiDeps(
        settings=settings,
        clock=clock,
        random=random,
        stop=stop,
        kube=kube,
        whole=kube,
        access=ways.access,
        rates=RateLimiter(clock, rate_per_s=settings.rate_per_s, burst=settings.rate_burst),
        refusals=refusals,
        tokens=ways.tokens,
        issuer=ways.issuer,
        sign_ins=ways.sign_ins,
        links=LoginLinks(clock, random),
        sessions=ways.sessions,
        catalog=catalog,
        nodes=nodes,
        seen=seen,
        contexts=contexts,
        workspaces=_workspaces(settings, kube, catalog, seen, clock=clock, random=random),
        lookup=lookup,
        launcher=_launcher(settings, catalog, announcer, contexts, nodes, kube=kube, clock=clock, random=random),
        changes=SpecWriter(kube, lookup, announcer, clock),
        batches=BatchLimits(clock, request_s=settings.request_timeout_s),
        announcer=announcer,
        event_feed=EventFeed(streams.events, lookup, clock),
        log_archive=(archive := _log_archive(settings)),
        log_feed=LogFeed(ArchivedLogs(streams.logs, archive, clock) if archive else streams.logs, kube, lookup, clock),
        behind=behind,
        firehose=SharedFirehose(streams.firehose, on_event=seen.heard),
        traces=streams.traces,
        activity=streams.activity,
        dead=streams.dead,
        conditions=streams.conditions,
        decisions=streams.decisions,
        simulator=_simulator(settings, kube, clock, seen),
        webhooks=WebhookRegistry(kube, clock, random, namespace=settings.webhook_namespace or settings.namespace),
        deliveries=streams.webhooks(settings.consumer),
        sender=Sender(clock, timeout_s=settings.webhook_timeout_s, allowed=parse_networks(settings.webhook_networks)),
        open_streams=_open_streams(settings),
        exec_sessions=ExecSessions(settings.exec_sessions_max),
        polled=LoadingCache(clock, ttl_s=POLL_TTL_S),
        targets=Targets(kube, lookup, clock, nodes.store, parse_networks(settings.proxy_networks)),
        forwarder=HttpForwarder(settings.proxy_timeout_s, stop, settings.read_workload_token()),
        touched=Throttle(clock, every_s=ACTIVITY_S),
        rendezvous=Rendezvous(kube, clock, stop),
        gather=AllGather(streams.gatherings, clock, random, stop),
        tasks=_tasks(settings, kube, lookup, refusals, clock),
        readied=Throttle(clock, every_s=MET_S),
        prometheus=_prometheus(settings),
        gpu_use=LoadingCache(clock, ttl_s=GPU_USE_TTL_S),
        gpu_days=LoadingCache(clock, ttl_s=GPU_DAYS_TTL_S, keys_max=GPU_DAYS_MAX),
        on_broken=on_broken,
    )


def _watched_nodes(kube: WatchingKube, clock: Clock, random: Random) -> WatchedObjects[SeenNode]:
    return WatchedObjects(kube, SEEN_NODES, clock, random, indexers={BY_ADDRESS: of_address})


def _publishing(
    streams: Streams, kube: WatchingKube, *, clock: Clock, random: Random
) -> tuple[SeenAllocations, LaunchPublisher]:
    """Return (the cache of allocations, the publisher of launches and changes, which updates that cache)."""

    seen = SeenAllocations(kube, clock, random)
    return seen, LaunchPublisher(streams.events, streams.wake, clock, on_write=seen.saw, on_delete=seen.deleted)


def _launcher(
    settings: Settings,
    catalog: Catalog,
    announcer: LaunchPublisher,
    contexts: ContextArchives,
    nodes: WatchedObjects[SeenNode],
    *,
    kube: Kube,
    clock: Clock,
    random: Random,
) -> AllocationLauncher:
    allowed = settings.token_audiences
    return AllocationLauncher(kube, catalog, announcer, contexts, nodes, clock=clock, random=random, audiences=allowed)


def _workspaces(
    settings: Settings, kube: Kube, catalog: Catalog, seen: SeenAllocations, *, clock: Clock, random: Random
) -> Workspaces:
    return Workspaces(kube, catalog, seen.live, system_namespace=settings.namespace, clock=clock, random=random)


def _tasks(settings: Settings, kube: Kube, lookup: Lookup, refusals: RefusalLimiter, clock: Clock) -> TaskTokens:
    is_shared = settings.auth == "kubernetes"
    return TaskTokens(kube, lookup, clock, refusals, audience=settings.task_audience, is_shared=is_shared)


def _log_archive(settings: Settings) -> LogArchive | None:
    return LogArchive(open_archive(settings.log_archive_url)) if settings.log_archive_url else None


def _prometheus(settings: Settings) -> Prometheus | None:
    if not settings.prometheus_url:
        return None
    token, ca = settings.prometheus_token_file, settings.prometheus_ca_file
    return Prometheus(settings.prometheus_url, token_file=token, ca_file=ca)


def _refusals(settings: Settings, clock: Clock) -> RefusalLimiter:
    return RefusalLimiter(
        clock,
        per_s=settings.refusals_per_s,
        burst=settings.refusals_burst,
        trusted=parse_networks(settings.trusted_proxies),
    )


def _open_streams(settings: Settings) -> OpenStreams:
    return OpenStreams(
        settings.streams_max,
        per_user=settings.streams_of_one_user,
        per_workspace=settings.streams_of_one_workspace,
    )


def _simulator(settings: Settings, kube: Kube, clock: Clock, seen: SeenAllocations) -> Simulator:
    return Simulator(
        kube,
        clock,
        seen.live,
        most=settings.simulations_max,
        timeout_s=settings.simulate_timeout_s,
        memory_bytes=settings.simulate_memory_bytes,
    )


def _contexts(settings: Settings, kube: Kube, clock: Clock, random: Random) -> ContextArchives:
    return ContextArchives(
        kube,
        clock,
        random,
        bytes_max=settings.context_bytes_max,
        uploads_max=settings.context_uploads_max,
        uploads_per_user=settings.context_uploads_per_user_max,
        workspace_bytes=settings.context_workspace_bytes_max,
        cache_bytes=settings.context_cache_bytes,
    )


def _sessions(settings: Settings, streams: Streams, clock: Clock, random: Random) -> BrowserSessions:
    keys = SealKeys(Path(settings.session_key_dir) if settings.session_key_dir else None, clock)
    ended = EndedSessions(streams.logouts, clock)
    return BrowserSessions(keys, ended, clock, random, domain=settings.proxy_domain, life_s=settings.session_s)


def _issuer(settings: Settings, clock: Clock) -> Issuer | None:
    if not settings.oidc_issuer_url:
        return None
    client = ClientLogin(id=settings.oidc_client_id, secret_file=settings.oidc_client_secret_file)
    return Issuer(settings.oidc_issuer_url, client, clock, ca_file=settings.oidc_ca_file)


def _rules(settings: Settings) -> TokenRules:
    """Return the requirements for a token of the issuer."""
    return TokenRules(
        issuer=settings.oidc_issuer_url,
        audiences=settings.oidc_audiences,
        algorithms=settings.oidc_signing_algs,
        username_claim=settings.oidc_username_claim,
        username_prefix=settings.oidc_username_prefix,
        groups_claim=settings.oidc_groups_claim,
        groups_prefix=settings.oidc_groups_prefix,
        required_claims=settings.oidc_required_claims,
    )


class _Authentication(NamedTuple):
    """The authenticator of the api, and the components that it is built on."""

    access: Authenticator
    tokens: TokenAuth | None
    sessions: BrowserSessions
    issuer: Issuer | None = None
    sign_ins: SignIns | None = None


def _authentication(
    settings: Settings,
    kube: Kube,
    catalog: Catalog,
    streams: Streams,
    refusals: RefusalLimiter,
    *,
    clock: Clock,
    random: Random,
) -> _Authentication:
    sessions = _sessions(settings, streams, clock, random)
    tokens: TokenAuth | None = None
    inner: Authenticator
    grants: Grants
    match settings.auth:
        case "none":
            return _Authentication(NoAuth(), None, sessions)
        case "token":
            inner = tokens = TokenAuth(Path(settings.token_dir), clock)
            grants = ListedRoles(settings.oidc_roles)
        case "kubernetes":
            inner = KubernetesReviews(kube, clock, audience=settings.auth_audience, workspaces=catalog.workspace_names)
            grants = RoleBindings(inner)
    issuer = _issuer(settings, clock)
    asks_of_all = settings.auth == "kubernetes"
    if issuer is None:
        limited = LimitedAuth(inner, refusals, asks_of_all=asks_of_all)
        return _Authentication(CookieAuth(limited, sessions), tokens, sessions)
    oidc = OidcAuth(inner, issuer, _rules(settings), grants, clock)
    scopes = " ".join(dict.fromkeys(("openid", *settings.oidc_scopes)))
    sign_ins = SignIns(issuer, oidc, sessions, clock, random, scopes=scopes)
    limited = LimitedAuth(oidc, refusals, asks_of_all=asks_of_all)
    return _Authentication(CookieAuth(limited, sessions, sign_ins), tokens, sessions, issuer, sign_ins)


def parts_of(connection: HTTPConnection) -> ApiDeps:
    """Return the dependencies for a connection; after authorisation, limited to what its caller may see."""
    parts: ApiDeps = connection.scope.get(PARTS_KEY) or connection.app.state.parts
    return parts
