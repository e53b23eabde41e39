"""How redis-py is imported."""

import subprocess
import sys


def run(program: str) -> str:
    """Run the program in a new process; return the last line of its output."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_a_service_starts_without_the_metrics_of_the_sdk() -> None:
    """The metrics of the SDK, which redis-py would import and no service uses, are not loaded, nor are their
    dependencies."""
    program = (
        "import sys\n"
        "import slipway.api.main, slipway.podworker.main, slipway.scheduler.main, slipway.watcher.main\n"
        "print(sorted({'opentelemetry.sdk.metrics', 'psutil'} & set(sys.modules)))"
    )
    assert run(program) == "[]"


def test_the_sdk_can_be_imported_later() -> None:
    """The SDK's metrics can be imported later: they are hidden only during the import of redis-py."""
    program = (
        "from slipway.streams import redis_library\n"
        "from opentelemetry.sdk.metrics import MeterProvider\n"
        "print(MeterProvider.__name__)"
    )
    assert run(program) == "MeterProvider"


def test_an_sdk_that_is_loaded_already_stays() -> None:
    """An SDK that is loaded already keeps its metrics."""
    program = (
        "import sys\n"
        "import opentelemetry.sdk.metrics as before\n"
        "from slipway.streams import redis_library\n"
        "print(sys.modules['opentelemetry.sdk.metrics'] is before)"
    )
    assert run(program) == "True"
