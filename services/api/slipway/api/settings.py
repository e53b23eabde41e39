"""Settings of the api.

Owns the rule that an api without authentication is reachable only from this machine, and the settings that each
authentication mode needs.
"""

import os
import socket
from typing import Annotated, Literal

from msgspec import Meta

from slipway.api.access.issuer_rules import check_issuer_url, check_subjects
from slipway.api.access.origins import check_domain
from slipway.api.gpu_use import DEFAULT_EXPRESSION
from slipway.api.networks import parse_networks
from slipway.api.outside_links import OutsideLinks, check_url_template, link_templates
from slipway.api.prometheus import check_prometheus_url
from slipway.logarchive.settings import LogArchiveSettings
from slipway.pods.podspec import TaskOptions
from slipway.runtime.listen import parse_listen
from slipway.runtime.settings import read_token


class Settings(LogArchiveSettings, kw_only=True, frozen=True):
    """The settings of an operator, from the environment variables `SLIPWAY_*`."""

    listen: Annotated[
        str,
        Meta(
            description="host:port of the REST API, the proxy and the probes.",
            extra={"check": parse_listen},
        ),
    ] = "127.0.0.1:8080"
    health_listen: Annotated[
        str,
        Meta(
            description="host:port where /livez, /readyz and /metrics, and nothing else, are served too. For a kubelet "
            "and a Prometheus, which cannot reach a loopback address of ours. Empty: nowhere else.",
            extra={"check": parse_listen},
        ),
    ] = ""
    task_listen: Annotated[
        str,
        Meta(
            description="host:port of the tasks' door: the help for what runs inside, for calls with the token of a "
            "task, and nothing else. It may be reached from other machines. Empty: there is none.",
            extra={"check": parse_listen},
        ),
    ] = ""
    task_audience: Annotated[
        str,
        Meta(
            description="Audience of the tokens of tasks; the pod worker projects tokens for the same one. Empty: none "
            "are taken."
        ),
    ] = "slipway"
    auth: Annotated[
        Literal["none", "token", "kubernetes"],
        Meta(
            description="Who may call. none: everybody who can connect, therefore on loopback addresses only. token: "
            "who has a token whose hash is in SLIPWAY_TOKEN_DIR. kubernetes: whom the cluster knows (TokenReview), "
            "for what they may do there (SubjectAccessReview)."
        ),
    ] = "none"
    token_audiences: Annotated[
        tuple[str, ...],
        Meta(
            description="Audiences that projected tokens in pod templates may be for, separated by commas. The chart "
            "sets it to what its admission policy allows, so that a launch is refused rather than its pods. Empty: "
            "every audience but the Kubernetes API."
        ),
    ] = ()
    token_dir: Annotated[
        str,
        Meta(
            description="Folder with the records of tokens, one JSON file each, as a mounted Secret is one; `slipway "
            "token create` writes them. Looked at every few seconds. Needed by mode token, and only there."
        ),
    ] = ""
    auth_audience: Annotated[
        str,
        Meta(
            description="Audience that users' tokens must be for in mode kubernetes, so that a token for this api "
            "opens nothing else. Another one than that of tasks. Empty: the API server's own, as of tokens in a "
            "kubeconfig."
        ),
    ] = "slipway-api"
    oidc_issuer_url: Annotated[
        str,
        Meta(
            max_length=512,
            description="Issuer of OpenID Connect whose tokens users may call with, exactly as its discovery document "
            "and its tokens name it: https://login.example.com. Beside the tokens of mode token or kubernetes. Empty: "
            "no single sign-on.",
            extra={"check": check_issuer_url},
        ),
    ] = ""
    oidc_client_id: Annotated[
        str,
        Meta(
            max_length=255,
            description="The api's client at the issuer: the audience of ID tokens, and what browsers sign in as.",
        ),
    ] = ""
    oidc_client_secret_file: Annotated[
        str,
        Meta(
            description="File with the secret of that client, as a mounted Secret is one; read at every use, so that "
            "it may change without a restart. Empty: a public client, which proves itself by PKCE alone."
        ),
    ] = ""
    oidc_cli_client_id: Annotated[
        str,
        Meta(
            max_length=255,
            description="Client that `slipway login` uses: a public one, for the loopback redirect http://127.0.0.1 "
            "and the device flow. Empty: SLIPWAY_OIDC_CLIENT_ID.",
        ),
    ] = ""
    oidc_audience: Annotated[
        tuple[str, ...],
        Meta(
            description="Audiences that a token may be for, separated by commas; one of them is enough. Access tokens "
            "often name another one than the client. Empty: the two clients above."
        ),
    ] = ()
    oidc_username_claim: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=128,
            description="Claim that names the user, such as sub, email or preferred_username. An email counts only "
            "where the token does not say email_verified=false.",
        ),
    ] = "sub"
    oidc_username_prefix: Annotated[
        str,
        Meta(
            max_length=128,
            description="Put before the user's name, so that it is no other's: oidc:. Empty: the issuer and # where "
            "the claim is not email, and nothing where it is, as kube-apiserver does. A - means none.",
        ),
    ] = ""
    oidc_groups_claim: Annotated[
        str,
        Meta(
            max_length=128, description="Claim with the user's groups: a list of texts, or one text. Empty: no groups."
        ),
    ] = "groups"
    oidc_groups_prefix: Annotated[
        str, Meta(max_length=128, description="Put before the name of each group: oidc:. Empty: nothing.")
    ] = ""
    oidc_required_claims: Annotated[
        dict[str, str],
        Meta(
            description='Claims that a token must have with this very value, as JSON: {"hd": "example.com"}. Empty: '
            "none."
        ),
    ] = {}
    oidc_signing_algs: Annotated[
        tuple[Literal["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512"], ...],
        Meta(
            min_length=1,
            description="Algorithms that a token may be signed with, separated by commas. Only asymmetric ones exist "
            "here: none and HS256 are refused.",
        ),
    ] = ("RS256",)
    oidc_ca_file: Annotated[
        str,
        Meta(
            description="File with the certificates of the authorities that may have signed the issuer's. Empty: those "
            "of the system."
        ),
    ] = ""
    oidc_scopes: Annotated[
        tuple[str, ...],
        Meta(
            description="What a sign-in asks the issuer for, separated by commas; openid is always asked for. Many "
            "issuers give groups for a scope groups, and a refresh token for offline_access only."
        ),
    ] = ("openid", "profile", "email")
    oidc_label: Annotated[
        str,
        Meta(
            min_length=1, max_length=64, description="What the login page calls the issuer: Sign in with <this name>."
        ),
    ] = "single sign-on"
    oidc_roles: Annotated[
        dict[str, dict[str, Literal["viewer", "editor", "admin"]]],
        Meta(
            description="Mode token only, where no RoleBinding says it: who may what, as JSON from group:NAME or "
            'user:NAME, prefix included, to roles by workspace: {"group:ml-team": {"team-red": "editor"}}. The '
            "workspace * means all. Roles: viewer, editor, admin.",
            extra={"check": check_subjects},
        ),
    ] = {}
    tls_dir: Annotated[
        str,
        Meta(
            description="Folder with tls.crt and tls.key, as a mounted TLS Secret is one: SLIPWAY_LISTEN then speaks "
            "HTTPS, and nothing else. Looked at every ten seconds, so that a renewed certificate counts without a "
            "restart. Empty: HTTP; TLS may end in front."
        ),
    ] = ""
    audit_file: Annotated[
        str,
        Meta(
            description="File that audit events are appended to, one CloudEvent a line; its folder must be there. "
            "Empty: the log has them, as always. A file or a webhook, not both."
        ),
    ] = ""
    audit_file_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * 1024,
            le=4 * 1024 * 1024 * 1024,
            description="Size at which that file is renamed, with the time in its name, and a new one begun.",
            extra={"unit": "bytes"},
        ),
    ] = 64 * 1024 * 1024
    audit_files_max: Annotated[
        int, Meta(ge=0, le=10_000, description="How many full files of audit events are kept; the oldest go.")
    ] = 16
    audit_days_max: Annotated[
        int,
        Meta(
            ge=0,
            le=3650,
            description="How long full files of audit events are kept, at most; 0: as long as there are not too many.",
            extra={"unit": "days"},
        ),
    ] = 0
    audit_webhook_dir: Annotated[
        str,
        Meta(
            description="Folder with the files url and key (whsec_...), as a mounted Secret is one: audit events are "
            "posted there as batches of CloudEvents, signed as webhooks are. Empty: nowhere."
        ),
    ] = ""
    audit_retry_s: Annotated[
        float,
        Meta(
            ge=0,
            le=604_800,
            description="How long a batch of audit events is tried again before it is given up. Then "
            "the reader gets an event with the number of lost events.",
            extra={"unit": "seconds"},
        ),
    ] = 3600.0
    audit_backlog_max: Annotated[
        int,
        Meta(
            ge=100,
            le=1_000_000,
            description="Audit events that wait in memory for their reader; about 1 KiB each. Further ones are "
            "lost, and the reader gets an event with their number.",
        ),
    ] = 10_000
    session_s: Annotated[
        float,
        Meta(
            ge=60,
            le=604_800,
            description="How long a browser stays logged in, at most as long as its token counts. A working day.",
            extra={"unit": "seconds"},
        ),
    ] = 28_800.0
    session_key_dir: Annotated[
        str,
        Meta(
            description="Folder with the keys that seal the cookies of browsers, files named *.key with 32 bytes in "
            "URL-safe base64 each, as a mounted Secret is one. The last name in the alphabet seals, all open; looked "
            "at every few seconds. Every replica needs the same. They also sign what ranks exchange by all-gather. "
            "Empty: a key of this process alone, so that browsers log in again after a restart, and no signature."
        ),
    ] = ""
    accept_unsigned: Annotated[
        bool,
        Meta(
            description="Also believe data of all-gathers that have no signature at all: while replicas of a version "
            "that does not sign are replaced."
        ),
    ] = False
    proxy_domain: Annotated[
        str,
        Meta(
            description="Domain below which pages of workloads have origins of their own, as <id>.<domain>: browsers "
            "open them there, and there only. Needs a wildcard in DNS, and the api's own name in SLIPWAY_HOSTS. Empty: "
            "pages are opened through slipway port-forward; in mode none they are served in the origin of the api, "
            "where a script of theirs may do whatever the api can, and the api warns of it.",
            extra={"check": check_domain},
        ),
    ] = ""
    webhook_namespace: Annotated[
        str,
        Meta(
            pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$",
            max_length=63,
            description="Namespace with the Secrets that hold webhooks and their keys. Best one where nothing else is: "
            "Roles cannot tell Secrets apart. Empty: SLIPWAY_NAMESPACE.",
        ),
    ] = ""
    rate_per_s: Annotated[
        float,
        Meta(
            ge=0,
            le=100_000,
            description="Calls of the REST API that one user may make for long, at this process; 0 limits nobody. What "
            "is above is answered 429 with Retry-After. Not in mode none.",
            extra={"unit": "calls per second"},
        ),
    ] = 50.0
    rate_burst: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Calls that one user may make at once, on top of that."),
    ] = 500
    refusals_per_s: Annotated[
        float,
        Meta(
            ge=0,
            le=100_000,
            description="Credentials of one client address that may be refused for long, at this process; 0 limits no "
            "address. What is above is answered 429 before anything is asked of Kubernetes or an issuer. Credentials "
            "that were valid within the last minute are not held up. Not in mode none.",
            extra={"unit": "refusals per second"},
        ),
    ] = 1.0
    refusals_burst: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Credentials of one client address that may be refused at once."),
    ] = 200
    trusted_proxies: Annotated[
        tuple[str, ...],
        Meta(
            description="Networks (CIDR) of proxies in front of the api, such as an Ingress, separated by commas. The "
            "limit of refusals counts for the client that their X-Forwarded-For names. Empty: for who connects.",
            extra={"check": parse_networks},
        ),
    ] = ()
    api_url: Annotated[
        str, Meta(description="Where ranks find the API, as the pod worker has it: a dry run shows the same pods.")
    ] = ""
    context_image: Annotated[
        str, Meta(description="Image that unpacks uploaded files, as the pod worker has it: for dry runs.")
    ] = ""
    context_python: Annotated[
        str, Meta(max_length=1024, description="The Python in that image, as the pod worker has it: for dry runs.")
    ] = "python3"
    hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Host names under which the api is reached, beyond localhost: those of a proxy or a forwarded "
            "port. Others are refused, so that no foreign web page can use the api through a browser."
        ),
    ] = ()
    body_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            le=3 * 1024 * 1024,
            description="Largest request body; above what a spec may have (256 KiB), below what Kubernetes takes.",
            extra={"unit": "bytes"},
        ),
    ] = 1024 * 1024
    request_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=600,
            description="How long a request may take; streams, long polls and the proxy have limits of their own.",
            extra={"unit": "seconds"},
        ),
    ] = 30.0
    kube_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="Longest wait for one answer of the Kubernetes API before a request is answered 503. Short: "
            "somebody waits.",
            extra={"unit": "seconds"},
        ),
    ] = 5.0
    streams_max: Annotated[
        int,
        Meta(ge=1, le=100_000, description="Open event and log streams and proxied sockets of this process."),
    ] = 2000
    streams_per_user_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="How many of these, and of long polls, one user may have. 0: a quarter of "
            "SLIPWAY_STREAMS_MAX. Not in mode none.",
        ),
    ] = 0
    streams_per_workspace_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="How many of these may belong to the allocations of one workspace. 0: three quarters of "
            "SLIPWAY_STREAMS_MAX. Not in mode none.",
        ),
    ] = 0
    exec_enabled: Annotated[
        bool,
        Meta(
            description="Whether commands may be run in ranks (slipway exec, cp and ssh), by callers who may change "
            "the allocation. In a cluster the chart grants pods/exec in the workspaces where this is true.",
        ),
    ] = True
    exec_idle_s: Annotated[
        float,
        Meta(
            ge=1,
            le=604_800,
            description="How long a command in a rank may neither print nor be typed to before its session ends.",
            extra={"unit": "seconds"},
        ),
    ] = 14_400.0
    exec_sessions_max: Annotated[
        int,
        Meta(ge=1, le=100_000, description="Commands in ranks that one user may have open at this process."),
    ] = 32
    context_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1024 * 1024 * 1024,
            description="Largest archive of files that a launch may bring along; 0 takes none. It is kept in pieces "
            "in ConfigMaps of the workspace, that is: in etcd.",
            extra={"unit": "bytes"},
        ),
    ] = 95 * 1024 * 1024
    context_uploads_max: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Archives that are received at the same time: each is held in memory while it is checked.",
        ),
    ] = 2
    context_uploads_per_user_max: Annotated[
        int,
        Meta(ge=1, le=64, description="How many of these one user may send at the same time. Not in mode none."),
    ] = 1
    context_workspace_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1024**4,
            description="Bytes of archives that one workspace may have stored; 0: as many as fit. They are in etcd.",
            extra={"unit": "bytes"},
        ),
    ] = 1024 * 1024 * 1024
    context_cache_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=4 * 1024 * 1024 * 1024,
            description="Pieces of archives that are kept in memory, so that the ranks of a gang cost one read.",
            extra={"unit": "bytes"},
        ),
    ] = 128 * 1024 * 1024
    proxy_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="How long a proxied request may be silent before it is given up.",
            extra={"unit": "seconds"},
        ),
    ] = 300.0
    workload_token_file: Annotated[
        str,
        Meta(
            description="File with a token that the proxy sends to workloads as Authorization: Bearer, so that their "
            "programs can refuse other callers. `slipway up` sets it, and gives the token to the workloads. Empty: "
            "none is sent; in a cluster a NetworkPolicy says who reaches a pod."
        ),
    ] = ""
    proxy_networks: Annotated[
        tuple[str, ...],
        Meta(
            description="Networks (CIDR) of pods that the proxy leads to although their addresses are loopback, "
            "link-local, a metadata service's or a node's own, separated by commas. `slipway up` sets the addresses of "
            "its ranks.",
            extra={"check": parse_networks},
        ),
    ] = ()
    webhook_networks: Annotated[
        tuple[str, ...],
        Meta(
            description="Networks (CIDR) that webhooks may be sent to beyond the public internet, such as "
            "10.20.0.0/16, separated by commas. Whoever may add a webhook makes this process connect there.",
            extra={"check": parse_networks},
        ),
    ] = ()
    webhook_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="How long a receiver of a webhook may take to answer.",
            extra={"unit": "seconds"},
        ),
    ] = 10.0
    webhook_retry_s: Annotated[
        float,
        Meta(
            ge=0,
            le=604_800,
            description="How long one delivery of a webhook is tried again before it becomes a dead letter. An hour: "
            "long enough for a receiver to be repaired or restarted.",
            extra={"unit": "seconds"},
        ),
    ] = 3600.0
    webhook_concurrency: Annotated[
        int,
        Meta(ge=1, le=256, description="Tries under way at the same time to the receiver of one webhook."),
    ] = 8

    logs_url_template: Annotated[
        str,
        Meta(
            max_length=4096,
            description="Where the cluster keeps logs beside Slipway (Loki in Grafana, Cloud Logging, OpenSearch): an "
            "address in which {workspace}, {id}, {name}, {uid}, {attempt}, {from_ms} and {to_ms} stand for those of an "
            "allocation. The page, `slipway describe`, `slipway logs` and links.outsideLogs show it. Empty: nowhere.",
            extra={"check": check_url_template},
        ),
    ] = ""
    outside_links: Annotated[
        str,
        Meta(
            max_length=65536,
            description="Links of each workload to what the cluster has about it beside Slipway, as a JSON list of "
            "{title, url, icon}, 16 at most. In the url stand the placeholders of logsUrlTemplate. The page, "
            "`slipway describe` and links.outside show them. Empty: none.",
            extra={"check": link_templates},
        ),
    ] = ""
    prometheus_url: Annotated[
        str,
        Meta(
            description="Prometheus, or what speaks its HTTP API, that has figures of the cluster's GPUs, such as "
            "http://prometheus.monitoring:9090: what GPUs do is then shown beside who holds them. Empty: it is not.",
            extra={"check": check_prometheus_url},
        ),
    ] = ""
    prometheus_token_file: Annotated[
        str, Meta(description="File with a token for Prometheus, sent as Authorization: Bearer. Empty: none is sent.")
    ] = ""
    prometheus_ca_file: Annotated[
        str,
        Meta(
            description="File with the certificates of the authorities that may have signed that of Prometheus. Empty: "
            "those of the system."
        ),
    ] = ""
    gpu_use_query: Annotated[
        str,
        Meta(
            max_length=1024,
            min_length=1,
            description="PromQL of how busy each GPU is, in percent: one series per GPU with the labels namespace and "
            "pod (or exported_namespace and exported_pod) of the rank that has it. For DCGM's profiling figures: "
            "100 * DCGM_FI_PROF_GR_ENGINE_ACTIVE.",
        ),
    ] = DEFAULT_EXPRESSION
    gpu_idle_s: Annotated[
        float,
        Meta(
            ge=5,
            le=86_400,
            description="An allocation whose GPUs have all done nothing for so long is shown as idle.",
            extra={"unit": "seconds"},
        ),
    ] = 1_800.0
    gpu_idle_percent: Annotated[
        float,
        Meta(
            gt=0,
            le=100,
            description="What a GPU does below this is nothing.",
            extra={"unit": "percent"},
        ),
    ] = 5.0

    simulations_max: Annotated[
        int,
        Meta(ge=1, le=64, description="What-if questions that are answered at the same time, each by its own process."),
    ] = 2
    simulate_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=300,
            description="How long a what-if question may take; shorter than a request.",
            extra={"unit": "seconds"},
        ),
    ] = 20.0
    simulate_memory_bytes: Annotated[
        int,
        Meta(
            ge=64 * 1024 * 1024,
            le=64 * 1024 * 1024 * 1024,
            description="Memory that the process of one what-if question may use.",
            extra={"unit": "bytes"},
        ),
    ] = 256 * 1024 * 1024

    def read_workload_token(self) -> str:
        """Return the token in `workload_token_file`; empty when the setting is empty.

        Raises InvalidError when the file cannot be read or is empty.
        """
        return read_token("SLIPWAY_WORKLOAD_TOKEN_FILE", self.workload_token_file)

    @property
    def streams_of_one_user(self) -> int:
        """How many streams one user may have open."""
        return self.streams_per_user_max or max(1, self.streams_max // 4)

    @property
    def streams_of_one_workspace(self) -> int:
        """How many streams of one workspace may be open."""
        return self.streams_per_workspace_max or max(1, self.streams_max * 3 // 4)

    @property
    def consumer(self) -> str:
        """The name of this process as a stream consumer; no other process has it.

        It is the same after a restart, so that the process continues with its unacknowledged entries.
        """
        port = parse_listen(self.listen).port
        return f"{socket.gethostname()}-{port or f'pid-{os.getpid()}'}"

    @property
    def task_options(self) -> TaskOptions:
        """The options that the pod worker passes to the containers."""
        return TaskOptions(
            api_url=self.api_url or f"http://slipway-api.{self.namespace}.svc:8080",
            token_audience=self.task_audience,
            context_image=self.context_image,
            context_python=self.context_python,
        )

    def __post_init__(self) -> None:
        if self.task_listen and not self.task_audience:
            raise ValueError("SLIPWAY_TASK_LISTEN needs SLIPWAY_TASK_AUDIENCE: nobody could come in")
        if (self.auth == "token") is not bool(self.token_dir):
            raise ValueError("SLIPWAY_TOKEN_DIR and SLIPWAY_AUTH=token need each other: it names the tokens that count")
        if self.auth == "kubernetes" and self.auth_audience and self.auth_audience == self.task_audience:
            raise ValueError(
                "SLIPWAY_AUTH_AUDIENCE and SLIPWAY_TASK_AUDIENCE are the same: the token of a task would be a user's"
            )
        self._check_oidc()
        if self.audit_file and self.audit_webhook_dir:
            raise ValueError("SLIPWAY_AUDIT_FILE and SLIPWAY_AUDIT_WEBHOOK_DIR are both set: audit events go to one")
        if self.proxy_domain and not self.hosts and self.auth != "none":
            raise ValueError(
                "SLIPWAY_PROXY_DOMAIN needs the api's own names in SLIPWAY_HOSTS: only their pages lead on to workloads"
            )
        if self.auth == "none" and not parse_listen(self.listen).is_loopback:
            raise ValueError(
                f"SLIPWAY_LISTEN={self.listen} can be reached from other machines, and SLIPWAY_AUTH=none lets "
                "everybody in; listen on a loopback address such as 127.0.0.1:8080, or set SLIPWAY_AUTH to token or "
                "kubernetes"
            )

    def outside(self) -> OutsideLinks:
        """Return the templates of the links from each workload to other systems of the cluster."""
        return OutsideLinks(self.logs_url_template, link_templates(self.outside_links))

    @property
    def oidc_audiences(self) -> tuple[str, ...]:
        """The audiences that a token of the issuer may have."""
        return self.oidc_audience or tuple(dict.fromkeys((self.oidc_client_id, self.cli_client_id)))

    @property
    def cli_client_id(self) -> str:
        """The id of the OIDC client that `slipway login` uses."""
        return self.oidc_cli_client_id or self.oidc_client_id

    def _check_oidc(self) -> None:
        if bool(self.oidc_issuer_url) is not bool(self.oidc_client_id):
            raise ValueError("SLIPWAY_OIDC_ISSUER_URL and SLIPWAY_OIDC_CLIENT_ID need each other")
        if not self.oidc_issuer_url:
            return
        if self.auth == "none":
            raise ValueError(
                "SLIPWAY_OIDC_ISSUER_URL needs SLIPWAY_AUTH=token or kubernetes: none asks nobody who calls"
            )
        if self.oidc_roles and self.auth != "token":
            raise ValueError(
                "SLIPWAY_OIDC_ROLES is for SLIPWAY_AUTH=token; in mode kubernetes bind roles with RoleBindings to the "
                "users and groups of the issuer"
            )
