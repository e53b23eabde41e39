"""The code that runs inside a pod. `from slipway import inside` offers the calls of `client.py`: `inside.ready()`,
`inside.preempted()`, `inside.allgather(...)`.

The calls are loaded on first use, because other modules of this folder start without them. Standard library only.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipway.inside.client import ApiRefusedError as ApiRefusedError
    from slipway.inside.client import Client as Client
    from slipway.inside.client import NotInTimeError as NotInTimeError
    from slipway.inside.client import ack as ack
    from slipway.inside.client import activity as activity
    from slipway.inside.client import allgather as allgather
    from slipway.inside.client import daemon as daemon
    from slipway.inside.client import own as own
    from slipway.inside.client import preempted as preempted
    from slipway.inside.client import preemption as preemption
    from slipway.inside.client import progress as progress
    from slipway.inside.client import ready as ready
    from slipway.inside.client import rendezvous as rendezvous
    from slipway.inside.client import waiting as waiting

_CALLS = (
    *("ApiRefusedError", "Client", "NotInTimeError", "ack", "activity", "allgather", "daemon", "own"),
    *("preempted", "preemption", "progress", "ready", "rendezvous", "waiting"),
)


def __getattr__(name: str) -> Any:
    if name not in _CALLS:
        raise AttributeError(f"slipway.inside has no {name}")
    from slipway.inside import client

    return getattr(client, name)
