"""The dashboard about the services: which part of Slipway is slow."""

from tools.boards.panel import FAULTS, RATE, Board, Panel, p99, rate

SERVICES = Board(
    name="services",
    title="Slipway: which part is slow",
    rows={
        "All parts": (
            Panel(
                "Each part, 99 %",
                "Which of our parts is slow? The highest line; the row of its name says more.",
                (
                    (p99("slipway_http_request_duration_seconds"), "api: answer"),
                    (p99("slipway_tick_duration_seconds"), "scheduler: phase of a tick"),
                    (p99("slipway_delivery_seconds"), "podworker: hint"),
                    (p99("slipway_launch_step_seconds"), "podworker: step of a launch"),
                    (p99("slipway_watch_lag_seconds"), "watcher: write until it is seen"),
                    (p99("slipway_kube_call_seconds"), "Kubernetes: call"),
                ),
                unit="s",
                width=16,
            ),
            Panel(
                "Processor",
                "Which service is busy? 1 is a whole core.",
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
                "Does it tick, and to what end?",
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
                "What does it do with its time, in seconds a second?",
                ((rate("slipway_tick_duration_seconds_sum", "phase"), "{{phase}}"),),
                unit="s",
            ),
            Panel(
                "Silence of the feed",
                "How old may the leader's view be? A beat comes each second.",
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
                "And usually?",
                ((p99("slipway_launch_step_seconds", "step", part="0.5"), "{{step}}"),),
                unit="s",
            ),
            Panel(
                "Lag of streams",
                "How much waits for a worker? By this KEDA scales.",
                (("max by (stream, group) (slipway_stream_lag)", "{{stream}} {{group}}"),),
            ),
            Panel(
                "In work",
                "How much has a worker in hand?",
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
                "How long until an own write comes back on the watch?",
                ((p99("slipway_watch_lag_seconds", "resource"), "{{resource}}"),),
                unit="s",
            ),
            Panel(
                "Silence of watches",
                "Since when has a watch said nothing? Each is opened again within a minute.",
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
                "What do the watches bring?",
                ((rate("slipway_watch_events_total", "resource", "type"), "{{resource}} {{type}}"),),
                unit="ops",
            ),
            Panel(
                "Status writes",
                "What do the writes come to?",
                ((rate("slipway_status_writes_total", "outcome"), "{{outcome}}"),),
                unit="ops",
            ),
            Panel(
                "Objects in stores",
                "How much does it hold?",
                (("max by (resource) (slipway_store_objects)", "{{resource}}"),),
            ),
            Panel(
                "Appends to streams",
                "Are transitions told?",
                ((rate("slipway_stream_appends_total", "stream", "outcome"), "{{stream}} {{outcome}}"),),
                unit="ops",
            ),
            Panel(
                "Events about allocations",
                "Does kubectl describe tell their story?",
                ((rate("slipway_story_events_total", "outcome"), "{{outcome}}"),),
                unit="ops",
            ),
            Panel(
                "Oldest line that waits for the archive of logs",
                "Is the archive behind?",
                (("max(slipway_log_archive_lag_seconds)", ""),),
                unit="s",
                quiet="there is no archive of logs",
            ),
            Panel(
                "Archive of logs: written, and deleted before its time",
                "What goes into it, and is it at its bound?",
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
                "What is asked, and how does it end?",
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
                "Audit events for a reader outside",
                "Does it get them all?",
                ((rate("slipway_audit_events_total", "outcome"), "{{outcome}}"),),
                unit="ops",
                quiet="no reader is set up, or nobody changes anything",
            ),
            Panel(
                "Open streams and sockets",
                "How many follow something?",
                (("sum by (kind) (slipway_http_streams)", "{{kind}}"),),
                quiet="nobody follows anything",
            ),
            Panel(
                "Webhook tries",
                "Do receivers take what they are sent?",
                ((rate("slipway_webhook_tries_total", "outcome"), "{{outcome}}"),),
                unit="ops",
                quiet="there is no webhook",
            ),
            Panel(
                "Time of a webhook try, 99 %",
                "Are receivers slow?",
                ((p99("slipway_webhook_try_seconds"), ""),),
                unit="s",
                quiet="there is no webhook",
            ),
            Panel(
                "Webhook deliveries in hand",
                "How many are tried now, or wait for the next try?",
                (("sum(slipway_webhook_held)", ""),),
            ),
        ),
        "Kubernetes and Redis": (
            Panel(
                "Calls of Kubernetes, by verb and code",
                "What do we ask of the API server, and what does it answer?",
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
                "With what?",
                ((p99("slipway_kube_call_seconds", "resource"), "{{resource}}"),),
                unit="s",
            ),
            Panel(
                "Calls of Redis",
                "What do we ask of Redis?",
                ((rate("slipway_redis_calls_total", "outcome"), "{{outcome}}"),),
                unit="ops",
            ),
            Panel(
                "Retries",
                "What has to be tried again?",
                ((rate("slipway_retries_total", "policy", "error"), "{{policy}} {{error}}"),),
                unit="ops",
                quiet=FAULTS,
            ),
            Panel(
                "Memory",
                "How much does each service hold?",
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
