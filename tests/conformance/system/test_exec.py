"""Commands in ranks by the chart's own account: a real API server decides who may run them."""

from tests.conformance.system.operator import Json
from tests.conformance.system.system import System, a_body
from tests.conformance.system.test_rbac import without
from tests.support.wait import wait_until

RBAC = "/apis/rbac.authorization.k8s.io/v1"
API = f"{RBAC}/clusterroles/slipway-api"


def test_a_command_reaches_the_node(system: System) -> None:
    """The API server allows the request of the api's account and passes it to the simulated node, which runs no
    command."""
    id_ = system.launch(a_body(script={"runsS": 60}))
    system.wait_for(id_, "Running")
    ran = system.cli("exec", id_, "--", "true")
    assert ran.code == 1
    assert "error:" in ran.err
    assert "pods/exec" not in ran.err, ran.err
    account = system.installation.account("api")
    asked = {(each.verb, each.resource) for each in system.audit.requests(account) if each.is_allowed}
    assert ("get", "pods/exec") in asked
    assert system.cli("kill", id_, "--wait").code == 0


def test_a_missing_verb_is_named(system: System) -> None:
    """Without `pods/exec` in the role, the answer names the right to grant; everything else works."""
    role: Json = system.operator.get(API)
    id_ = system.launch(a_body(script={"runsS": 60}))
    system.wait_for(id_, "Running")
    with system.audit.excluded():
        system.operator.replace(API, {**role, "rules": without(role["rules"], "pods/exec")})
        try:
            words = "create and get on pods/exec, which the chart grants with api.settings.execEnabled=true"
            wait_until(lambda: words in system.cli("exec", id_, "--", "true").err, "the refusal names the verbs")
        finally:
            system.operator.replace(API, {**system.operator.get(API), "rules": role["rules"]})
    assert system.cli("kill", id_, "--wait").code == 0
