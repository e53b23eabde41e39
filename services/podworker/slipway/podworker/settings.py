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
            description="maximum number of hints handled at the same time. More than calls in flight, because a hint "
            "mostly waits, and a hint that waits for quota or a slow server must not delay the others",
        ),
    ] = 256
    worker_calls: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="maximum number of creates, bindings and deletes in flight at the same time, over all hints; "
            "limits the load that one process puts on the API server",
        ),
    ] = 64
    worker_patience_s: Annotated[
        float,
        Meta(
            ge=0,
            le=600,
            description="how long one hint is retried in place before it is returned to the stream, for a later "
            "delivery",
            extra={"unit": "seconds"},
        ),
    ] = 15.0
    worker_stuck_after_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="how long a launch or a teardown may keep failing before its allocation becomes Stuck; the "
            "hint of a launch then becomes a dead letter",
            extra={"unit": "seconds"},
        ),
    ] = 600.0
    worker_poll_s: Annotated[
        float,
        Meta(
            gt=0,
            le=600,
            description="time between LISTs while Redis is absent or does not answer. While Redis answers, the worker "
            "checks a quarter as often whether Redis accepts writes",
            extra={"unit": "seconds"},
        ),
    ] = 2.0
    api_url: Annotated[
        str,
        Meta(
            description="URL of the API for ranks, SLIPWAY_API in their environment. Default: the Service slipway-api "
            "in our namespace"
        ),
    ] = ""
    task_audience: Annotated[
        str,
        Meta(
            description="audience of the service account token that is projected into ranks for their calls of the "
            "API; must equal the task audience of the api. Empty: ranks get no token, and the task port refuses them"
        ),
    ] = "slipway"
    context_image: Annotated[
        str,
        Meta(
            description="image of the init container that unpacks uploaded files (a launch with a context); it needs "
            "Python 3.8 and nothing else. Empty: the image of the rank itself, which must then contain Python"
        ),
    ] = ""
    context_python: Annotated[str, Meta(max_length=1024, description="name or path of Python in that image")] = (
        "python3"
    )

    @property
    def task_api_url(self) -> str:
        """The URL of the API that ranks get in their environment."""
        return self.api_url or f"http://slipway-api.{self.namespace}.svc:8080"
