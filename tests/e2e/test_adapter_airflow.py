"""Tasks of a real Airflow, in a separate environment, that launch on the whole system."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import airflow_environment
from tests.support.local_stack import RunningStack

Json = dict[str, Any]
Play = Callable[[Json], tuple[Json, str]]
INSTALLATION = "north"
PLAY = Path(__file__).parents[1] / "support" / "airflow_play.py"
PLAY_S = 240.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """An Airflow environment (its Python, its variables), with a database."""
    interpreter = airflow_environment.python()
    if interpreter is None:
        pytest.skip("Airflow cannot be installed here: the package index cannot be reached")
    env = airflow_environment.environment(tmp_path_factory.mktemp("airflow"))
    dags = Path(env["AIRFLOW_HOME"], "dags")
    dags.mkdir()
    shutil.copy(PLAY, dags)
    airflow_environment.migrate(interpreter, env)
    return interpreter, env


@pytest.fixture
def play(home: tuple[Path, dict[str, str]], stack: RunningStack) -> Play:
    """Run a DAG with these tasks once; return (the state of each task, the log)."""
    interpreter, env = home
    extra = {"installation": INSTALLATION}
    login = json.dumps({"conn_type": "http", "host": stack.url, "password": stack.stack.token, "extra": extra})

    def run(tasks: Json) -> tuple[Json, str]:
        argv = [str(interpreter), str(Path(env["AIRFLOW_HOME"], "dags", PLAY.name))]
        variables = {**env, "AIRFLOW_CONN_SLIPWAY": login, "SLIPWAY_PLAY": json.dumps(tasks)}
        done = subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=PLAY_S, check=False)
        said = done.stdout + done.stderr
        [found] = [line for line in done.stdout.splitlines() if line.startswith("found: ")] or [""]
        assert found, said[-6000:]
        return json.loads(found.removeprefix("found: ")), said

    return run


def tasks_of(stack: RunningStack, task: str) -> list[Json]:
    """The allocations that a task has launched."""
    answer = stack.ask(lambda api: api.get("/allocations", query={"labelSelector": f"airflow-task={task}"}))
    items: list[Json] = answer["items"]
    return items


def test_tasks_launch_wait_and_end_as_their_allocations_do(play: Play, stack: RunningStack) -> None:
    """Deferred or not, a success has its lines in the log and its id as the value; a failure fails the task."""
    python = {"slipway_conn_id": "slipway"}
    found, said = play(
        {
            "deferred": {**python, "command": ["sh", "-c", "echo from-a-rank"], "launch": {"cpus": 1}},
            "waiting": {**python, "command": ["true"], "deferrable": False},
            "failing": {**python, "command": ["sh", "-c", "exit 7"], "retries": 0},
        }
    )
    states = {name: state.rpartition(".")[2].lower() for name, state in found.items()}
    assert states == {"deferred": "success", "waiting": "success", "failing": "failed", "after": "success"}, said[
        -3000:
    ]
    for name in ("deferred", "waiting", "failing"):
        [view] = tasks_of(stack, name)
        assert view["labels"]["airflow-dag"] == "slipway_play"
        assert (view["result"] == "Succeeded") is (name != "failing")
        assert view["id"] in said
    assert "from-a-rank" in said
    [view] = tasks_of(stack, "deferred")
    [run_id] = [line.removeprefix("run: ") for line in said.splitlines() if line.startswith("run: ")]
    tries = json.dumps(["slipway_play", "deferred", run_id, -1, INSTALLATION])
    assert view["labels"]["airflow-tries"] == hashlib.sha256(tries.encode()).hexdigest()[:40]
    assert stack.stack.token not in said


def test_a_wait_that_times_out_ends_the_allocation(play: Play, stack: RunningStack) -> None:
    """`execution_timeout` of a task that waits without a worker ends the allocation."""
    found, said = play(
        {
            "late": {
                "slipway_conn_id": "slipway",
                "command": ["sleep", "600"],
                "retries": 0,
                "execution_timeout": 4,
                "deferrable": False,
            }
        }
    )
    assert found["late"].rpartition(".")[2].lower() == "failed", errors_of(said)
    [view] = tasks_of(stack, "late")
    assert stack.wait_for(view["id"], "Terminated")["result"] == "Canceled"


def errors_of(said: str) -> str:
    """The lines of a log that report errors."""
    return "\n".join(line for line in said.splitlines() if "Error" in line or "Exception" in line or "[error" in line)
