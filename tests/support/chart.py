"""The chart as tests use it: rendered, installed, and read as the kubelet would read it.

Owns the one Helm process of a test run, and the parts of a rendered Deployment or Job that become a process: its
command, its environment, its account. It does not know what the chart should contain.
"""

import atexit
import base64
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, cast

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm"
RELEASE = "slipway"
NAMESPACE = "slipway-system"
SERVICES = ("api", "scheduler", "podworker", "watcher")
SETUP = "setup"
AUDIT = "audit"
TRIAL = "trial"
UNINSTALL = "uninstall"

_PODS = {
    "Pod": ("spec",),
    "Deployment": ("spec", "template", "spec"),
    "Job": ("spec", "template", "spec"),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
    "ScaledJob": ("spec", "jobTargetRef", "template", "spec"),
}
"""{kind: the path of the pod template in it}."""

Json = dict[str, Any]
Values = Mapping[str, Any]


class HelmError(Exception):
    """An error of Helm, in its own words."""


def render(
    values: Values | None = None,
    *,
    namespace: str = NAMESPACE,
    name: str = RELEASE,
    chart: Path = CHART,
    is_upgrade: bool = False,
) -> list[Json]:
    """Every object that an install with these values creates; callers must not change them.

    Raises:
        HelmError: the values are refused, or a template fails.
    """
    templates = _rendered(values, namespace, name, chart, is_upgrade=is_upgrade)
    texts = [text for path, text in sorted(templates.items()) if not path.endswith("NOTES.txt")]
    return [document for text in texts for document in _parsed(text)]


def notes(values: Values | None = None, *, namespace: str = NAMESPACE, name: str = RELEASE) -> str:
    """What Helm prints after an install."""
    return next(text for path, text in _rendered(values, namespace, name, CHART).items() if path.endswith("NOTES.txt"))


def lint(values: Values | None = None, *, chart: Path = CHART) -> list[Json]:
    """The messages of Helm's linter."""
    return cast(list[Json], _helm().ask("lint", chart=str(chart), values=_told(values)))


def install(
    kubeconfig: Path | str,
    namespace: str = NAMESPACE,
    values: Values | None = None,
    *,
    name: str = RELEASE,
    chart: Path = CHART,
    dry_run: str | None = None,
) -> Json:
    """Install the chart, its namespace included; return the release. Does not wait for pods."""
    return _change("install", kubeconfig, namespace, values, name, chart=str(chart), dry_run=dry_run)


def upgrade(
    kubeconfig: Path | str,
    namespace: str = NAMESPACE,
    values: Values | None = None,
    *,
    name: str = RELEASE,
    chart: Path = CHART,
    dry_run: str | None = None,
) -> Json:
    """Upgrades the release."""
    return _change("upgrade", kubeconfig, namespace, values, name, chart=str(chart), dry_run=dry_run)


def reset_then_reuse(
    kubeconfig: Path | str, values: Values, namespace: str = NAMESPACE, *, name: str = RELEASE
) -> Json:
    """The values that `--reset-then-reuse-values` uses: the values of the release, overridden by these."""
    answer = _helm().ask("given_values", kubeconfig=str(kubeconfig), name=name, namespace=namespace)
    return _over(cast(Json, answer), values)


def rollback(kubeconfig: Path | str, namespace: str = NAMESPACE, *, name: str = RELEASE, revision: int = 0) -> None:
    """Roll back to a revision; 0 is the previous one."""
    _helm().ask("rollback", kubeconfig=str(kubeconfig), name=name, namespace=namespace, revision=revision)


def try_out(kubeconfig: Path | str, namespace: str = NAMESPACE, *, name: str = RELEASE, timeout_s: int = 120) -> Json:
    """Runs the tests of the release; raises HelmError when one fails."""
    answer = _helm().ask("try_out", kubeconfig=str(kubeconfig), name=name, namespace=namespace, timeout_s=timeout_s)
    return cast(Json, answer)


def uninstall(kubeconfig: Path | str, namespace: str = NAMESPACE, *, name: str = RELEASE) -> Json:
    """Removes the release."""
    return cast(Json, _helm().ask("uninstall", kubeconfig=str(kubeconfig), name=name, namespace=namespace))


# --- reading what was rendered ----------------------------------------------------------------------------------------


def find(documents: Iterable[Json], kind: str, name: str) -> Json:
    """The one object of that kind whose name ends with this suffix (`find(documents, "Deployment", "scheduler")`)."""
    found = [item for item in documents if item["kind"] == kind and _is_called(item, name)]
    if len(found) != 1:
        raise LookupError(f"{len(found)} objects of kind {kind} are called {name}")
    return found[0]


def pod_spec(documents: Iterable[Json], component: str) -> Json:
    """The pod of a service (`api`...), of `setup`, or of `valkey`."""
    for item in documents:
        pod = pod_of(item)
        if pod is not None and item["metadata"]["labels"].get("app.kubernetes.io/component") == component:
            return pod
    raise LookupError(f"nothing runs {component}")


def pod_of(item: Json) -> Json | None:
    """The pod spec of an object (a pod, or a kind that creates pods); None for other kinds."""
    if item["kind"] not in _PODS:
        return None
    found: Any = item
    for key in _PODS[item["kind"]]:
        found = found[key]
    return cast(Json, found)


