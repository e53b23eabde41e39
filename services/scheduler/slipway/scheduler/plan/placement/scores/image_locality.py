"""ImageLocality: prefers nodes that have the images already, large ones most.

Each image counts its bytes there times the part of all nodes that have it, so that one node is not filled only because
it was first. The sum is held between 23 MiB and 1000 MiB per container, and scaled.
Source: kube-scheduler 1.37 imagelocality/image_locality.go.
"""

import numpy as np

from slipway.scheduler.plan.placement.scores.base import SCORE_MAX, Extra
from slipway.scheduler.plan.state.nodes import At, Ints
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "ImageLocality"
_MEBI = 1024 * 1024
LEAST = 23 * _MEBI
MOST_PER_CONTAINER = 1000 * _MEBI


def score(ask: RankRequest, usage: NodeUsage, at: At, extra: Extra) -> Ints:
    """0 for a node without any of the images."""
    table, images = usage.table, ask.role.images
    if not table.has_images or not images:
        return np.zeros(table.ready[at].shape, dtype=np.int64)
    found = np.zeros(len(table), dtype=np.int64)
    for image in images:
        sizes = table.image(tagged(image))
        spread = np.count_nonzero(sizes) / len(table)
        found += (sizes * spread).astype(np.int64)
    most = MOST_PER_CONTAINER * len(images)
    return (SCORE_MAX * (np.clip(found, LEAST, most) - LEAST) // (most - LEAST))[at]


def tagged(image: str) -> str:
    """The name with its tag: `latest` when it says none."""
    return f"{image}:latest" if image.rfind(":") <= image.rfind("/") else image
