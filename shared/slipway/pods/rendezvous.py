"""The environment in which the programs of a gang find each other: what torch, its launcher and the like read.

Owns the names, and which of them a rank is given. Pure; knows no pod.

Invariants: `MASTER_ADDR`, `MASTER_PORT`, `RANK`, `WORLD_SIZE` and `NODE_RANK` count ranks and are in every rank.
`LOCAL_RANK` is there only where one process in a rank is meant: a rank of at most one GPU. A variable that repeats
another one refers to it, so that a user who sets `MASTER_PORT` moves the whole set; a user who sets one of the set
changes that one.

Source: torch/distributed/run.py and argparse_util.py (2.15): the default of each option of torchrun is `PET_<OPTION>`,
and nothing else of the environment; `is_host` is of elastic/rendezvous/c10d_rendezvous_backend.py.
lightning/fabric/plugins/environments/lightning.py (2.6): with `LOCAL_RANK` set it starts no process of its own.
Decision 38 weighs them.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from slipway.crd.roleresources import object_of
from slipway.model.quantity import parse_quantity
from slipway.model.resources import GPU_NAMES, scale_of

MASTER_PORT = 29500
ELASTIC_BACKEND = "c10d"


class GangSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks of an attempt agree on. `size` ranks were launched; `minimum` of the `wanted` are enough."""

    id: str
    size: int
    wanted: int
    minimum: int

    @property
    def is_elastic(self) -> bool:
        """Whether it goes on with fewer ranks than it asks for."""
        return self.minimum < self.wanted

    @property
    def nodes(self) -> str:
        """How many agents of torchrun there are: `N`, or `MIN:MAX` of an elastic gang.

        The maximum is what is asked for, because the gang may grow. Agents that are fewer start when the last call of
        the rendezvous is over (30 s by default), and start anew when others join.
        """
        return f"{min(self.minimum, self.size)}:{self.wanted}" if self.is_elastic else str(self.size)


def gpus_of(resources: Mapping[str, Any]) -> int:
    """The whole GPUs in {requests, limits}; a part of one is none."""
    asked = {**object_of(resources.get("limits")), **object_of(resources.get("requests"))}
    return sum(parse_quantity(asked[name], scale=scale_of(name)) for name in GPU_NAMES if name in asked)


def rank_variables(address: str, position: int, size: int, gpus: int) -> dict[str, str]:
    """What every container of a rank is told; a user's own variable may refer to it."""
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(MASTER_PORT),
        "RANK": str(position),
        "WORLD_SIZE": str(size),
        "NODE_RANK": str(position),
        "LOCAL_RANK": "0" if gpus <= 1 else "",
    }


def launcher_variables(gang: GangSpec, gpus: int, *, is_first: bool) -> dict[str, str]:
    """What the main container's launcher reads. It stands after the user's variables, because it refers to some.

    A rank that is alone gets only what differs from torchrun's own defaults. In an elastic gang the first rank is told
    that it has the store: torchrun would find out by its own name, which the name server may not know yet.
    """
    if gang.size == 1 and not gang.is_elastic:
        return {"PET_NPROC_PER_NODE": str(gpus)} if gpus > 1 else {}
    found = {
        "PET_NNODES": gang.nodes,
        "PET_NODE_RANK": "$(NODE_RANK)",
        "PET_NPROC_PER_NODE": str(max(1, gpus)),
        "PET_MASTER_ADDR": "$(MASTER_ADDR)",
        "PET_MASTER_PORT": "$(MASTER_PORT)",
    }
    if gang.is_elastic:
        found |= {
            "PET_RDZV_BACKEND": ELASTIC_BACKEND,
            "PET_RDZV_ENDPOINT": "$(MASTER_ADDR):$(MASTER_PORT)",
            "PET_RDZV_ID": gang.id,
            "PET_RDZV_CONF": f"is_host={str(is_first).lower()}",
        }
    return found
