"""Security contexts of pod templates: the checks of "restricted", and the context that satisfies it.

A template without a context gets one (`secured`). A template that requires more than "restricted" allows is refused
(`check_*`), unless its pool allows privileged templates or grants this privilege (`Grants`).

Source: Pod Security Standards, "restricted" (which includes "baseline"), Kubernetes 1.36.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, cast

from slipway.crd.fielderrors import Findings, pointer
from slipway.crd.meta import RunAs
from slipway.crd.roleresources import object_of, objects_of

USER_ID = 1000
"""The uid of a rank when neither template nor container sets one: it is not root, and it is the user of Jupyter's
images."""
HOST_SWITCHES = frozenset({"hostNetwork", "hostPID", "hostIPC", "hostUsers"})
_CAPABILITIES = frozenset({"NET_BIND_SERVICE"})
_SAFE_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_wmem",
    }
)
_SELINUX_TYPES = frozenset({"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"})
_POD_FIELDS = frozenset(
    {
        "runAsNonRoot",
        "runAsUser",
        "runAsGroup",
        "fsGroup",
        "fsGroupChangePolicy",
        "supplementalGroups",
        "supplementalGroupsPolicy",
        "seccompProfile",
        "appArmorProfile",
        "seLinuxOptions",
        "seLinuxChangePolicy",
        "sysctls",
    }
)
_CONTAINER_FIELDS = frozenset(
    {
        "runAsNonRoot",
        "runAsUser",
        "runAsGroup",
        "seccompProfile",
        "appArmorProfile",
        "seLinuxOptions",
        "privileged",
        "allowPrivilegeEscalation",
        "readOnlyRootFilesystem",
        "capabilities",
        "procMount",
    }
)
ROOT = "root"
HOST_PRIVILEGES = ("hostIPC", "hostNetwork")
"""Pod fields that a pool may allow by name."""
Grants = Collection[str]
"""Privileges that a pool allows: `root`, those of `HOST_PRIVILEGES`, and capabilities."""
Check = Callable[[Any, str, Findings, Grants], None]


def check_host_switch(
    field: str, value: Any, at: str, findings: Findings, *, privileged: bool, grants: Grants = ()
) -> None:
    """Check `hostNetwork` and similar fields: only the harmless value and what the pool grants are accepted."""
    harmless = (None, False) if field != "hostUsers" else (None, False, True)
    if value in harmless or privileged or (value is True and field in HOST_PRIVILEGES and field in grants):
        return
    more = _or_granted(field) if field in HOST_PRIVILEGES else ""
    findings.refuse(at, f"must be false: ranks do not share the node's namespaces; leave it out{more}")


def check_pod(context: Any, at: str, findings: Findings, *, privileged: bool, grants: Grants = ()) -> None:
    """Add an error for each field of a pod's securityContext that is not allowed."""
    _check(findings.mapping(context, at), _POD_FIELDS, at, findings, grants, privileged=privileged)


def check_container(context: Any, at: str, findings: Findings, *, privileged: bool, grants: Grants = ()) -> None:
    """Add an error for each field of a container's securityContext that is not allowed."""
    _check(findings.mapping(context, at), _CONTAINER_FIELDS, at, findings, grants, privileged=privileged)


