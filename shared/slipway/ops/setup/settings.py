"""Settings of the setup (the objects to make), of the trial (what it runs), and of the move of webhooks."""

from typing import Annotated, Any

from msgspec import Meta

from slipway.runtime.settings import CommonSettings


class Settings(CommonSettings, kw_only=True, frozen=True):
    """The settings of the setup, from `SLIPWAY_*`."""

    setup_pools: Annotated[
        dict[str, dict[str, Any]],
        Meta(description="ResourcePools to create when they are missing: a JSON object from name to spec."),
    ] = {}
    setup_queues: Annotated[
        dict[str, dict[str, Any]],
        Meta(description="Queues to create when they are missing: a JSON object from name to spec."),
    ] = {}
    setup_workspaces: Annotated[
        tuple[str, ...], Meta(description="Namespaces to label as workspaces; they must exist.")
    ] = ()


class TrialSettings(CommonSettings, kw_only=True, frozen=True):
    """The settings of a trial, from `SLIPWAY_*`."""

    trial_workspace: Annotated[str, Meta(description="Workspace of the trial launch.")] = "default"
    trial_pool: Annotated[str, Meta(description="ResourcePool of the trial launch.")] = "default"
    trial_queue: Annotated[str, Meta(description="Queue of the trial launch.")] = "default"
    trial_image: Annotated[
        str, Meta(min_length=1, description="Image of the trial's container; it must contain Python 3.")
    ] = "python:3.11"
    trial_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="Time limit of the trial, including the wait in the queue and the pull of the image.",
            extra={"unit": "seconds"},
        ),
    ] = 120.0


class MoveSettings(CommonSettings, kw_only=True, frozen=True):
    """The settings of the move of webhooks from an older release, from `SLIPWAY_*`."""

    move_to: Annotated[str, Meta(min_length=1, max_length=63, description="Namespace to which webhooks are moved.")]
    move_release: Annotated[str, Meta(min_length=1, description="Name of the Helm release in that namespace.")]
