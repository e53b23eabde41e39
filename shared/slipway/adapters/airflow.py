# Airflow cannot be installed beside our own packages while tests run, so its types are not known here.
# pyright: basic, reportMissingImports=false
"""`SlipwayRunOperator`: a task of Airflow 3 that launches, and waits without a worker. Needs `slipway-ai[airflow]`.

Owns the launch of a task, its wait in the triggerer, and its end in Airflow. The login is a connection of Airflow: the
host is the URL of the api, the password is the token.

Promises: one try of a task launches once. The next try ends the allocation that a dead worker left. A task that is
marked as failed or cleared, or whose wait times out, ends its allocation. No serialized trigger contains the token.
"""

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.sdk import BaseHook, BaseOperator
from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from slipway.api.schemas import AllocationView
from slipway.errors import ControlPlaneError, InvalidError, NotFoundError, TransientError
from slipway.sdk import AsyncClient, Client

Json = dict[str, Any]

CONNECTION = ""
"""The default: no connection. Then the server is found as for the `slipway` command (`SLIPWAY_SERVER`,
`SLIPWAY_API_TOKEN`)."""
LABEL_DAG, LABEL_TASK, LABEL_TRIES = "airflow-dag", "airflow-task", "airflow-tries"
"""`LABEL_TRIES` has the same value for all tries of one task of one run."""
_NOT_OF_A_LABEL = re.compile(r"[^a-zA-Z0-9._-]+")
AGAIN_S = 10.0
"""Seconds between two attempts to reach the api while it is unavailable."""
LOG_LINES_MAX = 200
"""Maximum lines of the ranks' logs that are copied to the log of a task at its end."""


