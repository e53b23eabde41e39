"""Calls of extenders over a real socket: requests follow kube-scheduler's protocol, answers are validated."""

import asyncio
import json
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
import trustme

from slipway.kube import extender_wire as wire
from slipway.kube.extender import ExtenderClient
from slipway.kube.extender_wire import ExtenderFault
from slipway.model.facts import AllocationFact, ExtenderFact, ExtenderTls, NodeFact, RoleFact, Taint
from slipway.model.resources import Resources
from tests.support.extender import LoopbackExtender, an_extender, crash, say

ROLE = RoleFact(
    name="worker",
    count=2,
    minimum=2,
    requests=Resources({"cpu": 1500, "memory": 2**31, "nvidia.com/gpu": 2}),
    namespace="team",
    node_selector={"rack": "r1"},
)
OWNER = AllocationFact(namespace="team", name="train", uid="0123456789ab", version=1, priority=7, roles=(ROLE,))
NODES = [
    NodeFact(name="n1", allocatable=Resources({"cpu": 4000, "memory": 2**34, "pods": 110})),
    NodeFact(name="n2", taints=(Taint("k", "v"),), unschedulable=True),
]
FILTER = b'{"Pod":{},"Nodes":null,"NodeNames":["n1"]}'


def fact_of(extender: LoopbackExtender, **changes: Any) -> ExtenderFact:
    return ExtenderFact(url=extender.url, filter_verb="filter", timeout_s=changes.pop("timeout_s", 2.0), **changes)


async def call(extender: LoopbackExtender, **changes: Any) -> bytes:
    client = ExtenderClient()
    try:
        return await client.post(fact_of(extender, **changes), "filter", FILTER)
    finally:
        await client.aclose()


