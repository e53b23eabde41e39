"""The setting of the archive of logs that the api and the watcher must have alike.

Owns where it is written down: one field, so that its name, its check and its words cannot differ between the two.
"""

from typing import Annotated

from msgspec import Meta

from slipway.logarchive.objects import check_archive_url
from slipway.runtime.settings import CommonSettings


class LogArchiveSettings(CommonSettings, kw_only=True, frozen=True):
    """Of a service that reads or writes the archive of logs."""

    log_archive_url: Annotated[
        str,
        Meta(
            max_length=1024,
            description="Where whole logs are archived: s3://bucket/prefix, gs://bucket/prefix, "
            "az://account/container/prefix or file:///folder; the api and the watcher need the same. Credentials come "
            "from AWS_*, GOOGLE_* or AZURE_*, or from the identity of the pod. An endpoint without TLS needs "
            "AWS_ALLOW_HTTP=true or AZURE_ALLOW_HTTP=true. Empty: there is no archive, and the bounds of logs in Redis "
            "hold.",
            extra={"check": check_archive_url},
        ),
    ] = ""
