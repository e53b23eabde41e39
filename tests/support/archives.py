"""Gzipped tars for tests, sound ones and others."""

import gzip
import io
import tarfile
from collections.abc import Mapping

Content = bytes | str
"""The bytes of a file, or the target of a symbolic link."""


def an_archive(files: Mapping[str, bytes], *, kinds: Mapping[str, bytes] | None = None) -> bytes:
    """These files, then members of other kinds (`tarfile.SYMTYPE`...), which point at /etc/passwd.

    The same give the same bytes: Python's own mode `w:gz` writes the time into the head.
    """
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            head = tarfile.TarInfo(name)
            head.size, head.mode = len(content), 0o644
            archive.addfile(head, io.BytesIO(content))
        for name, kind in (kinds or {}).items():
            head = tarfile.TarInfo(name)
            head.type, head.linkname = kind, "/etc/passwd"
            archive.addfile(head)
    return out.getvalue()
