"""Settings of the scheduler."""

from typing import Annotated

from msgspec import Meta

from slipway.runtime.settings import CommonSettings


class Settings(CommonSettings, kw_only=True, frozen=True):
    """The settings of an operator, from `SLIPWAY_*`."""

    listen: Annotated[str, Meta(description="host:port of /livez, /readyz and /metrics")] = "127.0.0.1:8081"
    identity: Annotated[str, Meta(description="name in the Lease; default: host name and process id")] = ""
    feed_key_dir: Annotated[
        str,
        Meta(
            description="folder with the keys that sign the cluster feed, as the watchers have it. With it, an entry "
            "that none of the keys has signed is refused, and the API server is asked instead. Empty: the feed is "
            "believed"
        ),
    ] = ""
    accept_unsigned: Annotated[
        bool,
        Meta(
            description="also believe entries of the cluster feed that have no signature at all: while watchers of a "
            "version that does not sign are replaced"
        ),
    ] = False
    pools: Annotated[
        str, Meta(description="comma-separated pools to schedule; empty: every ResourcePool, found as they come")
    ] = ""
    tick_min_ms: Annotated[
        int,
        Meta(
            ge=1, le=10_000, description="milliseconds; ticks are at least this far apart, so that a burst is one plan"
        ),
    ] = 20
    tick_max_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="milliseconds; a tick happens at least this often")
    ] = 500
    list_interval_ms: Annotated[
        int, Meta(ge=100, le=600_000, description="milliseconds between LISTs while the cluster feed cannot be used")
    ] = 2000
    lease_duration_s: Annotated[
        float, Meta(gt=0, le=600, description="seconds a dead leader holds its pool at most")
    ] = 15.0
    lease_steady_s: Annotated[
        float,
        Meta(
            ge=0,
            le=600,
            description="seconds a dead leader holds its pool that has renewed in time; one that is late asks for "
            "more, up to `leaseDurationS`. 0: always `leaseDurationS`",
        ),
    ] = 3.0
    lease_renew_deadline_s: Annotated[
        float, Meta(gt=0, le=600, description="seconds without a renewal after which a leader stops")
    ] = 10.0
    lease_retry_s: Annotated[
        float, Meta(gt=0, le=60, description="seconds between attempts to get or renew the lease")
    ] = 2.0
    decision_log: Annotated[
        str,
        Meta(
            description="file that the decision log is also written to, as JSON lines; needs no Redis. "
            "`slipway replay FILE` reads it"
        ),
    ] = ""
    decision_log_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=1024 * 1024 * 1024,
            description="bytes that one pool's decision log may take in Redis; 0 keeps none there",
        ),
    ] = 16 * 1024 * 1024
    apply_concurrency: Annotated[int, Meta(ge=1, le=256, description="admissions written at the same time")] = 32
    autoscaling: Annotated[
        bool,
        Meta(
            description="ask autoscalers for nodes, in pools with `spec.autoscaling`; the chart gives the account the "
            "rights with it"
        ),
    ] = False
    placeholder_image: Annotated[
        str, Meta(max_length=512, description="image of placeholder pods: anything that waits and does nothing")
    ] = "registry.k8s.io/pause:3.10.1"
    placeholder_priority_class: Annotated[
        str,
        Meta(max_length=253, description="PriorityClass of placeholder pods; its value is negative"),
    ] = "slipway-placeholder"
