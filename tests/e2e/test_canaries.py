"""Every secret that the product gets is searched for in all places that must not contain secrets, after ordinary use.

The schemas show which inputs are secret (`tests/support/secret_inputs.py`). Each gets its own canary, or the generated
secret is read. Then allocations are launched, fail, print, are refused, are sent to receivers, backed up and audited;
users sign in, mistype, log out. The search skips the places that may contain a secret: the Secrets of the cluster,
files that only their owner can read, and the answer that shows a new key once.
"""

import base64
import json
import secrets
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from cryptography.fernet import Fernet

from tests.support.issuer import WEB, RunningIssuer, running_issuer
from tests.support.local_stack import RunningStack, running_stack
from tests.support.otlp import Collected, collector
from tests.support.places import all_places
from tests.support.plain_http import NO_TLS
from tests.support.secret_inputs import PLANTED
from tests.support.wait import wait_until

Json = dict[str, Any]
FAILS = "import os; print('the length is', len(os.environ['THE_TOKEN']), flush=True); raise SystemExit(3)"
ADDRESSES = ("/docs", "/login", "/", "/webhooks", "/tokens", "/openapi.json", "/login/client")
OF_THE_CHART = {"password of the Valkey", "password in the address of Redis"}
"""`tests/integration/helm/test_secret_values.py` plants these: no process of this test has them."""

IN_A_BACKUP = {"new key of a webhook", "new query of a webhook"}
"""Secrets in a backup: a restored cluster continues to sign its requests; only the owner can read the file."""


def canary(what: str) -> str:
    return f"canary-{what}-{secrets.token_hex(8)}"


class StackWithSecrets(NamedTuple):
    """A stack in which all secrets are planted. `planted`: {kind of secret: its text}; `said`: the answers."""

    stack: RunningStack
    issuer: RunningIssuer
    spans: Collected
    planted: dict[str, str]
    said: dict[str, str]


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Generator[StackWithSecrets]:
    folder = tmp_path_factory.mktemp("canaries")
    (folder / "client").write_text("the secret of the web client", "utf-8")
    reader = folder / "reader"
    reader.mkdir()
    address, key = canary("reader"), base64.b64encode(secrets.token_bytes(32)).decode()
    (reader / "url").write_text(f"http://127.0.0.1:9/audit?token={address}", "utf-8")
    (reader / "key").write_text(f"whsec_{key}", "utf-8")
    figures = canary("figures")
    (folder / "figures").write_text(figures, "utf-8")
    feed_keys = folder / "feed-keys"
    feed_keys.mkdir()
    feed_key = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    (feed_keys / "1.key").write_text(feed_key, "ascii")
    with running_issuer() as issuer, collector("http/protobuf") as spans:
        env = {
            "SLIPWAY_OIDC_ISSUER_URL": issuer.url,
            "SLIPWAY_OIDC_CLIENT_ID": WEB,
            "SLIPWAY_OIDC_CLIENT_SECRET_FILE": str(folder / "client"),
            "SLIPWAY_OIDC_ROLES": '{"group:ml": {"default": "editor"}}',
            "SLIPWAY_FEED_KEY_DIR": str(feed_keys),
            "SLIPWAY_LOG_LEVEL": "debug",
            "SLIPWAY_WEBHOOK_RETRY_S": "0",
            "SLIPWAY_AUDIT_WEBHOOK_DIR": str(reader),
            "SLIPWAY_PROMETHEUS_URL": "http://127.0.0.1:9",
            "SLIPWAY_PROMETHEUS_TOKEN_FILE": str(folder / "figures"),
            "OTEL_EXPORTER_OTLP_ENDPOINT": spans.endpoint,
        }
        with running_stack(folder / "data", cpus=8, env=env) as stack:
            planted = {
                "secret value of a launch": canary("value"),
                "key of a webhook": base64.b64encode(secrets.token_bytes(32)).decode(),
                "new key of a webhook": base64.b64encode(secrets.token_bytes(32)).decode(),
                "query of a webhook": canary("query"),
                "new query of a webhook": canary("newquery"),
                "password of a webhook": canary("password"),
                "key of the audit's reader": key,
                "address of the audit's reader": address,
                "client secret of the issuer": "the secret of the web client",
                "key of sessions": (stack.stack.layout.session_keys / "1.key").read_text("ascii").strip(),
                "key of the cluster feed": feed_key,
                "token of a user": stack.stack.token,
                "token of metrics": stack.stack.token,
                "token for Prometheus": figures,
                "token of workloads": stack.stack.layout.workload_token.read_text("ascii").strip(),
                "passwords of Redis": stack.stack.redis_login("api")["SLIPWAY_REDIS_PASSWORD"],
                "mistyped token": canary("mistyped"),
                "code of a link": canary("code"),
            }
            yield StackWithSecrets(stack, issuer, spans, planted, {})


