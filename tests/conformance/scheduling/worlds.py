"""Random nodes and pods, as JSON: every field that kube-scheduler's default plugins read, in small clusters with many
ties."""

from random import Random
from typing import Any

Json = dict[str, Any]

HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
EXTENDED = "example.com/gpu"
NAMESPACES: dict[str, dict[str, str]] = {"team-a": {"team": "a"}, "team-b": {"team": "b"}, "team-c": {"kind": "shared"}}
MEBI = 1024 * 1024
_APPS = ("web", "db", "batch")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_TAINTS = [
    {"key": "dedicated", "value": "ml", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "ml", "effect": "PreferNoSchedule"},
    {"key": "old", "effect": "PreferNoSchedule"},
    {"key": "spot", "value": "yes", "effect": "NoExecute"},
]


def a_node(random: Random, name: str) -> Json:
    """One node; some have no zone, a few are cordoned or tainted."""
    labels = {HOSTNAME: name, "disk": random.choice(["ssd", "hdd"]), "gen": str(random.randint(1, 4))}
    if random.random() < 0.85:
        labels[ZONE] = f"z{random.randint(0, 2)}"
    if random.random() < 0.7:
        labels["rack"] = f"r{random.randint(0, 3)}"
    amounts = {
        "cpu": str(random.choice([4, 8, 8, 16, 32])),
        "memory": f"{random.choice([8, 16, 16, 32, 64])}Gi",
        "pods": str(random.choice([3, 8, 20])),
        "ephemeral-storage": "100Gi",
    }
    if random.random() < 0.4:
        amounts[EXTENDED] = str(random.choice([1, 2, 4]))
    images = [
        {"names": [f"registry.example/{image}:1"], "sizeBytes": size * MEBI}
        for image, size in (("small", 20), ("mid", 400), ("huge", 3000))
        if random.random() < 0.4
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "unschedulable": random.random() < 0.05,
            "taints": random.sample(_TAINTS, 1 if random.random() < 0.8 else 2) if random.random() < 0.35 else [],
        },
        "status": {
            "allocatable": amounts,
            "capacity": amounts,
            "images": images,
            "conditions": [{"type": "Ready", "status": "True", "reason": "x", "message": "x"}],
        },
    }


def a_pod(random: Random, name: str) -> Json:
    """One pod; each of its requirements is drawn separately."""
    spec: Json = {
        "containers": [_container(random, index) for index in range(1 if random.random() < 0.8 else 2)],
        "terminationGracePeriodSeconds": 0,
    }
    labels = {"app": random.choice(_APPS)} if random.random() < 0.9 else {}
    if random.random() < 0.3:
        labels["version"] = random.choice(["1", "2"])
    if random.random() < 0.35:
        spec["tolerations"] = random.sample(
            [
                {"key": "dedicated", "operator": "Equal", "value": "ml"},
                {"key": "old", "operator": "Exists", "effect": "PreferNoSchedule"},
                {"operator": "Exists", "effect": "NoExecute"},
                {"operator": "Exists"},
            ],
            random.randint(1, 2),
        )
    if random.random() < 0.15:
        spec["nodeSelector"] = {"disk": random.choice(["ssd", "hdd"])}
    affinity: Json = {}
    if random.random() < 0.35:
        affinity["nodeAffinity"] = _node_affinity(random)
    for kind, chance in (("podAffinity", 0.25), ("podAntiAffinity", 0.2)):
        if random.random() < chance:
            affinity[kind] = _pod_affinity(random)
    if affinity:
        spec["affinity"] = affinity
    if random.random() < 0.4:
        spec["topologySpreadConstraints"] = _spreads(random)
    meta = {"name": name, "namespace": random.choice(list(NAMESPACES)), "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _container(random: Random, index: int) -> Json:
    requests: Json = {}
    if random.random() < 0.75:
        requests["cpu"] = random.choice(["100m", "250m", "500m", "1", "2", "3"])
    if random.random() < 0.7:
        requests["memory"] = random.choice(["100Mi", "500Mi", "1Gi", "3Gi", "6Gi"])
    resources: Json = {"requests": requests}
    if index == 0 and random.random() < 0.2:
        requests[EXTENDED] = random.choice(["1", "2"])
        resources["limits"] = {EXTENDED: requests[EXTENDED]}
    made: Json = {
        "name": f"c{index}",
        "image": f"registry.example/{random.choice(['small', 'mid', 'huge', 'unknown'])}:1",
        "resources": resources,
    }
    if index == 0 and random.random() < 0.1:
        made["ports"] = [{"containerPort": 80, "hostPort": random.choice([8080, 9090])}]
    return made


def _node_affinity(random: Random) -> Json:
    terms: list[Json] = [
        {"matchExpressions": [{"key": "disk", "operator": "In", "values": [random.choice(["ssd", "hdd"])]}]},
        {"matchExpressions": [{"key": "gen", "operator": "Gt", "values": ["1"]}]},
        {"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": ["z0"]}]},
        {"matchExpressions": [{"key": "rack", "operator": "Exists"}]},
        {"matchExpressions": [{"key": "rack", "operator": "DoesNotExist"}]},
    ]
    made: Json = {}
    if random.random() < 0.35:
        made[_REQUIRED] = {"nodeSelectorTerms": random.sample(terms, random.randint(1, 2))}
    if random.random() < 0.8 or not made:
        chosen = random.sample(terms, random.randint(1, 3))
        made[_PREFERRED] = [{"weight": random.randint(1, 100), "preference": term} for term in chosen]
    return made


