"""Each service of a whole system uses its own Redis account.

`running_stack` checks at the end of all these tests that no command was refused.
"""

import pytest
from redis.exceptions import NoPermissionError

from tests.support.local_stack import RunningStack

SERVICES = {"api", "scheduler", "podworker", "watcher"}


def test_each_service_has_its_own_account(stack: RunningStack) -> None:
    """No service uses the administrator's account, which may do everything."""
    with stack.redis() as redis:
        users = {each["name"]: each["user"] for each in redis.client_list() if each["name"] in SERVICES}
        assert users == {service: service for service in SERVICES}


def test_what_is_refused_is_seen(stack: RunningStack) -> None:
    """Without this the check at the end of the stack would prove nothing."""
    login = stack.stack.redis_login("podworker")
    with stack.redis() as redis:
        redis.acl_log_reset()
        redis.execute_command("AUTH", login["SLIPWAY_REDIS_USER"], login["SLIPWAY_REDIS_PASSWORD"])
        with pytest.raises(NoPermissionError):
            redis.xadd("slipway:alloc:{any}", {"a": "1"})
    assert stack.refused_by_redis() != []
    with stack.redis() as redis:
        redis.acl_log_reset()
