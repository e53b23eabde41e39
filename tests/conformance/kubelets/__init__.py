"""Simulated nodes for any Kubernetes API server: bound pods run, end and obey deletion, without any container.

See README.md in this folder. `Kubelets` is all nodes of one process; `Script` says what a pod does.
"""

from tests.conformance.kubelets.kubelets import Kubelets
from tests.conformance.kubelets.nodes import Shape
from tests.conformance.kubelets.objects import Taint
from tests.conformance.kubelets.records import Run
from tests.conformance.kubelets.script import PLAY, Script

__all__ = ["PLAY", "Kubelets", "Run", "Script", "Shape", "Taint"]