def test_full_nodes_are_encoded_with_gos_field_names() -> None:
    """A request has Pod, Nodes.items and a null NodeNames, as kube-scheduler marshals ExtenderArgs."""
    body = json.loads(wire.filter_args(wire.pod_object(ROLE, OWNER), NODES, names_only=False))

    assert list(body) == ["Pod", "Nodes", "NodeNames"]
    assert body["NodeNames"] is None
    assert [node["metadata"]["name"] for node in body["Nodes"]["items"]] == ["n1", "n2"]
    first, second = body["Nodes"]["items"]
    assert first["status"]["allocatable"] == {"cpu": "4", "memory": "16Gi", "pods": "110"}
    assert second["spec"] == {"unschedulable": True, "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}
    pod = body["Pod"]
    assert (pod["metadata"]["namespace"], pod["metadata"]["name"]) == ("team", "train-01234567-1-0")
    [container] = pod["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "1500m", "memory": "2Gi", "nvidia.com/gpu": "2"},
        "limits": {"nvidia.com/gpu": "2"},
    }
    assert (pod["spec"]["priority"], pod["spec"]["nodeSelector"]) == (7, {"rack": "r1"})


def test_names_alone_go_to_an_extender_that_knows_the_nodes() -> None:
    """An extender with nodeCacheCapable gets only the names of the nodes."""
    body = json.loads(wire.filter_args({}, NODES, names_only=True))

    assert body == {"Pod": {}, "Nodes": None, "NodeNames": ["n1", "n2"]}


VICTIM = AllocationFact(
    namespace="team", name="low", uid="aaaabbbbcccc", version=1, attempt=2, priority=-1, roles=(ROLE,)
)


def test_victims_are_encoded_with_gos_field_names() -> None:
    """A preemption request has NodeNameToVictims with the running pods, or NodeNameToMetaVictims with their uids; no
    budget is violated."""
    victims = {"n1": [wire.victim_object(VICTIM, 1, "pod-1", "n1")]}
    body = json.loads(wire.preempt_args({"a": 1}, victims, uids_only=False))
    assert (body["Pod"], body["NodeNameToMetaVictims"]) == ({"a": 1}, None)
    [pod] = body["NodeNameToVictims"]["n1"]["Pods"]
    assert (pod["metadata"]["name"], pod["metadata"]["uid"]) == ("low-aaaabbbb-2-1", "pod-1")
    assert (pod["spec"]["nodeName"], pod["spec"]["priority"], pod["status"]) == ("n1", -1, {"phase": "Running"})

    assert json.loads(wire.preempt_args({}, victims, uids_only=True)) == {
        "Pod": {},
        "NodeNameToVictims": None,
        "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "pod-1"}], "NumPDBViolations": 0}},
    }


OFFERED = {"n1": {"a", "b"}, "n2": {"c"}}


@pytest.mark.parametrize(
    ("said", "nodes"),
    [
        ('{"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "a"}, {"UID": "b"}], "NumPDBViolations": 0}}}', {"n1"}),
        ('{"nodeNameToMetaVictims": {"n1": {"pods": [{"uid": "b"}]}, "n2": {"Pods": [{"UID": "c"}]}}}', {"n1", "n2"}),
        ('{"NodeNameToMetaVictims": null}', set[str]()),
        ("{}", set[str]()),
    ],
)
def test_the_nodes_where_it_agrees_are_read_as_go_reads_them(said: str, nodes: set[str]) -> None:
    """The extender may agree to a node with fewer victims than offered; a node that it does not name is not agreed."""
    assert wire.read_preempt(said.encode(), OFFERED) == nodes


@pytest.mark.parametrize(
    "said",
    [
        '{"NodeNameToMetaVictims": {"n3": {"Pods": [{"UID": "a"}]}}}',
        '{"NodeNameToMetaVictims": {"n2": {"Pods": [{"UID": "a"}]}}}',
        '{"NodeNameToMetaVictims": {"n1": {"Pods": []}}}',
        '{"NodeNameToMetaVictims": {"n1": null}}',
        '{"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": 1}]}}}',
        '{"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": ["a"]}]}}}',
        '{"NodeNameToMetaVictims": {"n1": {"Pods": [null]}}}',
        '{"NodeNameToMetaVictims": {"n1": {"Pods": {"UID": "a"}}}}',
        '{"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "a"}], "NumPDBViolations": "no"}}}',
        '{"NodeNameToMetaVictims": ["n1"]}',
        '{"Error": "no"}',
        "[]",
        "<html>",
    ],
)
def test_an_answer_with_unknown_victims_is_a_fault(said: str) -> None:
    """Nodes and victims that were not offered, an empty list of victims, and wrong types are faults."""
    with pytest.raises(ExtenderFault):
        wire.read_preempt(said.encode(), OFFERED)


def test_bind_is_encoded_with_gos_field_names() -> None:
    """A bind request has the fields of ExtenderBindingArgs."""
    assert json.loads(wire.bind_args(namespace="a", pod="p", uid="u", node="n")) == {
        "PodName": "p",
        "PodNamespace": "a",
        "PodUID": "u",
        "Node": "n",
    }


@pytest.mark.parametrize(
    ("answer", "names_only", "passed"),
    [
        ({"NodeNames": ["n1"]}, True, {"n1"}),
        ({"nodenames": ["n1"], "FailedNodes": None, "Error": ""}, True, {"n1"}),
        ({"NodeNames": None, "Nodes": {"items": [{"metadata": {"name": "n2"}}]}}, True, {"n2"}),
        ({"NodeNames": None, "Nodes": None, "FailedNodes": None}, True, set[str]()),
        ({"Nodes": {"Items": None}}, False, set[str]()),
        ({"Nodes": {"items": [{"metadata": {"name": "n1"}}]}, "NodeNames": ["n2"]}, False, {"n1"}),
        (None, False, set[str]()),
    ],
)
def test_filter_answers_are_read_as_go_reads_them(answer: Any, names_only: bool, passed: set[str]) -> None:
    """Field names in any case, null for any list; names are read only from an extender that caches nodes."""
    found = wire.read_filter(json.dumps(answer).encode(), {"n1", "n2"}, names_only=names_only)

    assert found.passed == passed


def test_reasons_of_refused_nodes() -> None:
    """A node in both maps is unresolvable; reasons of nodes that were not in the request, or that passed, are left
    out."""
    answer = {
        "NodeNames": ["n3"],
        "FailedNodes": {"n1": "busy", "n2": "busy", "n3": "odd", "other": "x"},
        "FailedAndUnresolvableNodes": {"n2": "gone"},
    }
    found = wire.read_filter(json.dumps(answer).encode(), {"n1", "n2", "n3"}, names_only=True)

    assert found.reasons == {"n1": "busy", "n2": "gone"}
    assert found.final == {"n2"}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"NodeNames": [NaN]}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not an object"),
        (b'"n1"', "not an object"),
        (b'{"NodeNames": "n1"}', "not a list"),
        (b'{"NodeNames": [1]}', "not a list of names"),
        (b'{"NodeNames": ["n9"]}', "n9, which it was not asked about"),
        (b'{"Nodes": {"items": [{"metadata": {}}]}}', "has no name"),
        (b'{"Nodes": {"items": [7]}}', "not an object"),
        (b'{"NodeNames": [], "FailedNodes": ["n1"]}', "FailedNodes is not an object"),
        (b'{"NodeNames": [], "FailedNodes": {"n1": 1}}', "FailedNodes is not names and reasons"),
        (b'{"NodeNames": ["n1"], "Error": "no licence server"}', "it says: no licence server"),
        (b'{"Error": 5}', "Error is not text"),
    ],
)
def test_an_inconsistent_or_oversized_filter_answer_is_a_fault(answer: bytes, says: str) -> None:
    """A filter answer with invalid content is a fault, and no part of it is used."""
    with pytest.raises(ExtenderFault, match=says):
        wire.read_filter(answer, {"n1"}, names_only=True)


