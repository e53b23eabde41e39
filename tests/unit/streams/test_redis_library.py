"""How redis-py is imported."""

import subprocess
import sys


def run(program: str) -> str:
    """What it prints last, in a process that has imported nothing yet."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_a_service_starts_without_the_metrics_of_the_sdk() -> None:
    """What redis-py would load and nothing here uses is not loaded; nor what that would load."""
    program = (
        "import sys\n"
        "import slipway.api.main, slipway.podworker.main, slipway.scheduler.main, slipway.watcher.main\n"
        "print(sorted({'opentelemetry.sdk.metrics', 'psutil'} & set(sys.modules)))"
    )
    assert run(program) == "[]"


def test_the_sdk_can_be_imported_later() -> None:
    """Its metrics were hidden for as long as the import of redis-py took, and no longer."""
    program = (
        "from slipway.streams import redis_library\n"
        "from opentelemetry.sdk.metrics import MeterProvider\n"
        "print(MeterProvider.__name__)"
    )
    assert run(program) == "MeterProvider"


def test_an_sdk_that_is_loaded_already_stays() -> None:
    """An importer that has its own metrics keeps them."""
    program = (
        "import sys\n"
        "import opentelemetry.sdk.metrics as before\n"
        "from slipway.streams import redis_library\n"
        "print(sys.modules['opentelemetry.sdk.metrics'] is before)"
    )
    assert run(program) == "True"
