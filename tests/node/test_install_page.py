"""docs/install.md, followed to the letter on real nodes: its console blocks are run as they are written."""

import json
from contextlib import suppress
from pathlib import Path

from tests.node.conftest import VALUES, Product, cordoned
from tests.node.images import SLIPWAY, WORKLOAD
from tests.support import chart
from tests.support.install_page import Reader, blocks, reason_of

REPOSITORY, _, TAG = SLIPWAY.rpartition(":")
PLACEHOLDERS = {"REGISTRY/slipway": REPOSITORY, "tag=TAG": f"tag={TAG}", "python:3.11": WORKLOAD}
"""Replacements for words of the page: there is no registry here."""


def test_the_page_leads_to_a_running_allocation_and_back(installation: Product, tmp_path: Path) -> None:
    """The page installs, tries, reaches, launches, upgrades and uninstalls: each block as written, in the page's
    order."""
    cluster, control = installation.cluster, installation.cluster.control
    installation.uninstall()
    values = tmp_path / "place.json"
    values.write_text(json.dumps({"valkey": VALUES["valkey"]}), "utf-8")
    reader = Reader(
        tmp_path,
        kubectl=control.binaries.kubectl,
        kubeconfig=control.kubeconfig,
        values=values,
        placeholders=PLACEHOLDERS,
    )
    said = ""
    with cordoned(cluster, *cluster.nodes[1:]):
        try:
            for block in blocks():
                if not reason_of(block):
                    done = reader.follow(block)
                    said += done.out if "slipway run" in block.script else ""
            assert said.splitlines()[0] == "hello from a pod"
            assert "default     run-" in said
            assert "allocations.slipway.dev" not in cluster.kubectl("get", "crds", "--output", "name")
        finally:
            reader.close()
            with suppress(chart.HelmError):  # it is installed only when the page was not followed to its end
                chart.uninstall(control.kubeconfig)
