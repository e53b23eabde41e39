"""Settings of the watcher."""

from typing import Annotated

from msgspec import Meta

from slipway.logarchive.settings import LogArchiveSettings
from slipway.watcher.ends import LifecyclePolicy


class Settings(LogArchiveSettings, kw_only=True, frozen=True):
    """The settings of an operator, from `SLIPWAY_*`."""

    listen: Annotated[str, Meta(description="host:port of /livez, /readyz and /metrics")] = "127.0.0.1:8083"
    identity: Annotated[
        str, Meta(description="name of this process in the Lease; default: host name and process id")
    ] = ""
    feed_key_dir: Annotated[
        str,
        Meta(
            description="folder with the keys that sign the cluster feed, such as a mounted Secret: files named "
            "*.key, each with 32 bytes in URL-safe base64. The last file in alphabetical order signs, once it has "
            "existed for 3 minutes. Empty: the feed is not signed"
        ),
    ] = ""
    reconcile_workers: Annotated[
        int, Meta(ge=1, le=256, description="allocations that are reconciled at the same time")
    ] = 16
    resync_interval_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="seconds between full passes over all allocations that are not at rest. A pass sends hints "
            "again and finds lost stream entries, so this limits the delay that a lost message can cause",
        ),
    ] = 20.0
    sweep_interval_s: Annotated[
        float, Meta(gt=0, le=60, description="seconds between sweeps of objects that no longer have an owner")
    ] = 30.0
    standby_delay_s: Annotated[
        float,
        Meta(
            ge=0,
            le=30,
            description="seconds that replicas without the lease wait for the leader to do the work, before they do it",
        ),
    ] = 3.0
    image_pull_limit_s: Annotated[
        float, Meta(gt=0, le=86_400, description="seconds in ImagePullBackOff after which the allocation has failed")
    ] = 300.0
    stuck_limit_s: Annotated[
        float, Meta(gt=0, le=86_400, description="seconds a launch may be Stuck before its placement is released")
    ] = 600.0
    unschedulable_limit_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="seconds that a pod of a pool with `binding: delegate` may be Unschedulable on its planned "
            "node, before the placement is released and another node is sought",
        ),
    ] = 30.0
    rank_detail_interval_s: Annotated[
        float,
        Meta(ge=0, le=60, description="seconds between status writes that change only the details of ranks"),
    ] = 1.0
    preemption_grace_s: Annotated[
        float,
        Meta(
            gt=0,
            le=604_800,
            description="seconds that a preempted allocation may take to end, when it does not set preemptionGrace",
        ),
    ] = 3600.0
    restart_backoff_s: Annotated[
        float, Meta(ge=0, le=3600, description="seconds before the second attempt; doubles with each further attempt")
    ] = 1.0
    restart_backoff_max_s: Annotated[
        float, Meta(ge=0, le=86_400, description="seconds; maximum wait before an attempt")
    ] = 30.0
    relay_wait_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="seconds that an ended allocation keeps its finalizer while its last event cannot be relayed",
        ),
    ] = 30.0
    retention_s: Annotated[
        float, Meta(gt=0, description="seconds after which an ended allocation is deleted; 7 days")
    ] = 7 * 86_400.0
    retention_count_max: Annotated[
        int, Meta(ge=0, description="ended allocations kept per workspace; the oldest are deleted first")
    ] = 10_000
    context_keep_s: Annotated[
        float,
        Meta(gt=0, description="seconds that an uploaded archive is kept after the last launch that used it"),
    ] = 3600.0
    log_followers_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="pods whose logs are followed at the same time; the logs of other pods are read when they end",
        ),
    ] = 1000
    log_drain_s: Annotated[
        float,
        Meta(
            ge=0,
            le=300,
            description="seconds without new lines after which the watcher stops reading the log of an ended pod and "
            "notifies the log's readers. While new lines arrive, the pod object is kept for up to three times as long",
        ),
    ] = 60.0
    log_bytes_max: Annotated[
        int,
        Meta(
            ge=524_288,
            le=4_294_967_296,
            description="maximum compressed bytes of the logs of one allocation in Redis. Each rank gets an equal "
            "part of them, at most an eighth. Its first and last lines are kept, and the missing lines between them "
            "are counted",
        ),
    ] = 64 * 1024 * 1024
    node_log_bytes: Annotated[
        int,
        Meta(
            ge=1_048_576,
            le=17_179_869_184,
            description="bytes of the newest log file of a container on its node: the smallest `containerLogMaxSize` "
            "of all kubelets. When six tenths of these bytes wait on the node, because a log is written faster than "
            "it is stored, lines are skipped and counted. So a larger file loses fewer lines of a flood",
        ),
    ] = 10 * 1024 * 1024
    log_archive_days: Annotated[
        int,
        Meta(
            ge=0,
            le=36_500,
            description="days that an archived log is kept after its end, once its allocation is deleted; 0: for ever",
        ),
    ] = 30
    log_archive_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="maximum compressed bytes of all archived logs together, checked every ten minutes. Beyond "
            "it, the logs of the allocations that ended first are deleted, and their readers get a notice; the log of "
            "a running allocation is never deleted. 0: no limit",
        ),
    ] = 0
    kubernetes_events: Annotated[
        bool,
        Meta(
            description="write Events of Kubernetes about the steps of each allocation: its queue, placement, start, "
            "preemption, restarts and end, and that it can never start"
        ),
    ] = True
    snapshot_objects: Annotated[
        int,
        Meta(
            ge=1,
            description="number of objects (nodes, pods, allocations, ...) from which on a snapshot of them is kept "
            "in Redis, so that a scheduler starts without a LIST. In a smaller cluster, a LIST is as fast",
        ),
    ] = 2_000
    lease_duration_s: Annotated[
        float, Meta(gt=0, le=600, description="seconds after which the lease of a dead leader expires")
    ] = 15.0
    lease_renew_deadline_s: Annotated[
        float, Meta(gt=0, le=600, description="seconds without a renewal after which a leader stops leading")
    ] = 10.0
    lease_retry_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="seconds between attempts to get the lease, or to renew it after a failed attempt. Without "
            "failures, the lease is renewed every 4 s, or every two fifths of the renew deadline if that is less, but "
            "not more often than this",
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
