"""`SlipwaySpawner`: runs JupyterHub's single-user servers as launches. Needs `slipway-ai[jupyterhub]` in the hub.

Owns the launch of a server, the state that it reports to the hub, and the end of the server. The hub owns the login,
the proxy and the pages.

Promises: a hub that is restarted finds its servers again. A server whose id the hub lost before it stored it is ended
before the same user gets another one. While the api does not say how a server is, it is reported as running.

Not supported: `internal_ssl`.
"""

import hashlib
import re
from collections.abc import AsyncGenerator
from typing import Any, cast

from jupyterhub.spawner import Spawner
from traitlets import Dict, Int, List, Unicode

from slipway.api.schemas import AllocationView
from slipway.errors import ControlPlaneError, DeadlineError, NotFoundError
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from slipway.sdk import AsyncClient

Json = dict[str, Any]

LABEL_USER, LABEL_SERVER, LABEL_HUB = "jupyterhub-user", "jupyterhub-server", "jupyterhub-hub"
SECRET_NAMES = ("JUPYTERHUB_API_TOKEN", "JPY_API_TOKEN")
"""Variables with secret values, which must not be readable in the allocation."""
STOP_S = 60.0
UNKNOWN_FAILURE = 1
"""The exit status of a server that has none of its own: it was evicted, its node was lost, or it is deleted."""
_DEFAULT = "default"
_NOT_OF_A_LABEL = re.compile(r"[^a-zA-Z0-9._-]+")


