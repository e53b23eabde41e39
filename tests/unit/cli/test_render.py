"""`render` and `config`: the objects of a future launch, and the body of an existing one."""

from pathlib import Path

import yaml

from slipway.cli import main
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser

BODY = "name: llm\nkind: training\nimage: a\ncommand: [x]\nranks: [{count: 2, resources: {cpu: '1'}}]\n"


async def test_the_objects_of_a_file(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """`render` prints YAML that kubectl reads, with a ConfigMap, a Service and the pods; nothing is launched."""
    path = tmp_path / "a.yaml"
    path.write_text(BODY)
    ran = await cli_user.run("render", "-f", str(path))
    assert ran.code == main.OK, ran.err
    kinds = [document["kind"] for document in yaml.safe_load_all(ran.out)]
    assert kinds == ["ConfigMap", "Service", "Pod", "Pod"]
    assert await world.names() == []
    sources = await cli_user.run("render", "-f", str(path), "--show", "sources")
    assert yaml.safe_load(sources.out)["/image"] == "request"
    spec = await cli_user.run("render", "-f", str(path), "--show", "spec", "-o", "json")
    assert spec.json["ranks"][0]["count"] == 2


async def test_what_would_wait_is_said(cli_user: CliUser, tmp_path: Path) -> None:
    """A launch that would wait is reported on stderr with warnings and free capacity, not in the output."""
    path = tmp_path / "a.yaml"
    path.write_text(BODY.replace("count: 2", "count: 40"))
    ran = await cli_user.run("render", "-f", str(path))
    assert "of 40 ranks would fit pool default: it would wait" in ran.err
    assert "the first 16 of 40 pods are shown" in ran.err
    dry = await cli_user.run("run", "--ranks", "40", "--cpus", "1", "--image", "a", "--dry-run", "--", "x")
    assert (dry.code, "it would wait" in dry.err) == (main.OK, True)
    assert yaml.safe_load(dry.out)["pods"]["total"] == 40


async def test_a_config_launches_the_same_again(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """`config` prints the complete body, as `apply` accepts it: with another name, and without Slipway's own labels."""
    key = {"idempotency-key": "k"}
    await world.launch(name="first", labels={"team": "a"}, env={"A": "1"}, headers=key)
    ran = await cli_user.run("command", "config", "first")
    body = yaml.safe_load(ran.out)
    assert (body["env"], body["labels"]) == ({"A": "1"}, {"team": "a"})
    assert not {"name", "requestHash", "signals", "desired"} & body.keys()
    path = tmp_path / "again.yaml"
    path.write_text(ran.out)
    again = await cli_user.run("apply", "-f", str(path))
    assert again.code == main.OK, again.err
    name = again.out.strip().rpartition("-")[0]
    assert name != "first"
    one, other = (await world.stored("first")).spec, (await world.stored(name)).spec
    assert one.template == other.template
    assert one.env == other.env
    assert (await cli_user.run("notebook", "config", "nosuch")).code == main.NOT_FOUND
