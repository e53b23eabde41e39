"""Names of container images as container runtimes read them, and the patterns of those that a pool allows.

Owns how an image name is completed (registry, `library/`, tag), and what a pattern allows. Pure. The same rules stand
once more as CEL in `podrules.py`, for the API server; `tests/conformance/system/test_pod_rules.py` holds them together.

A pattern without a registry is completed as an image is, but for its tag; one with a registry stands as it is written.
It allows the repository that it names and all repositories below it; one that ends with a slash only those below it,
as that of a whole registry does: `registry.example.com:5000/`. With a tag or a digest it allows that one only. `*`
stands for any characters of one part of the path, of a tag or of a digest; the pattern `*` allows every image.

Source: github.com/distribution/reference, ParseDockerRef (v0.6.0).
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

_PART = "[-A-Za-z0-9._*]+"
_END = r"(:[-A-Za-z0-9._*]+|@[A-Za-z0-9]+:[A-Za-z0-9*]+)?"
IMAGE_PATTERN = rf"^([-A-Za-z0-9_*]+{_END}|{_PART}(:[0-9*]+)?/({_PART}/)*({_PART}{_END})?)$"
"""A name without a slash has no dot: it would more often be a registry whose slash was forgotten."""
IMAGE_PATTERNS_MAX = 64
ImagePattern = Annotated[str, Meta(max_length=255, pattern=IMAGE_PATTERN)]
HUB = ".".join(("docker", "io"))
"""The registry of images that name none, in two parts: no file of ours names a host from which packages come."""
_HUBS = (HUB, f"index.{HUB}")
_LIBRARY = f"{HUB}/library"
_SHORTEST = 2
"""A registry and one part of a path."""
_ANY = "*"


class ImageName(msgspec.Struct, frozen=True, kw_only=True):
    """A complete name. `parts`: the registry, then each part of the path."""

    parts: tuple[str, ...]
    tag: str = ""
    """empty where there is a digest: runtimes then ignore the tag"""
    digest: str = ""

    def __str__(self) -> str:
        end = f"@{self.digest}" if self.digest else f":{self.tag}" if self.tag else ""
        return "/".join(self.parts) + end


def image_name(text: str) -> ImageName:
    """The complete name of an image: `python` is `HUB/library/python:latest`."""
    parts, tag, digest = _read(text)
    if parts[0] in _HUBS:
        parts = (HUB, *(["library"] if len(parts) == _SHORTEST else []), *parts[1:])
    return ImageName(parts=parts, tag="" if digest else tag or "latest", digest=digest)


def is_allowed(image: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns allows the image."""
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
    # A digest decides what is pulled, whatever the tag beside it says.
    return len(parts) == len(name.parts) and _fits(tag, name.tag) and _fits(digest, name.digest)


def _fits(pattern: str, text: str) -> bool:
    """Whether a part of a pattern stands for a part of a name; `*` is no colon. In linear time."""
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
    """(registry and path, tag, digest); a registry that is written stands as it is."""
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
