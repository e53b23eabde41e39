"""Helm in a process of its own: `python -m tests.support.helm_process`, one JSON request and one answer a line.

Owns the Helm library (Go, with threads and signal handlers of its own), so that it is loaded in no test's process. A
request is {call, ...arguments}; the answer is {ok: result} or {error: message}. Ends with its input.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, cast

import helm_python as helm

Json = dict[str, Any]


def render(*, chart: str, values: Json, name: str, namespace: str, is_upgrade: bool) -> dict[str, str]:
    """`{template: text}` of every template, NOTES included."""
    with helm.Chart.load(chart) as loaded:
        # An install checks the values; rendering alone does not.
        loaded.validate_schema(values)
        return loaded.render(values, name=name, namespace=namespace, is_install=not is_upgrade, is_upgrade=is_upgrade)


def lint(*, chart: str, values: Json) -> list[Json]:
    """Return the messages of the linter, advice included."""
    report = helm.lint(chart, values, strict=True)
    errors = cast(list[str], report.get("errors") or [])
    return [*cast(list[Json], report.get("messages") or []), *({"error": error} for error in errors)]


def install(*, chart: str, kubeconfig: str, name: str, namespace: str, values: Json, dry_run: str | None) -> Json:
    """Install the chart; return the release."""
    with _config(kubeconfig, namespace) as config:
        return config.install(
            chart, name, values, namespace=namespace, create_namespace=dry_run is None, dry_run=dry_run, timeout=60
        )


def upgrade(*, chart: str, kubeconfig: str, name: str, namespace: str, values: Json, dry_run: str | None) -> Json:
    """Upgrade the release; return it."""
    with _config(kubeconfig, namespace) as config:
        return config.upgrade(chart, name, values, namespace=namespace, dry_run=dry_run, timeout=60)


def given_values(*, kubeconfig: str, name: str, namespace: str) -> Json:
    """Return the values that were given at the last install or upgrade, without the chart's own values."""
    with _config(kubeconfig, namespace) as config:
        return config.get_values(name)


def rollback(*, kubeconfig: str, name: str, namespace: str, revision: int) -> None:
    """Roll back to a revision."""
    with _config(kubeconfig, namespace) as config:
        config.rollback(name, version=revision, timeout=60)


def try_out(*, kubeconfig: str, name: str, namespace: str, timeout_s: int) -> Json:
    """Run the tests of the release; return the release."""
    with _config(kubeconfig, namespace) as config:
        return config.test(name, timeout=timeout_s)


def uninstall(*, kubeconfig: str, name: str, namespace: str) -> Json:
    """Uninstall the release; return Helm's answer."""
    with _config(kubeconfig, namespace) as config:
        return config.uninstall(name, timeout=60)


def _config(kubeconfig: str, namespace: str) -> helm.Config:
    """A connection with a high rate limit: the servers of tests serve no other clients."""
    return helm.Config(kubeconfig_path=kubeconfig, namespace=namespace, qps=200.0, burst_limit=400)


def version() -> str:
    """The version of Helm."""
    return helm.helm_sdk_version()


CALLS: dict[str, Callable[..., Any]] = {
    call.__name__: call
    for call in (render, lint, install, upgrade, given_values, rollback, try_out, uninstall, version)
}


def main() -> int:
    """Answer requests until the input ends."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # output of the library must not mix with the answers
        for line in sys.stdin:
            request: Json = json.loads(line)
            try:
                answer: Json = {"ok": CALLS[request.pop("call")](**request)}
            except helm.HelmError as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
