"""Value sets that the chart is rendered over: what operators really set, one at a time and together."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from tests.support import chart

Values = dict[str, Any]

MATRIX: Mapping[str, Values] = {
    "defaults": {},
    "no redis": {"valkey": {"enabled": False}},
    "redis by url": {"valkey": {"enabled": False}, "externalRedis": {"url": "rediss://:p%40ss@redis.example:6380/1"}},
    "redis cluster": {
        "valkey": {"enabled": False},
        "externalRedis": {"url": "rediss+cluster://user:pass@a.example:6379,b.example:6379"},
    },
    "redis by secret": {
        "valkey": {"enabled": False},
        "externalRedis": {"existingSecret": "redis", "existingSecretKey": "address"},
    },
    "valkey with a password": {"valkey": {"auth": {"password": "s3cret/with:signs"}}},
    "valkey with a secret": {"valkey": {"auth": {"existingSecret": "mine"}}},
    "valkey elsewhere": {
        "valkey": {
            "image": {"repository": "mirror.example/valkey", "tag": "9.0.3"},
            "maxMemory": "1gb",
            "nodeSelector": {"disk": "no"},
            "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        }
    },
    "one of each": {name: {"replicas": 1} for name in ("api", "scheduler", "podworker", "watcher")},
    "many": {"api": {"replicas": 5}, "podworker": {"replicas": 20}},
    "none of one": {"podworker": {"replicas": 0}},
    "no budgets": {
        name: {"podDisruptionBudget": {"enabled": False}} for name in ("api", "scheduler", "podworker", "watcher")
    },
    "budgets in percent": {"podworker": {"replicas": 4, "podDisruptionBudget": {"maxUnavailable": "50%"}}},
    "image by tag": {"image": {"repository": "registry.example:5000/team/slipway", "tag": "1.2.3"}},
    "image by digest": {"image": {"digest": "sha256:" + "0" * 64, "pullPolicy": "Always", "pullSecrets": ["one"]}},
    "names": {"nameOverride": "launcher", "labels": {"team": "platform", "cost-center": "42"}},
    "full name": {"fullnameOverride": "acme"},
    "definitions elsewhere": {"crds": {"enabled": False}},
    "definitions that go": {"crds": {"keep": False}},
    "no roles for people": {"userRoles": {"enabled": False}},
    "no setup": {"setup": {"enabled": False}},
    "audited": {"audit": {"enabled": True, "every": "90s", "watch": "0s"}},
    "other setup": {
        "setup": {
            "pools": {"default": None, "gpu": {"binding": "delegate"}, "cpu": {}},
            "queues": {"default": None, "research": {"pool": "gpu", "weight": 3, "nominal": {"nvidia.com/gpu": 8}}},
            "workspaces": ["team-a", "team-b"],
        }
    },
    "setup of workspaces only": {
        "setup": {"pools": {"default": None}, "queues": {"default": None}, "workspaces": ["default"]}
    },
    "setup of nothing": {"setup": {"pools": {"default": None}, "queues": {"default": None}, "workspaces": []}},
    "loud": {"settings": {"logLevel": "debug", "logFormat": "text"}},
    "traced": {"settings": {"otelEndpoint": "http://collector.monitoring:4318", "traceRatio": 0.05}},
    "long drains": {"settings": {"drainTimeoutS": 3600}},
    "a drain of its own": {"api": {"settings": {"drainTimeoutS": 0.5}}},
    "large numbers": {
        "watcher": {"settings": {"retentionS": 31536000, "retentionCountMax": 5000000}},
        "api": {"settings": {"bodyBytesMax": 3145728}},
    },
    "other ports": {
        "api": {"settings": {"listen": "[::1]:9090", "healthListen": "[::]:9091", "hosts": ["a.example", "b.example"]}},
        "scheduler": {"settings": {"listen": "[::]:9092"}},
    },
    "settings unset": {"watcher": {"settings": {"logDrainS": None}}, "settings": {"traceRatio": None}},
    "pools for a scheduler": {"scheduler": {"settings": {"pools": "gpu,cpu", "leaseDurationS": 30}}},
    "tokens for ranks": {
        "api": {"settings": {"taskAudience": "slipway.example"}},
        "podworker": {"settings": {"taskAudience": "slipway.example", "apiUrl": "https://api.example"}},
    },
    "no door for tasks": {"api": {"settings": {"taskListen": ""}}, "podworker": {"settings": {"taskAudience": ""}}},
    "placed": {
        name: {
            "priorityClassName": "system-cluster-critical",
            "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
            "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
                    ]
                }
            },
        }
        for name in ("api", "scheduler", "podworker", "watcher", "setup", "valkey")
    },
    "decorated": {
        "api": {
            "podLabels": {"mesh": "in"},
            "podAnnotations": {"prometheus.io/scrape": "true"},
            "serviceAccountAnnotations": {"cloud.example/role": "api"},
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
        }
    },
    "another user": {"podSecurityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}},
}

SECRETS = {"redis": {"address": "redis://there"}, "mine": {"url": "redis://valkey", "password": "x"}}
"""The Secrets that the sets name as there already."""

LINTED = ("defaults", "no redis", "other setup", "decorated", "placed")
"""The linter takes half a second; these reach every template."""


@cache
def rendered(name: str) -> list[dict[str, Any]]:
    """The chart with one set of values; only to be read."""
    return chart.render(MATRIX[name])


REFUSED: Mapping[str, tuple[Values, str]] = {
    "a part": ({"scheduller": {}}, "scheduller"),
    "a part of a service": ({"api": {"replicaCount": 3}}, "replicaCount"),
    "a setting": ({"watcher": {"settings": {"retentionSeconds": 5}}}, "retentionSeconds"),
    "a setting of another service": ({"api": {"settings": {"tickMinMs": 5}}}, "tickMinMs"),
    "a common setting": ({"settings": {"loglevel": "info"}}, "loglevel"),
    "a word": ({"settings": {"logLevel": "loud"}}, "logLevel"),
    "a bound": ({"scheduler": {"settings": {"tickMinMs": 0}}}, "tickMinMs"),
    "a type": ({"api": {"replicas": "two"}}, "replicas"),
    "a fraction": ({"podworker": {"settings": {"workerCalls": 1.5}}}, "workerCalls"),
    "an address": ({"watcher": {"settings": {"listen": "everywhere"}}}, "listen"),
    "a nested name": ({"valkey": {"auth": {"pasword": "x"}}}, "pasword"),
    "a field of a pool": ({"setup": {"pools": {"default": {"bindng": "direct"}}}}, "bindng"),
    "a word of a queue": ({"setup": {"queues": {"default": {"ordering": "Random"}}}}, "ordering"),
    "a digest": ({"image": {"digest": "latest"}}, "digest"),
    "a policy": ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
    "a security field": ({"podSecurityContext": {"runAsNonroot": True}}, "runAsNonroot"),
    "a toleration": ({"api": {"tolerations": [{"keey": "x"}]}}, "keey"),
    "a setting smuggled in": ({"api": {"extraEnv": [{"name": "SLIPWAY_LISTEN", "value": ":80"}]}}, "extraEnv"),
    "a url": ({"externalRedis": {"url": "http://redis"}}, "url"),
    "a kind of redis": ({"externalRedis": {"url": "redis+clutser://redis"}}, "url"),
    "an open api": ({"api": {"settings": {"listen": "0.0.0.0:8080"}}}, "loopback"),
    "an open api by name": ({"api": {"settings": {"listen": "localhost.example:8080"}}}, "loopback"),
    "two audiences": ({"podworker": {"settings": {"taskAudience": "another"}}}, "taskAudience"),
    "two redis": ({"externalRedis": {"url": "redis://elsewhere"}}, "valkey.enabled=false"),
    "two addresses of redis": (
        {"valkey": {"enabled": False}, "externalRedis": {"url": "redis://a", "existingSecret": "b"}},
        "not both",
    ),
}
"""{what is wrong: (values, a word of the refusal)}."""
