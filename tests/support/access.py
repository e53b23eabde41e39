"""Two teams, each with a workspace and work in it, and callers with every kind of token.

Owns the builders of callers. Every object of a team has the team's canary in its name, so that a test finds it in any
answer.
"""

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from slipway.api.app import create_app
from slipway.api.deps import ApiDeps, connect
from slipway.api.settings import Settings
from slipway.crd.transitions import id_of
from slipway.kube.resources import ALLOCATIONS, JOBS, NAMESPACES, TEMPLATES, Resource
from slipway.model import apitokens
from slipway.model.apitokens import TokenRecord
from slipway.model.times import format_time
from slipway.runtime.clock import Clock, SeededRandom
from slipway.runtime.health import HealthApp, ProcessHealth
from slipway.runtime.service import ServiceStop
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import NoTally, Streams
from slipway.streams.producer import BestEffortWriter
from tests.support.api_world import COMMAND, ApiWorld, watching

Json = dict[str, Any]
TEAMS = ("red", "blue")
CANARY = {"red": "canaryred", "blue": "canaryblue"}
RBAC = "rbac.authorization.k8s.io"


class Rule(msgspec.Struct, frozen=True):
    """Any object, as it is sent."""

    metadata: Any = None


def _rbac(plural: str, kind: str, *, namespaced: bool) -> Resource[Rule]:
    return Resource(group=RBAC, version="v1", plural=plural, kind=kind, namespaced=namespaced, struct=Rule)


def _core(plural: str, kind: str) -> Resource[Rule]:
    return Resource(group="", version="v1", plural=plural, kind=kind, namespaced=True, struct=Rule)


ROLES, BINDINGS = (
    _rbac("clusterroles", "ClusterRole", namespaced=False),
    _rbac("rolebindings", "RoleBinding", namespaced=True),
)
CLUSTER_BINDINGS = _rbac("clusterrolebindings", "ClusterRoleBinding", namespaced=False)
ACCOUNTS = _core("serviceaccounts", "ServiceAccount")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def a_token(folder: Path, user: str, now: float, roles: Mapping[str, str], *, life_s: float = 3600) -> str:
    """Return a new token; its record is written into `folder`."""
    token, record = apitokens.make(
        secrets.token_bytes(apitokens.ID_BYTES),
        secrets.token_bytes(apitokens.SECRET_BYTES),
        user=user,
        roles=dict(roles),
        created_at=format_time(now - 10),
        expires_at=format_time(now + life_s),
    )
    write(folder, record)
    return token


def write(folder: Path, record: TokenRecord) -> Path:
    """Write the record into its file in `folder`; return the path."""
    path = folder / apitokens.file_of(record.id)
    path.write_bytes(apitokens.encode(record))
    return path


