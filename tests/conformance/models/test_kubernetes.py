"""A slice of `make models`: the model of Kubernetes answers as a real API server does."""

from tests.conformance.wanted import require_own_cluster
from tests.models.kubernetes.running import differ

OPERATIONS = 5_000
SEED = 7


def test_the_model_answers_as_a_real_api_server_does() -> None:
    """Random sequences over our kinds, pods, leases, services and nodes get the same answers and the same watch
    events."""
    require_own_cluster()
    report = differ(OPERATIONS, SEED, "")
    assert report.operations >= OPERATIONS
    assert "\n".join(report.differences) == ""
