"""A kubeconfig that cannot be used ends the start with its path and the reason, not with a traceback."""

from pathlib import Path

import pytest

from slipway.errors import InvalidError
from slipway.kube import client
from slipway.runtime.clock import SeededRandom, SystemClock

GOOD = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x: [",
        "just words",
        "clusters: 5\n",
        "a:\n\tb: 1\n",
        "- 1\n",
        GOOD.replace("current-context: x", "current-context: nope"),
        GOOD.replace("cluster: c,", "cluster: nope,"),
        GOOD.replace("http:", "https:").replace("{server:", "{certificate-authority-data: '!!', server:"),
        GOOD.replace("http:", "https:").replace("user: {}", "user: {client-certificate: /no/such, client-key: /no}"),
    ],
)
async def test_what_is_wrong_is_said(tmp_path: Path, text: str) -> None:
    """The error of a bad kubeconfig is one line with the path."""
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(InvalidError) as caught:
        async with client.connect(str(path), clock=SystemClock(), random=SeededRandom(1)):
            pass
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_one_that_is_not_there(tmp_path: Path) -> None:
    """The error of a missing kubeconfig names the variable with its path."""
    with pytest.raises(InvalidError, match=r"there is no kubeconfig at .*; set KUBECONFIG"):
        async with client.connect(str(tmp_path / "none"), clock=SystemClock(), random=SeededRandom(1)):
            pass
