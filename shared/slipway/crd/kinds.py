"""The defaults of each kind of workload: image, command, resources and port.

A pool's `defaults` override this table, and a request overrides both. Image names have no registry host, because each
cluster chooses its own. The kubelet expands `$(NAME)` from the environment of the container.
"""

from collections.abc import Mapping

from slipway.crd.v1alpha1 import KindDefaults
from slipway.model.lifecycle import Kind

ENV_CHECKPOINTS = "SLIPWAY_CHECKPOINT_DIR"
ENV_POD_IP = "SLIPWAY_POD_IP"
ENV_POD_UID = "SLIPWAY_POD_UID"
ENV_PROXY_PREFIX = "SLIPWAY_PROXY_PREFIX"
"""The path under which the api's proxy shows the pod, `/proxy/<AllocationID>/`."""
RESERVED_ENV_PREFIX = "SLIPWAY_"

LIBRARY_PATH = "/run/slipway/lib"
"""The folder of our programs in a pod."""

HOME_PATH = "/run/slipway/home"
"""The home directory of a rank whose image has none for its uid."""

NOTEBOOK_PORT = 8888
TENSORBOARD_PORT = 6006
SHELL_PORT = 7681
PREEMPTION_GRACE = "1h"

SERVICE_KINDS = frozenset({Kind.NOTEBOOK, Kind.SHELL, Kind.TENSORBOARD})
"""Kinds with a default command that runs in any image, also in one that the user chooses."""

_PYTHON = (
    "p=$(command -v python3 || command -v python) || "
    "{ echo 'Slipway needs a Python 3.9 or newer in this image; name another image, or a command' >&2; exit 127; }; "
    f'exec "$p" -I {LIBRARY_PATH} "$@"'
)
"""Runs the program that the next words name with any Python of the image. Isolated mode (-I) ignores PYTHON* variables
and the current folder."""


def _of_ours(*words: str) -> list[str]:
    return ["/bin/sh", "-c", _PYTHON, "slipway", *words]


KIND_DEFAULTS: Mapping[Kind, KindDefaults] = {
    Kind.NOTEBOOK: KindDefaults(
        image="jupyter/minimal-notebook:latest",
        command=_of_ours(
            "notebook",
            str(NOTEBOOK_PORT),
            "jupyter",
            "lab",
            "--no-browser",
            # A pod runs as root only if an administrator allowed it for the pool, or on a laptop; Jupyter need not
            # refuse it.
            "--allow-root",
            f"--ServerApp.ip=$({ENV_POD_IP})",
            f"--ServerApp.port={NOTEBOOK_PORT}",
            f"--ServerApp.base_url=$({ENV_PROXY_PREFIX})",
            "--ServerApp.port_retries=0",
            "--ServerApp.trust_xheaders=True",
            "--IdentityProvider.token=",
            # No page may contact other hosts by itself.
            "--LabApp.news_url=None",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            "--LabApp.extension_manager=readonly",
        ),
        resources={"cpu": "500m", "memory": "1Gi"},
        port=NOTEBOOK_PORT,
    ),
    Kind.SHELL: KindDefaults(
        image="python:3.12-slim",
        command=_of_ours("terminal"),
        resources={"cpu": "100m", "memory": "256Mi"},
        port=SHELL_PORT,
    ),
    Kind.COMMAND: KindDefaults(resources={"cpu": "100m", "memory": "256Mi"}),
    Kind.TENSORBOARD: KindDefaults(
        image="tensorflow/tensorflow:latest",
        command=_of_ours(
            "tensorboard",
            "tensorboard",
            f"--host=$({ENV_POD_IP})",
            f"--port={TENSORBOARD_PORT}",
            f"--path_prefix=$({ENV_PROXY_PREFIX})",
            "--logdir=$(TENSORBOARD_LOGDIR)",
        ),
        env={"TENSORBOARD_LOGDIR": "/tmp/tensorboard"},  # noqa: S108 - a path inside the user's container
        resources={"cpu": "250m", "memory": "1Gi"},
        port=TENSORBOARD_PORT,
    ),
    Kind.TRAINING: KindDefaults(resources={"cpu": "1", "memory": "1Gi"}),
}


def defaults_of(kind: Kind, pool_defaults: Mapping[Kind, KindDefaults]) -> KindDefaults:
    """Return the defaults of `kind` in a pool: each field of the pool's own defaults overrides the table."""
    base, over = KIND_DEFAULTS[kind], pool_defaults.get(kind)
    if over is None:
        return base
    has_program = bool(over.command or over.args)
    return KindDefaults(
        image=over.image or base.image,
        command=over.command if has_program else base.command,
        args=over.args if has_program else base.args,
        resources=over.resources or base.resources,
        env={**base.env, **over.env},
        port=base.port if over.port is None else over.port,
    )
