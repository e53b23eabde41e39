"""The schema of the chart's values that are no settings: scaling, ingress, policies, monitoring, trials.

Owns these parts of the values. It knows no setting of a service: `chart_schema` combines the parts.
"""

from slipway.crd.pools import PRIVILEGE_PATTERN
from tools import chart_shapes as shapes
from tools.chart_shapes import Schema

_HOST = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_SCHEDULE = r"^(@(hourly|daily)|\S+ \S+ \S+ \S+ \S+)$"
_SPAN = r"^[0-9]+(ms|s|m|h)$"


def whole() -> Schema:
    """Return the schemas of the values that do not belong to one service."""
    return {
        "size": {
            "type": "string",
            "enum": ["", "small", "medium", "large"],
            "description": "Memory and processor time of every part, measured: for 100, 1,000 or 10,000 allocations "
            "that live at once (docs/operating.md, Capacity). Empty: the standard.",
        },
        **_network_of_pods(),
        "extraObjects": {
            "type": "array",
            "description": "More objects of the release, as YAML or as text; templates in them are filled in.",
            "items": {"type": ["object", "string"]},
        },
        "priorityClass": shapes.closed(
            {
                "create": shapes.flag("Make a PriorityClass, for those of our pods that name none."),
                "value": {"type": "integer", "maximum": 1_000_000_000, "description": "How important it makes them."},
            },
            "How important our own pods are.",
        ),
        "ingress": _ingress(),
        "httpRoute": _http_route(),
        "networkPolicy": _network_policy(),
        "admissionPolicies": _admission_policies(),
        "rbac": shapes.closed(
            {
                "namespaces": _names(
                    "Workspaces: write nowhere else. Empty: wherever there is a workspace. Reads stay cluster-wide.",
                    shapes.NAME,
                )
            },
            "Where our accounts may write.",
        ),
        "metrics": _metrics(),
        "uninstall": shapes.closed(
            {
                "removeAllocations": shapes.flag(
                    "Before an uninstall, delete every allocation with what it made, so that nothing waits for us."
                )
            },
            "What an uninstall does first.",
        ),
        "trial": _trial(),
    }


def scaling(service: str) -> Schema:
    """Return the schemas about the number of pods of a service and about its own Secrets, Service and runs."""
    match service:
        case "api":
            tokens = shapes.text(
                "A Secret with the records of tokens that `slipway token create` writes, for auth=token."
            )
            session_keys = shapes.text(
                "A Secret with files *.key that seal the cookies of browsers. Without: one that the chart makes at the "
                "install and keeps at upgrades; where no cluster is asked, as by `helm template`, each rendering makes "
                "another one, and users log in again."
            )
            certificate = shapes.text("A Secret of type kubernetes.io/tls: the api speaks HTTPS with it, and no HTTP.")
            oidc = shapes.text(
                "A Secret with the key client-secret, of the api's client at the issuer of single sign-on; ca.crt in "
                "it is for api.settings.oidcCaFile=/etc/slipway/oidc/ca.crt."
            )
            webhooks = shapes.closed(
                {"create": shapes.flag("Make the namespace. Without, it has to be there.")},
                "The namespace of webhooks, which is named as the release's, with -webhooks behind it.",
            )
            own = {
                "tokenSecret": tokens,
                "sessionKeySecret": session_keys,
                "oidcSecret": oidc,
                "tlsSecret": certificate,
                "webhookNamespace": webhooks,
            }
            return {"autoscaling": _autoscaling(), "service": _service(), **own}
        case "podworker":
            return {"keda": _keda(), "once": _once()}
        case _:
            return {"once": _once()}


def pod() -> Schema:
    """Return the schemas of the values that the pods of every service accept."""
    return {
        "serviceAccountAnnotations": shapes.texts("On the account."),
        "podLabels": shapes.texts("More labels on its pods."),
        "podAnnotations": shapes.texts("On its pods."),
        **shapes.placement(),
        "topologySpreadConstraints": {
            "type": "array",
            "description": "Instead of a soft spread over nodes.",
            "items": shapes.keyed(shapes.SPREAD, required=("maxSkew", "topologyKey", "whenUnsatisfiable")),
        },
        "extraEnv": {
            "type": "array",
            "description": "More environment, such as a proxy; settings belong under settings.",
            "items": shapes.closed(
                {
                    "name": {"type": "string", "not": {"pattern": "^SLIPWAY_"}},
                    "value": {"type": "string"},
                    "valueFrom": {"type": "object"},
                },
                "",
                required=("name",),
            ),
        },
        "extraVolumes": {
            "type": "array",
            "description": "More volumes, such as the certificates of a company; nothing of the node.",
            "items": shapes.keyed(shapes.VOLUME, required=("name",)),
        },
        "extraVolumeMounts": {
            "type": "array",
            "description": "Where they are mounted.",
            "items": shapes.keyed(shapes.MOUNT, required=("name", "mountPath")),
        },
        "probes": shapes.closed(
            {
                name: {**shapes.keyed(shapes.PROBE), "description": f"Fields of the {name} probe, over the chart's."}
                for name in ("startup", "liveness", "readiness")
            },
            "What the kubelet asks.",
        ),
        "initContainers": _containers("Containers that run before it, as Kubernetes writes them."),
        "sidecars": _containers("Containers beside it, as Kubernetes writes them."),
    }


