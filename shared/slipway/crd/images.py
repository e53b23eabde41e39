"""Names of container images as container runtimes read them, and the image patterns that a pool allows.

Owns how an image name is completed (registry, `library/`, tag), and what a pattern allows. Pure. `podrules.py` has the
same rules in CEL, for the API server; `tests/conformance/system/test_pod_rules.py` checks that both agree.

A pattern without a registry is completed like an image name, except for the tag; a pattern with a registry is used
unchanged. It allows the repository that it names and all repositories below it. A pattern that ends with a slash, such
as `registry.example.com:5000/` for a whole registry, allows only those below it. A pattern with a tag or a digest
allows only that one. `*` matches any characters within one part of the path, within a tag or a digest; the pattern `*`
alone allows every image.

Source: github.com/distribution/reference, ParseDockerRef (v0.6.0).
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

_PART = "[-A-Za-z0-9._*]+"
_END = r"(:[-A-Za-z0-9._*]+|@[A-Za-z0-9]+:[A-Za-z0-9*]+)?"
IMAGE_PATTERN = rf"^([-A-Za-z0-9_*]+{_END}|{_PART}(:[0-9*]+)?/({_PART}/)*({_PART}{_END})?)$"
"""The pattern of patterns. A name without a slash may not contain a dot: it would usually be a registry without its
slash."""
IMAGE_PATTERNS_MAX = 64
ImagePattern = Annotated[str, Meta(max_length=255, pattern=IMAGE_PATTERN)]
HUB = ".".join(("docker", "io"))
"""The registry of image names without one. It is written in two parts, because no file of ours may contain the host
name of a package source."""
_HUBS = (HUB, f"index.{HUB}")
_LIBRARY = f"{HUB}/library"
_SHORTEST = 2
"""Number of parts of the shortest complete name: a registry and one part of a path."""
_ANY = "*"


class ImageName(msgspec.Struct, frozen=True, kw_only=True):
    """A complete image name. `parts`: the registry, then each part of the path."""

    parts: tuple[str, ...]
    tag: str = ""
    """empty when there is a digest: runtimes then ignore the tag"""
    digest: str = ""

    def __str__(self) -> str:
        end = f"@{self.digest}" if self.digest else f":{self.tag}" if self.tag else ""
        return "/".join(self.parts) + end


def image_name(text: str) -> ImageName:
    """Return the complete name of an image: `python` is `HUB/library/python:latest`."""
    parts, tag, digest = _read(text)
    if parts[0] in _HUBS:
        parts = (HUB, *(["library"] if len(parts) == _SHORTEST else []), *parts[1:])
    return ImageName(parts=parts, tag="" if digest else tag or "latest", digest=digest)


def is_allowed(image: str, patterns: Iterable[str]) -> bool:
    """Whether at least one of the patterns allows the image."""
    name = image_name(image)
    return any(_allows(pattern, name) for pattern in patterns)


def _allows(pattern: str, name: ImageName) -> bool:
    if pattern == _ANY:
        return True
    parts, tag, digest = _read(pattern)
    if not all(_fits(own, part) for own, part in zip(parts, name.parts, strict=False)):
        return False
    if not tag and not digest:
        return len(parts) + pattern.endswith("/") <= len(name.parts)
    # Runtimes pull by digest and ignore a tag beside it.
    return len(parts) == len(name.parts) and _fits(tag, name.tag) and _fits(digest, name.digest)


def _fits(pattern: str, text: str) -> bool:
    """Whether a part of a pattern matches a part of a name; `*` does not match a colon. Takes linear time."""
    patterns, texts = pattern.split(":"), text.split(":")
    return len(patterns) == len(texts) and all(map(_globs, patterns, texts))


def _globs(pattern: str, text: str) -> bool:
    first, *rest = pattern.split(_ANY)
    if not rest:
        return text == pattern
    *middle, last = rest
    if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
        return False
    start, end = len(first), len(text) - len(last)
    for piece in middle:
        found = text.find(piece, start, end)
        if found < 0:
            return False
        start = found + len(piece)
    return True


def _read(text: str) -> tuple[tuple[str, ...], str, str]:
    """Return (registry and path, tag, digest); a registry in the text is not changed."""
    named, _, digest = text.partition("@")
    first, slash, _ = named.partition("/")
    if not slash or not _is_registry(first):
        named = f"{HUB}/{named}" if slash else f"{_LIBRARY}/{named}"
    path, colon, tag = named.rpartition(":")
    if not colon or "/" in tag:
        path, tag = named, ""
    return tuple(path.removesuffix("/").split("/")), tag, digest


def _is_registry(first: str) -> bool:
    return "." in first or ":" in first or first == "localhost" or first != first.lower()
