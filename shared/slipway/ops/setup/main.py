"""The composition root of the setup, which runs once and ends: settings -> client -> initial objects."""

import sys

from slipway.kube import client
from slipway.ops.setup.initial_objects import InitialObjects
from slipway.ops.setup.settings import Settings
from slipway.runtime import service
from slipway.runtime.service import ServiceContext

NAME = "setup"


def main() -> int:
    """Entry point of `slipway-setup`: exit code 0 when every object exists, 1 when the setup should be tried again."""
    return service.run(NAME, Settings, build, argv=["--once", *sys.argv[1:]])


async def build(context: ServiceContext[Settings]) -> None:
    """Make the missing objects."""
    settings = context.settings
    kube = await context.resources.enter_async_context(
        client.connect(
            settings.kubeconfig or None, clock=context.clock, random=context.random, user_agent="slipway-setup"
        )
    )
    await InitialObjects(kube, context.clock).create_missing(
        pools=settings.setup_pools, queues=settings.setup_queues, workspaces=settings.setup_workspaces
    )


if __name__ == "__main__":
    raise SystemExit(main())
