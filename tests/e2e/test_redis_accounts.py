"""Each service of a whole system is on Redis as itself.

That nothing of what it sends is refused is looked at when the stack of all these tests ends (`running_stack`).
"""

import pytest
from redis.exceptions import NoPermissionError

from tests.support.local_stack import RunningStack

SERVICES = {"api", "scheduler", "podworker", "watcher"}


def test_each_service_has_its_own_account(stack: RunningStack) -> None:
    """None of them is on the server as the administrator, who may do everything."""
    with stack.redis() as redis:
        users = {each["name"]: each["user"] for each in redis.client_list() if each["name"] in SERVICES}
        assert users == {service: service for service in SERVICES}


def test_what_is_refused_is_seen(stack: RunningStack) -> None:
    """Else the end of the stack would prove nothing."""
    login = stack.stack.redis_login("podworker")
    with stack.redis() as redis:
        redis.acl_log_reset()
        redis.execute_command("AUTH", login["SLIPWAY_REDIS_USER"], login["SLIPWAY_REDIS_PASSWORD"])
        with pytest.raises(NoPermissionError):
            redis.xadd("slipway:alloc:{any}", {"a": "1"})
    assert stack.refused_by_redis() != []
    with stack.redis() as redis:
        redis.acl_log_reset()
