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
            "description": "Memory and CPU of every part, from measurements with 100, 1,000 or 10,000 live "
            "allocations (docs/operating.md, Capacity). Empty: the standard.",
        },
        **_network_of_pods(),
        "extraObjects": {
            "type": "array",
            "description": "More objects of the release, as YAML or as text; templates in them are rendered.",
            "items": {"type": ["object", "string"]},
        },
        "priorityClass": shapes.closed(
            {
                "create": shapes.flag("Create a PriorityClass, for our pods that have no priorityClassName."),
                "value": {
                    "type": "integer",
                    "maximum": 1_000_000_000,
                    "description": "Priority that the class gives to the pods.",
                },
            },
            "Priority of our own pods.",
        ),
        "ingress": _ingress(),
        "httpRoute": _http_route(),
        "networkPolicy": _network_policy(),
        "admissionPolicies": _admission_policies(),
        "rbac": shapes.closed(
            {
                "namespaces": _names(
                    "Workspaces in which our accounts may write. Empty: all workspaces. Reads stay cluster-wide.",
                    shapes.NAME,
                )
            },
            "Limits on the writes of our service accounts.",
        ),
        "metrics": _metrics(),
        "uninstall": shapes.closed(
            {
                "removeAllocations": shapes.flag(
                    "Before an uninstall, delete every allocation and its objects, so that no object waits for a "
                    "finalizer of Slipway."
                )
            },
            "What happens before an uninstall.",
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
                "A Secret with files *.key that encrypt the cookies of browsers. Empty: the chart makes one at the "
                "install and keeps it at upgrades. `helm template` cannot read the cluster, so each rendering makes a "
                "new one, and users must log in again."
            )
            certificate = shapes.text("A Secret of type kubernetes.io/tls. With it, the api serves HTTPS only.")
            oidc = shapes.text(
                "A Secret whose key client-secret has the secret of the api's client at the single sign-on issuer. It "
                "may also have a ca.crt, for api.settings.oidcCaFile=/etc/slipway/oidc/ca.crt."
            )
            webhooks = shapes.closed(
                {"create": shapes.flag("Create the namespace. If false, it must exist.")},
                "The namespace of webhooks. Its name is that of the release's namespace, with -webhooks.",
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
        "serviceAccountAnnotations": shapes.texts("Annotations of the service account."),
        "podLabels": shapes.texts("Additional labels of the pods."),
        "podAnnotations": shapes.texts("Annotations of the pods."),
        **shapes.placement(),
        "topologySpreadConstraints": {
            "type": "array",
            "description": "Topology spread constraints, which replace a soft spread over nodes.",
            "items": shapes.keyed(shapes.SPREAD, required=("maxSkew", "topologyKey", "whenUnsatisfiable")),
        },
        "extraEnv": {
            "type": "array",
            "description": "More environment variables, such as those of a proxy. Set SLIPWAY_* variables under "
            "settings instead.",
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
            "description": "More volumes, such as company certificates; volumes of the node are not allowed.",
            "items": shapes.keyed(shapes.VOLUME, required=("name",)),
        },
        "extraVolumeMounts": {
            "type": "array",
            "description": "Mounts of these volumes.",
            "items": shapes.keyed(shapes.MOUNT, required=("name", "mountPath")),
        },
        "probes": shapes.closed(
            {
                name: {**shapes.keyed(shapes.PROBE), "description": f"Fields of the {name} probe, over the chart's."}
                for name in ("startup", "liveness", "readiness")
            },
            "Probes of the kubelet.",
        ),
        "initContainers": _containers("Init containers of the pods, in the format of Kubernetes."),
        "sidecars": _containers("Additional containers of the pods, in the format of Kubernetes."),
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
                "description": "A type other than ClusterIP creates a second Service, RELEASE-api-outside, for the "
                "API alone; it needs an api that authenticates.",
            },
            "port": {
                "type": "integer",
                "minimum": 0,
                "maximum": 65535,
                "description": "The port of the API. 0: the port of api.settings.listen.",
            },
            "annotations": shapes.texts(
                "Annotations of the Service; with a type other than ClusterIP, of RELEASE-api-outside."
            ),
            "loadBalancerSourceRanges": _names(
                "Source addresses that a LoadBalancer accepts. Empty: all.", r"^[0-9a-f.:/]+$"
            ),
        },
        "The Service of the api.",
    )


