"""A file of each other system: imported by the command, launched as imported, and run to its end."""

from pathlib import Path

import pytest
import yaml

from tests.support.local_stack import RunningStack
from tests.support.names import fresh
from tests.support.runnable_imports import FOLDER, RUNNABLE, RunnableFile

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
RAY = """#!/bin/sh
case "$*" in
  *--block*) exec sleep 600 ;;
  status) echo "a head" ;;
esac
"""
"""Replaces Ray, which is not installed here: the calls of a launch end as Ray's do."""


@pytest.fixture(scope="module")
def ray(stack: RunningStack) -> None:
    """The program that the file of Ray mounts."""
    name = "ray-program"
    known = [item["metadata"]["name"] for item in stack.kubernetes("GET", CONFIG_MAPS)["items"]]
    if name not in known:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"ray": RAY}}
        stack.kubernetes("POST", CONFIG_MAPS, body)


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize("file", RUNNABLE, ids=lambda file: file.kind)
def test_an_imported_file_runs_to_its_end(stack: RunningStack, file: RunnableFile, tmp_path: Path) -> None:
    """It succeeds, and its ranks print what the file states; only its name is changed, so that it can run again."""
    launch = tmp_path / "launch.yaml"
    imported = stack.command("import", str(FOLDER / file.path), "--output", str(launch), "--report", "none")
    assert imported.code == 0, imported.err
    body = yaml.safe_load(launch.read_text("utf-8"))
    body["name"] = fresh("imported")
    launch.write_text(yaml.safe_dump(body), "utf-8")
    applied = stack.command("apply", "-f", str(launch), "--follow", timeout_s=120)
    assert applied.code == 0, applied.out + applied.err
    assert stack.view(body["name"])["result"] == "Succeeded"
    said = stack.command("logs", body["name"], "--stream", "stdout").out.splitlines()
    assert sorted(line.partition("] ")[2] or line for line in said) == list(file.prints)