@pytest.mark.parametrize(
    "answer",
    [
        b'[{"Host": "n1", "Score": 11}]',
        b'[{"Host": "n1", "Score": -1}]',
        b'[{"Host": "n1", "Score": 99999999999999999999999999}]',
        b'[{"Host": "n1", "Score": 1.5}]',
        b'[{"Host": "n1", "Score": NaN}]',
        b'[{"Host": "n1", "Score": true}]',
        b'[{"Host": "n1", "Score": "3"}]',
        b'[{"Host": 1, "Score": 3}]',
        b'[{"Host": "n1", "Score": 3}, {"Host": "n1", "Score": 3}]',
        b'{"Host": "n1", "Score": 3}',
        b"[3]",
    ],
)
def test_scores_that_are_none_are_a_fault(answer: bytes) -> None:
    """Scores must be integers from 0 to 10, one for each host; others are a fault."""
    with pytest.raises(ExtenderFault):
        wire.read_scores(answer, {"n1"})


def test_scores_of_unknown_nodes_are_ignored() -> None:
    """Missing fields are zero as in Go; a host that was not in the request is left out."""
    answer = b'[{"Host": "n1", "Score": 10}, {"host": "n2"}, {"Host": "other", "Score": 3}]'

    assert wire.read_scores(answer, {"n1", "n2"}) == {"n1": 10, "n2": 0}
    assert wire.read_scores(b"null", {"n1"}) == {}


def test_an_extenders_words_are_one_short_line() -> None:
    """An extender's message is cut to one short line, because it is shown in explanations and logs."""
    with pytest.raises(ExtenderFault) as found:
        wire.read_bound(json.dumps({"Error": "a\nb\x1b[31m" + "x" * 5000}).encode())

    assert "\n" not in str(found.value)
    assert "\x1b" not in str(found.value)
    assert len(str(found.value)) < 200


