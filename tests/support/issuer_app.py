"""An OpenID Connect issuer as a process on the loopback: `python -m tests.support.issuer_app PORT`.

Authlib and Flask are the server: authorisation codes with PKCE, single-use refresh tokens, the device flow and ends of
sessions. The user is signed in already, so that `/authorize` answers at once. A test uses `/control` to set the user,
the faults of the issuer and its keys, and to get tokens of any content.
"""

# Authlib and Flask's decorators have no types.
# pyright: basic

import base64
import hmac
import json
import os
import sys
from collections import Counter
from typing import Any

from authlib.common.security import generate_token
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749 import grants
from authlib.oauth2.rfc6749.errors import InvalidGrantError
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc8628 import DeviceAuthorizationEndpoint, DeviceCodeGrant
from authlib.oidc.core import OpenIDCode
from flask import Flask, Response, jsonify, redirect, request
from joserfc import jwk, jwt
from werkzeug.serving import make_server

from slipway.runtime.clock import SystemClock

SECRET = "the secret of the web client"
CLIENTS = {"slipway-web": SECRET, "slipway-cli": ""}
"""{client: its secret; empty for a public client}"""
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
Json = dict[str, Any]


class Client:
    """A client, with the methods that Authlib calls."""

    def __init__(self, name: str) -> None:
        self.name = name

    def get_client_id(self) -> str:
        return self.name

    def get_default_redirect_uri(self) -> None:
        return None

    def get_allowed_scope(self, scope: str) -> str:
        return scope or ""

    def check_redirect_uri(self, uri: str) -> bool:
        return uri.split("?")[0].endswith(("/login/callback", "/callback"))

    def check_client_secret(self, secret: str) -> bool:
        return secret == CLIENTS[self.name]

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return (method == "none") is not bool(CLIENTS[self.name])

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in ("authorization_code", "refresh_token", DEVICE)


class Record:
    """A code, a token or a device's request: its fields as attributes and as the getters that Authlib calls."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        field = name.removeprefix("get_")
        if not name.startswith("get_"):
            raise AttributeError(name)
        return lambda: self.__dict__.get(field)

    def check_client(self, client: Client) -> bool:
        return self.client_id == client.name

    def is_expired(self) -> bool:
        return False

    def is_revoked(self) -> bool:
        return False


class State:
    """Everything that the issuer knows."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.strange = jwk.RSAKey.generate_key(2048, parameters={"kid": "strange"})
        self.user: Json = {"sub": "ada"}
        self.faults: Json = {}
        self.counts: Counter[str] = Counter()
        self.codes: dict[str, Record] = {}
        self.refresh: dict[str, Record] = {}
        self.devices: dict[str, Record] = {}
        self.approved: dict[str, bool] = {}
        self.ended: list[Json] = []
        self.rotate()

    def rotate(self) -> None:
        """Make a new key; the old key is no longer published."""
        name = f"key-{generate_token(8)}"
        parameters: Any = {"kid": name, "use": "sig", "alg": "RS256"}
        self.keys = [jwk.RSAKey.generate_key(2048, parameters=parameters)]

    def id_token(self, issuer: str, client: str, nonce: str | None) -> str:
        now = int(SystemClock().now())
        claims = {"iss": issuer, "aud": client, "iat": now, "exp": now + int(self.faults.get("life_s", 600))}
        if nonce and not self.faults.get("drop_nonce"):
            claims["nonce"] = self.faults.get("nonce", nonce)
        header = {"alg": "RS256", "kid": self.keys[0].kid}
        return jwt.encode(header, {**claims, **self.user, **self.faults.get("claims", {})}, self.keys[0], ["RS256"])


state = State()
app = Flask(__name__)
app.config["OAUTH2_REFRESH_TOKEN_GENERATOR"] = True
server = AuthorizationServer(
    app, query_client=lambda name: Client(name) if name in CLIENTS else None, save_token=lambda token, asked: None
)


class IdTokens(OpenIDCode):
    """Adds an ID token to each answer, also to a refresh, and stores what a refresh token was issued for."""

    def exists_nonce(self, nonce: str, asked: Any) -> bool:
        return False

    def process_token(self, grant: Any, response: Any) -> Any:
        _, token, _ = response
        code = getattr(grant.request, "authorization_code", None)
        name = grant.request.client.get_client_id()
        token["id_token"] = state.id_token(base(), name, code.nonce if code is not None else None)
        if state.faults.get("no_refresh_token"):
            token.pop("refresh_token", None)
        if "refresh_token" in token:
            state.refresh[token["refresh_token"]] = Record(client_id=name, scope=token.get("scope", ""))
        return token


class CodeGrant(grants.AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "client_secret_post", "none")

    def save_authorization_code(self, code: str, asked: Any) -> None:
        fields = asked.payload.data
        state.codes[code] = Record(
            code=code,
            client_id=asked.client.get_client_id(),
            redirect_uri=asked.payload.redirect_uri,
            scope=asked.payload.scope,
            nonce=fields.get("nonce"),
            code_challenge=fields.get("code_challenge"),
            code_challenge_method=fields.get("code_challenge_method"),
        )

    def query_authorization_code(self, code: str, client: Client) -> Record | None:
        found = state.codes.get(code)
        return found if found is not None and found.client_id == client.name else None

    def delete_authorization_code(self, record: Record) -> None:
        state.codes.pop(record.code, None)

    def authenticate_user(self, record: Record) -> Json:
        return state.user


