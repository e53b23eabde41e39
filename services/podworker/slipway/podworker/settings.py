"""Settings of the pod worker."""

from typing import Annotated

from msgspec import Meta

from slipway.runtime.settings import CommonSettings


class Settings(CommonSettings, kw_only=True, frozen=True):
    """The settings of an operator, from `SLIPWAY_*`."""

    listen: Annotated[str, Meta(description="host:port of /livez, /readyz and /metrics")] = "127.0.0.1:8082"
    worker_identity: Annotated[
        str, Meta(description="name of this consumer of the work stream, unique per process; default: host and pid")
    ] = ""
    worker_hints: Annotated[
        int,
        Meta(
            ge=1,
            le=4096,
            description="hints in hand at the same time. More than calls in flight, because most of a hint's time is "
            "waiting, and one that waits for quota or a slow server must not hold up the others",
        ),
    ] = 256
    worker_calls: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="creates, bindings and deletes in flight at the same time, over all hints: what one process "
            "may ask of the API server",
        ),
    ] = 64
    worker_patience_s: Annotated[
        float,
        Meta(
            ge=0,
            le=600,
            description="how long one hint is retried in place before it is given back to come again later",
            extra={"unit": "seconds"},
        ),
    ] = 15.0
    worker_stuck_after_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="how long a launch may keep failing before its allocation is Stuck and its hint a dead letter",
            extra={"unit": "seconds"},
        ),
    ] = 600.0
    worker_poll_s: Annotated[
        float,
        Meta(
            gt=0,
            le=600,
            description="time between LISTs while Redis is absent or silent; while it answers, it is asked a quarter "
            "as often whether it takes writes",
            extra={"unit": "seconds"},
        ),
    ] = 2.0
    api_url: Annotated[
        str,
        Meta(
            description="where ranks find the API, as SLIPWAY_API in their environment. Default: the Service "
            "slipway-api in our namespace"
        ),
    ] = ""
    task_audience: Annotated[
        str,
        Meta(
            description="audience of the account token that is projected into ranks for their calls of the API, which "
            "takes tokens for the same one. Empty: they get none, and the tasks' door lets none of them in"
        ),
    ] = "slipway"
    context_image: Annotated[
        str,
        Meta(
            description="image of the init container that unpacks uploaded files (a launch with a context); it needs "
            "a Python 3.8 and nothing else. Empty: the image of the rank itself, which then has to have one"
        ),
    ] = ""
    context_python: Annotated[str, Meta(max_length=1024, description="the Python in that image, a name or a path")] = (
        "python3"
    )

    @property
    def task_api_url(self) -> str:
        """The URL of the API that ranks get in their environment."""
        return self.api_url or f"http://slipway-api.{self.namespace}.svc:8080"