def service_account(documents: Iterable[Json], component: str) -> str:
    """The name of the account that a component runs under, in the release's namespace."""
    return str(pod_spec(documents, component)["serviceAccountName"])


def service_command(documents: Iterable[Json], component: str) -> list[str]:
    """The command of a component's container."""
    (container,) = pod_spec(documents, component)["containers"]
    return [*container.get("command", ()), *container.get("args", ())]


def service_environment(
    documents: Sequence[Json],
    component: str,
    *,
    namespace: str = NAMESPACE,
    secrets: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, str]:
    """`{variable: value}` of a component's container, with references to other objects resolved as the kubelet resolves
    them.

    `secrets` are those that the values name as existing: {name: {key: value}}.

    Raises:
        LookupError: it refers to an object that the chart does not create and `secrets` do not contain.
    """
    given = [
        {"kind": "Secret", "metadata": {"name": name}, "stringData": dict(data)}
        for name, data in (secrets or {}).items()
    ]
    documents = [*documents, *given]
    (container,) = pod_spec(documents, component)["containers"]
    environment: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        environment |= _data(documents, "ConfigMap", source["configMapRef"]["name"])
    for entry in container.get("env", ()):
        environment[entry["name"]] = _value(documents, entry, namespace)
    return environment


def service_mounts(documents: Sequence[Json], component: str, folder: Path) -> dict[str, Path]:
    """`{path in the container: folder with its files}` of the Secrets that a component mounts and the chart creates."""
    pod = pod_spec(documents, component)
    made = {item["metadata"]["name"] for item in documents if item["kind"] == "Secret"}
    names = {each["name"]: each["secret"]["secretName"] for each in pod.get("volumes", ()) if "secret" in each}
    mounts: dict[str, Path] = {}
    for mount in pod["containers"][0].get("volumeMounts", ()):
        secret = str(names.get(mount["name"], ""))
        if secret in made:
            place = folder / f"{component}-{mount['name']}"
            place.mkdir(parents=True, exist_ok=True)
            for name, text in _data(documents, "Secret", secret).items():
                (place / name).write_text(text)
            mounts[mount["mountPath"]] = place
    return mounts


@lru_cache(maxsize=256)
def _parsed(text: str) -> list[Json]:
    """The objects of one template; cached, because the definitions are large and nearly always the same."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(text, Loader=loader) if document is not None]


def _value(documents: Sequence[Json], entry: Json, namespace: str) -> str:
    match entry:
        case {"value": value}:
            return str(value)
        case {"valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}:
            return namespace
        case {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}:
            return _data(documents, "Secret", name)[key]
        case {"valueFrom": {"configMapKeyRef": {"name": name, "key": key}}}:
            return _data(documents, "ConfigMap", name)[key]
        case _:
            raise LookupError(f"no value for {entry}")


def _data(documents: Sequence[Json], kind: str, name: str) -> dict[str, str]:
    found = next((item for item in documents if item["kind"] == kind and item["metadata"]["name"] == name), None)
    if found is None:
        raise LookupError(f"the chart makes no {kind} {name}")
    data: dict[str, str] = dict(found.get("data") or {})
    if kind == "Secret":
        data = {key: base64.b64decode(value).decode() for key, value in data.items()}
    return data | dict(found.get("stringData") or {})


def _over(below: Values, above: Values) -> Json:
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        both = isinstance(known, dict) and isinstance(value, dict)
        merged[key] = _over(cast(Json, known), cast(Json, value)) if both else value
    return merged


def _is_called(item: Json, name: str) -> bool:
    full = str(item["metadata"]["name"])
    return full == name or full.endswith(f"-{name}")


# --- the process ------------------------------------------------------------------------------------------------------


def _told(values: Values | None) -> Json:
    """The values with `image.allowNoRegistry` set, unless they set it themselves: no test has a registry."""
    return _over({"image": {"allowNoRegistry": True}}, values or {})


def _rendered(
    values: Values | None, namespace: str, name: str, chart: Path, *, is_upgrade: bool = False
) -> dict[str, str]:
    answer = _helm().ask(
        "render",
        chart=str(chart),
        values=_told(values),
        name=name,
        namespace=namespace,
        is_upgrade=is_upgrade,
    )
    return cast(dict[str, str], answer)


def _change(
    call: str, kubeconfig: Path | str, namespace: str, values: Values | None, name: str, **more: object
) -> Json:
    answer = _helm().ask(call, kubeconfig=str(kubeconfig), namespace=namespace, values=_told(values), name=name, **more)
    return cast(Json, answer)


class _HelmProcess:
    """The Helm process: started at the first request, ended with the tests."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, call: str, **arguments: object) -> object:
        """Return the answer of the process. Raises HelmError when Helm refuses."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line:
            raise HelmError(f"the Helm process ended with {process.wait()} during {call}")
        answer = json.loads(line)
        if "error" in answer:
            raise HelmError(answer["error"])
        return answer["ok"]

    def close(self) -> None:
        """The process ends with its input."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.wait()
            process.stdout.close()

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None:
            command = [sys.executable, "-m", "tests.support.helm_process"]
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
            atexit.register(self.close)
        return self._process


_PROCESS = _HelmProcess()


def _helm() -> _HelmProcess:
    return _PROCESS
