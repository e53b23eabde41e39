"""The setup of a rank: a script that runs in its main container before its program.

Owns the shell script that runs first the setup and then the program, and the message that marks a failed setup. Pure.

Promises: the setup runs once in each pod, so once in each attempt of a rank. Its output is in the same log. The program
starts only if the setup ended with 0, and does not inherit variables that the setup sets. A rank whose setup failed has
the exit code of the setup. A SIGTERM during the setup ends the setup.

The script is the first process of the container. The kernel applies no default signal actions to it, so it has a trap.
"""

from typing import Any

from slipway.crd.expansion import literal
from slipway.crd.kinds import HOME_PATH
from slipway.crd.meta import RawObject

SETUP_FAILED = "setup failed"
"""Start of the termination message of a rank whose setup failed. The watcher reads it."""
TERMINATION_LOG = "/dev/termination-log"
SHELL = "/bin/sh"
_SCRIPT = f"""slipway_setup=$1; slipway_said=$2; shift 2
slipway_home=${{HOME:-/}}
[ -w "$slipway_home" ] || [ ! -w {HOME_PATH} ] || slipway_home={HOME_PATH}
slipway_child=
trap '[ -z "$slipway_child" ] || {{ kill -TERM "$slipway_child"; wait "$slipway_child"; }}; exit 143' TERM
HOME=$slipway_home "$(command -v bash || echo sh)" -e -c "$slipway_setup" setup &
slipway_child=$!
wait "$slipway_child"
slipway_code=$?
trap - TERM
if [ "$slipway_code" -ne 0 ]; then
  echo "slipway: {SETUP_FAILED} with exit code $slipway_code" >&2
  ( echo "{SETUP_FAILED}" > "$slipway_said" ) 2>/dev/null
  exit "$slipway_code"
fi
exec "$@"
"""
"""The script uses only POSIX features, because some images have no bash. It chooses HOME as `slipway.inside.home` does
for our programs."""
_RUN = 'exec "$(command -v bash || echo sh)" -e -c "$0"'


def with_setup(container: RawObject, setup: str) -> RawObject:
    """Return the container with `setup` before its program. It has a command: the caller has checked that."""
    said = str(container.get("terminationMessagePath") or TERMINATION_LOG)
    program: list[Any] = [*(container.get("command") or ()), *(container.get("args") or ())]
    # Kubernetes expands $(NAME) in the words of the program, as before; the text of the setup is never expanded.
    front = [SHELL, "-c", literal(_SCRIPT), "slipway", literal(setup), said]
    return {**container, "command": front, "args": program}


def command_of(run: str) -> list[str]:
    """Return the command that runs a script in bash, or in sh when the image has no bash. The script ends at the first
    command that fails."""
    return [SHELL, "-c", _RUN, run]
