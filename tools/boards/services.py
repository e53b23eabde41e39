"""The dashboard about the services: which part of Slipway is slow."""

from tools.boards.panel import FAULTS, RATE, Board, Panel, p99, rate

SERVICES = Board(
    name="services",
    title="Slipway: which part is slow",
    rows={
        "All parts": (
            Panel(
                "Each part, 99 %",
                "Which part is slow? The highest line; the section of that name has details.",
                (
                    (p99("slipway_http_request_duration_seconds"), "api: answer"),
                    (p99("slipway_tick_duration_seconds"), "scheduler: phase of a tick"),
                    (p99("slipway_delivery_seconds"), "podworker: hint"),
                    (p99("slipway_launch_step_seconds"), "podworker: step of a launch"),
                    (p99("slipway_watch_lag_seconds"), "watcher: write until its event"),
                    (p99("slipway_kube_call_seconds"), "Kubernetes: call"),
                ),
                unit="s",
                width=16,
            ),
            Panel(
                "Processor",
                "How much CPU does each service use? 1 is a whole core.",
                (
                    (
                        f"sum by (service) (rate(process_cpu_seconds_total[{RATE}])"
                        " * on (instance) group_left (service) max by (instance, service) (slipway_build))",
                        "{{service}}",
                    ),
                ),
            ),
        ),
        "Scheduler": (
            Panel(
                "Ticks",
                "Does the scheduler tick, with which outcome?",
                ((rate("slipway_ticks_total", "pool", "outcome"), "{{pool}} {{outcome}}"),),
                unit="ops",
            ),
            Panel(
                "Phases of a tick, 99 %",
                "Which phase is slow?",
                ((p99("slipway_tick_duration_seconds", "phase"), "{{phase}}"),),
                unit="s",
            ),
            Panel(
                "Time in each phase",
                "How much time does each phase take, in seconds per second?",
                ((rate("slipway_tick_duration_seconds_sum", "phase"), "{{phase}}"),),
                unit="s",
            ),
            Panel(
                "Silence of the feed",
                "How old can the leader's view be? A heartbeat arrives every second.",
                (("time() - max(slipway_feed_heard_seconds)", ""),),
                unit="s",
            ),
            Panel(
                "Extenders, 99 %",
                "Do extenders answer in time?",
                ((p99("slipway_extender_call_seconds", "extender", "verb"), "{{extender}} {{verb}}"),),
                unit="s",
                quiet="no pool has extenders",
            ),
            Panel(
                "Shadow policy",
                "How much would the shadow policy decide differently?",
                ((rate("slipway_shadow_decisions_total", "pool", "outcome"), "{{pool}} {{outcome}}"),),
                unit="ops",
                quiet="no pool has a shadow policy",
            ),
        ),
        "Pod worker": (
            Panel(
                "Steps of a launch, 99 %",
                "Which step of a launch is slow?",
                ((p99("slipway_launch_step_seconds", "step"), "{{step}}"),),
                unit="s",
            ),
            Panel(
                "Steps of a launch, median",
                "How long does each step usually take?",
                ((p99("slipway_launch_step_seconds", "step", part="0.5"), "{{step}}"),),
                unit="s",
            ),
            Panel(
                "Lag of streams",
                "How many messages wait for a worker? KEDA scales by this number.",
                (("max by (stream, group) (slipway_stream_lag)", "{{stream}} {{group}}"),),
            ),
            Panel(
                "Messages in progress",
                "How many messages do workers handle?",
                (("max by (stream, group) (slipway_stream_in_work)", "{{stream}} {{group}}"),),
            ),
            Panel(
                "Deliveries",
                "How do deliveries end?",
                ((rate("slipway_deliveries_total", "stream", "outcome"), "{{stream}} {{outcome}}"),),
                unit="ops",
            ),
            Panel(
                "Time of a delivery",
                "How long does a hint take?",
                (
                    (p99("slipway_delivery_seconds", "stream", part="0.5"), "{{stream}} half"),
                    (p99("slipway_delivery_seconds", "stream"), "{{stream}} 99 %"),
                ),
                unit="s",
            ),
        ),
        "Watcher": (
            Panel(
                "Lag of watches, 99 %",
                "How long does the event of an own write take to arrive on the watch?",
                ((p99("slipway_watch_lag_seconds", "resource"), "{{resource}}"),),
                unit="s",
            ),
            Panel(
                "Silence of watches",
                "How long has a watch received nothing? Each watch is restarted within a minute.",
                (
                    (
                        "time() - max by (service, resource) (slipway_watch_heard_seconds"
                        " * on (instance) group_left (service) max by (instance, service) (slipway_build))",
                        "{{service}} {{resource}}",
                    ),
                ),
                unit="s",
            ),
            Panel(
                "Events of watches",
                "Which events arrive on watches?",
                ((rate("slipway_watch_events_total", "resource", "type"), "{{resource}} {{type}}"),),
                unit="ops",
            ),
            Panel(
                "Status writes",
                "How do status writes end?",
                ((rate("slipway_status_writes_total", "outcome"), "{{outcome}}"),),
                unit="ops",
            ),
            Panel(
                "Objects in stores",
                "How many objects are in the local stores?",
                (("max by (resource) (slipway_store_objects)", "{{resource}}"),),
            ),
            Panel(
                "Appends to streams",
                "Are transitions written to the streams?",
                ((rate("slipway_stream_appends_total", "stream", "outcome"), "{{stream}} {{outcome}}"),),
                unit="ops",
            ),
            Panel(
                "Events about allocations",
                "Does kubectl describe show the Events of allocations?",
                ((rate("slipway_story_events_total", "outcome"), "{{outcome}}"),),
                unit="ops",
            ),
            Panel(
                "Lag of the log archive",
                "How old is the oldest line that is not archived?",
                (("max(slipway_log_archive_lag_seconds)", ""),),
                unit="s",
                quiet="there is no archive of logs",
            ),
            Panel(
                "Log archive: written, and deleted early",
                "How much is archived, and is the limit reached?",
                (
                    (rate("slipway_log_archive_bytes_total"), "written"),
                    (rate("slipway_log_archive_dropped_bytes_total"), "deleted before its time"),
                ),
                unit="Bps",
                quiet="there is no archive of logs",
            ),
        ),
        "API": (
            Panel(
                "Requests",
                "Which requests arrive, and how do they end?",
                ((rate("slipway_http_requests_total", "method", "code"), "{{method}} {{code}}"),),
                unit="ops",
            ),
            Panel(
                "Time to answer, 99 %",
                "Which route is slow?",
                ((p99("slipway_http_request_duration_seconds", "route"), "{{route}}"),),
                unit="s",
            ),
            Panel(
                "Audit events for a file or a webhook",
                "Are all audit events delivered?",
                ((rate("slipway_audit_events_total", "outcome"), "{{outcome}}"),),
                unit="ops",
                quiet="no file or webhook is set, or no user changes anything",
            ),
            Panel(
                "Open streams and sockets",
                "How many streams and sockets are open?",
                (("sum by (kind) (slipway_http_streams)", "{{kind}}"),),
                quiet="no stream or socket is open",
            ),
            Panel(
                "Webhook delivery attempts",
                "Do receivers accept deliveries?",
                ((rate("slipway_webhook_tries_total", "outcome"), "{{outcome}}"),),
                unit="ops",
                quiet="there is no webhook",
            ),
            Panel(
                "Time of a webhook delivery attempt, 99 %",
                "Are receivers slow?",
                ((p99("slipway_webhook_try_seconds"), ""),),
                unit="s",
                quiet="there is no webhook",
            ),
            Panel(
                "Webhook deliveries in progress",
                "How many deliveries are attempted now, or wait for the next attempt?",
                (("sum(slipway_webhook_held)", ""),),
            ),
        ),
        "Kubernetes and Redis": (
            Panel(
                "Calls of Kubernetes, by verb and code",
                "Which calls do the services make, and how does the API server answer?",
                ((rate("slipway_kube_calls_total", "verb", "code"), "{{verb}} {{code}}"),),
                unit="ops",
            ),
            Panel(
                "Time of a call, by verb, 99 %",
                "Is the API server slow?",
                ((p99("slipway_kube_call_seconds", "verb"), "{{verb}}"),),
                unit="s",
            ),
            Panel(
                "Time of a call, by resource, 99 %",
                "Which resources are slow?",
                ((p99("slipway_kube_call_seconds", "resource"), "{{resource}}"),),
                unit="s",
            ),
            Panel(
                "Calls of Redis",
                "How many calls do the services make to Redis, and how do they end?",
                ((rate("slipway_redis_calls_total", "outcome"), "{{outcome}}"),),
                unit="ops",
            ),
            Panel(
                "Retries",
                "Which attempts are repeated?",
                ((rate("slipway_retries_total", "policy", "error"), "{{policy}} {{error}}"),),
                unit="ops",
                quiet=FAULTS,
            ),
            Panel(
                "Memory",
                "How much memory does each service use?",
                (
                    (
                        "max by (service) (process_resident_memory_bytes"
                        " * on (instance) group_left (service) max by (instance, service) (slipway_build))",
                        "{{service}}",
                    ),
                ),
                unit="bytes",
            ),
        ),
    },
)
