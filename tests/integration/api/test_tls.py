"""The api under TLS of its own: HTTPS and nothing else, and a renewed certificate without a restart."""

import asyncio
import ssl
import sys
from pathlib import Path

import httpx2
import pytest
import trustme

from slipway.errors import InvalidError
from slipway.runtime.listen import CERTIFICATE, KEY, Certificate
from tests.integration.api.test_process import EXIT_S, a_cluster, environment, run
from tests.support.http_stub import write_kubeconfig
from tests.support.ports import free_port


def issue(authority: trustme.CA, folder: Path) -> None:
    """Write a certificate and its key, as a renewal tool does."""
    folder.mkdir(exist_ok=True)
    made = authority.issue_cert("localhost", "127.0.0.1")
    made.private_key_pem.write_to_path(folder / KEY)
    made.cert_chain_pems[0].write_to_path(folder / CERTIFICATE)


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)  # pyright: ignore[reportUnknownMemberType] - it also takes another library's
    return context


async def answers(url: str, authority: trustme.CA) -> bool:
    """Whether it serves a client that trusts only that authority."""
    try:
        async with httpx2.AsyncClient(verify=trusting(authority), trust_env=False) as client:
            return (await client.get(f"{url}/readyz")).status_code == 200
    except httpx2.TransportError:
        return False


async def until(url: str, authority: trustme.CA) -> None:
    async with asyncio.timeout(EXIT_S + 20):
        while True:
            if await answers(url, authority):
                return
            await asyncio.sleep(0.1)


async def test_https_and_a_renewed_certificate(tmp_path: Path) -> None:
    """HTTPS is served with one certificate, then with the next one of another authority; plain HTTP is never
    answered."""
    folder, port = tmp_path / "tls", free_port()
    first, second = trustme.CA(), trustme.CA()
    issue(first, folder)
    async with a_cluster(tmp_path) as kubeconfig:
        env = environment(kubeconfig, SLIPWAY_LISTEN=f"127.0.0.1:{port}", SLIPWAY_TLS_DIR=str(folder))
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "slipway.api.main", env=env)
        url = f"https://127.0.0.1:{port}"
        try:
            await until(url, first)
            assert not await answers(url, second)
            assert not await answers(f"http://127.0.0.1:{port}", first)
            issue(second, folder)
            await until(url, second)
            assert process.returncode is None
        finally:
            process.terminate()
            assert await process.wait() == 0


async def test_without_a_certificate_it_does_not_start(tmp_path: Path) -> None:
    """Exit code 1, and the error names the folder."""
    kubeconfig = write_kubeconfig(tmp_path, "http://127.0.0.1:1")
    env = environment(kubeconfig, SLIPWAY_LISTEN="127.0.0.1:0", SLIPWAY_TLS_DIR=str(tmp_path / "none"))
    code, said = await run(env)
    assert code == 1
    assert f"{tmp_path}/none has no tls.crt and tls.key" in said


def test_a_key_that_does_not_fit_is_not_taken(tmp_path: Path) -> None:
    """The certificate before stays in use."""
    issue(trustme.CA(), tmp_path)
    certificate = Certificate(str(tmp_path))
    assert not certificate.look()
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(tmp_path / KEY)
    with pytest.raises(InvalidError, match="belong together"):
        certificate.look()
    issue(trustme.CA(), tmp_path)
    assert certificate.look()