def _containers(description: str) -> Schema:
    container = {"type": "object", "required": ["name", "image"]}
    return {"type": "array", "description": description, "items": container}


def _service() -> Schema:
    return shapes.closed(
        {
            "type": {
                "type": "string",
                "enum": ["ClusterIP", "NodePort", "LoadBalancer"],
                "description": "Other than ClusterIP: one more Service, called RELEASE-api-outside, with the API "
                "alone; needs an api that authenticates.",
            },
            "port": {
                "type": "integer",
                "minimum": 0,
                "maximum": 65535,
                "description": "The port of the API. 0: the one of api.settings.listen.",
            },
            "annotations": shapes.texts("On the Service, of a type other than ClusterIP on the one more."),
            "loadBalancerSourceRanges": _names(
                "Which addresses a LoadBalancer lets in. Empty: all.", r"^[0-9a-f.:/]+$"
            ),
        },
        "The Service of the api.",
    )


def _network_of_pods() -> Schema:
    policies = ["", "ClusterFirst", "Default", "None", "ClusterFirstWithHostNet"]
    return {
        "dnsPolicy": {"type": "string", "enum": policies, "description": "Of every pod. Empty: the cluster's default."},
        "dnsConfig": {**shapes.keyed(shapes.DNS), "description": "Of every pod, as Kubernetes writes it."},
        "hostAliases": {
            "type": "array",
            "description": "Names that every pod finds in its /etc/hosts.",
            "items": shapes.keyed(shapes.HOST_ALIAS, required=("ip", "hostnames")),
        },
    }


def _autoscaling() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag("Make a HorizontalPodAutoscaler, which then says how many instead of replicas."),
            "minReplicas": _count("At least.", 1),
            "maxReplicas": _count("At most.", 1),
            "cpuUtilization": _count("Percent of the requested processor time that it aims at.", 1),
            "behavior": {**shapes.keyed({"scaleUp": "object", "scaleDown": "object"}), "description": "How fast."},
        },
        "As many as there is work, by processor time.",
    )


def _keda() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag("Make a ScaledObject of KEDA over the work streams; with once, a ScaledJob."),
            "minReplicas": _count("At least; 0 lets the last one go while there is nothing to do.", 0),
            "maxReplicas": _count("At most.", 1),
            "lagCount": _count("Hints of one stream that nobody has read, for each pod.", 1),
            "activationLagCount": _count("Above how many the first pod is started.", 0),
            "pollingIntervalS": _count("Seconds between looks.", 1),
            "cooldownS": _count("Seconds without work before it goes to the least number.", 0),
            "redis": shapes.closed(
                {
                    "type": {
                        "type": "string",
                        "enum": ["redis-streams", "redis-cluster-streams", "redis-sentinel-streams"],
                        "description": "KEDA's word for what externalRedis is.",
                    },
                    "addresses": shapes.text("host:port of externalRedis as KEDA reaches it, separated by commas."),
                    "sentinelMaster": shapes.text("The service that the Sentinels know."),
                    "tls": shapes.flag("With TLS."),
                    "authentication": shapes.text("A TriggerAuthentication of the release's namespace."),
                },
                "For externalRedis: KEDA reads no URL. The Valkey of the chart needs none of it.",
            ),
        },
        "As many as there is work, by what stands in the work streams.",
    )


def _once() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag("Run it now and then with --once, instead of all the time."),
            "schedule": shapes.text("When, as for a CronJob.", pattern=_SCHEDULE),
            "deadlineS": _count("Seconds that one run may take.", 1),
        },
        "Serverless runs: do what is there to do, and end.",
    )


def _ingress() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag("Make an Ingress; needs an api that authenticates."),
            "className": shapes.text("Which controller."),
            "annotations": shapes.texts("For the controller."),
            "hosts": _names("Host names; the api answers under them too.", _HOST),
            "tlsSecret": shapes.text("A Secret with the certificate of all hosts. Empty: no TLS here."),
        },
        "A way in from outside, by Ingress.",
    )


def _http_route() -> Schema:
    parent = shapes.keyed(
        {"name": "string", "namespace": "string", "sectionName": "string", "port": "integer"}, required=("name",)
    )
    return shapes.closed(
        {
            "enabled": shapes.flag("Make an HTTPRoute of the Gateway API; needs an api that authenticates."),
            "annotations": shapes.texts("For the gateway."),
            "parentRefs": {"type": "array", "description": "The Gateways.", "items": parent},
            "hostnames": _names("Host names; the api answers under them too.", _HOST),
        },
        "A way in from outside, by Gateway.",
    )


