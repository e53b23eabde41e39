"""A core with a clock that only the test moves, and uids that are numbers."""

import itertools
from typing import Any

from slipway.local.apiserver.core import ClusterCore
from tests.contract.kube.samples import TWINS, definition

Json = dict[str, Any]
WIDGETS = "widgets.contract.slipway.dev"
DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
START = 1_700_000_000.0


class HandClock:
    """Epoch seconds that only the test moves."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def a_core(clock: HandClock | None = None, **options: Any) -> ClusterCore:
    numbers = itertools.count(1)
    core = ClusterCore(clock=clock or HandClock(), new_uid=lambda: f"{next(numbers):08d}-uid", twins=TWINS, **options)
    core.bootstrap()
    return core


def with_widgets(core: ClusterCore) -> ClusterCore:
    core.create(DEFINITIONS, "", definition())
    return core


def meta_of(obj: Json) -> Json:
    return obj["metadata"]
