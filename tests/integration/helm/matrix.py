"""Value sets that the chart is rendered over: settings that operators use, one at a time and together."""

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
    "valkey without tls": {"valkey": {"tls": {"enabled": False}}},
    "valkey with secrets of others": {
        "valkey": {"auth": {"accountsSecret": "accounts"}, "tls": {"existingSecret": "certificate"}}
    },
    "redis with accounts": {
        "valkey": {"enabled": False},
        "externalRedis": {
            "url": "rediss://redis.example:6379/0",
            "accounts": {"existingSecret": "accounts", "userPrefix": "team-a-"},
        },
    },
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
    "images of a mirror": {
        "global": {"imageRegistry": "mirror.example", "imagePullSecrets": [{"name": "shared"}]},
        "imagePullSecrets": [{"name": "two"}, "three"],
        "image": {"pullSecrets": ["one", {"name": "two"}]},
        "trial": {"image": "python:3.12"},
    },
    "images of two registries": {
        "image": {"registry": "registry.example:5000/team"},
        "valkey": {"image": {"registry": "mirror.example"}},
    },
    "a size": {"size": "large", "api": {"resources": {"limits": {"memory": "9Gi"}}}, "valkey": {"maxMemory": "1gb"}},
    "names in pods": {
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["10.0.0.10"], "searches": ["svc.cluster.local"]},
        "hostAliases": [{"ip": "10.1.2.3", "hostnames": ["redis.example"]}],
    },
    "other probes": {
        "api": {"probes": {"startup": {"failureThreshold": 300}, "readiness": {"timeoutSeconds": 10}}},
        "watcher": {"probes": {"liveness": {"tcpSocket": {"port": "health"}}}},
    },
    "a load balancer": {
        "api": {
            "settings": {"auth": "kubernetes", "listen": "0.0.0.0:8080"},
            "service": {
                "type": "LoadBalancer",
                "port": 80,
                "annotations": {"balancer.example/internal": "true"},
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
            },
        },
        "httpRoute": {"enabled": True, "hostnames": ["slipway.example"], "parentRefs": [{"name": "gateway"}]},
    },
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
    "traced by grpc": {"settings": {"otelEndpoint": "https://collector.monitoring:4317", "otelProtocol": "grpc"}},
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
    "an autoscaler": {
        "scheduler": {"settings": {"autoscaling": True, "placeholderImage": "registry.example.org/pause:1"}}
    },
    "pools for a scheduler": {"scheduler": {"settings": {"pools": "gpu,cpu", "leaseDurationS": 30}}},
    "tokens for ranks": {
        "api": {"settings": {"taskAudience": "slipway.example"}},
        "podworker": {"settings": {"taskAudience": "slipway.example", "apiUrl": "https://api.example"}},
    },
    "privileges": {"admissionPolicies": {"privileges": ["root", "hostIPC", "IPC_LOCK"]}},
    "an archive of logs": {name: {"settings": {"logArchiveUrl": "s3://bucket/slipway"}} for name in ("api", "watcher")},
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
    "TLS in the api": {
        "api": {
            "settings": {"auth": "kubernetes", "listen": "0.0.0.0:8443", "proxyDomain": "apps.example"},
            "tlsSecret": "slipway-tls",
        },
        "ingress": {"enabled": True, "hosts": ["slipway.example"]},
    },
    "users by token": {"api": {"settings": {"auth": "token", "listen": "0.0.0.0:8080"}, "tokenSecret": "tokens"}},
    "users of an issuer": {
        "api": {
            "settings": {
                "auth": "token",
                "listen": "0.0.0.0:8080",
                "oidcIssuerUrl": "https://login.example",
                "oidcClientId": "slipway-web",
                "oidcCliClientId": "slipway-cli",
                "oidcScopes": ["openid", "email", "groups", "offline_access"],
                "oidcRequiredClaims": {"hd": "example.com"},
                "oidcRoles": {"group:ml-team": {"team-red": "editor"}, "user:ada": {"*": "admin"}},
            },
            "tokenSecret": "tokens",
            "oidcSecret": "issuer",
        }
    },
    "users of kubernetes": {
        "api": {"settings": {"auth": "kubernetes", "listen": "0.0.0.0:8080"}},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "hosts": ["slipway.example"],
            "tlsSecret": "certificate",
            "annotations": {"nginx.ingress.kubernetes.io/proxy-read-timeout": "3600"},
        },
        "httpRoute": {
            "enabled": True,
            "hostnames": ["gateway.example"],
            "parentRefs": [{"name": "gateway", "namespace": "gateways", "sectionName": "https"}],
        },
        "networkPolicy": {"enabled": True},
    },
    "drains at once": {name: {"drainDelayS": 0} for name in ("api", "scheduler", "podworker", "watcher")},
    "scaled api": {
        "api": {
            "autoscaling": {
                "enabled": True,
                "minReplicas": 3,
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}},
            }
        }
    },
    "one api at least": {"api": {"autoscaling": {"enabled": True, "minReplicas": 1}}},
    "scaled by lag": {"podworker": {"keda": {"enabled": True, "minReplicas": 0, "lagCount": 20}}},
    "scaled by the lag of a cluster": {
        "valkey": {"enabled": False},
        "externalRedis": {"existingSecret": "redis", "existingSecretKey": "address"},
        "podworker": {
            "keda": {
                "enabled": True,
                "redis": {
                    "type": "redis-cluster-streams",
                    "addresses": "a.example:6379,b.example:6379",
                    "tls": True,
                    "authentication": "redis",
                },
            }
        },
    },
    "scaled by the lag of a sentinel": {
        "valkey": {"enabled": False},
        "externalRedis": {"url": "redis+sentinel://a.example:26379/main"},
        "podworker": {
            "keda": {
                "enabled": True,
                "redis": {
                    "type": "redis-sentinel-streams",
                    "addresses": "a.example:26379",
                    "sentinelMaster": "main",
                },
            }
        },
    },
    "now and then": {
        "scheduler": {"once": {"enabled": True, "schedule": "*/5 * * * *", "deadlineS": 120}},
        "podworker": {"once": {"enabled": True}},
        "watcher": {"once": {"enabled": True, "schedule": "@hourly"}},
        "setup": {"priorityClassName": "low"},
    },
    "jobs by lag": {"podworker": {"once": {"enabled": True}, "keda": {"enabled": True}}},
    "important": {"priorityClass": {"create": True, "value": 1000}, "api": {"priorityClassName": "mine"}},
    "redis with an authority": {
        "valkey": {"enabled": False},
        "externalRedis": {"url": "rediss://a.example:6379/0", "caSecret": "authority"},
        "audit": {"enabled": True},
    },
    "redis with an authority and an option": {
        "valkey": {"enabled": False},
        "externalRedis": {"url": "rediss://a.example:6379/0?ssl_check_hostname=true", "caSecret": "authority"},
    },
    "volumes": {
        "api": {
            "extraVolumes": [{"name": "authorities", "configMap": {"name": "authorities"}}],
            "extraVolumeMounts": [{"name": "authorities", "mountPath": "/etc/ssl/company", "readOnly": True}],
        }
    },
    "walled": {"networkPolicy": {"enabled": True}, "audit": {"enabled": True}},
    "walled in": {
        "networkPolicy": {
            "enabled": True,
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            "redisFrom": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"reads": "streams"}}}],
            "egress": {
                "enabled": True,
                "apiServerPorts": [6443],
                "extra": [{"to": [{"ipBlock": {"cidr": "10.20.0.0/16"}}], "ports": [{"port": 443}]}],
            },
            "workloads": {"enabled": True},
        },
    },
    "ranks walled in": {
        "networkPolicy": {
            "workloads": {
                "enabled": True,
                "namespaces": ["team-a", "team-b"],
                "egress": "closed",
                "extra": [{"ports": [{"port": 443}]}],
            }
        }
    },
    "privileged somewhere": {"admissionPolicies": {"privilegedWorkspaces": ["drivers"]}},
    "privileged everywhere": {"admissionPolicies": {"privilegedWorkspaces": ["*"]}},
    "keys of others": {"admissionPolicies": {"allowedKeys": ["example.com/team"]}},
    "no policies": {"admissionPolicies": {"enabled": False}},
    "in two namespaces": {"rbac": {"namespaces": ["team-a", "team-b"]}, "setup": {"workspaces": ["team-a", "team-b"]}},
    "pods monitored": {
        "metrics": {
            "podMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}},
            "alerts": {
                "enabled": True,
                "labels": {"release": "prometheus"},
                "runbookUrl": "https://docs.example.org/runbooks/",
            },
            "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Slipway"}},
        },
        "audit": {"enabled": True},
    },
    "services monitored": {"metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}}},
    "clears up": {"uninstall": {"removeAllocations": True}},
    "tried elsewhere": {
        "trial": {"workspace": "team-a", "pool": "cpu", "queue": "trials", "image": "mirror.example/python:3.12"}
    },
    "not tried": {"trial": {"enabled": False}},
}

