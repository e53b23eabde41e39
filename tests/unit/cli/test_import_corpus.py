"""Files of other systems become the launches that are written beside them, and a report of every field."""

import copy
import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
import yaml

from slipway import yaml_reader
from slipway.crd.meta import ANNOTATION_SERVICE_ACCOUNTS
from slipway.errors import AlreadyExistsError, InvalidError
from slipway.kube.resources import NAMESPACES, RESOURCE_POOLS
from tests.support.api_world import ApiWorld
from tests.support.import_corpus import ImportCase, bodies, cases

Json = dict[str, Any]
JUNK: tuple[Any, ...] = (None, "?", -1, 2.5, True, [], {}, ["?"], [[None]], {"?": {"?": None}})
CASES = [pytest.param(case, id=case.name) for case in cases()]


@pytest.mark.parametrize("case", CASES)
def test_a_file_becomes_the_launches_and_the_report_beside_it(case: ImportCase) -> None:
    """A file becomes the launches and the report beside it; `python -m tests.support.import_corpus --write` shows the
    differences and writes them."""
    assert case.differences() == ""


@pytest.mark.parametrize("case", CASES)
def test_a_field_that_nobody_knows_is_reported(case: ImportCase) -> None:
    """An unknown field at the top of a document is in the report, as a field that is not imported."""
    if case.path.suffix == ".sh":
        pytest.skip("a script has options, not fields")
    documents = [each.value for each in yaml_reader.documents(case.text, yaml_reader.MANIFEST) if each.value]
    documents = [item for document in documents for item in document.get("items", [document])]
    text = yaml.safe_dump_all([{**document, "xFrobnicate": {"a": 1}} for document in documents])
    for before, after in zip(case.documents(), case.documents(text), strict=True):
        told = {entry.path: entry.verdict for entry in after.entries}
        assert after.error or told["xFrobnicate"] == "lost"
        assert before.error == after.error


@pytest.mark.matrix(most=12)
@pytest.mark.parametrize("case", CASES)
def test_a_field_that_is_junk_or_gone_gets_an_answer(case: ImportCase) -> None:
    """A file with one field broken or removed becomes a launch or a refusal with the reason, never a traceback."""
    if case.path.suffix == ".sh":
        for line in range(len(case.text.splitlines())):
            for junk in ("", "#SBATCH --ntasks=?", "#SBATCH --gres", "#SBATCH"):
                lines = case.text.splitlines()
                lines[line] = junk
                _answered(case, "\n".join(lines))
        return
    documents = [each.value for each in yaml_reader.documents(case.text, yaml_reader.MANIFEST) if each.value]
    for number, document in enumerate(documents):
        for steps in _places(document):
            for junk in JUNK:
                changed = [*documents[:number], _replaced(document, steps, junk), *documents[number + 1 :]]
                _answered(case, "\n---\n".join(map(json.dumps, changed)))


@pytest.mark.parametrize("case", CASES)
async def test_what_a_file_becomes_can_be_launched(case: ImportCase, world: ApiWorld) -> None:
    """The api accepts each launch when the pools, queues and workspaces that it names exist."""
    for body in bodies(case):
        await _furnish(world, body)
        if "replicas" in body:
            answer = await world.post("/allocations/launches", {"launch": body})
            assert answer.json()["counts"] == {"launched": body["replicas"]}, answer.text
            continue
        answer = await world.post("/allocations", body)
        assert answer.status_code == 201, answer.text


def _answered(case: ImportCase, text: str) -> None:
    try:
        documents = case.documents(text)
    except InvalidError:
        return
    assert all(bool(document.bodies) != bool(document.error) for document in documents)


def _places(value: Any, steps: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if steps:
        yield steps
    children: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        children = [*cast("Json", value).items()]
    elif isinstance(value, list):
        children = [*enumerate(cast("list[Any]", value))]
    for step, child in children:
        yield from _places(child, (*steps, step))


def _replaced(document: Any, steps: tuple[str | int, ...], junk: Any) -> Any:
    made = copy.deepcopy(document)
    node: Any = made
    for step in steps[:-1]:
        node = node[step]
    node[steps[-1]] = junk
    return made


async def _furnish(world: ApiWorld, body: Json) -> None:
    """Create the objects that the launch names."""
    accounts = {"annotations": {ANNOTATION_SERVICE_ACCOUNTS: "*"}, "labels": {"slipway.dev/workspace": "true"}}
    workspace = str(body.get("workspace") or "default")
    try:
        await world.kube.create(NAMESPACES, {"metadata": {"name": workspace, **accounts}})
    except AlreadyExistsError:
        await world.kube.patch(NAMESPACES, workspace, {"metadata": accounts})
    flavors = [*cast("list[str]", body.get("flavors") or []), *filter(None, [body.get("gpuType")])]
    pool = str(body.get("pool") or "default")
    spec = {"flavors": [{"name": name, "nodeLabels": {"gpu": name}} for name in flavors]} if flavors else {}
    try:
        await world.kube.create(RESOURCE_POOLS, {"metadata": {"name": pool}, "spec": spec})
    except AlreadyExistsError:
        await world.kube.patch(RESOURCE_POOLS, pool, {"spec": spec})
    await world.make_queue(str(body.get("queue") or pool), pool)
