"""Names of images are completed as container runtimes complete them, and compared with patterns part by part."""

import re
import time

import pytest

from slipway.crd.images import HUB, IMAGE_PATTERN, image_name, is_allowed
from tests.support.images import ALLOWED, DIGEST, REFUSED


@pytest.mark.parametrize(
    ("written", "complete"),
    [
        ("python", f"{HUB}/library/python:latest"),
        ("python:3.11", f"{HUB}/library/python:3.11"),
        (f"{HUB}/python", f"{HUB}/library/python:latest"),
        (f"index.{HUB}/team/app", f"{HUB}/team/app:latest"),
        ("team/app", f"{HUB}/team/app:latest"),
        ("localhost/app", "localhost/app:latest"),
        ("r:5000/app", "r:5000/app:latest"),
        ("reg.example/team/app:1", "reg.example/team/app:1"),
        (f"reg.example/team/app:1@{DIGEST}", f"reg.example/team/app@{DIGEST}"),
        (f"python@{DIGEST}", f"{HUB}/library/python@{DIGEST}"),
    ],
)
def test_an_image_name_is_completed(written: str, complete: str) -> None:
    """The name of an image is completed with registry, `library/` and tag; a tag beside a digest is ignored."""
    assert str(image_name(written)) == complete


@pytest.mark.parametrize(("pattern", "image"), ALLOWED)
def test_a_pattern_allows(pattern: str, image: str) -> None:
    """A pattern allows its repository and those below it; with a tag or a digest only that one."""
    assert is_allowed(image, ["other.example/x", pattern])
    assert re.search(IMAGE_PATTERN, pattern)


@pytest.mark.parametrize(("pattern", "image"), REFUSED)
def test_a_pattern_does_not_allow(pattern: str, image: str) -> None:
    """A pattern does not allow images whose names are only similar."""
    assert not is_allowed(image, [pattern])
    assert re.search(IMAGE_PATTERN, pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "registry.example.com",
        "a b",
        "/a",
        "a//b",
        "https://reg.example/a",
        "a/b:1@sha256:ab",
        "a/b@ab",
        "a/b:1/c@x:y",
    ],
)
def test_what_is_no_pattern(pattern: str) -> None:
    """A registry needs its slash: without it `registry.example.com` would be an image of Docker Hub."""
    assert not re.search(IMAGE_PATTERN, pattern)


def test_many_stars_take_no_time() -> None:
    """A pattern with many stars is compared quickly, because a user chooses the image that is compared."""
    before = time.perf_counter()
    assert not is_allowed("reg.example/" + "a" * 4000, ["reg.example/" + "*a" * 100 + "*b"])
    assert time.perf_counter() - before < 1