class SlipwayRunTrigger(BaseTrigger):
    """Waits in the triggerer until an allocation has ended; then fires one event, `{"id", "result", "message"}`."""

    def __init__(self, allocation_id: str, slipway_conn_id: str = CONNECTION) -> None:
        super().__init__()
        self.allocation_id = allocation_id
        self.slipway_conn_id = slipway_conn_id

    def serialize(self) -> tuple[str, Json]:
        """Return the data from which the triggerer creates the trigger again, without the token."""
        arguments = {"allocation_id": self.allocation_id, "slipway_conn_id": self.slipway_conn_id}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def on_kill(self) -> None:
        """End the allocation: the task was marked as failed, cleared or deleted while it waited here."""
        server, token = await _async_login(self.slipway_conn_id)
        async with AsyncClient(server, token=token) as client:
            with contextlib.suppress(NotFoundError):
                await client.kill(self.allocation_id)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait without a time limit, even while the api is unavailable. A refusal also fires an event; the task then
        fails."""
        try:
            server, token = await _async_login(self.slipway_conn_id)
            async with AsyncClient(server, token=token) as client:
                view = await self._end(client)
        except ControlPlaneError as error:
            yield TriggerEvent({"id": self.allocation_id, "result": "", "message": str(error)})
            return
        result = view.result.value if view.result is not None else ""
        yield TriggerEvent({"id": view.id, "result": result, "message": view.message or view.reason})

    async def _end(self, client: AsyncClient) -> AllocationView:
        """Return the ended allocation."""
        while True:
            try:
                return await client.wait(self.allocation_id)
            except TransientError:
                # The workload continues without the api. If the task failed now, its next try would end the workload.
                await asyncio.sleep(AGAIN_S)


class SlipwayRunOperator(BaseOperator):
    """Launches a command on one or many ranks: `SlipwayRunOperator(task_id="train", command=["python", "train.py"])`.

    `launch` contains the other fields of the launch: image, gpus, ranks, queue, env and so on. The task returns the
    AllocationID. With `deferrable=False` the worker of the task waits; else the triggerer waits. `execution_timeout`
    also ends the allocation.
    """

    template_fields: Sequence[str] = ("command", "launch", "slipway_conn_id")
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        command: list[str],
        launch: Json | None = None,
        slipway_conn_id: str = CONNECTION,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if reserved := sorted({"command", "key"} & (launch or {}).keys()):
            raise InvalidError(f"launch: {reserved[0]} is set by the operator; leave it out")
        self.command = command
        self.launch = launch or {}
        self.slipway_conn_id = slipway_conn_id
        self.deferrable = deferrable
        self.allocation_id = ""

    def execute(self, context: Any) -> str:
        """Launch once for this try, end the allocations of earlier tries, then wait."""
        task = context["ti"]
        labels = {**self.launch.get("labels", {}), LABEL_DAG: _label(task.dag_id), LABEL_TASK: _label(task.task_id)}
        labels[LABEL_TRIES] = self._tries(task)
        with self._client() as client:
            run = client.run(
                self.command, key=f"{labels[LABEL_TRIES]}-{task.try_number}", **{**self.launch, "labels": labels}
            )
            self._end_all(client, task, but=run.id)
            self.allocation_id = run.id
            self.log.info("launched %s", run.id)
            if not self.deferrable:
                run.wait()
                result = run.result.value if run.result is not None else ""
                return self._end(client, {"id": run.id, "result": result, "message": run.view.message})
        self.defer(  # raises TaskDeferred
            trigger=SlipwayRunTrigger(run.id, self.slipway_conn_id),
            method_name="execute_complete",
            timeout=self.execution_timeout,
        )
        raise AssertionError("not reached")

    def execute_complete(self, context: Any, event: Json) -> str:
        """Copy the lines of the ended allocation to the log; raise an error when it did not succeed."""
        del context
        self.allocation_id = str(event["id"])
        with self._client() as client:
            return self._end(client, event)

    def resume_execution(self, next_method: str, next_kwargs: Json | None, context: Any) -> Any:
        """Resume like the base class. After a wait that timed out, or a trigger that failed, end the allocation
        first."""
        if next_method != "execute_complete":
            with self._client() as client:
                self._end_all(client, context["ti"])
        return super().resume_execution(next_method, next_kwargs, context)

    def on_kill(self) -> None:
        """End the allocation: the task was ended in Airflow while a worker ran it."""
        if self.allocation_id:
            with self._client() as client:
                client.kill(self.allocation_id)

    def _end_all(self, client: Client, task: Any, *, but: str = "") -> None:
        """End all allocations of this task's tries that have not ended, except `but`."""
        workspace = {"workspace": self.launch["workspace"]} if "workspace" in self.launch else {}
        for view in client.list(active=True, label_selector=f"{LABEL_TRIES}={self._tries(task)}", **workspace):
            if view.id != but:
                self.log.warning("ending %s, which an earlier wait or try left running", view.id)
                client.kill(view.id)

    def _end(self, client: Client, event: Json) -> str:
        id_, result = str(event["id"]), str(event["result"])
        try:
            for line in client.logs(id_, tail=LOG_LINES_MAX):
                self.log.info("[%s] %s", line.rank, line.text)
        except ControlPlaneError as error:
            self.log.warning("its log cannot be read: %s", error)
        if result != "Succeeded":
            raise AirflowException(f"{id_}: {result or 'its result is not known'}: {event['message']}")
        return id_

    def _tries(self, task: Any) -> str:
        """Return the value that all tries of this task of this run share, and that no other task has.

        Several installations of Airflow need different `installation` extras in their connections. Otherwise equal
        DAGs, tasks and run ids give the same value.
        """
        found = BaseHook.get_connection(self.slipway_conn_id) if self.slipway_conn_id else None
        installation = str(found.extra_dejson.get("installation", "")) if found is not None else ""
        parts = [task.dag_id, task.task_id, task.run_id, task.map_index, *filter(None, [installation])]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]

    def _client(self) -> Client:
        server, token = _login(self.slipway_conn_id)
        return Client(server, token=token)


def _login(slipway_conn_id: str) -> tuple[str, str]:
    """Return (URL, token) of a connection; without a connection both are empty, and the client uses the environment."""
    return _of_connection(BaseHook.get_connection(slipway_conn_id)) if slipway_conn_id else ("", "")


async def _async_login(slipway_conn_id: str) -> tuple[str, str]:
    return _of_connection(await BaseHook.aget_connection(slipway_conn_id)) if slipway_conn_id else ("", "")


def _of_connection(connection: Any) -> tuple[str, str]:
    host = str(connection.host or "")
    if not host.startswith(("http://", "https://")):
        raise InvalidError(f"connection {connection.conn_id}: its host must be the URL of the api, https://...")
    return host, str(connection.password or "")


def _label(text: str) -> str:
    return _NOT_OF_A_LABEL.sub("-", text)[:63].strip("._-") or "x"