class SlipwaySpawner(Spawner):
    """The spawner. In `jupyterhub_config.py`: `c.JupyterHub.spawner_class =
    "slipway.adapters.jupyterhub.SlipwaySpawner"`."""

    server_url = Unicode(help="URL of the api; empty: SLIPWAY_SERVER, as the command finds it").tag(config=True)
    token = Unicode(help="token of the api; empty: SLIPWAY_API_TOKEN").tag(config=True)
    hub_name = Unicode("hub", help="name of the hub; it distinguishes the servers of several hubs").tag(config=True)
    image = Unicode(help="image of the servers, with the package jupyterhub in it; empty: the pool's").tag(config=True)
    launch = Dict(help="further fields of the launch: queue, gpus, cpus, memory, workspace, idle_timeout, ...").tag(
        config=True
    )
    allowed_options = List(
        Unicode(), help="fields that users may choose in their options (a form, or the API of the hub), such as gpus"
    ).tag(config=True)
    port = Int(8888, help="port of the servers in their pods").tag(config=True)

    allocation_id = ""
    _client: AsyncClient | None = None

    # --- what the hub asks for ----------------------------------------------------------------------------------------

    async def start(self) -> str:
        """Launch the server and wait until it runs. Return its URL.

        Raises:
            ValueError: an option that users may not choose. RuntimeError: the server has ended, or the api refused a
            request.
        """
        if self.internal_ssl:
            raise RuntimeError("SlipwaySpawner: internal_ssl is not supported; set c.JupyterHub.internal_ssl = False")
        if odd := sorted(set(self.user_options) - set(self.allowed_options)):
            allowed = ", ".join(self.allowed_options) or "none"
            raise ValueError(f"option {odd[0]}: c.SlipwaySpawner.allowed_options does not name it; allowed: {allowed}")
        self.ip = "0.0.0.0"  # noqa: S104 - in a pod of its own
        variables = {name: str(value) for name, value in cast("Json", self.get_env()).items()}
        secret = {name: variables.pop(name) for name in SECRET_NAMES if variables.get(name)}
        fields: Json = {**self.launch, **self.user_options}
        fields["labels"] = {**fields.get("labels", {}), **self._labels()}
        fields["env"] = {**fields.get("env", {}), **variables}
        fields["secret_values"] = {**fields.get("secret_values", {}), **secret}
        fields["ports"] = [{"name": "server", "port": self.port}]
        fields |= {"image": self.image} if self.image and "image" not in fields else {}
        words = cast("list[str]", self.cmd)  # pyright: ignore[reportUnknownMemberType] - it has no types
        command = [*words, *self.get_args()]
        client = self._opened()
        try:
            await self._end_lost(client)
            run = await client.launch("command", command=command, **fields)
            self.allocation_id = run.id
            self.log.info("launched %s for %s", run.id, self._log_name)
            await run.wait(until="running")
            if run.phase is not Phase.RUNNING:
                raise RuntimeError(f"{run.id}: {run.result or run.phase}: {run.view.message or run.view.reason}")
            pods = await client.pods(run.id)
        except ControlPlaneError as error:
            raise RuntimeError(f"slipway: {error}{f' - {error.next_step}' if error.next_step else ''}") from error
        return f"http://{next(pod.ip for pod in pods if pod.ip)}:{self.port}"

    async def poll(self) -> int | None:
        """Return None while the server runs or waits; else 0 if it ended well or was not started, or an exit code."""
        if not self.allocation_id:
            return 0
        try:
            view = await self._opened().get(self.allocation_id)
        except NotFoundError:
            return UNKNOWN_FAILURE
        except ControlPlaneError as error:
            # After any error the hub would forget the server, which may still run.
            self.log.warning("%s is assumed to run: %s", self.allocation_id, error)
            return None
        if view.phase is not Phase.TERMINATED:
            return None
        return exit_status_of(view)

    async def stop(self, now: bool = False) -> None:
        """End the server and wait for its end; with `now` without its grace period."""
        if self.allocation_id:
            client = self._opened()
            try:
                await client.kill(self.allocation_id, force=now)
                await client.wait(self.allocation_id, timeout_s=STOP_S)
            except NotFoundError:
                pass
            except DeadlineError as error:
                self.log.warning("%s is still ending: %s", self.allocation_id, error)
        await self.close()

    async def close(self) -> None:
        """Close the connection to the api; the next call opens another one."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def progress(self) -> AsyncGenerator[Json, None]:
        """Yield the transitions of the server while it starts, and why it waits."""
        if not self.allocation_id:
            return
        client, done = self._opened(), 10
        async for event in client.events(self.allocation_id, follow=True):
            message = f"{event.type.value}: {event.phase.value}"
            if event.phase is Phase.PENDING:
                message = (await client.explain(self.allocation_id)).message or message
            yield {"progress": done, "message": f"{self.allocation_id}: {message}"}
            done = min(90, done + 15)
            if event.phase in (Phase.RUNNING, Phase.TERMINATED):
                return

    def get_state(self) -> Json:
        """Return the state that the hub stores."""
        state = cast("Json", super().get_state())
        return state | ({"allocation_id": self.allocation_id} if self.allocation_id else {})

    def load_state(self, state: Json) -> None:
        """Restore the state that the hub had stored."""
        super().load_state(state)  # pyright: ignore[reportUnknownMemberType] - it has no types
        self.allocation_id = str(state.get("allocation_id", ""))

    def clear_state(self) -> None:
        """Clear the state after the end of the server."""
        super().clear_state()
        self.allocation_id = ""

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _opened(self) -> AsyncClient:
        if self._client is None:
            self._client = AsyncClient(self.server_url, token=self.token)
        return self._client

    def _labels(self) -> dict[str, str]:
        """Return the labels that identify a server. The id of the user makes the user's label unique."""
        user = f"{_readable(self.user.name)}.{self.user.id}"
        return {LABEL_USER: user, LABEL_SERVER: label_of_server(self.name), LABEL_HUB: label_of(self.hub_name)}

    async def _end_lost(self, client: AsyncClient) -> None:
        """End allocations of earlier starts whose ids the hub had not stored."""
        selector = ",".join(f"{name}={value}" for name, value in self._labels().items())
        workspace = {"workspace": self.launch["workspace"]} if "workspace" in self.launch else {}
        async for view in client.list(active=True, label_selector=selector, **workspace):
            self.log.warning("ending %s: it was left by an earlier start", view.id)
            await client.kill(view.id)


def exit_status_of(view: AllocationView) -> int:
    """Return the exit status of an ended server: 0 only if it succeeded.

    Otherwise it is the exit code of a rank that ended the allocation, of any rank, or `UNKNOWN_FAILURE`.
    """
    if view.result is Result.SUCCEEDED:
        return 0
    ranks: list[Json] = view.status.get("ranks") or []
    causes = [rank for rank in ranks if rank.get("reason") == view.reason]
    codes = (int(rank.get("exitCode") or 0) for rank in (*causes, *ranks))
    return next((code for code in codes if code), UNKNOWN_FAILURE)


def label_of_server(name: str) -> str:
    """Return the label of a user's server; only the server without a name gets the label `default`."""
    return label_of(name, but=_DEFAULT) if name else _DEFAULT


def label_of(text: str, *, but: str = "") -> str:
    """Return a label that no other text has: a text that is no valid label, and the text `but`, get a hash."""
    readable = _readable(text)
    is_same = readable == text != but
    return readable if is_same else f"{readable}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _readable(text: str) -> str:
    return _NOT_OF_A_LABEL.sub("-", text)[:40].strip("._-") or "x"