SECRETS: Mapping[str, Mapping[str, str]] = {
    "redis": {"address": "redis://there"},
    "mine": {"password": "x"},
    "issuer": {"client-secret": "x"},
    "accounts": dict.fromkeys(("api", "scheduler", "podworker", "watcher", "audit", "scaler", "reader"), "x"),
}
"""Secrets that the value sets treat as existing."""

LINTED = ("defaults", "no redis", "other setup", "decorated", "walled in", "now and then")
"""The linter takes half a second; these value sets reach every template."""


@cache
def rendered(name: str) -> list[dict[str, Any]]:
    """The chart with one set of values, read-only."""
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
    "a registry twice": (
        {"image": {"registry": "a.example", "repository": "b.example/slipway"}},
        "names a registry already",
    ),
    "a size": ({"size": "huge"}, "size"),
    "a part of a probe": ({"api": {"probes": {"liveness": {"period": 5}}}}, "period"),
    "a kind of service": ({"api": {"service": {"type": "ExternalName"}}}, "type"),
    "a load balancer before an open api": ({"api": {"service": {"type": "LoadBalancer"}}}, "accepts every caller"),
    "a secret to pull with": ({"imagePullSecrets": [{"nmae": "x"}]}, "imagePullSecrets"),
    "a sidecar without an image": ({"api": {"sidecars": [{"name": "proxy"}]}}, "sidecars"),
    "a digest": ({"image": {"digest": "latest"}}, "digest"),
    "a policy": ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
    "a key twice": ({"admissionPolicies": {"allowedKeys": ["a", "a"]}}, "allowedKeys"),
    "a security field": ({"podSecurityContext": {"runAsNonroot": True}}, "runAsNonroot"),
    "a toleration": ({"api": {"tolerations": [{"keey": "x"}]}}, "keey"),
    "a setting smuggled in": ({"api": {"extraEnv": [{"name": "SLIPWAY_LISTEN", "value": ":80"}]}}, "extraEnv"),
    "a url": ({"externalRedis": {"url": "http://redis"}}, "url"),
    "a kind of redis": ({"externalRedis": {"url": "redis+clutser://redis"}}, "url"),
    "an open api": ({"api": {"settings": {"listen": "0.0.0.0:8080"}}}, "loopback"),
    "an open api by name": ({"api": {"settings": {"listen": "localhost.example:8080"}}}, "loopback"),
    "two audiences": ({"podworker": {"settings": {"taskAudience": "another"}}}, "taskAudience"),
    "every capability": ({"admissionPolicies": {"privileges": ["ALL"]}}, "privileges"),
    "two archives": ({"api": {"settings": {"logArchiveUrl": "s3://bucket/slipway"}}}, "logArchiveUrl"),
    "an archive that nobody reads": (
        {"watcher": {"settings": {"logArchiveUrl": "s3://bucket/slipway"}}},
        "logArchiveUrl",
    ),
    "a way in by ingress": ({"ingress": {"enabled": True, "hosts": ["slipway.example"]}}, "accepts every caller"),
    "a way in by route": (
        {"httpRoute": {"enabled": True, "hostnames": ["slipway.example"], "parentRefs": [{"name": "gateway"}]}},
        "accepts every caller",
    ),
    "a host": ({"ingress": {"hosts": ["https://slipway.example"]}}, "hosts"),
    "a volume of the node": ({"api": {"extraVolumes": [{"name": "x", "hostPath": {"path": "/"}}]}}, "hostPath"),
    "a part of an autoscaler": ({"api": {"autoscaling": {"maxReplica": 3}}}, "maxReplica"),
    "an autoscaler of another service": ({"watcher": {"autoscaling": {"enabled": True}}}, "autoscaling"),
    "bounds of an autoscaler": ({"api": {"autoscaling": {"enabled": True, "minReplicas": 11}}}, "minReplicas"),
    "lag without redis": ({"valkey": {"enabled": False}, "podworker": {"keda": {"enabled": True}}}, "needs a Redis"),
    "lag of a redis that keda cannot find": (
        {
            "valkey": {"enabled": False},
            "externalRedis": {"url": "redis://a.example"},
            "podworker": {"keda": {"enabled": True}},
        },
        "keda.redis.addresses",
    ),
    "bounds of lag": ({"podworker": {"keda": {"enabled": True, "minReplicas": 30}}}, "minReplicas"),
    "a schedule": ({"scheduler": {"once": {"schedule": "often"}}}, "schedule"),
    "an api now and then": ({"api": {"once": {"enabled": True}}}, "once"),
    "an importance": ({"priorityClass": {"value": 2000000000}}, "value"),
    "two monitors": (
        {"metrics": {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}},
        "choose one of metrics",
    ),
    "an interval": ({"metrics": {"podMonitor": {"interval": "often"}}}, "interval"),
    "a peer": ({"networkPolicy": {"redisFrom": [{"podSelctor": {}}]}}, "podSelctor"),
    "a word of ranks": ({"networkPolicy": {"workloads": {"egress": "none"}}}, "egress"),
    "an authority without redis": (
        {"valkey": {"enabled": False}, "externalRedis": {"caSecret": "authority"}},
        "caSecret needs",
    ),
    "an authority without tls": (
        {"valkey": {"enabled": False}, "externalRedis": {"url": "redis://a", "caSecret": "authority"}},
        "is for TLS",
    ),
    "a part of a trial": ({"trial": {"command": ["true"]}}, "command"),
    "tokens without records": ({"api": {"settings": {"auth": "token"}}}, "needs api.tokenSecret"),
    "TLS for kubelets": (
        {"api": {"tlsSecret": "a", "settings": {"healthListen": ""}}},
        "needs api.settings.healthListen",
    ),
    "an issuer and no client": (
        {"api": {"settings": {"auth": "kubernetes", "oidcIssuerUrl": "https://a"}}},
        "needs api.settings.oidcClientId",
    ),
    "an issuer where nobody is asked": (
        {"api": {"settings": {"oidcIssuerUrl": "https://a", "oidcClientId": "b"}}},
        "mode none authenticates no caller",
    ),
    "a client and no issuer": ({"api": {"oidcSecret": "a"}}, "need api.settings.oidcIssuerUrl"),
    "an algorithm with a shared secret": (
        {"api": {"settings": {"oidcSigningAlgs": ["HS256"]}}},
        "oidcSigningAlgs",
    ),
    "records without tokens": ({"api": {"tokenSecret": "tokens"}}, "auth=token only"),
    "two redis": ({"externalRedis": {"url": "redis://elsewhere"}}, "valkey.enabled=false"),
    "two addresses of redis": (
        {"valkey": {"enabled": False}, "externalRedis": {"url": "redis://a", "existingSecret": "b"}},
        "not both",
    ),
}
"""{mistake: (values, a word of the refusal)}"""
