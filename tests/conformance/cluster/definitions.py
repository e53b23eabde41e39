"""The custom resource definitions of other projects whose objects the chart makes, as they publish them.

Owns the list of projects and versions, and verifies the downloads. Go modules contain the definitions; they are
downloaded into Go's own module cache when needed, and no copy is kept here.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tests.conformance.cluster.binaries import MissingProgramError, go_toolchain

DOWNLOAD_S = 180.0


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A module with its sum, as Go writes it into a go.sum, and the path of the definitions in it."""

    module: str
    sum: str
    files: Sequence[str]


SOURCES = (
    Source(
        module="github.com/kedacore/keda/v2@v2.21.0",
        sum="h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=",
        files=[
            "config/crd/bases/keda.sh_scaledobjects.yaml",
            "config/crd/bases/keda.sh_scaledjobs.yaml",
            "config/crd/bases/keda.sh_triggerauthentications.yaml",
        ],
    ),
    Source(
        module="github.com/prometheus-operator/prometheus-operator@v0.85.0",
        sum="h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
        files=[
            f"example/prometheus-operator-crd/monitoring.coreos.com_{plural}.yaml"
            for plural in ("podmonitors", "servicemonitors", "prometheusrules")
        ],
    ),
    Source(
        module="sigs.k8s.io/gateway-api@v1.4.0",
        sum="h1:ZwlNM6zOHq0h3WUX2gfByPs2yAEsy/EenYJB78jpQfQ=",
        files=["config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"],
    ),
)


def definitions() -> list[dict[str, Any]]:
    """Return every definition.

    Raises:
        MissingProgramError: there is no Go toolchain, or a module cannot be downloaded.
        ValueError: a download does not match its sum.
    """
    return [yaml.safe_load(file.read_text(encoding="utf-8")) for source in SOURCES for file in _files(source)]


def _files(source: Source) -> list[Path]:
    argv = [go_toolchain(), "mod", "download", "-json", source.module]
    # Run outside of any module of ours, because the definitions are no dependency of it.
    done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
    found = json.loads(done.stdout or "{}")
    if "Dir" not in found:
        raise MissingProgramError(f"{source.module} cannot be downloaded: {found.get('Error') or done.stderr}")
    if found["Sum"] != source.sum:
        raise ValueError(f"{source.module} is {found['Sum']}, not {source.sum}")
    return [Path(found["Dir"], file) for file in source.files]