def privileges_of(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (JSON pointer below the pod spec, privilege) for each requested privilege that a pool may allow by name."""
    for field in HOST_PRIVILEGES:
        if spec.get(field):
            yield f"/{field}", field
    yield from _root_in(object_of(spec.get("securityContext")), "/securityContext")
    for group in ("containers", "initContainers"):
        for index, container in enumerate(objects_of(spec.get(group))):
            at, context = f"/{group}/{index}/securityContext", object_of(container.get("securityContext"))
            yield from _root_in(context, at)
            added = object_of(context.get("capabilities")).get("add")
            for place, name in enumerate(cast("list[Any]", added) if isinstance(added, list) else []):
                if not isinstance(name, str) or name not in _CAPABILITIES:
                    yield f"{at}/capabilities/add/{place}", str(name)


def _root_in(context: Mapping[str, Any], at: str) -> Iterator[tuple[str, str]]:
    if context.get("runAsUser") == 0:
        # `runAsNonRoot: false` follows from uid 0 and is not a second privilege.
        yield f"{at}/runAsUser", ROOT
    elif context.get("runAsNonRoot") is False:
        yield f"{at}/runAsNonRoot", ROOT


def _or_granted(privilege: str) -> str:
    return f", or have an administrator add {privilege} to allowedPrivileges of the pool"


def running_as(spec: Mapping[str, Any], run_as: RunAs, *, is_limited: bool = False) -> dict[str, Any]:
    """Return `spec` with the ids of `run_as` where `spec` sets none.

    `is_limited`: the pool allows only some groups, so fsGroup becomes the primary group.
    """
    context = {**run_as.context, **_said(spec.get("securityContext"))}
    if is_limited and "runAsGroup" in context:
        context.setdefault("fsGroup", context["runAsGroup"])
    return {**spec, "securityContext": context} if context else dict(spec)


def secured(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return `spec` with securityContexts that satisfy "restricted", set where `spec` sets nothing."""
    said = _said(spec.get("securityContext"))
    pod = {
        # An earlier check has refused root if the pool does not allow it.
        "runAsNonRoot": said.get("runAsUser") != 0,
        "runAsUser": USER_ID,
        "fsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
        **said,
    }
    result: dict[str, Any] = {**spec, "securityContext": pod}
    for group in ("containers", "initContainers"):
        if group in spec:
            result[group] = [_secured_container(container) for container in objects_of(spec[group])]
    return result


def _secured_container(container: Mapping[str, Any]) -> dict[str, Any]:
    said = _said(container.get("securityContext"))
    capabilities = object_of(said.get("capabilities"))
    context = {
        "allowPrivilegeEscalation": False,
        **({"runAsNonRoot": False} if said.get("runAsUser") == 0 else {}),
        **said,
        "capabilities": {**capabilities, "drop": ["ALL"]},
    }
    return {**container, "securityContext": context}


def _said(context: Any) -> dict[str, Any]:
    return {field: value for field, value in object_of(context).items() if value is not None}


def _check(
    context: Mapping[str, Any], known: frozenset[str], at: str, findings: Findings, grants: Grants, *, privileged: bool
) -> None:
    for field, value in context.items():
        here = at + pointer(field)
        if field not in known:
            findings.refuse(here, "is not a field that this securityContext may set")
        elif not privileged and value is not None and field in _CHECKS:
            _CHECKS[field](value, here, findings, grants)


def _must_be(wanted: Any, hint: str) -> Check:
    def check(value: Any, at: str, findings: Findings, grants: Grants) -> None:
        del grants
        if value is not wanted:
            findings.refuse(at, hint)

    return check


def _check_user(value: Any, at: str, findings: Findings, grants: Grants) -> None:
    if value == 0 and ROOT not in grants:
        hint = f"must not be 0: ranks do not run as root; leave it out to run as {USER_ID}"
        findings.refuse(at, hint + _or_granted(ROOT))


def _check_non_root(value: Any, at: str, findings: Findings, grants: Grants) -> None:
    if value is not True and not (value is False and ROOT in grants):
        findings.refuse(at, f"must be true: ranks do not run as root; leave it out{_or_granted(ROOT)}")


def _check_profile(value: Any, at: str, findings: Findings, grants: Grants) -> None:
    del grants
    if findings.mapping(value, at).get("type") not in ("RuntimeDefault", "Localhost"):
        findings.refuse(f"{at}/type", "must be RuntimeDefault or Localhost; leave it out for RuntimeDefault")


def _check_selinux(value: Any, at: str, findings: Findings, grants: Grants) -> None:
    del grants
    options = findings.mapping(value, at)
    kind = options.get("type", "")
    if not isinstance(kind, str) or kind not in _SELINUX_TYPES:
        findings.refuse(f"{at}/type", "must be one of the container types; leave it out")
    for field in ("user", "role"):
        if options.get(field):
            findings.refuse(f"{at}/{field}", "leave it out")


def _check_capabilities(value: Any, at: str, findings: Findings, grants: Grants) -> None:
    for index, name in enumerate(findings.items(findings.mapping(value, at).get("add"), f"{at}/add")):
        if not isinstance(name, str) or (name not in _CAPABILITIES and name not in _capabilities_in(grants)):
            allowed = ", ".join(sorted({*_CAPABILITIES, *_capabilities_in(grants)}))
            more = _or_granted(str(name)[:64])
            findings.refuse(f"{at}/add/{index}", f"{str(name)[:64]} may not be added; only {allowed} may{more}")


def _capabilities_in(grants: Grants) -> set[str]:
    return {name for name in grants if name != ROOT and name not in HOST_PRIVILEGES}


def _check_sysctls(value: Any, at: str, findings: Findings, grants: Grants) -> None:
    del grants
    for index, item in enumerate(findings.items(value, at)):
        name = findings.mapping(item, f"{at}/{index}").get("name")
        if not isinstance(name, str) or name not in _SAFE_SYSCTLS:
            findings.refuse(f"{at}/{index}/name", f"{name} is not a safe sysctl; leave it out")


def _check_proc_mount(value: Any, at: str, findings: Findings, grants: Grants) -> None:
    del grants
    if value != "Default":
        findings.refuse(at, "must be Default; leave it out")


_CHECKS: Mapping[str, Check] = {
    "runAsNonRoot": _check_non_root,
    "runAsUser": _check_user,
    "seccompProfile": _check_profile,
    "appArmorProfile": _check_profile,
    "seLinuxOptions": _check_selinux,
    "sysctls": _check_sysctls,
    "privileged": _must_be(False, "must be false: privileged containers are not allowed; leave it out"),
    "allowPrivilegeEscalation": _must_be(False, "must be false; leave it out"),
    "capabilities": _check_capabilities,
    "procMount": _check_proc_mount,
}
