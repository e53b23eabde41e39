"""The setup of a rank: a script that runs in its main container before its program.

Owns the shell script that runs one after the other, and the words by which a failed setup is known. Pure.

Promises: the setup runs once in each pod, so once in each attempt of a rank; its lines are in the same log; the program
starts only if the setup ended with 0, in a process that has nothing of the setup's variables; the exit code of a failed
setup is that of the rank. A SIGTERM during the setup ends the setup.

The script is the first process of the container. Such a process has no default actions for signals: so the trap.
"""

from typing import Any

from slipway.crd.expansion import literal
from slipway.crd.kinds import HOME_PATH
from slipway.crd.meta import RawObject

SETUP_FAILED = "setup failed"
"""How the termination message of a rank begins whose setup failed. The watcher reads it."""
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
"""Of POSIX: images have other shells than bash. HOME is chosen as `slipway.inside.home` does for programs of ours."""
_RUN = 'exec "$(command -v bash || echo sh)" -e -c "$0"'


def with_setup(container: RawObject, setup: str) -> RawObject:
    """The container, whose program `setup` precedes. It has a command: that was checked."""
    said = str(container.get("terminationMessagePath") or TERMINATION_LOG)
    program: list[Any] = [*(container.get("command") or ()), *(container.get("args") or ())]
    # The words of the program keep the meaning of $(NAME) that they have; the setup never had one.
    front = [SHELL, "-c", literal(_SCRIPT), "slipway", literal(setup), said]
    return {**container, "command": front, "args": program}


def command_of(run: str) -> list[str]:
    """The command that runs a script in bash, or in sh where the image has no bash; it ends at a command that fails."""
    return [SHELL, "-c", _RUN, run]
