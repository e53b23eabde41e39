"""What the verbs do, against the real api."""

import asyncio
import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from slipway.cli import main
from slipway.cli.http import ApiResponse
from slipway.cli.terminal import Terminal
from slipway.cli.verb import CliSession, parser_of
from slipway.cli.verbs import listing
from slipway.crd.meta import ANNOTATION_USER
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Admission, RankStatus
from slipway.errors import UnavailableError
from slipway.kube.resources import NAMESPACES, QUEUES, RESOURCE_POOLS, SECRETS
from slipway.model.lifecycle import Event, RankState
from slipway.model.reasons import Reason, Result
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser, run_here

RUN = ("run", "--image", "python:3.11", "--detach", "--name", "train")


async def ended(world: ApiWorld, name: str, *, code: int = 0) -> None:
    """Let the allocation run, and end with `code` in every rank."""
    found = await world.run(name)
    state = RankState.FAILED if code else RankState.SUCCEEDED
    uids = found.status.release.pod_uids if found.status.release else []
    ranks = [RankStatus(pod_uid=uid, node="n1", phase=state, exit_code=code) for uid in uids]
    over = await world.step(
        name,
        Event.TERMINATED,
        ranks=ranks,
        result=Result.FAILED if code else Result.SUCCEEDED,
        reason=Reason.RANK_FAILED if code else Reason.COMPLETED,
    )
    await world.publish(over)


async def test_a_launch_says_its_id(world: ApiWorld, cli_user: CliUser) -> None:
    """`run --detach` prints the id and nothing else; the options are in the spec."""
    words = ("--gpus", "1", "--cpus", "2", "--ranks", "3", "--env", "A=1", "--max-restarts", "2", "--user", "ann")
    done = await cli_user.run(*RUN, *words, "--priority", "70", "--", "python", "train.py")
    assert done.code == 0
    stored = await world.stored("train")
    assert done.out == f"train-{stored.metadata.uid[:8]}\n"
    role = stored.spec.ranks[0]
    assert (role.count, role.resources["requests"]["nvidia.com/gpu"], stored.spec.env) == (3, "1", {"A": "1"})
    assert (stored.spec.priority, stored.spec.max_restarts) == (70, 2)
    assert stored.metadata.annotations[ANNOTATION_USER] == "ann"
    container = stored.spec.template["spec"]["containers"][0]
    assert container["command"] == ["python", "train.py"]


