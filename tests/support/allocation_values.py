"""Values for the fields of an Allocation, from which random writes are drawn: `{field: values}`.

Owns the two tables. The tables contain valid and invalid values; a value that is drawn more often is listed several
times.
"""

from collections.abc import Mapping, Sequence
from typing import Any

SPEC: Mapping[str, Sequence[Any]] = {
    "kind": ["training", "training", "training", "command"],
    "queue": ["default", "default", "b"],
    "pool": ["default"] * 8 + ["other"],
    "desired": ["Running", "Running", "Stopped"],
    "preemptible": [False] * 8 + [True],
    "hold": [False, True],
    "job": ["j", "k"],
    "minAvailable": [1, 2],
    "idleTimeout": ["1h", "2h"],
    "maxRuntime": ["1h"],
    "env": [{}, {"A": "1"}, {"A": "2"}, {"B": "1"}],
    "files": [[], [{"path": "a", "content": "b"}]],
    "ports": [[], [{"name": "h", "port": 80}], [{"name": "h", "port": 80, "scheme": "http"}]],
    "service": [{"name": "llm", "port": 80}, {"name": "llm", "port": 81}, {"name": "llm"}],
    "maxRestarts": [0, 1],
    "failurePolicy": [{"rules": [{"action": "fail"}]}, {"rules": [{"action": "retry", "exitCodes": [1, "3-5"]}]}],
    "successPolicy": [{"targets": [{"count": 1}]}, {"operator": "Any", "targets": [{"role": "a", "indexes": [0]}]}],
    "restart": ["rank", "rank", "gang"],
    "topology": [{"key": "block"}, {"key": "block", "mode": "preferred"}, {"key": "rack"}],
    "after": [[], [{"allocation": "a-00000000"}], [{"allocation": "b-00000000", "when": "ended"}]],
    "requestHash": ["a", "b"],
    "flavors": [[], ["a"], ["a", "b"]],
    "secretVariables": [[], ["A"], ["A", "B"]],
    "context": ["a" * 64, "b" * 64],
    "template": [{}, {"spec": {"a": 1}}, {"spec": {"a": {"b": 2}}}, {"spec": {"a": {"c": 2}}}],
    "ranks": [
        [],
        [{}],
        [{"name": "worker", "count": 2}],
        [{"count": 2, "resources": {"cpu": 1}}],
        [{"count": 2, "resources": {"memory": 1}}],
        [{"count": 2, "resources": {"requests": {"cpu": 1}}}],
        [{"affinity": {"nodeAffinity": {"x": [1]}}}],
        [{"affinity": {"nodeAffinity": {"y": [1]}}}],
        [{"name": "a"}, {"name": "a"}],
        [{"name": "a", "count": 2, "minAvailable": 3}],
    ],
    "signals": [
        {"attempt": 1},
        {"attempt": 2},
        {"preempt": {"n": 1}},
        {"preempt": {"n": 2}, "acks": {"0": 1}},
        {"preempt": {"n": 2}, "acks": {"0": 2, "1": 2}},
        {"acks": {"1": 1}},
    ],
}
STATUS: Mapping[str, Sequence[Any]] = {
    "phase": ["Pending", "Running", "Terminated", "Terminated"],
    "seq": [3, 3, 3, 4, 5],
    "attempt": [1, 1, 1, 2],
    "admission": [{"decisionId": "d", "epoch": 3}, {"decisionId": "d", "epoch": 4}],
    "release": [{"attempt": 1, "podUIDs": ["u0"]}, {"attempt": 1, "podUIDs": ["u1"]}, {"attempt": 1}],
    "result": ["Failed", "Succeeded"],
    "growth": [
        {"n": 1},
        {"n": 1, "podUIDs": ["u2"]},
        {"n": 1, "podUIDs": ["u3"]},
        {"n": 2, "podUIDs": ["u2", "u3"]},
    ],
    "restartedRanks": [
        [{"rank": 0, "n": 1}],
        [{"rank": 0, "n": 1, "podUID": "u2"}],
        [{"rank": 0, "n": 1, "podUID": "u3"}],
        [{"rank": 0, "n": 2}],
        [{"rank": 0, "n": 2}, {"rank": 1, "n": 1, "podUID": "u4"}],
    ],
    "shrink": [{"ranks": [3]}, {"ranks": [3, 2]}, {"ranks": [3], "attempt": 2}],
    "ranks": [
        [{"podUID": "u0"}],
        [{"podUID": "u0", "exitCode": 0}],
        [{"podUID": "u0", "exitCode": 3}, {"podUID": "u1"}],
        [{"podUID": "u0", "exitCode": 3}, {"podUID": "u1", "exitCode": 0}],
        [{"podUID": "u9", "exitCode": 3}, {"podUID": "u1"}],
    ],
}
