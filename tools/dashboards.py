"""`python -m tools.dashboards helm/files/dashboards`: writes the chart's Grafana dashboards from their tables.

Owns the JSON format of Grafana. `tools/boards` contains the panels. Each panel's description is the question that it
answers, and `quiet` says why a healthy system shows no data there. A panel without `quiet` must have data wherever
workloads run (a test checks this with a real Prometheus).

Invariant: the same tables produce the same bytes.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.boards.overview import OVERVIEW
from tools.boards.panel import Board, Panel
from tools.boards.reliability import RELIABILITY
from tools.boards.services import SERVICES

Json = dict[str, Any]

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HEIGHT = 7
COLUMNS = 24

BOARDS = (OVERVIEW, SERVICES, RELIABILITY)


def files() -> dict[str, str]:
    """Return `{file name: JSON}` of every dashboard."""
    return {f"{board.name}.json": json.dumps(_board(board), indent=1) + "\n" for board in BOARDS}


def _board(board: Board) -> Json:
    panels: list[Json] = []
    top = 0
    for heading, row in board.rows.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": heading,
                "gridPos": _place(0, top, COLUMNS, 1),
                "panels": [],
            }
        )
        top, left = top + 1, 0
        for panel in row:
            if left + panel.width > COLUMNS:
                top, left = top + HEIGHT, 0
            panels.append(_panel(panel, len(panels) + 1, _place(left, top, panel.width, HEIGHT)))
            left += panel.width
        top += HEIGHT
    return {
        "title": board.title,
        "uid": f"slipway-{board.name}",
        "tags": ["slipway"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "links": [
            {"type": "dashboards", "title": "Slipway", "tags": ["slipway"], "asDropdown": False, "keepTime": True}
        ],
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]
        },
        "annotations": {"list": []},
        "panels": panels,
    }


def _place(x: int, y: int, w: int, h: int) -> Json:
    return {"x": x, "y": y, "w": w, "h": h}


def _panel(panel: Panel, number: int, place: Json) -> Json:
    is_histogram = any("_bucket" in expression for expression, _ in panel.queries)
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.asks,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "expr": expression,
                "legendFormat": legend,
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                # A click on an exemplar of a histogram leads to its trace.
                **({"exemplar": True} if is_histogram else {}),
            }
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }


def main(arguments: Sequence[str]) -> int:
    """Write the dashboards into a folder, and remove other JSON files there."""
    folder = Path(arguments[0])
    written = files()
    for path in folder.glob("*.json"):
        if path.name not in written:
            path.unlink()
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(written)} dashboards in {folder}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
