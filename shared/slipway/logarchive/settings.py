"""The setting of the log archive that must be equal in the api and the watcher.

Owns its definition: one field, so that name, check and description cannot differ between the two services.
"""

from typing import Annotated

from msgspec import Meta

from slipway.logarchive.objects import check_archive_url
from slipway.runtime.settings import CommonSettings


class LogArchiveSettings(CommonSettings, kw_only=True, frozen=True):
    """Settings of a service that reads or writes the log archive."""

    log_archive_url: Annotated[
        str,
        Meta(
            max_length=1024,
            description="Storage for complete logs: s3://bucket/prefix, gs://bucket/prefix, "
            "az://account/container/prefix or file:///folder; the api and the watcher need the same value. "
            "Credentials come from the variables AWS_*, GOOGLE_* or AZURE_*, or from the identity of the pod. An "
            "endpoint without TLS needs AWS_ALLOW_HTTP=true or AZURE_ALLOW_HTTP=true. Empty: there is no archive, so "
            "only the logs in Redis exist, within their limits.",
            extra={"check": check_archive_url},
        ),
    ] = ""