def _network_of_pods() -> Schema:
    policies = ["", "ClusterFirst", "Default", "None", "ClusterFirstWithHostNet"]
    return {
        "dnsPolicy": {
            "type": "string",
            "enum": policies,
            "description": "DNS policy of every pod. Empty: the cluster's default.",
        },
        "dnsConfig": {
            **shapes.keyed(shapes.DNS),
            "description": "DNS configuration of every pod, in the format of Kubernetes.",
        },
        "hostAliases": {
            "type": "array",
            "description": "Entries in the /etc/hosts of every pod.",
            "items": shapes.keyed(shapes.HOST_ALIAS, required=("ip", "hostnames")),
        },
    }


def _autoscaling() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag(
                "Create a HorizontalPodAutoscaler, which then sets the number of pods instead of replicas."
            ),
            "minReplicas": _count("Minimum number of pods.", 1),
            "maxReplicas": _count("Maximum number of pods.", 1),
            "cpuUtilization": _count("Target CPU utilization, in percent of the CPU requests.", 1),
            "behavior": {
                **shapes.keyed({"scaleUp": "object", "scaleDown": "object"}),
                "description": "How fast the autoscaler adds and removes pods.",
            },
        },
        "Scaling of the api by CPU utilization.",
    )


def _keda() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag("Create a KEDA ScaledObject for the work streams; with once, a ScaledJob."),
            "minReplicas": _count("Minimum number of pods. 0: no pod runs while there is no work.", 0),
            "maxReplicas": _count("Maximum number of pods.", 1),
            "lagCount": _count("Number of unread hints of one stream per pod.", 1),
            "activationLagCount": _count("Number of unread hints above which the first pod starts.", 0),
            "pollingIntervalS": _count("Seconds between two polls.", 1),
            "cooldownS": _count("Seconds without work before the number of pods falls to the minimum.", 0),
            "redis": shapes.closed(
                {
                    "type": {
                        "type": "string",
                        "enum": ["redis-streams", "redis-cluster-streams", "redis-sentinel-streams"],
                        "description": "KEDA's trigger type for externalRedis.",
                    },
                    "addresses": shapes.text("host:port of externalRedis for KEDA; several are separated by commas."),
                    "sentinelMaster": shapes.text("Name of the master at the Sentinels."),
                    "tls": shapes.flag("Connect with TLS."),
                    "authentication": shapes.text("A TriggerAuthentication in the release's namespace."),
                },
                "How KEDA connects to externalRedis, because KEDA does not use its URL. Not needed for the chart's "
                "Valkey.",
            ),
        },
        "Scaling of the pod worker by the entries of the work streams.",
    )


def _once() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag("Run the service on a schedule with --once, instead of all the time."),
            "schedule": shapes.text("Schedule of the runs, in the format of a CronJob.", pattern=_SCHEDULE),
            "deadlineS": _count("Maximum seconds of one run.", 1),
        },
        "Serverless runs: each does the work that exists, and ends.",
    )


def _ingress() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag("Create an Ingress; it needs an api that authenticates."),
            "className": shapes.text("Class of the Ingress."),
            "annotations": shapes.texts("Annotations of the Ingress, for its controller."),
            "hosts": _names("Host names; the api also accepts requests for them.", _HOST),
            "tlsSecret": shapes.text("A Secret with the certificate of all hosts. Empty: the Ingress has no TLS."),
        },
        "Access from outside the cluster by an Ingress.",
    )


def _http_route() -> Schema:
    parent = shapes.keyed(
        {"name": "string", "namespace": "string", "sectionName": "string", "port": "integer"}, required=("name",)
    )
    return shapes.closed(
        {
            "enabled": shapes.flag("Create an HTTPRoute of the Gateway API; it needs an api that authenticates."),
            "annotations": shapes.texts("Annotations of the HTTPRoute, for its gateway."),
            "parentRefs": {"type": "array", "description": "Gateways of the HTTPRoute.", "items": parent},
            "hostnames": _names("Host names; the api also accepts requests for them.", _HOST),
        },
        "Access from outside the cluster by the Gateway API.",
    )


