"""Settings of the watcher."""

from typing import Annotated

from msgspec import Meta

from slipway.logarchive.settings import LogArchiveSettings
from slipway.watcher.ends import LifecyclePolicy


class Settings(LogArchiveSettings, kw_only=True, frozen=True):
    """The settings of an operator, from `SLIPWAY_*`."""

    listen: Annotated[str, Meta(description="host:port of /livez, /readyz and /metrics")] = "127.0.0.1:8083"
    identity: Annotated[str, Meta(description="name in the Lease; default: host name and process id")] = ""
    feed_key_dir: Annotated[
        str,
        Meta(
            description="folder with the keys that sign the cluster feed, files named *.key with 32 bytes in URL-safe "
            "base64 each, as a mounted Secret is; the last file signs, once it has been there for 3 minutes. Empty: "
            "the feed is not signed"
        ),
    ] = ""
    reconcile_workers: Annotated[
        int, Meta(ge=1, le=256, description="allocations that are worked on at the same time")
    ] = 16
    resync_interval_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="seconds between full passes over what is not at rest: hints are sent again and lost stream "
            "entries are found, so it bounds how long a lost message can delay anything",
        ),
    ] = 20.0
    sweep_interval_s: Annotated[
        float, Meta(gt=0, le=60, description="seconds between sweeps of objects that nobody owns any more")
    ] = 30.0
    standby_delay_s: Annotated[
        float,
        Meta(ge=0, le=30, description="seconds that replicas without the lease leave the work to the one that has it"),
    ] = 3.0
    image_pull_limit_s: Annotated[
        float, Meta(gt=0, le=86_400, description="seconds in ImagePullBackOff after which the allocation has failed")
    ] = 300.0
    stuck_limit_s: Annotated[
        float, Meta(gt=0, le=86_400, description="seconds a launch may be Stuck before the placement is given back")
    ] = 600.0
    unschedulable_limit_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="seconds that a pod of a pool with `binding: delegate` may be Unschedulable on the node "
            "that was planned for it, before the placement is given back and another node is looked for",
        ),
    ] = 30.0
    rank_detail_interval_s: Annotated[
        float,
        Meta(ge=0, le=60, description="seconds between status writes that tell nothing but the detail of ranks"),
    ] = 1.0
    preemption_grace_s: Annotated[
        float,
        Meta(gt=0, le=604_800, description="seconds to make room when the allocation does not say preemptionGrace"),
    ] = 3600.0
    restart_backoff_s: Annotated[
        float, Meta(ge=0, le=3600, description="seconds before the second attempt; doubles with each one")
    ] = 1.0
    restart_backoff_max_s: Annotated[
        float, Meta(ge=0, le=86_400, description="seconds; no attempt waits longer than this")
    ] = 30.0
    relay_wait_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="seconds that an ended allocation is held back while its last event cannot be relayed",
        ),
    ] = 30.0
    retention_s: Annotated[
        float, Meta(gt=0, description="seconds after which an ended allocation is deleted; 7 days")
    ] = 7 * 86_400.0
    retention_count_max: Annotated[
        int, Meta(ge=0, description="ended allocations kept per workspace; the oldest go first")
    ] = 10_000
    context_keep_s: Annotated[
        float,
        Meta(gt=0, description="seconds that an uploaded archive is kept after the last use that a launch made of it"),
    ] = 3600.0
    log_followers_max: Annotated[
        int, Meta(ge=0, le=100_000, description="pods whose logs are followed at once; others are read at their end")
    ] = 1000
    log_drain_s: Annotated[
        float,
        Meta(
            ge=0,
            le=300,
            description="seconds without news after which the log of an ended pod is given up, which its readers are "
            "told; a log that moves on keeps the pod's object for three times as long",
        ),
    ] = 60.0
    log_bytes_max: Annotated[
        int,
        Meta(
            ge=524_288,
            le=4_294_967_296,
            description="compressed bytes that the logs of one allocation may take of Redis: each rank has an equal "
            "part of it, an eighth at most; its first lines and its last ones are kept, and what is missing between "
            "them is counted",
        ),
    ] = 64 * 1024 * 1024
    node_log_bytes: Annotated[
        int,
        Meta(
            ge=1_048_576,
            le=17_179_869_184,
            description="bytes of a container's log that nodes keep in its newest file: `containerLogMaxSize` of their "
            "kubelets, the least of all nodes. Of a log that is written faster than it is stored lines are left out, "
            "and counted, when six tenths of it wait on the node; so a larger file keeps more of a flood",
        ),
    ] = 10 * 1024 * 1024
    log_archive_days: Annotated[
        int,
        Meta(
            ge=0,
            le=36_500,
            description="days after its end that an archived log is kept once its allocation is gone; 0: for ever",
        ),
    ] = 30
    log_archive_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="compressed bytes that all archived logs may take together: beyond it those of the "
            "allocations that ended first go, and who reads one is told so; the log of what runs never goes. It is "
            "looked at every ten minutes. 0: no bound",
        ),
    ] = 0
    kubernetes_events: Annotated[
        bool,
        Meta(
            description="Events of Kubernetes tell the steps of each allocation: its queue, places, start, preemption, "
            "restarts and end, and that it can never start"
        ),
    ] = True
    snapshot_objects: Annotated[
        int,
        Meta(
            ge=1,
            description="beside so many objects (nodes, pods, allocations, ...) a snapshot of what is known of them is "
            "kept in Redis, from which a scheduler starts without a LIST; a smaller cluster is listed as quickly",
        ),
    ] = 2_000
    lease_duration_s: Annotated[float, Meta(gt=0, le=600, description="seconds a dead leader holds its lease")] = 15.0
    lease_renew_deadline_s: Annotated[
        float, Meta(gt=0, le=600, description="seconds without a renewal after which a leader stops")
    ] = 10.0
    lease_retry_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="seconds between attempts to get the lease, or to renew it after one failed; else it is "
            "renewed each 4 s, or two fifths of the renew deadline if that is less, but no more often than this",
        ),
    ] = 2.0

    def policy(self) -> LifecyclePolicy:
        """Return the settings that the pure decisions need."""
        return LifecyclePolicy(
            image_pull_limit_s=self.image_pull_limit_s,
            stuck_limit_s=self.stuck_limit_s,
            unschedulable_limit_s=self.unschedulable_limit_s,
            rank_detail_interval_s=self.rank_detail_interval_s,
            preemption_grace_s=self.preemption_grace_s,
            restart_backoff_s=self.restart_backoff_s,
            restart_backoff_max_s=self.restart_backoff_max_s,
        )