def call(life: StackWithSecrets, method: str, path: str, **options: Any) -> httpx2.Response:
    """Call the api and store the answer for the search."""
    headers = {**life.stack.headers, **options.pop("headers", {})}
    url = f"{life.stack.url}{path}"
    answer = httpx2.request(method, url, headers=headers, verify=NO_TLS, trust_env=False, timeout=30, **options)
    kept = {name: value for name, value in answer.headers.items() if name != "set-cookie"}
    life.said[f"answer {len(life.said)} to {method} {path[:80]}"] = f"{answer.status_code} {kept} {answer.text}"
    return answer


def launches(life: StackWithSecrets) -> str:
    """Launch an allocation with a secret value that fails; send bodies with a secret where it is refused."""
    value = life.planted["secret value of a launch"]
    body = {
        "kind": "command",
        "image": "local",
        "command": ["python", "-c", FAILS],
        "secretValues": {"THE_TOKEN": value},
    }
    id_ = str(call(life, "POST", "/api/v1/allocations", json=body).json()["id"])
    life.stack.wait_for(id_, "Terminated")
    runs = life.stack.launch({"kind": "command", "image": "local", "command": ["sleep", "60"]})
    life.stack.wait_for(runs, "Running")
    assert call(life, "GET", "/api/v1/gpu-use").status_code == 503  # called, with the token
    call(life, "POST", f"/api/v1/allocations/{runs}/kill")
    refused = (
        {**body, "secretValues": {"not a name": value}},
        {**body, "secretValues": value},
        {**body, "secretValues": {"THE_TOKEN": [value]}},
        {**body, "secretValues": {"THE_TOKEN": value}, "unknown": 1},
        {**body, "secretValues": {"THE_TOKEN": value}, "queue": "nowhere"},
        {**body, "secretValues": {"THE_TOKEN": value * 4000}},
        {**body, "env": {"THE_TOKEN": "x"}},
    )
    for each in refused:
        call(life, "POST", "/api/v1/allocations", json=each)
        call(life, "POST", "/api/v1/allocations?dryRun=true", json=each)
    call(life, "PATCH", f"/api/v1/allocations/{id_}", json={"secretValues": {"THE_TOKEN": value}})
    call(life, "POST", "/api/v1/templates", json={"name": "t", "body": {"secretValues": {"THE_TOKEN": value}}})
    call(life, "POST", "/api/v1/allocations", content=json.dumps(body)[:-3])
    return id_


def webhooks(life: StackWithSecrets) -> None:
    """Add a webhook whose receiver does not answer; change it, try it, bury its events; send refused addresses and
    keys."""
    planted = life.planted
    # Slack has the secret in the path, others in the query.
    address = f"http://127.0.0.1:9/{planted['query of a webhook']}?token={planted['query of a webhook']}"
    key, password = f"whsec_{planted['key of a webhook']}", planted["password of a webhook"]
    with httpx2.Client(headers=life.stack.headers, verify=NO_TLS, trust_env=False) as client:
        made = client.post(f"{life.stack.url}/api/v1/webhooks", json={"name": "w", "url": address, "secret": key})
    assert made.status_code == 201, made.text  # the answer shows the key to its creator
    call(life, "POST", "/api/v1/webhooks/w/test")
    id_ = life.stack.launch({"kind": "command", "image": "local", "command": ["true"]})
    life.stack.wait_for(id_, "Terminated")
    wait_until(lambda: life.stack.ask(lambda api: api.get("/dead")["items"]), "a delivery is given up")
    for letter in life.stack.ask(lambda api: api.get("/dead")["items"])[:3]:
        call(life, "GET", f"/api/v1/dead/{letter['id']}")
    changed = f"http://127.0.0.1:9/{planted['new query of a webhook']}?token={planted['new query of a webhook']}"
    new_key = f"whsec_{planted['new key of a webhook']}"
    with httpx2.Client(headers=life.stack.headers, verify=NO_TLS, trust_env=False) as client:
        client.patch(f"{life.stack.url}/api/v1/webhooks/w", json={"url": changed, "secret": new_key})
    call(life, "GET", "/api/v1/webhooks/w")
    call(life, "POST", "/api/v1/webhooks/w/test")
    refused = (
        {"url": f"http://user:{password}@127.0.0.1:9/"},
        {"url": f"ftp://user:{password}@host/?{password}"},
        {"url": f"http://[{password}"},
        {"url": address, "secret": f"{password} is no key"},
        {"url": address, "secret": [password]},
        {"url": {"password": password}},
    )
    for each in refused:
        call(life, "POST", "/api/v1/webhooks", json=each)
        call(life, "PATCH", "/api/v1/webhooks/w", json=each)