def _network_policy() -> Schema:
    rule = shapes.keyed({"to": "array", "ports": "array"})
    peers = {"type": "array", "items": shapes.keyed(shapes.PEER)}
    return shapes.closed(
        {
            "enabled": shapes.flag("Allow connections to our pods only from clients that need them."),
            "apiFrom": {**peers, "description": "Peers that may connect to the api, if it authenticates. Empty: all."},
            "metricsFrom": {**peers, "description": "Peers that may read metrics. Empty: all."},
            "redisFrom": {
                **peers,
                "description": "Peers that may read the streams of the chart's Valkey, in addition to our services.",
            },
            "egress": shapes.closed(
                {
                    "enabled": shapes.flag(
                        "Allow our pods to connect only to DNS, the API server, Redis and the peers in extra."
                    ),
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
                "Connections that our pods may open.",
            ),
            "workloads": shapes.closed(
                {
                    "enabled": shapes.flag(
                        "Allow connections to ranks only from the api's proxy and from other ranks."
                    ),
                    "namespaces": _names("Workspaces with this policy. Empty: setup.workspaces.", shapes.NAME),
                    "egress": {
                        "type": "string",
                        "enum": ["open", "closed"],
                        "description": "Connections that ranks may open. open: all. closed: only to DNS, other ranks, "
                        "the task port and the peers in extra.",
                    },
                    "extra": {
                        "type": "array",
                        "description": "More rules for closed egress: a registry, storage.",
                        "items": rule,
                    },
                },
                "Network policy of ranks.",
            ),
        },
        "Which pods may connect to which.",
    )


def _admission_policies() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag(
                "Let the API server restrict the writes of our service accounts to Slipway's own objects."
            ),
            "privilegedWorkspaces": _names(
                "Workspaces where ranks may exceed the restricted Pod Security Standard, if their pool allows it; * "
                "means all.",
                rf"^\*$|{shapes.NAME}",
            ),
            "privileges": _names(
                "The privileges beyond the restricted standard that pools may allow by allowedPrivileges: root, "
                "hostIPC, hostNetwork, or capabilities such as IPC_LOCK.",
                PRIVILEGE_PATTERN,
            ),
            "protectedNamespaces": _names(
                "Namespaces that never become workspaces, in addition to our own and those that begin with kube-.",
                shapes.NAME,
            ),
            "tokenAudiences": {
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "uniqueItems": True,
                "description": "Audiences of tokens that a rank's template may project, in addition to Slipway's, "
                "such as sts.amazonaws.com. Never name the audience of the API server.",
            },
            "priorityClasses": _names(
                "PriorityClasses that a rank may have, in addition to the cluster's default: for webhooks that set "
                "one.",
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
        "enabled": shapes.flag("Create the monitor; its custom resource definition must be installed."),
        "interval": shapes.text("Time between two scrapes.", pattern=_SPAN),
        "scrapeTimeout": shapes.text("Timeout of one scrape.", pattern=_SPAN),
        "labels": shapes.texts("Labels by which a Prometheus selects it."),
    }
    return shapes.closed(
        {
            "podMonitor": shapes.closed(monitor, "A PodMonitor of the Prometheus operator, for our pods."),
            "serviceMonitor": shapes.closed(
                monitor, "A ServiceMonitor of the Prometheus operator, with a headless Service."
            ),
            "alerts": shapes.closed(
                {
                    "enabled": shapes.flag("Create a PrometheusRule from files/alerts."),
                    "labels": shapes.texts("Labels by which a Prometheus selects it."),
                    "runbookUrl": shapes.text(
                        "URL where your readers find docs/runbooks, such as https://docs.example.org/runbooks. Each "
                        "alert then links to its page there by the annotation runbook_url.",
                        pattern="^$|^https?://[^ ?#]+$",
                    ),
                },
                "Alerting rules.",
            ),
            "dashboards": shapes.closed(
                {
                    "enabled": shapes.flag("Create a ConfigMap from each file in files/dashboards."),
                    "labels": shapes.texts("Labels by which Grafana's sidecar selects the dashboards."),
                    "annotations": shapes.texts("Annotations of the ConfigMaps, such as the folder in Grafana."),
                },
                "Dashboards of Grafana.",
            ),
        },
        "Monitoring of the release.",
    )


def _trial() -> Schema:
    return shapes.closed(
        {
            "enabled": shapes.flag("Let `helm test` run a command that takes a second."),
            "workspace": shapes.text("Workspace of the trial.", pattern=shapes.NAME),
            "pool": shapes.text("ResourcePool of the trial."),
            "queue": shapes.text("Queue of the trial."),
            "image": shapes.text("Image of the trial's command, which needs Python. Empty: Slipway's image."),
            "timeoutS": _count("Maximum seconds of the trial.", 1),
            "resources": shapes.resources(),
            **shapes.placement(),
        },
        "What `helm test` does.",
    )


def _names(description: str, pattern: str) -> Schema:
    return {"type": "array", "description": description, "items": {"type": "string", "pattern": pattern}}


def _count(description: str, least: int) -> Schema:
    return {"type": "integer", "minimum": least, "description": description}
