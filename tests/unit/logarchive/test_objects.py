"""Addresses and endpoints of the archive of logs that are refused before a call is made."""

import pytest

from slipway.errors import PermanentError
from slipway.logarchive.objects import open_archive


@pytest.mark.parametrize("name", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_without_tls_is_refused_by_its_variable(name: str) -> None:
    """An endpoint without TLS is refused with its variable and what to write instead, because logs would be sent in
    plain text."""
    env = {name: "http://minio.storage.svc:9000", "AWS_REGION": "us-east-1"}
    with pytest.raises(PermanentError, match=rf"{name} has no TLS.*AWS_ALLOW_HTTP=true"):
        open_archive("s3://logs/slipway", env=env)


def test_an_operator_may_allow_plain_http() -> None:
    """An operator may allow plain HTTP for a trusted network; the loopback is always trusted."""
    open_archive("s3://logs", env={"AWS_ENDPOINT": "http://minio.storage.svc:9000", "AWS_ALLOW_HTTP": "true"})
    open_archive("s3://logs", env={"AWS_ENDPOINT": "http://127.0.0.1:9000"})
    open_archive("s3://logs", env={"AWS_ENDPOINT": "https://minio.storage.svc:9000"})


def test_azure_has_a_variable_of_its_own() -> None:
    """Azure has its own variable, because each library has other names for its endpoint and its permission."""
    with pytest.raises(PermanentError, match="AZURE_ALLOW_HTTP=true"):
        open_archive("az://account/logs", env={"AZURE_STORAGE_ENDPOINT": "http://blobs.example:10000"})