def sign_ins(life: StackWithSecrets) -> None:
    """Sign in at the issuer, by a link and by a token, with wrong secrets of each; then log out."""
    stack, planted = life.stack, life.planted
    own = str(httpx2.URL(stack.link("/")).copy_with(path="/", query=None)).rstrip("/")
    host = {"Host": httpx2.URL(own).netloc.decode(), "Accept": "text/html"}
    page = {**host, "Origin": own, "Sec-Fetch-Site": "same-origin"}
    with httpx2.Client(base_url=stack.url, headers=host, verify=NO_TLS, trust_env=False, timeout=30) as browser:
        step = browser.post("/login/start", data={"next": "/"}, headers=page)
        pending = step.headers["Set-Cookie"].partition(";")[0]
        there = step.headers["Refresh"].partition("url=")[2]
        back = httpx2.URL(life.issuer.visit(there))
        planted["code of the issuer"] = back.params["code"]
        done = browser.get(back.raw_path.decode(), headers={"Cookie": pending})
        session = next(
            each.partition(";")[0]
            for each in done.headers.get_list("Set-Cookie")
            if each.startswith("slipway_session=") and "max-age=0" not in each.lower()
        )
        planted["cookie of a session"] = session.partition("=")[2]
        [planted["refresh token of the issuer"]] = life.issuer.seen()["refresh_tokens"][-1:]
        browser.cookies.clear()
        for path in (*ADDRESSES, "/api/v1/me", "/nowhere"):
            answer = browser.get(path, headers={"Cookie": session})
            life.said[f"page {path}"] = f"{answer.headers} {answer.text}"
        again = browser.get(back.raw_path.decode(), headers={"Cookie": pending})
        wrong = browser.post("/login", data={"token": planted["mistyped token"]}, headers=page)
        used = browser.get("/login/link", params={"code": planted["code of a link"]})
        out = browser.post("/logout", headers={**page, "Cookie": session})
        life.said.update({"sign-in again": again.text, "mistyped": wrong.text, "link": used.text, "logout": out.text})
    for token in (planted["mistyped token"], f"slipway_{'0' * 16}_{planted['mistyped token']}"):
        call(life, "GET", "/api/v1/me", headers={"Authorization": f"Bearer {token}"})
        call(life, "GET", "/api/v1/me", headers={"Authorization": f"Basic {token}"})
    planted["ID token of a caller"] = life.issuer.token()
    call(life, "GET", "/api/v1/me", headers={"Authorization": f"Bearer {planted['ID token of a caller']}"})
    call(life, "GET", "/api/v1/me", headers={"Authorization": f"Bearer {planted['ID token of a caller']}x"})


def forms(text: str) -> set[str]:
    """The text, and its base64 forms."""
    return {text, base64.b64encode(text.encode()).decode().rstrip("=")}


def test_no_secret_is_where_secrets_do_not_belong(life: StackWithSecrets, tmp_path: Path) -> None:
    """Redis, ConfigMaps, Events, custom resources, debug logs, traces, metrics, addresses, backups, refusals, pages
    and outputs of commands contain no secret."""
    id_ = launches(life)
    webhooks(life)
    sign_ins(life)
    assert set(PLANTED.values()) - OF_THE_CHART <= life.planted.keys()
    for words in (("audit",), ("doctor",), ("tokens",), ("usage",), ("webhook", "list"), ("dead", "list")):
        ran = life.stack.command(*words, timeout_s=120)
        life.said[" ".join(words)] = ran.out + ran.err
    wait_until(lambda: life.spans.spans, "spans reach the collector")
    life.said["spans"] = repr(life.spans.spans)
    found = {(place, what) for place, what in _found(life, id_, tmp_path)}
    assert found - {("backup", what) for what in IN_A_BACKUP} == set()
    assert (tmp_path / "backup.gz").stat().st_mode & 0o077 == 0


def _found(life: StackWithSecrets, id_: str, folder: Path) -> list[tuple[str, str]]:
    places = [*all_places(life.stack, id_, folder), *life.said.items()]
    assert len(places) > 100
    looked_for = [(what, form) for what, text in life.planted.items() for form in forms(text)]
    assert all(len(form) > 15 for _, form in looked_for)
    return [(place, what) for place, text in places for what, form in looked_for if form in text or form in place]


def test_the_planted_secrets_are_in_use(life: StackWithSecrets) -> None:
    """The product really uses them: the keys decrypt sealed data, and the passwords give access."""
    assert Fernet(life.planted["key of sessions"].encode())
    assert call(life, "GET", "/api/v1/me").status_code == 200
