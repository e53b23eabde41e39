"""Entity tags: the versions of objects and pages, and the conditions of requests about them. Pure.

Every route that answers with an object's tag on GET takes If-Match on PUT, PATCH and DELETE.

A tag is compared without its mark `W/`, in both conditions: a proxy that compresses our answers marks our tags as weak,
and a client that read through it must be able to write. `*` stands for any version.

Source: https://www.rfc-editor.org/rfc/rfc9110#section-13.1
"""

import contextlib
from collections.abc import Generator

from starlette.requests import HTTPConnection

from slipway.api.http.errors import PreconditionError
from slipway.errors import StaleError


def tag_of(resource_version: str) -> str:
    """Return the tag of this version of an object."""
    return f'"{resource_version}"'


def is_known(connection: HTTPConnection, tag: str) -> bool:
    """Whether the client already has the version with this tag, by If-None-Match: the answer is 304 then."""
    known = _tags(connection, "if-none-match")
    return "*" in known or tag in known


def is_conditional(connection: HTTPConnection) -> bool:
    """Whether the client names versions by If-Match: then there must be an object to write."""
    return bool(_tags(connection, "if-match"))


def required_version(connection: HTTPConnection, resource_version: str, what: str) -> str:
    """Return the resource version that a write must find, by If-Match; empty when any version will do.

    Raises PreconditionError when the object has another version. `what` names the object in the error.
    """
    named = _tags(connection, "if-match")
    if not named or "*" in named:
        return ""
    tag = tag_of(resource_version)
    if tag not in named:
        raise PreconditionError(f"the current version is {tag}; GET the {what} again and decide again")
    return resource_version


@contextlib.contextmanager
def held_to(version: str, what: str) -> Generator[None]:
    """Around a write with the fence of a version. Another write before it is a PreconditionError if `version` is set.

    `version` is the one that `required_version` returned.
    """
    try:
        yield
    except StaleError as error:
        if not version:
            raise
        raise PreconditionError(f"{what} has changed meanwhile; GET it again and decide again") from error


def _tags(connection: HTTPConnection, name: str) -> set[str]:
    """Return the tags in a header, which may stand several times, without the mark of weak ones."""
    listed = ",".join(connection.headers.getlist(name)).split(",")
    return {tag.strip().removeprefix("W/") for tag in listed if tag.strip()}
