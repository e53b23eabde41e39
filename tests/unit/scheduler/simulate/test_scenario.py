"""The scenario format: what it accepts, and the path of each field that it refuses."""

import json
from pathlib import Path

import pytest

from slipway.errors import InvalidError
from slipway.scheduler.simulate import scenario_facts
from slipway.scheduler.simulate.command import main
from slipway.scheduler.simulate.scenario import decode

MINIMAL = "nodes: [{name: n, cpu: 1}]\nallocations: [{name: a, ranks: [{cpu: 1}]}]\n"

ONE = "nodes: [{name: n, cpu: 4, gpus: 2}]\nallocations: [{name: a, "


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "the file: "),
        ("nodes: [", "neither YAML nor JSON: line 1: "),
        ("nodes: []\nnonsense: 1", "nonsense: unknown field"),
        ("allocations: []", "nodes: required"),
        ("nodes: [{name: n, cpus: 4}]", "nodes[0].cpus: unknown field"),
        ("nodes: [{name: n, cpu: 4 apples}]", "nodes[0].cpu: "),
        ("nodes: [{name: n, memory: -1}]", "nodes[0].memory: "),
        ("nodes: [{name: n, gpus: -1}]", "nodes[0].gpus: "),
        ("nodes: [{name: n, taints: [{key: k, effect: Never}]}]", "nodes[0].taints[0].effect: "),
        ("nodes: [{name: n}, {name: n}]", "nodes[1].name: n is defined twice"),
        ("nodes: [{name: n, count: 2}, {name: n-1}]", "nodes[1].name: n-1 is defined twice"),
        ("nodes: []\nqueues: [{name: a, limit: {cpu: x}}]", "queues[0].limit.cpu: "),
        ("nodes: []\nqueues: [{name: a, borrowingLimit: {cpu: x}}]", "queues[0].borrowingLimit.cpu: "),
        ("nodes: []\nqueues: [{name: a, parent: b}]", "queues[0].parent: there is no queue b"),
        ("nodes: []\nqueues: [{name: a, ordering: LIFO}]", "queues[0].ordering: "),
        ("nodes: []\nallocations: [{name: a}]", "allocations[0].ranks: required"),
        ("nodes: []\nallocations: [{name: a, ranks: []}]", "allocations[0].ranks: "),
        (
            "nodes: []\nallocations: [{name: a, ranks: [{cpu: 1, gpuMilli: 2000}]}]",
            "allocations[0].ranks[0].gpuMilli: ",
        ),
        (
            "nodes: []\nallocations: [{name: a, ranks: [{count: 2, minAvailable: 3}]}]",
            "allocations[0].ranks[0].minAvailable: 3 is above the 2 ranks; lower it or raise count",
        ),
        (
            "nodes: []\nallocations: [{name: a, minAvailable: 4, ranks: [{count: 2}, {count: 1}]}]",
            "allocations[0].minAvailable: 4 is above the 3 ranks; lower it or raise count",
        ),
        (
            "nodes: []\nallocations: [{name: a, duration: 1e400, ranks: [{}]}]",
            "allocations[0].duration: 1e400 is not a possible number; its absolute value must be at most 1e+10",
        ),
        (
            "nodes: []\nallocations: [{name: a, submit: nan, ranks: [{}]}]",
            "allocations[0].submit: nan is not a possible number",
        ),
        (
            'nodes: []\nallocations: [{name: a, priority: "5", ranks: [{}]}]',
            "allocations[0].priority: 5 is a text; write it as a number",
        ),
        ("nodes: []\nallocations: [{name: a, job: j, ranks: [{}]}]", "allocations[0].job: there is no job j"),
        ("nodes: []\nallocations: [{name: a, duration: -1, ranks: [{}]}]", "allocations[0].duration: "),
        (
            "nodes: [{name: n}]\nallocations: [{name: a, ranks: [{}], placed: [{rank: 1, node: n}]}]",
            "allocations[0].placed[0].rank: the allocation has 1 ranks",
        ),
        (
            "nodes: [{name: n}]\nallocations: [{name: a, ranks: [{}], placed: [{rank: 0, node: m}]}]",
            "allocations[0].placed[0].node: there is no node m",
        ),
        ("nodes: []\npool: {scores: {Nonsense: 1}}", "pool.scores.Nonsense: there is no such score"),
        ("", "the file: there is nothing in it"),
        ("nodes: null", "nodes: "),
        ('nodes: [{name: ""}]', "nodes[0].name: a name must have"),
        ("nodes: [{name: n, labels: {a: x, b: 1}}]", "nodes[0].labels.b: "),
        ("nodes: [{name: n, gpus: 1.5}]", "nodes[0].gpus: 1.5 is not a whole number"),
        ("nodes: [{name: n, gpus: 1e9}]", "nodes[0].gpus: "),
        (
            "nodes: [{name: n, gpus: 1, resources: {nvidia.com/gpu: 1}}]",
            "nodes[0].resources.nvidia.com/gpu: is set twice",
        ),
        ("nodes: [{name: n, cpu: .inf}]", "nodes[0].cpu: "),
        ("nodes: [{name: n, count: 1000000}]", "nodes[0].count: "),
        ("nodes: []\nuntil: .nan", "until: .nan is not a JSON number"),
        ("nodes: []\nuntil: -1", "until: -1 is before the beginning"),
        (
            "nodes: []\nqueues: [{name: a, parent: b}, {name: b, parent: a}]",
            "queues[0].parent: the parents form a cycle: a -> b -> a",
        ),
        ("nodes: []\nqueues: [{name: a, nominal: {cpu: 1, memory: [1]}}]", "queues[0].nominal.memory: "),
        ("nodes: []\nqueues: [{name: a, priority: 99999999999}]", "queues[0].priority: "),
        (
            ONE + "queue: q, ranks: [{}]}]",
            "allocations[0].queue: there is no queue q",
        ),
        (
            ONE + "submit: .inf, ranks: [{}]}]",
            "allocations[0].submit: ",
        ),
        (
            ONE + "duration: .nan, ranks: [{}]}]",
            "allocations[0].duration: ",
        ),
        (
            ONE + "maxRuntime: 1.0e+300, ranks: [{}]}]",
            "allocations[0].maxRuntime: ",
        ),
        (
            ONE + "priority: 1.5, ranks: [{}]}]",
            "allocations[0].priority: ",
        ),
        (
            ONE + "ranks: [{count: 1000000}]}]",
            "allocations[0].ranks[0].count: more than 500000 ranks",
        ),
        (
            ONE + "ranks: [{resources: {slipway.dev/gpu-milli: 1001}}]}]",
            "allocations[0].ranks[0].resources.slipway.dev/gpu-milli: ",
        ),
        (
            ONE + "ranks: [{gpuMilli: 1, resources: {slipway.dev/gpu-milli: 1}}]}]",
            "allocations[0].ranks[0].resources.slipway.dev/gpu-milli: ",
        ),
        (
            ONE + "ranks: [{gpus: 1, gpuMilli: 5}]}]",
            "allocations[0].ranks[0].gpuMilli: ",
        ),
        (
            ONE + "avoidNodes: [m], ranks: [{}]}]",
            "allocations[0].avoidNodes[0]: there is no node m",
        ),
        (
            ONE + "ranks: [{cpu: 5}], placed: [{rank: 0, node: n}]}]",
            "allocations[0].placed[0].node: n has less cpu",
        ),
        (
            ONE + "ranks: [{gpus: 3}], placed: [{rank: 0, node: n}]}]",
            "allocations[0].placed[0].node: n has less nvidia.com/gpu",
        ),
        (
            ONE
            + "ranks: [{count: 2, gpus: 1}], placed: [{rank: 0, node: n, device: 1}, {rank: 1, node: n, device: 1}]}]",
            "allocations[0].placed[1].device: device 1 of n is used more than once",
        ),
        (
            ONE + "ranks: [{gpus: 1}], placed: [{rank: 0, node: n, device: 2}]}]",
            "allocations[0].placed[0].device: node n has 2 GPUs",
        ),
        (
            ONE + "ranks: [{gpus: 2}], placed: [{rank: 0, node: n, device: 1}]}]",
            "allocations[0].placed[0].device: the rank uses 2 devices",
        ),
        (
            ONE + "ranks: [{count: 2, hostPorts: [80]}], placed: [{rank: 0, node: n}, {rank: 1, node: n}]}]",
            "allocations[0].placed[1].node: host port 80 of n is used twice",
        ),
        (
            ONE + "ranks: [{count: 2}], placed: [{rank: 0, node: n}, {rank: 0, node: n}]}]",
            "allocations[0].placed[1].rank: rank 0 is placed twice",
        ),
        (
            ONE + "ranks: [{}], placed: [{rank: 0, node: n, since: 5}]}]",
            "allocations[0].placed[0].since: 5 is after the beginning",
        ),
    ],
)
def test_a_bad_file_exits_2_and_names_the_field(
    text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file, then the path of the offending field; nothing goes to standard output."""
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    assert main([str(path), "-o", "json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{path}: {complaint}")


def test_a_complaint_is_one_line_that_no_terminal_obeys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A complaint has one line and no control sequences, whatever names are in the file."""
    path = tmp_path / "bad.yaml"
    path.write_text(
        'nodes: [{name: n}]\nallocations: [{name: a, queue: "x\\x1b[31m\\ny", ranks: [{}]}]', encoding="utf-8"
    )
    assert main([str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "\x1b" not in err


def test_a_missing_file_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err


def test_json_is_taken_too() -> None:
    scenario = decode(json.dumps({"nodes": [{"name": "n", "cpu": "500m"}], "until": 5}))
    assert scenario_facts.nodes(scenario)[0].allocatable.get("cpu") == 500


def test_counts_and_names_of_nodes() -> None:
    """count k makes name-0 .. name-(k-1); 1 keeps the plain name; 0 makes none."""
    scenario = decode("nodes: [{name: a}, {name: b, count: 1}, {name: c, count: 2}, {name: d, count: 0}]")
    assert [node.name for node in scenario_facts.nodes(scenario)] == ["a", "b", "c-0", "c-1"]


@pytest.mark.parametrize(
    ("ranks", "gang", "expected"),
    [
        ("[{count: 3}]", "", (3, [3])),
        ("[{count: 3, minAvailable: 1}]", "", (1, [1])),
        ("[{count: 3}, {count: 2, minAvailable: 1}]", "", (4, [3, 1])),
        ("[{count: 3}, {count: 2}]", "minAvailable: 2, ", (2, [0, 0])),
        ("[{count: 3, minAvailable: 3}]", "minAvailable: 2, ", (3, [3])),
    ],
)
def test_minima(ranks: str, gang: str, expected: tuple[int, list[int]]) -> None:
    """A role's absent minimum is 0 if the allocation gives one, else all of its ranks."""
    scenario = decode(f"nodes: []\nallocations: [{{name: a, {gang}ranks: {ranks}}}]")
    fact = scenario_facts.allocation(scenario.allocations[0])
    assert (fact.minimum, [role.minimum for role in fact.roles]) == expected


def test_a_quota_of_zero_is_kept() -> None:
    scenario = decode("nodes: []\nqueues: [{name: a, parent: root, limit: {gpus: 0, cpu: 2}}]")
    queue = scenario_facts.queues(scenario)[0]
    assert queue.limit is not None
    assert queue.limit.amounts == {"nvidia.com/gpu": 0, "cpu": 2000}
    assert queue.parent == ""


def test_a_bad_scenario_is_an_invalid_error() -> None:
    with pytest.raises(InvalidError, match="unknown field"):
        decode(MINIMAL + "more: 1\n")


def test_a_time_of_minus_zero_is_zero() -> None:
    """Nothing starts at -0."""
    text = "nodes: []\nallocations: [{name: a, submit: -0.0, ranks: [{}], placed: [{rank: 0, node: n, since: -0.0}]}]"
    found = decode(text.replace("nodes: []", "nodes: [{name: n}]")).allocations[0]
    assert (str(found.submit), str(found.placed[0].since)) == ("0.0", "0.0")
