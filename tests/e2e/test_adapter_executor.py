"""Calls of `SlipwayExecutor` on the whole system: real ranks, real logs, results and failures."""

import sys
from collections.abc import Callable, Generator
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import Any

import pytest

from slipway.adapters.executor import CALL_BYTES_MAX, RESULT_BYTES_MAX, CallFailedError, RunFuture, SlipwayExecutor
from slipway.errors import InvalidError
from slipway.sdk import Client
from tests.support.local_stack import RunningStack
from tests.support.wait import wait_until

Make = Callable[..., SlipwayExecutor]
END_S = 60.0


@pytest.fixture
def make(stack: RunningStack) -> Generator[Make]:
    """A factory of executors on the stack, with the Python of the tests in the ranks."""
    with Client(stack.url, token=stack.stack.token) as client:

        def executor(**options: Any) -> SlipwayExecutor:
            return SlipwayExecutor(client, python=(sys.executable,), **options)

        yield executor


def id_of(future: "Future[Any]") -> str:
    assert isinstance(future, RunFuture)
    return future.allocation_id


def of_a_module() -> None:
    """A function of a module that ranks do not have."""


def test_functions_of_any_kind_come_back(make: Make, stack: RunningStack) -> None:
    """A closure can be called, also many at once, with results in the order of `map`; each call is a launch with the
    requested fields."""
    base = 40

    def raised(number: int) -> int:
        return base + number

    with make(cpus=1, labels={"team": "vision"}) as pool:
        assert list(pool.map(raised, range(3), timeout=END_S)) == [40, 41, 42]
        named = pool.submit(dict, a=1)
        assert next(as_completed([named], timeout=END_S)).result() == {"a": 1}
        labels = stack.view(id_of(named))["labels"]
    assert labels["team"] == "vision"


def test_an_exception_in_a_rank_is_raised_at_the_caller(make: Make) -> None:
    """The caller gets the same exception, with a note that names rank and launch, and the rank's traceback."""

    def fail() -> None:
        raise KeyError("no such key")

    with make() as pool:
        failed = pool.submit(fail)
        error = failed.exception(END_S)
    assert isinstance(error, KeyError)
    assert f"in rank 0 of {id_of(failed)}" in error.__notes__[0]
    assert "in fail" in error.__notes__[0]


def test_large_results_come_back_whole_or_are_refused(make: Make) -> None:
    """Results up to the limit return through the log; beyond it the error names another way."""
    with make() as pool:
        fits, does_not = pool.submit(bytes, RESULT_BYTES_MAX - 1024), pool.submit(bytes, RESULT_BYTES_MAX + 1)
        assert fits.result(END_S) == bytes(RESULT_BYTES_MAX - 1024)
        with pytest.raises(CallFailedError, match="give SlipwayExecutor a shared folder"):
            does_not.result(END_S)
        with pytest.raises(InvalidError, match="give SlipwayExecutor a shared folder"):
            pool.submit(len, bytes(CALL_BYTES_MAX))


def test_a_shared_folder_has_no_such_limits_and_is_left_empty(make: Make, marks: Path) -> None:
    """Calls and results are files, which are deleted once they were read."""
    marks.chmod(0o777)
    data = bytes(range(256)) * 8_000
    with make(folder=str(marks)) as pool:
        assert pool.submit(bytes.__add__, data, b"end").result(END_S) == data + b"end"
    assert list(marks.iterdir()) == []
    with pytest.raises(InvalidError, match="absolute path"):
        make(folder="here")


def test_each_rank_of_a_gang_calls(make: Make) -> None:
    """With `ranks` the result is a list, ordered by rank."""

    def rank() -> str:
        import os

        return f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}"

    with make(ranks=2) as pool:
        assert pool.submit(rank).result(END_S) == ["0 of 2", "1 of 2"]


def test_a_call_that_does_not_run_yet_can_be_cancelled(make: Make, stack: RunningStack) -> None:
    """Its allocation is ended with it; the pool can be left at once."""
    with make(gpus=64) as pool:
        never = pool.submit(print)
        assert never.cancel()
        assert never.cancelled()
    view = stack.wait_for(id_of(never), "Terminated")
    assert view["result"] == "Canceled"


def test_a_call_that_is_killed_says_so(make: Make, stack: RunningStack) -> None:
    """The error has the id and the end; a running call cannot be cancelled."""

    def sleep_long() -> None:
        import time

        time.sleep(600)

    with make() as pool:
        sleeping = pool.submit(sleep_long)
        wait_until(sleeping.running, "the call runs")
        assert not sleeping.cancel()
        assert stack.command("kill", id_of(sleeping)).code == 0
        with pytest.raises(CallFailedError, match=rf"{id_of(sleeping)}: Canceled \(Killed\)"):
            sleeping.result(END_S)


def test_a_function_that_the_ranks_cannot_import_says_so(make: Make) -> None:
    """A function of a module is pickled by its name, as in every pickle: the error names the module."""
    with make() as pool, pytest.raises(ModuleNotFoundError, match="tests"):
        pool.submit(of_a_module).result(END_S)


def test_no_call_is_taken_after_the_end(make: Make) -> None:
    """No call is accepted after the shutdown, as in every executor."""
    pool = make()
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(print)
    with pytest.raises(InvalidError, match="command"):
        make(command=["true"])