def _network_policy() -> Schema:
    rule = shapes.keyed({"to": "array", "ports": "array"})
    peers = {"type": "array", "items": shapes.keyed(shapes.PEER)}
    return shapes.closed(
        {
            "enabled": shapes.flag("Let only those reach our pods who need to."),
            "apiFrom": {**peers, "description": "Who reaches the api, where it authenticates. Empty: everybody."},
            "metricsFrom": {**peers, "description": "Who reads metrics. Empty: everybody."},
            "redisFrom": {**peers, "description": "Who reads the streams of the chart's Valkey, beside our services."},
            "egress": shapes.closed(
                {
                    "enabled": shapes.flag("Let our pods reach only names, the API server, Redis and what is listed."),
                    "apiServerPorts": {
                        "type": "array",
                        "description": "Ports of the Kubernetes API server.",
                        "items": {"type": "integer", "minimum": 1, "maximum": 65535},
                    },
                    "extra": {
                        "type": "array",
                        "description": "More rules: an external Redis, a collector, receivers of webhooks, extenders.",
                        "items": rule,
                    },
                },
                "What our pods may reach.",
            ),
            "workloads": shapes.closed(
                {
                    "enabled": shapes.flag("Let ranks be reached by the api's proxy and by other ranks only."),
                    "namespaces": _names("Workspaces. Empty: those of setup.workspaces.", shapes.NAME),
                    "egress": {
                        "type": "string",
                        "enum": ["open", "closed"],
                        "description": "What ranks may reach: all; or names, each other, the tasks' door and extra.",
                    },
                    "extra": {
                        "type": "array",
                        "description": "More rules for closed egress: a registry, storage.",
                        "items": rule,
                    },
                },
                "The same for ranks.",
            ),
        },
        "Who reaches whom.",
    )


def _admission_policies() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag("Let the API server itself hold our accounts to what is ours."),
            "privilegedWorkspaces": _names(
                "Workspaces where ranks may be more than restricted, if their pool allows it; * is all.",
                rf"^\*$|{shapes.NAME}",
            ),
            "privileges": _names(
                "The most that pools may allow their pods beyond restricted, by allowedPrivileges: root, hostIPC, "
                "hostNetwork, or capabilities such as IPC_LOCK.",
                PRIVILEGE_PATTERN,
            ),
            "protectedNamespaces": _names(
                "Namespaces that never become workspaces, beside our own and those that begin with kube-.", shapes.NAME
            ),
            "tokenAudiences": {
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "uniqueItems": True,
                "description": "Whom tokens that a rank's template projects may be for, beside Slipway; such as "
                "sts.amazonaws.com. Never name the audience of the API server.",
            },
            "priorityClasses": _names(
                "Classes of priority that a rank may have, beside the cluster's default: for webhooks that set one.",
                shapes.NAME,
            ),
            "allowedKeys": {
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "uniqueItems": True,
                "description": "Keys of labels and annotations, and finalizers, that other software (a mutating "
                "webhook) adds to what Slipway writes; such as example.com/team.",
            },
        },
        "Rules of the API server for what our accounts write.",
    )


def _metrics() -> Schema:
    monitor = {
        "enabled": shapes.flag("Make one; its resource must be there."),
        "interval": shapes.text("Between two looks.", pattern=_SPAN),
        "scrapeTimeout": shapes.text("How long one may take.", pattern=_SPAN),
        "labels": shapes.texts("What a Prometheus selects it by."),
    }
    return shapes.closed(
        {
            "podMonitor": shapes.closed(monitor, "For the Prometheus operator: our pods."),
            "serviceMonitor": shapes.closed(monitor, "For the Prometheus operator: a Service without an address."),
            "alerts": shapes.closed(
                {
                    "enabled": shapes.flag("Make a PrometheusRule of files/alerts."),
                    "labels": shapes.texts("What a Prometheus selects it by."),
                    "runbookUrl": shapes.text(
                        "Where your readers find docs/runbooks, such as https://docs.example.org/runbooks: each alert "
                        "then leads to its page there by the annotation runbook_url.",
                        pattern="^$|^https?://[^ ?#]+$",
                    ),
                },
                "Alerts.",
            ),
            "dashboards": shapes.closed(
                {
                    "enabled": shapes.flag("Make a ConfigMap of each of files/dashboards."),
                    "labels": shapes.texts("What Grafana's sidecar selects them by."),
                    "annotations": shapes.texts("Such as the folder."),
                },
                "Grafana.",
            ),
        },
        "What is done with metrics.",
    )


def _trial() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag("Let `helm test` run a command of a second."),
            "workspace": shapes.text("Where.", pattern=shapes.NAME),
            "pool": shapes.text("On which pool."),
            "queue": shapes.text("In which queue."),
            "image": shapes.text("Of the command, with a Python. Empty: our own."),
            "timeoutS": _count("Seconds that it may take.", 1),
            "resources": shapes.resources(),
            **shapes.placement(),
        },
        "What `helm test` does.",
    )


def _names(description: str, pattern: str) -> Schema:
    return {"type": "array", "description": description, "items": {"type": "string", "pattern": pattern}}


def _count(description: str, least: int) -> Schema:
    return {"type": "integer", "minimum": least, "description": description}
