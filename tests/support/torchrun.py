"""How torchrun reads an environment and a command line: its own rules, without torch.

Owns the options that decide which agents meet, their defaults, and the derivation of the endpoint.

Source: torch/distributed/argparse_util.py (`env`: the default of an option is PET_<DEST>), torch/distributed/run.py
(`get_args_parser`, `parse_min_max_nnodes`, `get_rdzv_endpoint`, the change of backend in `run`), torch 2.15.
"""

from collections.abc import Mapping, Sequence

import msgspec

_DEFAULTS = {
    "nnodes": "1:1",
    "nproc_per_node": "1",
    "node_rank": "0",
    "master_addr": "127.0.0.1",
    "master_port": "",
    "rdzv_backend": "static",
    "rdzv_endpoint": "",
    "rdzv_id": "none",
    "rdzv_conf": "",
}
_ANY_PORT = "localhost:0"


class TorchrunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The agent that torchrun would start."""

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    node_rank: int
    rdzv_backend: str
    rdzv_endpoint: str
    rdzv_id: str
    rdzv_conf: str


def torchrun_options(env: Mapping[str, str], arguments: Sequence[str] = ()) -> TorchrunOptions:
    """The agent of `torchrun *arguments train.py` in this environment."""
    found = {name: env.get(f"PET_{name.upper()}", default) for name, default in _DEFAULTS.items()}
    found |= _options(arguments)
    low, _, high = found["nnodes"].partition(":")
    backend, endpoint = found["rdzv_backend"], found["rdzv_endpoint"]
    if backend == "static" and not endpoint:
        endpoint = f"{found['master_addr']}:{found['master_port']}"
        if not found["master_port"]:
            is_alone = int(high or low) == 1
            backend, endpoint = ("c10d", _ANY_PORT) if is_alone else (backend, f"{found['master_addr']}:29500")
    return TorchrunOptions(
        min_nodes=int(low),
        max_nodes=int(high or low),
        nproc_per_node=int(found["nproc_per_node"]),
        node_rank=int(found["node_rank"]),
        rdzv_backend=backend,
        rdzv_endpoint=endpoint,
        rdzv_id=found["rdzv_id"],
        rdzv_conf=found["rdzv_conf"],
    )


def _options(arguments: Sequence[str]) -> dict[str, str]:
    """Parse `--name value` and `--name=value`, with hyphens or underscores."""
    found: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        name, has_value, value = word.removeprefix("--").partition("=")
        found[name.replace("-", "_")] = value if has_value else next(words)
    return found