async def test_a_call_is_a_post_of_json_to_the_prefix_and_the_verb() -> None:
    """A call is a POST of JSON to the prefix and the verb, and returns the answer unchanged."""
    with an_extender() as extender:
        body = await call(extender)

    assert json.loads(body)["NodeNames"] == ["n1"]
    assert extender.requests == [("filter", json.loads(FILTER))]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (say(b"", 500), "answers 500"),
        (say(b"", 302, Location="http://127.0.0.1:1/"), "answers 302"),
        (say(b"", 204), "answers 204"),
        (crash, "the connection failed"),
        (say(b" " * 3_000_000), "longer than"),
    ],
)
async def test_other_answers_are_faults(answer: Any, says: str) -> None:
    """Error codes, redirects (not followed), broken connections and endless bodies are faults."""
    with an_extender() as extender:
        extender.answer = lambda verb, body: answer
        with pytest.raises(ExtenderFault, match=says):
            await call(extender)

    assert len(extender.requests) == 1


@pytest.mark.parametrize("behaviour", ["hang", "drip"])
async def test_a_call_ends_with_its_timeout(behaviour: str) -> None:
    """A call ends with its timeout, whether no byte arrives or one every moment."""
    with an_extender() as extender:
        extender.answer = lambda verb, body: getattr(extender, behaviour)
        began = time.monotonic()
        with pytest.raises(ExtenderFault, match=r"no answer within 0\.2 s"):
            await call(extender, timeout_s=0.2)

    assert time.monotonic() - began < 2.0


async def test_nobody_there_is_a_fault() -> None:
    """A port on which nothing listens is a fault."""
    with an_extender() as extender:
        pass
    with pytest.raises(ExtenderFault, match="accepts no connection"):
        await call(extender)


async def test_files_of_certificates_are_read_again_when_they_were_replaced(tmp_path: Path) -> None:
    """Replaced certificate files are read again: a mounted Secret is renewed while the scheduler runs, with the same
    path in the settings."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    client, ca_file = ExtenderClient(), tmp_path / "ca.pem"
    for _ in range(2):
        authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(tls)  # pyright: ignore[reportUnknownMemberType]
        fresh = tmp_path / "fresh.pem"
        authority.cert_pem.write_to_path(fresh)
        fresh.replace(ca_file)
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            extender = ExtenderFact(url=url, tls=ExtenderTls(ca_file=str(ca_file)))
            assert await client.post(extender, "filter", b"{}") == b"{}"
    await client.aclose()


async def test_a_certificate_of_another_authority_is_told_as_such() -> None:
    """A certificate of another authority is reported as such, so that an operator checks the certificates and not the
    extender's pods."""

    async def meet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    client, tls = ExtenderClient(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(tls)  # pyright: ignore[reportUnknownMemberType]
    async with await asyncio.start_server(meet, "127.0.0.1", 0, ssl=tls) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ExtenderFault, match="its certificate cannot be verified"):
            await client.post(ExtenderFact(url=url), "filter", b"{}")
    await client.aclose()


async def test_a_certificate_that_can_not_be_used_is_a_fault() -> None:
    """A certificate that cannot be used is a fault, not a traceback."""
    client = ExtenderClient()
    with pytest.raises(ExtenderFault):
        await client.post(ExtenderFact(url="https://127.0.0.1:1", tls=ExtenderTls(ca_file="/none")), "f", b"{}")
    with pytest.raises(ExtenderFault):
        await client.post(ExtenderFact(url="https://127.0.0.1:1", tls=ExtenderTls(ca_data="nonsense")), "f", b"{}")
    await client.aclose()


async def test_calls_go_side_by_side() -> None:
    """Calls run in parallel: a hanging call delays no other."""
    with an_extender() as slow, an_extender() as quick:
        slow.answer = lambda verb, body: slow.hang
        client = ExtenderClient()
        hanging = asyncio.ensure_future(client.post(fact_of(slow), "filter", FILTER))
        assert await client.post(fact_of(quick), "filter", FILTER)
        assert not hanging.done()
        hanging.cancel()
        await asyncio.wait([hanging])
        await client.aclose()
