"""Tars for tests, valid and invalid: gzipped like uploads, or plain as a rank sends them."""

import gzip
import io
import tarfile
from collections.abc import Mapping

END = b"\0" * (2 * tarfile.BLOCKSIZE)
"""The end of every tar."""
Content = bytes | str
"""The bytes of a file, or the target of a symbolic link."""


def an_archive(files: Mapping[str, bytes], *, kinds: Mapping[str, bytes] | None = None) -> bytes:
    """These files, then members of other kinds (`tarfile.SYMTYPE`...), which point at /etc/passwd.

    Equal files produce equal bytes; Python's own mode `w:gz` would write the time into the header.
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


def a_header(kind: bytes, content: bytes = b"", *, name: str = "head") -> bytes:
    """One entry of a plain tar, of any kind, with its content."""
    head = tarfile.TarInfo(name)
    head.type, head.size = kind, len(content)
    return head.tobuf(tarfile.USTAR_FORMAT) + content + b"\0" * (-len(content) % tarfile.BLOCKSIZE)


def records(found: Mapping[str, str]) -> bytes:
    """PAX records, as a header of kind `x` or `g` contains them."""
    lines = b""
    for keyword, value in found.items():
        rest = f" {keyword}={value}\n".encode()
        length = len(rest) + 1
        while length != len(rest) + len(str(length)):
            length = len(rest) + len(str(length))
        lines += str(length).encode() + rest
    return lines


def many_records(length: int) -> bytes:
    """As many different records as fit into so many bytes."""
    return b"".join(b"13 %07x=1\n" % number for number in range(length // 13))


def hostile_tars() -> dict[str, bytes]:
    """Plain tars that must be refused: {what is wrong with it: bytes}."""
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "f", "GNU.sparse.realsize": "0"}
    old = _resealed(a_header(tarfile.GNUTYPE_SPARSE), 386, b"00000000000\0" * 8 + b"\1" + b"00000000000\0")
    block = (b"00000000001\0" * 42).ljust(504, b"\0") + b"\1" + bytes(7)
    full = many_records(60_000)
    return {
        "a sparse map of PAX": a_header(tarfile.XHDTYPE, records(sparse))
        + a_header(tarfile.REGTYPE, b"400000\n" + b"1\n" * 800_000),
        "a sparse map in a global header": a_header(tarfile.XGLTYPE, records(sparse))
        + a_header(tarfile.REGTYPE, b"400000\n" + b"1\n" * 800_000),
        "a sparse map of old GNU tar": old + block * 5_000,
        "headers upon headers": a_header(tarfile.XHDTYPE, full) * 200 + a_header(tarfile.REGTYPE),
        "global headers upon headers": a_header(tarfile.XGLTYPE, full) * 200 + a_header(tarfile.REGTYPE),
        "long names upon long names": a_header(tarfile.GNUTYPE_LONGNAME, b"n" * 60_000) * 200,
        "empty headers upon headers": a_header(tarfile.XHDTYPE) * 200 + a_header(tarfile.REGTYPE),
        "a name of megabytes": a_header(tarfile.GNUTYPE_LONGNAME, b"n" * 8_000_000) + a_header(tarfile.REGTYPE),
        "a size below zero": _resealed(a_header(tarfile.REGTYPE), 124, b"\xff" * 12),
        "a path for all members": a_header(tarfile.XGLTYPE, records({"path": "evil"})) + a_header(tarfile.REGTYPE),
        "a record without an end": a_header(tarfile.XHDTYPE, b"1" * 60_000) + a_header(tarfile.REGTYPE),
    }


def _resealed(header: bytes, at: int, field: bytes) -> bytes:
    """The header with one field replaced, and the matching checksum."""
    changed = bytearray(header)
    changed[at : at + len(field)] = field
    changed[148:156] = b" " * 8
    changed[148:156] = b"%06o\0 " % sum(changed[: tarfile.BLOCKSIZE])
    return bytes(changed)
