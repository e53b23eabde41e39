"""ImageLocality: prefers nodes that have the images already, large images most.

Each image adds its bytes on the node, multiplied by the fraction of all nodes that have it. So a node is not filled
only because it was the first with the image. The sum is clipped to 23 MiB at least and 1000 MiB per container at most,
and scaled.
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


def score(request: RankRequest, usage: NodeUsage, at: At, extra: Extra) -> Ints:
    """Return 0 for a node without any of the images."""
    table, images = usage.table, request.role.images
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
    """Return the image name with its tag; `latest` when it has none."""
    return f"{image}:latest" if image.rfind(":") <= image.rfind("/") else image
