"""The list of tokens for an administrator: their users, roles and expiry. Hashes are not shown."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.deps import parts_of
from slipway.api.http.endpoint import Endpoint, json_response
from slipway.api.http.errors import ConflictError
from slipway.api.schemas import Items
from slipway.model.apitokens import TokenRecord


class TokenView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One token; `roles` is {workspace or `*`: viewer, editor or admin}."""

    id: str
    user: str
    roles: dict[str, str]
    created_at: str
    expires_at: str
    expired: bool
    description: str


async def list_tokens(request: Request) -> Response:
    """Return every token that this process has read, by id."""
    parts = parts_of(request)
    if parts.tokens is None:
        raise ConflictError(f"Slipway has no tokens of its own in mode {parts.settings.auth}")
    now = parts.clock.now()
    return json_response(Items(items=[_view(record, now) for record in parts.tokens.all()]))


def _view(record: TokenRecord, now: float) -> TokenView:
    return TokenView(
        id=record.id,
        user=record.user,
        roles={workspace: role.value for workspace, role in sorted(record.roles.items())},
        created_at=record.created_at,
        expires_at=record.expires_at,
        expired=record.has_expired(now),
        description=record.description,
    )


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/tokens",
        handler=list_tokens,
        summary="List the valid tokens (mode token)",
        tag="admin",
        answer=Items[TokenView],
    ),
)
