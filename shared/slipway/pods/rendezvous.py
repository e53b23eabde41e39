"""The environment variables with which the programs of a gang find each other, as torch and its launcher read them.

Owns the names, and which of them a rank gets. Pure; knows no pods.

Invariants: `MASTER_ADDR`, `MASTER_PORT`, `RANK`, `WORLD_SIZE` and `NODE_RANK` are about ranks and are set in every
rank. `LOCAL_RANK` is set only when a rank should run one process: when it has at most one GPU. A variable that repeats
another one refers to it, so that a user who sets `MASTER_PORT` changes the whole set. A user who sets another variable
of the set changes only that one.

Source: torch/distributed/run.py and argparse_util.py (2.15): the default of each option of torchrun is the variable
`PET_<OPTION>`, and no other variable; `is_host` is from elastic/rendezvous/c10d_rendezvous_backend.py.
lightning/fabric/plugins/environments/lightning.py (2.6): with `LOCAL_RANK` set it starts no processes. Decision 38
compares the alternatives.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from slipway.crd.roleresources import object_of
from slipway.model.resources import GPU_NAMES, parse_quantity, scale_of

MASTER_PORT = 29500
ELASTIC_BACKEND = "c10d"


class GangSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Values that all ranks of an attempt share. `size` ranks were launched; `minimum` of the `wanted` are enough."""

    id: str
    size: int
    wanted: int
    minimum: int

    @property
    def is_elastic(self) -> bool:
        """Whether the gang can run with fewer ranks than it requests."""
        return self.minimum < self.wanted

    @property
    def nodes(self) -> str:
        """The number of torchrun agents: `N`, or `MIN:MAX` for an elastic gang.

        The maximum is the requested number, because the gang may grow. Fewer agents start after the "last call" of the
        rendezvous (30 s by default), and start again when others join.
        """
        return f"{min(self.minimum, self.size)}:{self.wanted}" if self.is_elastic else str(self.size)


def gpus_of(resources: Mapping[str, Any]) -> int:
    """Return the whole GPUs in {requests, limits}; a part of a GPU is not included."""
    asked = {**object_of(resources.get("limits")), **object_of(resources.get("requests"))}
    return sum(parse_quantity(asked[name], scale=scale_of(name)) for name in GPU_NAMES if name in asked)


def rank_variables(address: str, position: int, size: int, gpus: int) -> dict[str, str]:
    """Return the variables of every container of a rank; variables of the user may refer to them."""
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(MASTER_PORT),
        "RANK": str(position),
        "WORLD_SIZE": str(size),
        "NODE_RANK": str(position),
        "LOCAL_RANK": "0" if gpus <= 1 else "",
    }


def launcher_variables(gang: GangSpec, gpus: int, *, is_first: bool) -> dict[str, str]:
    """Return the variables for the launcher in the main container. They come after the user's variables, because they
    refer to some of them.

    A single rank gets only the values that differ from torchrun's defaults. In an elastic gang a variable states that
    the first rank hosts the store. Otherwise torchrun would resolve its own name to find out, and the name server may
    not know it yet.
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