class Teams:
    """The world with both teams; `ids` is {team: the id of its allocation}."""

    def __init__(self, world: ApiWorld, folder: Path | None) -> None:
        self.world = world
        self.folder = folder
        self.ids: dict[str, str] = {}

    async def furnish(self) -> None:
        """For each team create a workspace, an allocation, a job and a template, directly in the cluster, without the
        API."""
        kube = self.world.kube
        for team in TEAMS:
            labels = {"slipway.dev/workspace": "true"}
            await kube.create(NAMESPACES, {"metadata": {"name": f"team-{team}", "labels": labels}})
            where = {"namespace": f"team-{team}"}
            spec = {
                "kind": "command",
                "priority": 80 - 10 * TEAMS.index(team),
                "job": CANARY[team],
                "ranks": [{"name": "main", "count": 1}],
            }
            meta = {"name": CANARY[team], "annotations": {"slipway.dev/user": f"{CANARY[team]}-user"}, **where}
            ports = [{"name": "http", "port": 8080}]
            pods = {"spec": {"containers": [{"name": "main", "image": "a"}]}}
            made = await kube.create(
                ALLOCATIONS,
                {
                    "metadata": meta,
                    "spec": {**spec, "pool": "default", "queue": "default", "ports": ports, "template": pods},
                },
            )
            self.ids[team] = id_of(made)
            await kube.create(JOBS, {"metadata": {"name": CANARY[team], **where}, "spec": {}})
            await kube.create(TEMPLATES, {"metadata": {"name": CANARY[team], **where}, "spec": {"body": {}}})
            await self.world.publish(made)

    async def replica(self, streams: Streams | None = None, clock: Clock | None = None) -> ApiDeps:
        """Another process of the same api: the same cluster and folders, and Redis by connections of its own."""
        world, time = self.world, clock or self.world.clock
        own = streams if streams is not None else MemoryStreams(world.server)
        parts = connect(
            settings=world.parts.settings,
            clock=time,
            random=SeededRandom(secrets.randbits(32)),
            stop=ServiceStop(),
            kube=world.kube,
            streams=own,
            behind=BestEffortWriter(own, time, NoTally()),
            on_broken=world.broken.append,
        )
        assert parts.tokens is not None
        await parts.tokens.look()
        await parts.sessions.keys.look()
        return parts

    async def token(self, user: str, roles: Mapping[str, str], *, life_s: float = 3600) -> dict[str, str]:
        """The header of a new token that the api has read already."""
        assert self.folder is not None
        token = a_token(self.folder, user, self.world.clock.now(), roles, life_s=life_s)
        await self.look()
        return bearer(token)

    async def look(self) -> None:
        """Read the token folder, as the loop of the process does periodically."""
        assert self.world.parts.tokens is not None
        await self.world.parts.tokens.look()

    async def account(self, name: str, *, audience: str = "slipway-api", namespace: str = "default") -> dict[str, str]:
        """The header with the token of a new service account."""
        meta = {"name": name, "namespace": namespace}
        await self.world.kube.create(ACCOUNTS, {"metadata": meta})
        made = self.world.accounts.issue(namespace, name, {"spec": {"audiences": [audience]}})
        return bearer(str(made["status"]["token"]))

    async def grant(self, account: str, name: str, rules: list[Json], *, where: str = "") -> None:
        """Create a role of these rules and bind it to the account, in the namespace `where` or, when empty, in the
        whole cluster."""
        kube = self.world.kube
        await kube.create(ROLES, {"metadata": {"name": name}, "rules": rules})
        body = {
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "default"}],
        }
        if where:
            await kube.create(BINDINGS, {"metadata": {"name": name, "namespace": where}, **body})
        else:
            await kube.create(CLUSTER_BINDINGS, {"metadata": {"name": name}, **body})

    async def call(self, method: str, path: str, headers: Mapping[str, str], **options: Any) -> httpx2.Response:
        """Send one request below /api/v1."""
        return await self.world.http.request(method, f"/api/v1{path}", headers=dict(headers), **options)

    async def launch(self, headers: Mapping[str, str], **body: Any) -> httpx2.Response:
        """Send a launch, which the api may refuse."""
        return await self.call("POST", "/allocations", headers, json={**COMMAND, **body})


@asynccontextmanager
async def served_by(parts: ApiDeps) -> AsyncGenerator[httpx2.AsyncClient]:
    """A client of the process that these dependencies belong to."""
    app = create_app(parts, HealthApp(ProcessHealth(parts.clock)))
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client, watching(parts):
        yield client
    await parts.forwarder.aclose()


@asynccontextmanager
async def teams_world(auth: str, folder: Path | None = None, **settings: Any) -> AsyncGenerator[Teams]:
    """Both teams behind an api with this SLIPWAY_AUTH mode."""
    token_dir = str(folder) if folder is not None else ""
    world = ApiWorld(Settings(auth=auth, token_dir=token_dir, **settings))  # pyright: ignore[reportArgumentType]
    await world.furnish()
    teams = Teams(world, folder)
    await teams.furnish()
    if folder is not None:
        await teams.look()
    await world.parts.sessions.keys.look()
    async with world.http, watching(world.parts):
        yield teams
    await world.parts.forwarder.aclose()