class RefreshGrant(grants.RefreshTokenGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "client_secret_post", "none")
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, token: str) -> Record:
        found = None if state.faults.get("refuse_refresh") else state.refresh.pop(token, None)
        if found is None:
            raise InvalidGrantError("the session has ended")
        return found

    def authenticate_user(self, record: Record) -> Json:
        return state.user

    def revoke_old_credential(self, record: Record) -> None:
        pass


class DeviceGrant(DeviceCodeGrant):
    def query_device_credential(self, code: str) -> Record | None:
        return state.devices.get(code)

    def query_user_grant(self, code: str) -> tuple[Json, bool] | None:
        return (state.user, state.approved[code]) if code in state.approved else None

    def should_slow_down(self, record: Record) -> bool:
        return bool(state.faults.pop("slow_down", False))


class DeviceEndpoint(DeviceAuthorizationEndpoint):
    INTERVAL = 1

    def get_verification_uri(self) -> str:
        return f"{base()}/device"

    def save_device_credential(self, client_id: str, scope: str, data: Json) -> None:
        state.devices[data["device_code"]] = Record(client_id=client_id, scope=scope, user_code=data["user_code"])


server.register_grant(CodeGrant, [CodeChallenge(required=True), IdTokens()])
server.register_grant(RefreshGrant, [IdTokens()])
server.register_grant(DeviceGrant, [IdTokens()])
server.register_endpoint(DeviceEndpoint)


def encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def base() -> str:
    return request.host_url.rstrip("/")


@app.before_request
def count() -> Response | None:
    state.counts[request.path] += 1
    if state.faults.get("away") and not request.path.startswith("/control"):
        return Response("away", 503)
    return None


@app.get("/.well-known/openid-configuration")
def discovery() -> Any:
    found = {
        "issuer": base(),
        "jwks_uri": f"{base()}/jwks",
        "authorization_endpoint": f"{base()}/authorize",
        "token_endpoint": f"{base()}/token",
        "revocation_endpoint": f"{base()}/revoke",
        "end_session_endpoint": f"{base()}/end",
        "device_authorization_endpoint": f"{base()}/device_authorization",
        "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post", "none"],
    }
    return jsonify({**found, **state.faults.get("discovery", {})})


@app.get("/jwks")
def jwks() -> Any:
    return jsonify({"keys": [key.as_dict(private=False) for key in state.keys]})


@app.get("/authorize")
def authorize() -> Any:
    try:
        grant = server.get_consent_grant(end_user=state.user)
    except OAuth2Error as error:
        return jsonify(dict(error.get_body())), 400
    return server.create_authorization_response(grant_user=state.user, grant=grant)


@app.post("/token")
def token() -> Any:
    return server.create_token_response()


@app.post("/device_authorization")
def device_authorization() -> Any:
    return server.create_endpoint_response("device_authorization")


@app.post("/revoke")
def revoke() -> Any:
    state.refresh.pop(request.form.get("token", ""), None)
    return "", 200


@app.get("/end")
def end() -> Any:
    state.ended.append(dict(request.args))
    return redirect(request.args.get("post_logout_redirect_uri", "/"))


@app.post("/control/rotate")
def control_rotate() -> Any:
    state.rotate()
    return "", 204


@app.post("/control/user")
def control_user() -> Any:
    state.user = request.get_json()
    return "", 204


@app.post("/control/faults")
def control_faults() -> Any:
    state.faults = request.get_json()
    return "", 204


@app.post("/control/approve")
def control_approve() -> Any:
    state.approved.update(request.get_json())
    return "", 204


@app.get("/control/seen")
def control_seen() -> Any:
    told = {"counts": dict(state.counts), "refresh": len(state.refresh), "ended": state.ended}
    return jsonify({**told, "refresh_tokens": list(state.refresh)})


@app.post("/control/token")
def control_token() -> Any:
    """Return a token of `claims` and `header`, signed with the `key`, current or unknown; with HS256 it is signed with
    the public key."""
    told = request.get_json()
    found = state.strange if told.get("key") == "strange" else state.keys[0]
    key = jwk.RSAKey.import_key({name: value for name, value in found.as_dict(private=True).items() if name != "alg"})
    header = {"alg": "RS256", "kid": state.keys[0].kid, **told.get("header", {})}
    now = int(SystemClock().now())
    claims = {"iss": base(), "aud": "slipway-web", "sub": "ada", "iat": now, "exp": now + 600, **told.get("claims", {})}
    claims = {name: value for name, value in claims.items() if value is not None}
    if header["alg"] in ("none", "HS256"):
        # Signed by hand, because no library signs with a public key as the secret.
        signed = f"{encoded(json.dumps(header).encode())}.{encoded(json.dumps(claims).encode())}"
        secret = state.keys[0].as_pem(private=False)
        mac = hmac.digest(secret, signed.encode(), "sha256") if header["alg"] == "HS256" else b""
        return jsonify({"token": f"{signed}.{encoded(mac)}"})
    header = {name: value for name, value in header.items() if value is not None}
    return jsonify({"token": jwt.encode(header, claims, key, [header["alg"]])})


def main() -> int:
    os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
    listening = make_server("127.0.0.1", int(sys.argv[1]), app, threaded=True)
    print("ready", flush=True)  # noqa: T201 - what the test waits for
    listening.serve_forever()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
