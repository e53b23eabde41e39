"""Settings of the api.

Owns the rule that an api without authentication is reachable only from this machine, and the settings that each
authentication mode needs.
"""

import os
import socket
from typing import Annotated, Literal

from msgspec import Meta

from slipway.api.allocations.outside_links import OutsideLinks, check_url_template, link_templates
from slipway.api.auth.issuer_rules import check_issuer_url, check_subjects
from slipway.api.auth.origins import check_domain
from slipway.api.http.networks import parse_networks
from slipway.api.usage.gpu_use import DEFAULT_EXPRESSION
from slipway.api.usage.prometheus import check_prometheus_url
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
            description="host:port of a second listener that serves only /livez, /readyz and /metrics. For a kubelet "
            "and a Prometheus, which cannot reach a loopback address of the api. Empty: no second listener.",
            extra={"check": parse_listen},
        ),
    ] = ""
    task_listen: Annotated[
        str,
        Meta(
            description="host:port of the task port. It serves only the endpoints for programs inside of ranks, and "
            "only to callers with the token of a task. Other machines may reach it. Empty: no task port.",
            extra={"check": parse_listen},
        ),
    ] = ""
    task_audience: Annotated[
        str,
        Meta(
            description="Audience of the tokens of tasks; must equal the task audience of the pod worker. Empty: "
            "tokens of tasks are rejected."
        ),
    ] = "slipway"
    auth: Annotated[
        Literal["none", "token", "kubernetes"],
        Meta(
            description="How callers authenticate. none: not at all, so the api must listen on a loopback address. "
            "token: with a token whose hash is in SLIPWAY_TOKEN_DIR. kubernetes: with a token that the cluster "
            "accepts (TokenReview); the cluster also decides what the caller may do (SubjectAccessReview)."
        ),
    ] = "none"
    token_audiences: Annotated[
        tuple[str, ...],
        Meta(
            description="Audiences that projected tokens in pod templates may have, separated by commas. The chart "
            "sets it to the audiences that its admission policy allows, so that the api refuses a launch before the "
            "API server refuses its pods. Empty: every audience but the Kubernetes API."
        ),
    ] = ()
    token_dir: Annotated[
        str,
        Meta(
            description="Folder with the records of tokens, such as a mounted Secret: one JSON file per token. "
            "`slipway token create` writes them. The folder is read again every few seconds. Required in mode token, "
            "and allowed only there."
        ),
    ] = ""
    auth_audience: Annotated[
        str,
        Meta(
            description="Audience that the tokens of users must have in mode kubernetes, so that a token for this api "
            "is valid nowhere else. It must differ from the task audience. Empty: the audience of the API server, "
            "which the tokens in a kubeconfig have."
        ),
    ] = "slipway-api"
    oidc_issuer_url: Annotated[
        str,
        Meta(
            max_length=512,
            description="OpenID Connect issuer whose tokens are accepted, exactly as its discovery document and its "
            "tokens name it: https://login.example.com. They are accepted in addition to the tokens of mode token or "
            "kubernetes. Empty: no single sign-on.",
            extra={"check": check_issuer_url},
        ),
    ] = ""
    oidc_client_id: Annotated[
        str,
        Meta(
            max_length=255,
            description="Id of the api's client at the issuer: the audience of ID tokens, and the client for sign-in "
            "in a browser.",
        ),
    ] = ""
    oidc_client_secret_file: Annotated[
        str,
        Meta(
            description="File with the secret of that client, such as a mounted Secret. It is read at every use, so "
            "that it can change without a restart. Empty: a public client, which uses only PKCE."
        ),
    ] = ""
    oidc_cli_client_id: Annotated[
        str,
        Meta(
            max_length=255,
            description="Id of the client that `slipway login` uses: a public client that allows the loopback "
            "redirect http://127.0.0.1 and the device flow. Empty: SLIPWAY_OIDC_CLIENT_ID.",
        ),
    ] = ""
    oidc_audience: Annotated[
        tuple[str, ...],
        Meta(
            description="Accepted audiences of a token, separated by commas; a token needs one of them. Access tokens "
            "often have another audience than the client. Empty: the two clients above."
        ),
    ] = ()
    oidc_username_claim: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=128,
            description="Claim with the name of the user, such as sub, email or preferred_username. An email is "
            "rejected when the token has email_verified=false.",
        ),
    ] = "sub"
    oidc_username_prefix: Annotated[
        str,
        Meta(
            max_length=128,
            description="Prefix of user names, such as oidc:, so that they differ from other names of the cluster. "
            "Empty: as in kube-apiserver, the issuer and #, or no prefix when the claim is email. A - means no prefix.",
        ),
    ] = ""
    oidc_groups_claim: Annotated[
        str,
        Meta(
            max_length=128, description="Claim with the user's groups: a list of texts, or one text. Empty: no groups."
        ),
    ] = "groups"
    oidc_groups_prefix: Annotated[
        str, Meta(max_length=128, description="Prefix of group names, such as oidc:. Empty: no prefix.")
    ] = ""
    oidc_required_claims: Annotated[
        dict[str, str],
        Meta(
            description='Claims that a token must have with exactly these values, as JSON: {"hd": "example.com"}. '
            "Empty: no required claims."
        ),
    ] = {}
    oidc_signing_algs: Annotated[
        tuple[Literal["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512"], ...],
        Meta(
            min_length=1,
            description="Algorithms that a token may be signed with, separated by commas. Only asymmetric algorithms "
            "are allowed: none and HS256 are rejected.",
        ),
    ] = ("RS256",)
    oidc_ca_file: Annotated[
        str,
        Meta(
            description="File with the CA certificates that the issuer's certificate is verified with. Empty: the CA "
            "certificates of the system."
        ),
    ] = ""
    oidc_scopes: Annotated[
        tuple[str, ...],
        Meta(
            description="Scopes that a sign-in requests from the issuer, separated by commas; openid is always "
            "requested. Many issuers return groups only for the scope groups, and a refresh token only for "
            "offline_access."
        ),
    ] = ("openid", "profile", "email")
    oidc_label: Annotated[
        str,
        Meta(
            min_length=1, max_length=64, description="Name of the issuer on the login page: Sign in with <this name>."
        ),
    ] = "single sign-on"
    oidc_roles: Annotated[
        dict[str, dict[str, Literal["viewer", "editor", "admin"]]],
        Meta(
            description="Roles of users and groups of the issuer, in mode token only, where RoleBindings are not "
            'used. JSON from group:NAME or user:NAME, prefix included, to roles by workspace: {"group:ml-team": '
            '{"team-red": "editor"}}. The workspace * means all workspaces. Roles: viewer, editor, admin.',
            extra={"check": check_subjects},
        ),
    ] = {}
    tls_dir: Annotated[
        str,
        Meta(
            description="Folder with tls.crt and tls.key, such as a mounted TLS Secret. SLIPWAY_LISTEN then serves "
            "only HTTPS. The folder is checked every ten seconds, so that a renewed certificate is used without a "
            "restart. Empty: HTTP; a proxy in front may terminate TLS."
        ),
    ] = ""
    audit_file: Annotated[
        str,
        Meta(
            description="File that audit events are appended to, one CloudEvent per line; its folder must exist. "
            "Empty: no file. The log of the api always has the audit events. Set either a file or a webhook, not both."
        ),
    ] = ""
    audit_file_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * 1024,
            le=4 * 1024 * 1024 * 1024,
            description="Size at which that file is renamed, with the time in its name, and a new file is started.",
            extra={"unit": "bytes"},
        ),
    ] = 64 * 1024 * 1024
    audit_files_max: Annotated[
        int, Meta(ge=0, le=10_000, description="Maximum number of full files of audit events; the oldest are deleted.")
    ] = 16
    audit_days_max: Annotated[
        int,
        Meta(
            ge=0,
            le=3650,
            description="Maximum age of full files of audit events; 0: only their number is limited.",
            extra={"unit": "days"},
        ),
    ] = 0
    audit_webhook_dir: Annotated[
        str,
        Meta(
            description="Folder with the files url and key (whsec_...), such as a mounted Secret. Audit events are "
            "posted to that URL as batches of CloudEvents, signed like webhooks. Empty: no webhook."
        ),
    ] = ""
    audit_retry_s: Annotated[
        float,
        Meta(
            ge=0,
            le=604_800,
            description="How long the delivery of a batch of audit events is retried before the batch is dropped. The "
            "receiver then gets an event with the number of lost events.",
            extra={"unit": "seconds"},
        ),
    ] = 3600.0
    audit_backlog_max: Annotated[
        int,
        Meta(
            ge=100,
            le=1_000_000,
            description="Maximum number of audit events that wait in memory for their receiver; about 1 KiB each. "
            "Further events are lost, and the receiver gets an event with their number.",
        ),
    ] = 10_000
    session_s: Annotated[
        float,
        Meta(
            ge=60,
            le=604_800,
            description="How long a browser stays logged in, but not longer than its token is valid. The default is a "
            "working day.",
            extra={"unit": "seconds"},
        ),
    ] = 28_800.0
    session_key_dir: Annotated[
        str,
        Meta(
            description="Folder with the keys that encrypt the cookies of browsers, such as a mounted Secret: files "
            "named *.key, each with 32 bytes in URL-safe base64. The last file in alphabetical order encrypts, all of "
            "them decrypt. The folder is read again every few seconds. Every replica needs the same keys. They also "
            "sign the data that ranks exchange by all-gather. Empty: a key of this process alone, so browsers must "
            "log in again after a restart, and all-gather data is not signed."
        ),
    ] = ""
    accept_unsigned: Annotated[
        bool,
        Meta(
            description="Also accept all-gather data without any signature; for an upgrade, while replicas run whose "
            "version does not sign."
        ),
    ] = False
    proxy_domain: Annotated[
        str,
        Meta(
            description="Domain below which each workload's pages have their own origin, <id>.<domain>: browsers open "
            "them only there. Needs a wildcard record in DNS, and the api's own name in SLIPWAY_HOSTS. Empty: users "
            "open pages through slipway port-forward. In mode none, the api then serves them in its own origin, where "
            "their scripts can do everything that the api can; it logs a warning.",
            extra={"check": check_domain},
        ),
    ] = ""
    webhook_namespace: Annotated[
        str,
        Meta(
            pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$",
            max_length=63,
            description="Namespace of the Secrets with webhooks and their keys. Use a namespace for them alone, "
            "because Roles cannot distinguish Secrets. Empty: SLIPWAY_NAMESPACE.",
        ),
    ] = ""
    rate_per_s: Annotated[
        float,
        Meta(
            ge=0,
            le=100_000,
            description="Calls of the REST API per second that one user may make to this process in the long run; 0: "
            "no limit. Calls above it are answered with 429 and Retry-After. Not used in mode none.",
            extra={"unit": "calls per second"},
        ),
    ] = 50.0
    rate_burst: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Number of calls in a burst that one user may make in addition."),
    ] = 500
    refusals_per_s: Annotated[
        float,
        Meta(
            ge=0,
            le=100_000,
            description="Rejected credentials per second that one client address may send to this process in the long "
            "run; 0: no limit. Calls above it are answered with 429, without a call to Kubernetes or the issuer. "
            "Credentials that were valid within the last minute are still accepted. Not used in mode none.",
            extra={"unit": "refusals per second"},
        ),
    ] = 1.0
    refusals_burst: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Number of rejected credentials that one client address may send in a burst.",
        ),
    ] = 200
    trusted_proxies: Annotated[
        tuple[str, ...],
        Meta(
            description="Networks (CIDR) of proxies in front of the api, such as an Ingress, separated by commas. The "
            "limit of rejected credentials then applies to the client address in their X-Forwarded-For. Empty: it "
            "applies to the address that connects.",
            extra={"check": parse_networks},
        ),
    ] = ()
    api_url: Annotated[
        str,
        Meta(
            description="URL of the API for ranks. Use the value of the pod worker, so that a dry run shows the same "
            "pods."
        ),
    ] = ""
    context_image: Annotated[
        str,
        Meta(
            description="Image that unpacks uploaded files. Use the value of the pod worker, so that a dry run shows "
            "the same pods."
        ),
    ] = ""
    context_python: Annotated[
        str,
        Meta(
            max_length=1024,
            description="Python in that image. Use the value of the pod worker, so that a dry run shows the same pods.",
        ),
    ] = "python3"
    hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Host names that callers use for the api, in addition to localhost, such as the name of a "
            "proxy or of a forwarded port. Requests for other host names are refused, so that a web page of another "
            "site cannot use the api through a browser."
        ),
    ] = ()
    body_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            le=3 * 1024 * 1024,
            description="Maximum size of a request body; more than the maximum of a spec (256 KiB), less than the "
            "maximum of Kubernetes.",
            extra={"unit": "bytes"},
        ),
    ] = 1024 * 1024
    request_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=600,
            description="How long a request may take; streams, long polls and the proxy have their own limits.",
            extra={"unit": "seconds"},
        ),
    ] = 30.0
    kube_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="Maximum wait for one answer of the Kubernetes API before a request is answered with 503. The "
            "default is short, because a caller waits.",
            extra={"unit": "seconds"},
        ),
    ] = 5.0
    streams_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Maximum number of open event streams, log streams and proxied sockets of this process.",
        ),
    ] = 2000
    streams_per_user_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="Maximum number of these, and of long polls, per user. 0: a quarter of SLIPWAY_STREAMS_MAX. "
            "Not used in mode none.",
        ),
    ] = 0
    streams_per_workspace_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="Maximum number of these for the allocations of one workspace. 0: three quarters of "
            "SLIPWAY_STREAMS_MAX. Not used in mode none.",
        ),
    ] = 0
    exec_enabled: Annotated[
        bool,
        Meta(
            description="Whether callers who may change an allocation may run commands in its ranks (slipway exec, cp "
            "and ssh). If true, the chart grants the api pods/exec in the workspaces.",
        ),
    ] = True
    exec_idle_s: Annotated[
        float,
        Meta(
            ge=1,
            le=604_800,
            description="How long a command in a rank may have neither output nor input before its session ends.",
            extra={"unit": "seconds"},
        ),
    ] = 14_400.0
    exec_sessions_max: Annotated[
        int,
        Meta(ge=1, le=100_000, description="Maximum number of open commands in ranks per user at this process."),
    ] = 32
    context_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1024 * 1024 * 1024,
            description="Maximum size of the archive of files of a launch; 0: no archives. An archive is stored in "
            "pieces in ConfigMaps of the workspace, and so in etcd.",
            extra={"unit": "bytes"},
        ),
    ] = 95 * 1024 * 1024
    context_uploads_max: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Maximum number of archives that are received at the same time; each is in memory while it is "
            "checked.",
        ),
    ] = 2
    context_uploads_per_user_max: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Maximum number of archives that one user may send at the same time. Not used in mode none.",
        ),
    ] = 1
    context_workspace_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1024**4,
            description="Maximum size of all stored archives of one workspace, which are in etcd; 0: no limit.",
            extra={"unit": "bytes"},
        ),
    ] = 1024 * 1024 * 1024
    context_cache_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=4 * 1024 * 1024 * 1024,
            description="Size of the memory cache for pieces of archives. With it, all ranks of a gang need only one "
            "read.",
            extra={"unit": "bytes"},
        ),
    ] = 128 * 1024 * 1024
    proxy_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="How long a proxied request may transfer no data before it is ended.",
            extra={"unit": "seconds"},
        ),
    ] = 300.0
    workload_token_file: Annotated[
        str,
        Meta(
            description="File with a token that the proxy sends to workloads as Authorization: Bearer, so that their "
            "programs can refuse other callers. `slipway up` sets it, and passes the token to the workloads. Empty: "
            "no token is sent; in a cluster, a NetworkPolicy limits who can reach a pod."
        ),
    ] = ""
    proxy_networks: Annotated[
        tuple[str, ...],
        Meta(
            description="Networks (CIDR) of pods that the proxy may connect to although their addresses are loopback, "
            "link-local, or those of a metadata service or of a node, separated by commas. `slipway up` sets the "
            "addresses of its ranks.",
            extra={"check": parse_networks},
        ),
    ] = ()
    webhook_networks: Annotated[
        tuple[str, ...],
        Meta(
            description="Networks (CIDR) that webhooks may be sent to in addition to the public internet, such as "
            "10.20.0.0/16, separated by commas. A user who may add a webhook can make this process connect to them.",
            extra={"check": parse_networks},
        ),
    ] = ()
    webhook_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="Maximum wait for the answer of a receiver of a webhook.",
            extra={"unit": "seconds"},
        ),
    ] = 10.0
    webhook_retry_s: Annotated[
        float,
        Meta(
            ge=0,
            le=604_800,
            description="How long one delivery of a webhook is retried before it becomes a dead letter. The default "
            "is an hour: enough time to repair or restart a receiver.",
            extra={"unit": "seconds"},
        ),
    ] = 3600.0
    webhook_concurrency: Annotated[
        int,
        Meta(
            ge=1, le=256, description="Maximum number of concurrent delivery attempts to the receiver of one webhook."
        ),
    ] = 8

    logs_url_template: Annotated[
        str,
        Meta(
            max_length=4096,
            description="URL of the logs of an allocation in another system of the cluster (Loki in Grafana, Cloud "
            "Logging, OpenSearch). The placeholders {workspace}, {id}, {name}, {uid}, {attempt}, {from_ms} and "
            "{to_ms} are replaced by the values of the allocation. The page, `slipway describe`, `slipway logs` and "
            "links.outsideLogs show the URL. Empty: no link.",
            extra={"check": check_url_template},
        ),
    ] = ""
    outside_links: Annotated[
        str,
        Meta(
            max_length=65536,
            description="Links of each workload to other systems of the cluster, as a JSON list of {title, url, "
            "icon}, 16 at most. The url may contain the placeholders of logsUrlTemplate. The page, `slipway describe` "
            "and links.outside show them. Empty: no links.",
            extra={"check": link_templates},
        ),
    ] = ""
    prometheus_url: Annotated[
        str,
        Meta(
            description="URL of a Prometheus, or of a server with its HTTP API, that has the metrics of the cluster's "
            "GPUs, such as http://prometheus.monitoring:9090. The utilization of each GPU is then shown beside its "
            "holder. Empty: it is not shown.",
            extra={"check": check_prometheus_url},
        ),
    ] = ""
    prometheus_token_file: Annotated[
        str,
        Meta(description="File with a token for Prometheus, sent as Authorization: Bearer. Empty: no token is sent."),
    ] = ""
    prometheus_ca_file: Annotated[
        str,
        Meta(
            description="File with the CA certificates that the certificate of Prometheus is verified with. Empty: "
            "the CA certificates of the system."
        ),
    ] = ""
    gpu_use_query: Annotated[
        str,
        Meta(
            max_length=1024,
            min_length=1,
            description="PromQL query for the utilization of each GPU, in percent: one series per GPU, with the "
            "labels namespace and pod (or exported_namespace and exported_pod) of the rank that has it. For the "
            "profiling metrics of DCGM: 100 * DCGM_FI_PROF_GR_ENGINE_ACTIVE.",
        ),
    ] = DEFAULT_EXPRESSION
    gpu_idle_s: Annotated[
        float,
        Meta(
            ge=5,
            le=86_400,
            description="How long all GPUs of an allocation must be idle before the allocation is shown as idle.",
            extra={"unit": "seconds"},
        ),
    ] = 1_800.0
    gpu_idle_percent: Annotated[
        float,
        Meta(
            gt=0,
            le=100,
            description="Utilization below which a GPU is idle.",
            extra={"unit": "percent"},
        ),
    ] = 5.0

    simulations_max: Annotated[
        int,
        Meta(
            ge=1, le=64, description="Maximum number of what-if simulations at the same time; each has its own process."
        ),
    ] = 2
    simulate_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=300,
            description="How long a what-if simulation may take; shorter than a request.",
            extra={"unit": "seconds"},
        ),
    ] = 20.0
    simulate_memory_bytes: Annotated[
        int,
        Meta(
            ge=64 * 1024 * 1024,
            le=64 * 1024 * 1024 * 1024,
            description="Memory that the process of one what-if simulation may use.",
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
            raise ValueError(
                "SLIPWAY_TASK_LISTEN needs SLIPWAY_TASK_AUDIENCE: without it, the task port rejects every caller"
            )
        if (self.auth == "token") is not bool(self.token_dir):
            raise ValueError("SLIPWAY_TOKEN_DIR and SLIPWAY_AUTH=token need each other: set both or neither")
        if self.auth == "kubernetes" and self.auth_audience and self.auth_audience == self.task_audience:
            raise ValueError(
                "SLIPWAY_AUTH_AUDIENCE and SLIPWAY_TASK_AUDIENCE must differ: otherwise the token of a task is "
                "accepted as that of a user"
            )
        self._check_oidc()
        if self.audit_file and self.audit_webhook_dir:
            raise ValueError("SLIPWAY_AUDIT_FILE and SLIPWAY_AUDIT_WEBHOOK_DIR are both set; set only one of them")
        if self.proxy_domain and not self.hosts and self.auth != "none":
            raise ValueError(
                "SLIPWAY_PROXY_DOMAIN needs the api's own names in SLIPWAY_HOSTS: only pages of these hosts may link "
                "to workloads"
            )
        if self.auth == "none" and not parse_listen(self.listen).is_loopback:
            raise ValueError(
                f"SLIPWAY_LISTEN={self.listen} can be reached from other machines, and SLIPWAY_AUTH=none accepts "
                "every caller; listen on a loopback address such as 127.0.0.1:8080, or set SLIPWAY_AUTH to token or "
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
            raise ValueError("SLIPWAY_OIDC_ISSUER_URL and SLIPWAY_OIDC_CLIENT_ID need each other: set both or neither")
        if not self.oidc_issuer_url:
            return
        if self.auth == "none":
            raise ValueError(
                "SLIPWAY_OIDC_ISSUER_URL needs SLIPWAY_AUTH=token or kubernetes: mode none authenticates no caller"
            )
        if self.oidc_roles and self.auth != "token":
            raise ValueError(
                "SLIPWAY_OIDC_ROLES is for SLIPWAY_AUTH=token; in mode kubernetes bind roles with RoleBindings to the "
                "users and groups of the issuer"
            )