async def test_a_variable_without_a_value_has_the_callers(
    world: ApiWorld, cli_user: CliUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--env NAME` uses the caller's value, also an empty one; a `$` in it is not expanded."""
    monkeypatch.setenv("HF_TOKEN", "x=y")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("PASSWORD", "a$$b$(C)")
    words = ("--env", "HF_TOKEN", "--env", "EMPTY", "--env", "PASSWORD", "--env", "B=2")
    done = await cli_user.run("run", "--image", "a", "--detach", *words, "--", "true")
    assert done.code == main.OK, done.err
    (name,) = await world.names()
    written = {"HF_TOKEN": "x=y", "EMPTY": "", "PASSWORD": "a$$$$b$$(C)", "B": "2"}
    assert (await world.stored(name)).spec.env == written


async def test_a_secret_travels_by_name(world: ApiWorld, cli_user: CliUser) -> None:
    """A secret is sent by name: the object refers to the value and never contains it."""
    done = await cli_user.run("run", "--image", "a", "--detach", "--secret", "HF_TOKEN=hub/token", "--", "true")
    assert done.code == main.OK, done.err
    (name,) = await world.names()
    (container,) = (await world.stored(name)).spec.template["spec"]["containers"]
    reference = {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert container["env"] == [{"name": "HF_TOKEN", "valueFrom": reference}]


async def test_a_secret_without_a_reference_takes_its_value_from_here(
    world: ApiWorld, cli_user: CliUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret without a reference takes its value from the caller's environment. The value is only in the Secret of
    the allocation and is never shown; a dry run creates none."""
    monkeypatch.setenv("HF_TOKEN", "canary-7d1f")
    words = ("run", "--image", "a", "--name", "train", "--secret", "HF_TOKEN")
    looked = await cli_user.run(*words, "--dry-run", "--", "true")
    assert looked.code == main.OK, looked.err
    assert (await world.kube.list(SECRETS)).items == []
    done = await cli_user.run(*words, "--detach", "-o", "yaml", "--", "true")
    assert done.code == main.OK, done.err
    assert "canary" not in looked.out + looked.err + done.out + done.err
    assert (await world.stored("train")).spec.secret_variables == ["HF_TOKEN"]
    [secret] = (await world.kube.list(SECRETS)).items
    assert base64.b64decode(secret.data["HF_TOKEN"]).decode() == "canary-7d1f"


async def test_a_rerun_needs_the_secret_values_again(
    world: ApiWorld, cli_user: CliUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rerun needs the values of secrets again, because it cannot read them; `config` says so too."""
    monkeypatch.setenv("HF_TOKEN", "canary-7d1f")
    await cli_user.run("run", "--image", "a", "--detach", "--name", "train", "--secret", "HF_TOKEN", "--", "true")
    refused = await cli_user.run("rerun", "train", "--detach")
    assert refused.code == main.USAGE
    assert "set HF_TOKEN here and add --secret HF_TOKEN" in refused.err
    shown = await cli_user.run("command", "config", "train")
    assert "secret values (HF_TOKEN) are not shown" in shown.err
    assert "secretVariables" not in shown.out
    again = await cli_user.run("rerun", "train", "--detach", "--secret", "HF_TOKEN")
    assert again.code == main.OK, again.err
    assert len((await world.kube.list(SECRETS)).items) == 2


async def test_a_service_account_is_named_by_an_option(world: ApiWorld, cli_user: CliUser) -> None:
    """`--service-account` sets the launch's field."""
    allowed = {"metadata": {"annotations": {"slipway.dev/service-accounts": "reader"}}}
    await world.kube.patch(NAMESPACES, "default", allowed)
    assert (await cli_user.run(*RUN, "--service-account", "reader", "--", "true")).code == main.OK
    assert (await world.stored("train")).spec.template["spec"]["serviceAccountName"] == "reader"


async def test_the_size_of_shared_memory_is_an_option(world: ApiWorld, cli_user: CliUser) -> None:
    """`--shm-size` sets the launch's field; an invalid size is refused with the option's name and what to write."""
    assert (await cli_user.run(*RUN, "--shm-size", "2Gi", "--", "true")).code == main.OK
    assert (await world.stored("train")).spec.shm_size == "2Gi"
    refused = await cli_user.run(*RUN, "--shm-size", "lots", "--", "true")
    assert refused.code == main.USAGE
    assert "--shm-size" in refused.err
    assert "such as 8Gi" in refused.err


async def test_a_service_is_an_option_and_its_address_is_described(world: ApiWorld, cli_user: CliUser) -> None:
    """`--service` sets the launch's field; an invalid one is refused with what to write."""
    assert (await cli_user.run(*RUN, "--service", "llm:8000", "--", "true")).code == main.OK
    service = (await world.stored("train")).spec.service
    assert service is not None
    assert (service.name, service.port) == ("llm", 8000)
    assert "llm.default.svc:8000" in (await cli_user.run("describe", "train")).out
    for wrong in ("llm", "llm:http", ":80"):
        refused = await cli_user.run(*RUN, "--service", wrong, "--", "true")
        assert refused.code == main.USAGE
        assert "NAME:PORT, such as llm:8000" in refused.err
    refused = await cli_user.run(*RUN, "--service", "llm:70000", "--", "true")
    assert refused.code == main.USAGE
    assert "service.port: must be at most 65535" in refused.err


async def test_run_follows_with_the_flag_and_without(world: ApiWorld, cli_user: CliUser) -> None:
    """`run` follows to the end with `--follow` and without, and exits with the program's code; the same key launches
    once, so that the second command follows the ended allocation."""
    words = ("run", "--image", "a", "--name", "train", "--key", "k")
    await cli_user.run(*words, "--detach", "--", "true")
    await ended(world, "train", code=3)
    followed, also = await cli_user.run(*words, "--", "true"), await cli_user.run(*words, "--follow", "--", "true")
    assert (followed.code, followed.err) == (also.code, also.err)
    assert followed.code == 3
    assert "rank 0 exited with 3" in followed.err


@pytest.mark.parametrize(
    "other", [("--detach",), ("--wait",), ("-q",), ("-o", "json"), ("--dry-run",), ("--as", "curl")]
)
async def test_what_follows_nothing_is_refused_beside_follow(
    world: ApiWorld, cli_user: CliUser, other: tuple[str, ...]
) -> None:
    """Options that do not follow are refused beside `--follow`, before anything is launched."""
    refused = await cli_user.run("run", "--image", "a", "--follow", *other, "--", "true")
    assert refused.code == main.USAGE
    assert "--follow" in refused.err
    assert await world.names() == []


async def test_the_setup_is_an_option(world: ApiWorld, cli_user: CliUser) -> None:
    """`--setup` is sent as it was typed; without a command it is refused with the option's name."""
    assert (await cli_user.run(*RUN, "--setup", "pip install $X", "--", "true")).code == main.OK
    assert (await world.stored("train")).spec.setup == "pip install $X"
    assert "Setup:      pip install $X\n" in (await cli_user.run("describe", "train")).out
    refused = await cli_user.run("run", "--image", "own", "--setup", "true")
    assert refused.code == main.USAGE
    assert "--setup: runs before the command, but there is no command" in refused.err


async def test_what_it_waits_for_is_an_option(world: ApiWorld, cli_user: CliUser) -> None:
    """`--after ID` names a dependency and its required end; an invalid one is refused before anything is sent."""
    await world.launch(name="prep")
    await world.post("/jobs", {"name": "sweep"})
    await world.launch(name="part", job="sweep")
    options = ("--after", "prep", "--after", "job/sweep:end")
    assert (await cli_user.run(*RUN, *options, "--", "true")).code == main.OK
    ids = [id_of(await world.stored(name)) for name in ("prep", "part")]
    stored = (await world.stored("train")).spec.after
    assert [(each.allocation, each.when.value) for each in stored] == list(
        zip(ids, ("succeeded", "ended"), strict=True)
    )
    for text in ("prep:soon", "", ":ok", "queue/prep", "job/", "prep:"):
        refused = await cli_user.run(*RUN, "--after", text, "--", "true")
        assert (refused.code, "--after: " in refused.err) == (main.USAGE, True), text
    unknown = await cli_user.run(*RUN, "--after", "nobody", "--", "true")
    assert "--after: workspace default has no allocation nobody" in unknown.err


@pytest.mark.parametrize(
    ("text", "mode"),
    [("rack", "required"), ("example.com/block=required", "required"), ("rack=preferred", "preferred")],
)
async def test_where_all_ranks_belong_together_is_an_option(
    world: ApiWorld, cli_user: CliUser, text: str, mode: str
) -> None:
    """`--topology KEY` is the topology of the whole allocation; without `preferred` it is required."""
    assert (await cli_user.run(*RUN, "--topology", text, "--", "true")).code == main.OK
    spec = (await world.stored("train")).spec
    assert spec.topology is not None
    assert (spec.topology.key, spec.topology.mode) == (text.partition("=")[0], mode)
    assert all(role.topology is None for role in spec.ranks)


async def test_a_topology_that_cannot_be_read_is_refused(cli_user: CliUser) -> None:
    """An invalid topology is refused with what to write instead; an invalid node label is refused by the API, and the
    error names the option."""
    for text in ("", "=required", "rack=near", "rack="):
        refused = await cli_user.run(*RUN, "--topology", text, "--", "true")
        assert (refused.code, "is not KEY, KEY=required or KEY=preferred" in refused.err) == (main.USAGE, True), text
    refused = await cli_user.run(*RUN, "--topology", "a rack", "--", "true")
    assert (refused.code, "--topology" in refused.err) == (main.USAGE, True), refused.err


@pytest.mark.parametrize("option", ["--retry", "--max-restarts"])
async def test_how_often_it_is_tried_again_is_an_option(world: ApiWorld, cli_user: CliUser, option: str) -> None:
    """The number of restarts is an option with two names."""
    assert (await cli_user.run(*RUN, option, "3", "--", "true")).code == main.OK
    assert (await world.stored("train")).spec.max_restarts == 3


async def test_what_an_exit_code_means_is_an_option(world: ApiWorld, cli_user: CliUser) -> None:
    """`--on-exit` sets rules for exit codes, in the order of the options; an invalid one is refused with its name and
    what to write."""
    options = ("--retry", "2", "--on-exit", "75=notCounted", "--on-exit", "2,64-78=fail")
    assert (await cli_user.run(*RUN, *options, "--", "true")).code == main.OK
    policy = (await world.stored("train")).spec.failure_policy
    assert policy is not None
    assert [(rule.action, rule.exit_codes) for rule in policy.rules] == [("notCounted", [75]), ("fail", [2, "64-78"])]
    for text, said in (
        ("fail", "is not CODES=ACTION, such as 2,64-78=fail"),
        ("2,=fail", "is not CODES=ACTION, such as 2,64-78=fail"),
        ("0=fail", "0 is no failure; write exit codes from 1 to 255"),
        ("1=stop", "must be one of fail, retry, ignore, notCounted"),
    ):
        refused = await cli_user.run(*RUN, "--on-exit", text, "--", "true")
        assert (refused.code, "--on-exit" in refused.err, said in refused.err) == (main.USAGE, True, True), refused.err


async def test_who_runs_it_is_an_option(world: ApiWorld, cli_user: CliUser) -> None:
    """`--run-as` sets the user, the group or both by number; other values are refused before anything is sent."""
    for number, (text, user, group) in enumerate(
        (("1001", 1001, None), ("1001:2001", 1001, 2001), (":2001", 1000, 2001))
    ):
        assert (
            await cli_user.run("run", "-d", "--name", f"as-{number}", "--image", "x", "--run-as", text, "--", "true")
        ).code == 0
        context = (await world.stored(f"as-{number}")).spec.template["spec"].get("securityContext", {})
        assert (context.get("runAsUser"), context.get("runAsGroup")) == (user, group)
    for text in ("ada", "1001:staff", ":", "1001:2001:3001", "-1", "1" * 20):
        refused = await cli_user.run(*RUN, "--run-as=" + text, "--", "true")
        assert (refused.code, "--run-as" in refused.err) == (main.USAGE, True), text


async def test_volumes_and_privileges_are_options(world: ApiWorld, cli_user: CliUser) -> None:
    """Volumes and privileges are options: each claim with its path, and each privilege that the pool allows."""
    await world.kube.patch(RESOURCE_POOLS, "default", {"spec": {"allowedPrivileges": ["hostNetwork", "IPC_LOCK"]}})
    volumes = ("--volume", "dataset:/data:ro", "--volume", "home:/home/ada")
    privileges = ("--privilege", "hostNetwork", "--privilege", "IPC_LOCK")
    done = await cli_user.run(*RUN, *volumes, *privileges, "--", "true")
    assert done.code == main.OK, done.err
    pod = (await world.stored("train")).spec.template["spec"]
    assert [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]] == ["/data", "/home/ada"]
    assert pod["hostNetwork"] is True
    assert pod["containers"][0]["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--volume", "dataset"), "--volume: 'dataset' is not CLAIM:PATH or CLAIM:PATH:ro"),
        (("--volume", "dataset:/data:rx"), "--volume: 'dataset:/data:rx' is not CLAIM:PATH"),
        (
            ("--volume", "dataset:data"),
            "--volume: 'data' is not a path for a volume; write an absolute path, such as /data",
        ),
        (("--volume", "Data_Set:/data"), "--volume: 'Data_Set' is not a volume claim; write CLAIM, or CLAIM:ro"),
        (("--privilege", "hostIPC"), "have an administrator add hostIPC to allowedPrivileges of the pool"),
        (("--privilege", "hostPID"), "--privilege: "),
    ],
)
async def test_a_wrong_volume_or_privilege_is_named_by_its_option(
    cli_user: CliUser, option: tuple[str, str], words: str
) -> None:
    """A wrong volume or privilege is refused with its option, and what to write or whom to ask."""
    refused = await cli_user.run(*RUN, *option, "--", "true")
    assert refused.code == main.USAGE
    assert words in refused.err
    assert option[0] in refused.err


async def test_a_refused_service_account_is_named_by_its_option(cli_user: CliUser) -> None:
    """A refused service account is reported with its option and the setting that would allow it."""
    refused = await cli_user.run(*RUN, "--service-account", "reader", "--", "true")
    assert refused.code == main.USAGE
    assert "--service-account: the workspace does not allow the service account 'reader'" in refused.err


async def test_the_type_of_gpus_is_named_by_an_option(world: ApiWorld, cli_user: CliUser) -> None:
    """The type of GPUs is set by `--gpu-type`, or several types by `--flavor`, the best first; both together are
    refused."""
    flavors = [{"name": name, "nodeLabels": {"gpu": name}} for name in ("h100", "a100")]
    await world.kube.patch(RESOURCE_POOLS, "default", {"spec": {"flavors": flavors}})
    assert (await cli_user.run(*RUN, "--gpu-type", "h100", "--", "true")).code == main.OK
    assert (await world.stored("train")).spec.flavors == ["h100"]
    both = ("--flavor", "a100", "--flavor", "h100")
    assert (
        await cli_user.run("run", "--image", "a", "--detach", "--name", "either", *both, "--", "true")
    ).code == main.OK
    assert (await world.stored("either")).spec.flavors == ["a100", "h100"]
    assert (await cli_user.run(*RUN, "--gpu-type", "h100", *both, "--", "true")).code == main.USAGE


async def test_a_refused_type_of_gpus_is_named_by_its_option(cli_user: CliUser) -> None:
    """A refused type of GPUs is reported with its option and the types of the pool."""
    for option, name in (("--gpu-type", "--gpu-type"), ("--flavor", "flavors[0]")):
        refused = await cli_user.run(*RUN, option, "h100", "--", "true")
        assert refused.code == main.USAGE
        assert f"{name}: pool default has no flavor 'h100'; it has no flavors" in refused.err


async def test_describe_shows_the_flavor_of_its_gpus(world: ApiWorld, cli_user: CliUser) -> None:
    """`describe` shows the flavor of the admission; in a pool without flavors there is no such line."""
    for name, flavor in (("train", "h100"), ("plain", "")):
        await world.launch(name=name)
        await world.step(name, Event.ASSIGNED, admission=Admission(decision_id="d1", epoch=1, flavor=flavor))
    assert "GPU type:   h100\n" in (await cli_user.run("describe", "train")).out
    assert "GPU type" not in (await cli_user.run("describe", "plain")).out


async def test_describe_shows_what_it_waits_for(world: ApiWorld, cli_user: CliUser) -> None:
    """`describe` shows the dependencies, with the required and the actual end of each; of many only the first."""
    ids = [(await world.launch(name=f"p{number}"))["id"] for number in range(6)]
    await world.step("p0", Event.TERMINATED, result=Result.SUCCEEDED)
    await world.launch(name="train", after=[{"allocation": id_, "when": "ended"} for id_ in ids])
    shown = (await cli_user.run("describe", "train")).out
    first = ", ".join(f"{id_} ended ({'not yet' if number else 'Succeeded'})" for number, id_ in enumerate(ids[:4]))
    assert f"After:      {first} and 2 more\n" in shown


async def test_describe_shows_the_command_as_it_was_typed(world: ApiWorld, cli_user: CliUser) -> None:
    """`describe` shows the command as it was typed, not as the pod template contains it."""
    await cli_user.run("run", "--image", "a", "--detach", "--", "sh", "-c", "echo $$ $(RANK)")
    (name,) = await world.names()
    assert "sh -c 'echo $$ $(RANK)'" in (await cli_user.run("describe", name)).out


async def test_names_say_the_kind(world: ApiWorld, cli_user: CliUser) -> None:
    """A launch without a name gets one that begins with `run` or with its kind."""
    await cli_user.run("run", "--image", "a", "--detach", "--", "true")
    await cli_user.run("notebook", "start", "--detach")
    names = sorted(await world.names())
    assert [name.partition("-")[0] for name in names] == ["notebook", "run"]


async def test_files_travel(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """Files are sent with the launch, text as text and bytes as base64, under the requested name."""
    (tmp_path / "a.py").write_text("print(1)\n")
    (tmp_path / "b.bin").write_bytes(b"\xff\x00")
    files = ("--file", f"{tmp_path}/a.py", "--file", f"{tmp_path}/b.bin:data/b")
    assert (await cli_user.run(*RUN, *files, "--", "true")).code == 0
    shipped = {each.path: (each.encoding, each.content) for each in (await world.stored("train")).spec.files}
    assert shipped == {"a.py": ("utf8", "print(1)\n"), "data/b": ("base64", "/wA=")}


async def test_variables_of_files(
    world: ApiWorld, cli_user: CliUser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of variables have the format of other tools; a `$` has no meaning in them, and a later file and `--env`
    override them."""
    monkeypatch.setenv("FROM_HERE", "mine")
    (tmp_path / "base").write_text(
        "# a comment\n\nA=1\nexport B=\"two words\"\nC='#3'\nPASSWORD=p$(HOME)w=\nEMPTY=\nFROM_HERE\n",
        encoding="utf-8-sig",
    )
    (tmp_path / "more").write_text("A=2\nB=b\r\n")
    files = ("--env-file", f"{tmp_path}/base", "--env-file", f"{tmp_path}/more")
    assert (await cli_user.run(*RUN, *files, "-e", "A=3", "--", "true")).code == 0
    assert (await world.stored("train")).spec.env == {
        "A": "3",
        "B": "b",
        "C": "#3",
        "PASSWORD": "p$$(HOME)w=",
        "EMPTY": "",
        "FROM_HERE": "mine",
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"A=1\nno name\n", "line 2 of FILE is not NAME=VALUE or NAME"),
        (b"A_NAME\n", "A_NAME on line 1 of FILE is not set here; set it, or write A_NAME=VALUE"),
        (b"\xff\xfe=1\n", "FILE cannot be read: it is not UTF-8 text"),
        (None, "FILE cannot be read: No such file or directory"),
    ],
)
async def test_a_bad_file_of_variables_is_named_with_its_line(
    world: ApiWorld, cli_user: CliUser, tmp_path: Path, content: bytes | None, said: str
) -> None:
    """A bad file of variables is refused with its line, and nothing is launched."""
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    done = await cli_user.run(*RUN, "--env-file", str(path), "--", "true")
    assert (done.code, await world.names()) == (main.USAGE, [])
    assert f"--env-file: {said.replace('FILE', str(path))}" in done.err


async def test_dry_run_launches_nothing(world: ApiWorld, cli_user: CliUser) -> None:
    """A dry run shows the complete spec and launches nothing."""
    done = await cli_user.run(*RUN, "--dry-run", "-o", "json", "--", "true")
    assert (done.code, done.json["dryRun"], done.json["spec"]["minAvailable"]) == (0, True, 1)
    assert await world.names() == []


async def test_one_key_launches_once(world: ApiWorld, cli_user: CliUser) -> None:
    """The same key and body give the same id; another body is refused."""
    words = ("run", "--image", "a", "--key", "k1", "--detach", "--")
    first, again = await cli_user.run(*words, "true"), await cli_user.run(*words, "true")
    other = await cli_user.run(*words, "false")
    assert (first.code, first.out) == (again.code, again.out)
    assert other.code == main.USAGE
    assert "another body" in other.err
    assert len(await world.names()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cpus", "many", "--", "true"), "--cpus: 'many' is not a quantity"),
        (("--image", "", "--", "true"), "image"),
        (("--priority", "2000", "--", "true"), "--priority: must be at most 1000"),
        (("--ranks", "0", "--", "true"), "--ranks: must be at least 1"),
        (("--max-runtime", "soon", "--", "true"), "--max-runtime: 'soon' is not valid; such as 90s"),
        (("--env", "A_NAME", "--", "true"), "--env: A_NAME is not set here; set it, or write A_NAME=VALUE"),
        (("--env", "=1", "--", "true"), "--env: '=1' is not NAME=VALUE or NAME"),
        (("--env", "1A=x", "--", "true"), "--env: '1A' cannot name an environment variable"),
        (("--secret", "A_NAME", "--", "true"), "--secret: A_NAME is not set here; set it, or write NAME=SECRET/KEY"),
        (("--secret", "", "--", "true"), "--secret: '' is not set here"),
        (("--secret", "A=hub", "--", "true"), "write SECRET/KEY"),
        (("--file", "/no/such", "--", "true"), "--file: /no/such cannot be read"),
        (("--workspace", "elsewhere", "--", "true"), "there are: default"),
        (("--name", "Bad_Name", "--", "true"), "Bad_Name"),
    ],
)
async def test_what_is_wrong_is_named(cli_user: CliUser, words: tuple[str, ...], said: str) -> None:
    """A bad field is a usage error that names the field and what to write instead."""
    done = await cli_user.run("run", "--image", "a", "--detach", *words)
    assert done.code == main.USAGE
    assert said in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("describe", "nosuch"), "there is no allocation 'nosuch'; `slipway ps` lists what there is"),
        (("job", "update", "nosuch", "--weight", "2"), "`slipway job` lists them"),
        (("queue", "show", "nosuch"), "there is no queue 'nosuch'; `slipway queue` lists them"),
        (("template", "show", "nosuch"), "there is no template 'nosuch'; `slipway template ls` lists them"),
    ],
)
async def test_what_is_not_there_is_named_with_the_verb_that_lists_it(
    cli_user: CliUser, words: tuple[str, ...], said: str
) -> None:
    """A missing object is reported with the verb that lists it; the API's own message names a route, or Kubernetes'
    name of the kind."""
    done = await cli_user.run(*words)
    assert (done.code, done.out) == (main.NOT_FOUND, "")
    assert said in done.err


async def test_no_command(cli_user: CliUser) -> None:
    """A `run` without a command is refused with an example of one."""
    done = await cli_user.run("run")
    assert done.code == main.USAGE
    assert "slipway run -- python train.py" in done.err


async def test_a_gang_larger_than_the_pool_is_taken_with_a_warning(cli_user: CliUser) -> None:
    """A gang that is larger than the pool is accepted with a warning that says at once why it waits."""
    done = await cli_user.run(*RUN, "--gpus", "64", "--", "true")
    assert done.code == 0
    assert "warning:" in done.err
    assert "64" in done.err


async def test_ps(world: ApiWorld, cli_user: CliUser) -> None:
    """`ps` prints a table, ids only, or the unchanged REST body."""
    await cli_user.run(*RUN, "--", "true")
    await world.explain("train", "NoFit", "no room")
    table = await cli_user.run("ps")
    id_ = (await cli_user.run("ps", "-q")).out.strip()
    assert table.out.splitlines()[0].split() == ["ID", "KIND", "STATE", "RANKS", "QUEUE", "AGE", "NOTE"]
    assert table.out.splitlines()[1].split()[:5] == [id_, "training", "Pending", "0/1", "default"]
    assert "NoFit: no room" in table.out
    body = (await world.get("/allocations")).text
    assert (await cli_user.run("ps", "-o", "json")).out == body + "\n"
    assert yaml.safe_load((await cli_user.run("ps", "-o", "yaml")).out) == json.loads(body)
    assert (await cli_user.run("ps", "-o", "name")).out.strip() == id_
    assert "PRIO" in (await cli_user.run("ps", "-o", "wide")).out


async def test_ps_of_nothing(cli_user: CliUser) -> None:
    """An empty `ps` prints nothing on stdout and a hint on stderr."""
    done = await cli_user.run("ps")
    assert (done.code, done.out) == (0, "")
    assert "slipway run" in done.err


async def test_ps_filters(world: ApiWorld, cli_user: CliUser) -> None:
    """`ps` filters by kind, phase and label, and shows what ended long ago only with `-a`."""
    await cli_user.run(*RUN, "--label", "team=vision", "--", "true")
    await cli_user.run("notebook", "start", "--detach", "--name", "nb")
    await ended(world, "nb")
    assert (await cli_user.run("ps", "-q", "--kind", "notebook")).out.startswith("nb-")
    assert (await cli_user.run("ps", "-q", "-l", "team=vision")).out.startswith("train-")
    assert (await cli_user.run("ps", "-q", "--phase", "Running")).out == ""
    assert (await cli_user.run("ps", "--phase", "Strolling")).code == main.USAGE
    assert (await cli_user.run("notebook", "ls", "-q")).out.startswith("nb-")


async def test_get_is_the_body(world: ApiWorld, cli_user: CliUser) -> None:
    """`get` prints the unchanged body; the id may be shortened."""
    await cli_user.run(*RUN, "--", "true")
    done = await cli_user.run("get", "tra")
    assert done.out == (await world.get("/allocations/train")).text + "\n"


async def test_what_is_not_there(cli_user: CliUser) -> None:
    """An unknown allocation causes exit code 3 and a hint where to look."""
    done = await cli_user.run("describe", "nosuch")
    assert done.code == main.NOT_FOUND
    assert "nosuch" in done.err


async def test_an_ambiguous_id(cli_user: CliUser) -> None:
    """An ambiguous id is refused with the candidates."""
    for name in ("train-a", "train-b"):
        await cli_user.run("run", "--image", "a", "--detach", "--name", name, "--", "true")
    done = await cli_user.run("get", "train")
    assert done.code == main.USAGE
    assert "train-a-" in done.err
    assert "train-b-" in done.err


async def test_describe(world: ApiWorld, cli_user: CliUser) -> None:
    """`describe` shows facts, pods and events."""
    await cli_user.run(*RUN, "--ranks", "2", "--label", "team=vision", "--", "python", "-c", "print(1)")
    await world.run("train")
    done = await cli_user.run("describe", "train")
    assert "Labels:     team=vision\n" in done.out
    assert done.code == 0
    assert "State:      Running" in done.out
    assert "python -c 'print(1)'" in done.out
    assert [line.split()[:3] for line in done.out.splitlines() if line[:2] in ("0 ", "1 ")] == [
        ["0", "Running", "n1"],
        ["1", "Running", "n1"],
    ]
    assert "requested" in done.out


async def test_explain(world: ApiWorld, cli_user: CliUser) -> None:
    """`explain` shows the gate, the position in the queue, and what would help."""
    await cli_user.run(*RUN, "--", "true")
    await world.explain("train", "NoFit", "no room")
    done = await cli_user.run("explain", "train")
    assert "NoFit: no room" in done.out
    assert "position 1 in queue default" in done.out
    assert "what helps:" in done.out
    assert (await cli_user.run("explain", "train", "-o", "json")).json["code"] == "NoFit"


async def test_timeline_and_trace(world: ApiWorld, cli_user: CliUser) -> None:
    """`timeline` and `trace` show an allocation that was just launched."""
    await cli_user.run(*RUN, "--", "true")
    await world.run("train")
    assert "Running" in (await cli_user.run("timeline", "train")).out
    assert (await cli_user.run("trace", "train")).code == 0


async def test_kill(world: ApiWorld, cli_user: CliUser) -> None:
    """`kill` commits the cancel; for an ended allocation it succeeds."""
    await cli_user.run(*RUN, "--", "true")
    done = await cli_user.run("kill", "train")
    assert (done.code, "is being ended" in done.out) == (0, True)
    assert (await world.stored("train")).spec.desired == "Stopped"
    await cli_user.run("notebook", "start", "--detach", "--name", "nb")
    await ended(world, "nb")
    again = await cli_user.run("notebook", "stop", "nb")
    assert (again.code, "had ended: Succeeded" in again.out) == (0, True)


async def test_changes(world: ApiWorld, cli_user: CliUser) -> None:
    """`hold`, `resume`, `priority` and `preempt` change the allocation."""
    await cli_user.run(*RUN, "--", "true")
    assert (await cli_user.run("hold", "train")).code == 0
    assert (await world.stored("train")).spec.hold
    assert "Held" in (await cli_user.run("ps")).out
    await cli_user.run("resume", "train")
    await cli_user.run("priority", "train", "90")
    stored = await world.stored("train")
    assert (stored.spec.hold, stored.spec.priority) == (False, 90)
    await world.run("train")
    assert (await cli_user.run("preempt", "train", "--reason", "make room")).code == 0
    signals = (await world.stored("train")).spec.signals
    assert signals is not None
    assert signals.preempt is not None
    assert signals.preempt.reason == "make room"


async def test_what_is_held_is_given_other_work(world: ApiWorld, cli_user: CliUser) -> None:
    """`update` changes the named fields of a held allocation; one that is not held is refused with the next step."""
    await cli_user.run(*RUN, "--env", "A=1", "--", "true")
    refused = await cli_user.run("update", "train", "--image", "b")
    assert (refused.code != 0, "slipway hold" in refused.err) == (True, True)
    await cli_user.run("hold", "train")
    options = ("--image", "b", "--cpus", "3", "--env", "B=2", "--unset-env", "A", "--command", "echo", "--image")
    done = await cli_user.run("update", "train", *options)
    assert (done.code, "a new image, command, env, resources" in done.out) == (0, True), done.err
    spec = (await world.stored("train")).spec
    (main,) = spec.template["spec"]["containers"]
    assert (main["image"], main["command"], spec.env) == ("b", ["echo", "--image"], {"B": "2"})
    assert spec.ranks[0].resources["requests"]["cpu"] == "3"
    assert (await cli_user.run("update", "train")).code == 2


@pytest.mark.parametrize(
    ("code", "goal", "expected"),
    [(0, "terminated", 0), (3, "terminated", 1), (0, "ready", 1), (0, "running", 0)],
)
async def test_wait(world: ApiWorld, cli_user: CliUser, code: int, goal: str, expected: int) -> None:
    """`wait` exits with 0 when the phase is reached, with 1 when the allocation ended otherwise."""
    await cli_user.run(*RUN, "--", "true")
    await ended(world, "train", code=code)
    assert (await cli_user.run("wait", "train", "--for", goal)).code == expected


async def test_wait_gives_up(cli_user: CliUser) -> None:
    """`wait` exits with 124 when the time is over, and names the next command."""
    await cli_user.run(*RUN, "--", "true")
    done = await cli_user.run("wait", "train", "--timeout", "50ms")
    assert done.code == main.TIMED_OUT
    assert "slipway explain train-" in done.err
    assert (await cli_user.run("wait", "train", "--timeout", "soon")).code == main.USAGE


async def followed(cli_user: CliUser, world: ApiWorld, code: int) -> Any:
    """Run a command that is followed while it starts, prints and ends."""
    task = asyncio.ensure_future(cli_user.run("run", "--image", "a", "--name", "train", "--ranks", "2", "--", "true"))
    while "train" not in await world.names():  # noqa: ASYNC110 - the world tells nobody
        await asyncio.sleep(0.005)
    world.pod_logs.is_talking = True
    await ended(world, "train", code=code)
    return await task


async def test_run_follows_to_the_end(world: ApiWorld, cli_user: CliUser) -> None:
    """Lines carry their rank; the exit code is the result's."""
    done = await followed(cli_user, world, 0)
    assert done.code == 0
    assert sorted(line[:3] for line in done.out.splitlines()) == ["[0]", "[1]"]
    assert "Succeeded" in done.err


async def test_a_run_that_fails(world: ApiWorld, cli_user: CliUser) -> None:
    """For a failed run the failed ranks and their exit codes are printed; the exit code is 1."""
    done = await followed(cli_user, world, 3)
    assert done.code == 3
    assert "Failed (RankFailed): rank 0 exited with 3; rank 1 exited with 3" in done.err


async def test_all_events_are_shown(world: ApiWorld, cli_user: CliUser, monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocation that was restarted often has more events than one answer of the API."""
    await cli_user.run(*RUN, "--", "true")
    await ended(world, "train")
    whole = (await cli_user.run("events", "train")).out.splitlines()
    described = (await cli_user.run("describe", "train")).out.splitlines()
    items = json.loads((await cli_user.run("events", "train", "-o", "json")).out)["items"]
    monkeypatch.setattr("slipway.api.allocations.event_routes.PAGE_MAX", 2)
    monkeypatch.setattr("slipway.cli.verbs.streams.PAGE_EVENTS", 2)
    assert len(whole) > 2
    assert (await cli_user.run("events", "train")).out.splitlines() == whole
    assert (await cli_user.run("describe", "train")).out.splitlines()[-len(whole) :] == described[-len(whole) :]
    assert json.loads((await cli_user.run("events", "train", "-o", "json")).out)["items"] == items


async def test_events(world: ApiWorld, cli_user: CliUser) -> None:
    """`events` prints a page, the stream to its end, or the unchanged body."""
    await cli_user.run(*RUN, "--", "true")
    await ended(world, "train")
    page, stream = await cli_user.run("events", "train"), await cli_user.run("events", "-f", "train")
    assert page.out == stream.out
    kinds = [line.split()[2] for line in page.out.splitlines()]
    assert kinds == ["requested", "assigned", "running", "terminated"]
    body = (await world.get("/allocations/train/events", accept="application/json")).text
    assert (await cli_user.run("events", "train", "-o", "json")).out == body + "\n"


async def test_logs(world: ApiWorld, cli_user: CliUser) -> None:
    """`logs` prints the rank before each line when there are several ranks."""
    world.pod_logs.is_talking = True
    await cli_user.run(*RUN, "--ranks", "2", "--", "true")
    await world.run("train")
    lines = (await cli_user.run("logs", "train")).out.splitlines()
    assert [line.split()[:3] for line in sorted(lines)] == [["[0]", "I", "am"], ["[1]", "I", "am"]]
    one = await cli_user.run("logs", "train", "--rank", "1", "-t")
    assert one.out.startswith("03:04:05.123 I am train-")
    found = await cli_user.run("logs", "train", "--search=-1-1", "--until", "2099-01-01T00:00:00Z")
    assert found.out.splitlines() == lines[1:2]
    assert (await cli_user.run("logs", "train", "--since", "soon")).code == main.USAGE


async def test_open_says_where(world: ApiWorld, cli_user: CliUser) -> None:
    """`open` prints the address of the allocation's page; after the end there is none to open."""
    await cli_user.run("notebook", "start", "--detach", "--name", "nb")
    done = await cli_user.run("open", "nb")
    assert done.out.startswith(f"{cli_user.url}/proxy/nb-")
    await ended(world, "nb")
    assert (await cli_user.run("notebook", "open", "nb")).code == main.FAILED


async def test_a_queue_of_flavors_shows_its_use_of_each(world: ApiWorld, cli_user: CliUser) -> None:
    """The page of a queue shows its use of each flavor, above the waiting allocations."""
    flavors = [{"name": name, "nodeLabels": {"gpu": name}} for name in ("h100", "a100")]
    await world.kube.patch(RESOURCE_POOLS, "default", {"spec": {"flavors": flavors}})
    own = [{"name": "h100", "nominal": {"nvidia.com/gpu": "1500m"}}]
    await world.kube.patch(QUEUES, "default", {"spec": {"flavors": own}})
    shown = (await cli_user.run("queue", "show", "default")).out.splitlines()
    assert [line.split() for line in shown[:3]] == [
        ["FLAVOR", "GPUS", "USED", "GPUS", "OWNED"],
        ["h100", "0", "1.5"],
        ["a100", "0", "-"],
    ]


async def test_a_queue_shows_when_its_work_is_left_alone(world: ApiWorld, cli_user: CliUser) -> None:
    """The page of a queue shows how long an allocation runs before it can be evicted, and the rest of the limits on
    evictions; without these settings it shows nothing."""
    limit = {"count": 6, "per": "1h", "burst": 2}
    await world.kube.patch(QUEUES, "default", {"spec": {"minRuntime": "10m", "evictionLimit": limit}})
    shown = (await cli_user.run("queue", "show", "default")).out.splitlines()
    assert shown[:2] == [
        "Its work may be evicted for other work only after it has run for 10m.",
        "Evictions of queue default: 2 of 2 left now, 6 per 1h over time.",
    ]
    await world.kube.patch(QUEUES, "default", {"spec": {"minRuntime": None, "evictionLimit": None}})
    assert "makes room" not in (await cli_user.run("queue", "show", "default")).out


async def test_a_queue_shows_its_past(world: ApiWorld, cli_user: CliUser) -> None:
    """The page of a queue shows its past usage beside its siblings'; nothing when the pool does not record it."""
    await world.kube.patch(RESOURCE_POOLS, "default", {"spec": {"fairShare": {"halfLife": "7d"}}})
    shown = (await cli_user.run("queue", "show", "default")).out.splitlines()
    assert shown[:2] == [
        "Past use (half-life 7d), least use by weight first:",
        "  default: 0 GPU-h, 0 % of all; its weight is 100 %",
    ]


async def test_cluster_lists(cli_user: CliUser) -> None:
    """The lists of the cluster are queues, pools and nodes."""
    await cli_user.run(*RUN, "--", "true")
    assert (await cli_user.run("queue")).out.splitlines()[1].split() == ["default", "default", "1", "0", "0"]
    shown = (await cli_user.run("queue", "show", "default")).out
    assert "train-" in shown
    assert "FLAVOR" not in shown
    assert (await cli_user.run("pool", "ls")).out.splitlines()[1].split()[:3] == ["default", "2", "4"]
    assert [line.split()[0] for line in (await cli_user.run("nodes")).out.splitlines()] == ["NODE", "n1", "n2"]
    assert (await cli_user.run("nodes", "-q")).out.split() == ["n1", "n2"]
    assert (await cli_user.run("queue", "show", "nosuch")).code == main.NOT_FOUND


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("get", "\udcff"), r"'/allocations/\udcff' is not UTF-8 text"),
        (("ps", "--search", "\udcff"), r"'\udcff' is not UTF-8 text"),
        (("ps", "--user", "\u65e5"), "X-Slipway-User: '\u65e5' has characters that are not allowed in a header"),
        ((*RUN, "--env", "A=\udcff", "--", "true"), "env.A: is not UTF-8 text"),
        ((*RUN, "--env", "\udcff=1", "--", "true"), r"env.'\udcff': is not UTF-8 text"),
        ((*RUN, "--", "echo", "\udcff"), "command.1: is not UTF-8 text"),
        (("exec", "train", "--", "\udcff"), "command: a word, the container or the id is not UTF-8 text"),
        (("cp", "train:/\udcff", "."), "is not UTF-8 text"),
    ],
)
async def test_a_word_that_is_not_utf8(cli_user: CliUser, words: tuple[str, ...], said: str) -> None:
    """An argument of another encoding, such as the name of an old file, is refused with its position."""
    refused = await cli_user.run(*words)
    assert (refused.code, said in refused.err) == (main.USAGE, True), refused.err


def test_a_list_that_is_watched_survives_a_restart_of_the_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ps -w` reports once that the server does not answer, and continues; Ctrl-C ends it."""
    view: dict[str, Any] = {
        "id": "a-1",
        "phase": "Pending",
        "spec": {},
        "status": {},
        "createdAt": "2026-01-02T03:04:05Z",
    }
    there = ApiResponse(200, json.dumps({"items": [view], "metadata": {}}).encode(), {})
    away = UnavailableError("nobody listens there")
    answers = iter([there, away, away, there, away, there, KeyboardInterrupt()])

    def call(*_: Any, **__: Any) -> ApiResponse:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(listing, "WATCH_S", 0.0)
    session = SimpleNamespace(terminal=Terminal(), api=SimpleNamespace(call=call))
    arguments = parser_of("ps", listing.VERBS["ps"]).parse_args(["-w"])
    with pytest.raises(KeyboardInterrupt):
        listing.ps(arguments, cast("CliSession", session))
    shown = capsys.readouterr()
    assert (shown.out.splitlines(), shown.err.count("retrying")) == (["a-1  Pending  0/1"], 2)


async def test_one_pool(cli_user: CliUser) -> None:
    """`pool show` shows the pool that it names, and no other."""
    shown = await cli_user.run("pool", "show", "default")
    assert [line.split()[0] for line in shown.out.splitlines()[1:2]] == ["default"]
    assert json.loads((await cli_user.run("pool", "show", "default", "-o", "json")).out)["name"] == "default"
    missing = await cli_user.run("pool", "show", "defaul")
    assert (missing.code, "did you mean default?" in missing.err) == (main.NOT_FOUND, True)
    unnamed = await cli_user.run("pool", "show")
    assert (unnamed.code, "name one pool: default" in unnamed.err) == (main.USAGE, True)


@pytest.mark.parametrize("verb", ["pool", "token", "context", "node", "job", "webhook", "dead", "template"])
async def test_a_name_that_a_list_does_not_take(cli_user: CliUser, verb: str) -> None:
    """A word that has no effect is refused: otherwise the list would seem to be filtered by it."""
    refused = await cli_user.run(verb, "ls", "thing")
    assert (refused.code, f"{verb} ls: takes no name, but got 'thing'" in refused.err) == (main.USAGE, True)


async def test_dead_letters(cli_user: CliUser) -> None:
    """The list of dead letters is empty at first; an unknown letter cannot be sent again."""
    empty = await cli_user.run("dead", "ls")
    assert empty == (main.OK, "", "no dead letters\n")
    unknown = await cli_user.run("dead", "replay", "1-1")
    assert (unknown.code, "there is no dead letter 1-1" in unknown.err) == (main.NOT_FOUND, True)
    assert (await cli_user.run("dead", "replay")).code == main.USAGE


async def test_doctor(cli_user: CliUser) -> None:
    """`doctor` finds no problem in a complete installation."""
    done = await cli_user.run("doctor")
    assert done.code == 0
    assert "API" in done.out
    assert not any(line.startswith("NO ") for line in done.out.splitlines())
    away = await asyncio.to_thread(run_here, "doctor", "--server", "127.0.0.1:1")
    assert (away.code, "NO  API" in away.out) == (main.FAILED, True)


async def test_doctor_for_machines(cli_user: CliUser) -> None:
    """`doctor` as JSON has the same findings and their number by state; its page is 80 columns wide, except for
    commands."""
    told = (await cli_user.run("doctor", "-o", "json")).json
    assert told["ok"] is True
    assert sum(told["counts"].values()) == len(told["findings"])
    assert {"check": "API", "state": "ok"}.items() <= next(e for e in told["findings"] if e["check"] == "API").items()
    lines = (await cli_user.run("doctor")).out.splitlines()
    assert [line for line in lines if len(line) > 80 and "fix:" not in line] == []
    assert (await cli_user.run("doctor", "--outpt", "json")).code == main.USAGE


async def test_curl(cli_user: CliUser) -> None:
    """Every request can be repeated by hand."""
    done = await cli_user.run("ps", "--curl")
    assert f"{cli_user.url}/api/v1/allocations?limit=500" in done.err
    assert done.err.startswith("curl ")


async def test_a_list_that_is_empty_because_of_a_filter_says_so(world: ApiWorld, cli_user: CliUser) -> None:
    """A list that is empty because of a filter says so, and names the filter."""
    await cli_user.run(*RUN, "--", "true")
    assert (await cli_user.run("ps", "--phase", "Running")).err.strip() == "no workload with phase Running"
    assert (await cli_user.run("ps", "--owner", "ada")).err.strip() == "no workload of user ada"
    ended = await cli_user.run("history", "--since", "1s", "--owner", "ada")
    assert ended.err.strip() == "no workload of user ada has ended since 1s and is still stored"
    used = await cli_user.run("usage", "--owner", "ada", "--kind", "training")
    assert used.err.startswith("no workload of user ada with kind training used anything from ")


async def test_a_filter_that_names_what_does_not_exist_is_refused(world: ApiWorld, cli_user: CliUser) -> None:
    """A filter with an unknown name is a usage error with the existing names, because an empty list would look like an
    idle queue."""
    for words in (("ps",), ("history",), ("history", "--at", "1s"), ("usage",), ("usage", "--raw"), ("job", "ls")):
        done = await cli_user.run(*words, "--queue", "nosuch")
        assert (done.code, done.out) == (main.USAGE, ""), words
        assert "queue: there is no queue nosuch; there are: default" in done.err
    assert "there is no job nosuch; there are none yet" in (await cli_user.run("ps", "--job", "nosuch")).err
    stats = await cli_user.run("queue", "stats", "nosuch")
    assert "pool: there is no pool nosuch; there are: default" in stats.err


async def test_memory_without_a_unit_is_asked_back(cli_user: CliUser) -> None:
    """Memory without a unit is refused, because 8 bytes are a mistake: the error names the option and what to write."""
    done = await cli_user.run("run", "--image", "a", "--memory", "8", "--", "true")
    assert done.code == main.USAGE
    assert "--memory: 8 is 8 bytes; write the unit, such as 8Gi or 8Mi" in done.err


async def test_follow_shows_what_run_shows(world: ApiWorld, cli_user: CliUser) -> None:
    """`follow` shows what `run` shows, also for an ended allocation: its result, and its exit code."""
    await cli_user.run("run", "--image", "a", "--name", "train", "--detach", "--", "true")
    world.pod_logs.is_talking = True
    await ended(world, "train", code=3)
    done = await cli_user.run("follow", "train")
    assert (done.code, done.out.startswith("I am train-")) == (3, True)
    assert "Failed (RankFailed): rank 0 exited with 3" in done.err
