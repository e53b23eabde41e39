"""Settings of the scheduler."""

from typing import Annotated

from msgspec import Meta

from slipway.runtime.settings import CommonSettings


class Settings(CommonSettings, kw_only=True, frozen=True):
    """The settings of an operator, from `SLIPWAY_*`."""

    listen: Annotated[str, Meta(description="host:port of /livez, /readyz and /metrics")] = "127.0.0.1:8081"
    identity: Annotated[
        str, Meta(description="name of this process in the Lease; default: host name and process id")
    ] = ""
    feed_key_dir: Annotated[
        str,
        Meta(
            description="folder with the keys that sign the cluster feed, the same as for the watchers. An entry that "
            "none of the keys has signed is rejected, and the scheduler lists from the API server instead. Empty: "
            "entries are accepted without a check"
        ),
    ] = ""
    accept_unsigned: Annotated[
        bool,
        Meta(
            description="also accept entries of the cluster feed without any signature; for an upgrade, while "
            "watchers run whose version does not sign"
        ),
    ] = False
    pools: Annotated[
        str, Meta(description="comma-separated pools to schedule; empty: every ResourcePool, new ones included")
    ] = ""
    tick_min_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="milliseconds; minimum time between two ticks, so that a burst of changes makes one plan",
        ),
    ] = 20
    tick_max_ms: Annotated[int, Meta(ge=10, le=60_000, description="milliseconds; maximum time between two ticks")] = (
        500
    )
    list_interval_ms: Annotated[
        int, Meta(ge=100, le=600_000, description="milliseconds between LISTs while the cluster feed cannot be used")
    ] = 2000
    lease_duration_s: Annotated[
        float, Meta(gt=0, le=600, description="seconds after which the lease of a dead leader expires, at most")
    ] = 15.0
    lease_steady_s: Annotated[
        float,
        Meta(
            ge=0,
            le=600,
            description="seconds after which the lease of a dead leader expires when it had renewed in time. A leader "
            "that renews late requests a longer lease, up to `leaseDurationS`. 0: always `leaseDurationS`",
        ),
    ] = 3.0
    lease_renew_deadline_s: Annotated[
        float, Meta(gt=0, le=600, description="seconds without a renewal after which a leader stops leading")
    ] = 10.0
    lease_retry_s: Annotated[
        float, Meta(gt=0, le=60, description="seconds between attempts to get or renew the lease")
    ] = 2.0
    decision_log: Annotated[
        str,
        Meta(
            description="additional file for the decision log, as JSON lines; works without Redis. `slipway replay "
            "FILE` reads it"
        ),
    ] = ""
    decision_log_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=1024 * 1024 * 1024,
            description="maximum bytes of one pool's decision log in Redis; 0: no decision log in Redis",
        ),
    ] = 16 * 1024 * 1024
    apply_concurrency: Annotated[int, Meta(ge=1, le=256, description="admissions written at the same time")] = 32
    autoscaling: Annotated[
        bool,
        Meta(
            description="request nodes from autoscalers, in pools with `spec.autoscaling`; the chart then also grants "
            "the scheduler the permissions for it"
        ),
    ] = False
    placeholder_image: Annotated[
        str,
        Meta(max_length=512, description="image of placeholder pods: any image whose program waits and does nothing"),
    ] = "registry.k8s.io/pause:3.10.1"
    placeholder_priority_class: Annotated[
        str,
        Meta(max_length=253, description="PriorityClass of placeholder pods; its value is negative"),
    ] = "slipway-placeholder"