def _selector(random: Random) -> Json | None:
    app = random.choice(_APPS)
    return random.choice(
        [
            {"matchLabels": {"app": app}},
            {"matchLabels": {"app": app}},
            {"matchExpressions": [{"key": "app", "operator": "In", "values": random.sample(_APPS, 2)}]},
            {"matchExpressions": [{"key": "version", "operator": "DoesNotExist"}]},
            {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [app]}]},
            {},
            None,
        ]
    )


def _pod_term(random: Random) -> Json:
    term: Json = {"topologyKey": random.choice([HOSTNAME, ZONE, ZONE, "rack"])}
    selector = _selector(random)
    if selector is not None:
        term["labelSelector"] = selector
        if random.random() < 0.15 and "version" not in str(selector):
            term[random.choice(["matchLabelKeys", "mismatchLabelKeys"])] = ["version"]
    if random.random() < 0.25:
        term["namespaces"] = random.sample(sorted(NAMESPACES), random.randint(1, 2))
    if random.random() < 0.25:
        term["namespaceSelector"] = random.choice([{}, {"matchLabels": {"team": "a"}}, {"matchLabels": {"x": "y"}}])
    return term


def _pod_affinity(random: Random) -> Json:
    made: Json = {}
    if random.random() < 0.25:
        made[_REQUIRED] = [_pod_term(random) for _ in range(1 if random.random() < 0.8 else 2)]
    if random.random() < 0.7 or not made:
        made[_PREFERRED] = [
            {"weight": random.randint(1, 100), "podAffinityTerm": _pod_term(random)}
            for _ in range(random.randint(1, 2))
        ]
    return made


def _spreads(random: Random) -> list[Json]:
    made: list[Json] = []
    kinds = [(key, when) for key in (HOSTNAME, ZONE, "rack") for when in ("DoNotSchedule", "ScheduleAnyway")]
    for key, when in random.sample(kinds, random.randint(1, 2)):
        item: Json = {"topologyKey": key, "maxSkew": random.randint(1, 3), "whenUnsatisfiable": when}
        selector = _selector(random)
        if selector is not None:
            item["labelSelector"] = selector
            if random.random() < 0.15 and "version" not in str(selector):
                item["matchLabelKeys"] = ["version"]
        if when == "DoNotSchedule" and random.random() < 0.2:
            item["minDomains"] = random.randint(1, 4)
        if random.random() < 0.3:
            item["nodeTaintsPolicy"] = random.choice(["Honor", "Ignore"])
        if random.random() < 0.3:
            item["nodeAffinityPolicy"] = random.choice(["Honor", "Ignore"])
        made.append(item)
    return made
