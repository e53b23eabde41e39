"""Entity tags: the versions of objects and pages, and the conditions of requests about them. Pure.

A tag is compared without its mark `W/`, in both conditions: a proxy that compresses our answers marks our tags as weak,
and a client that read through it must be able to write. `*` stands for any version.

Source: https://www.rfc-editor.org/rfc/rfc9110#section-13.1
"""

from starlette.requests import HTTPConnection

from slipway.api.http_errors import PreconditionError
from slipway.crd.meta import ObjectMeta


def tag_of(meta: ObjectMeta) -> str:
    """Return the tag of this version of an object."""
    return f'"{meta.resource_version}"'


def is_known(connection: HTTPConnection, tag: str) -> bool:
    """Whether the client already has the version with this tag, by If-None-Match: the answer is 304 then."""
    known = _tags(connection, "if-none-match")
    return "*" in known or tag in known


def required_version(connection: HTTPConnection, meta: ObjectMeta, what: str) -> str:
    """Return the resource version that a write must find, by If-Match; empty when any version will do.

    Raises PreconditionError when the object has another version. `what` names the object in the error.
    """
    named = _tags(connection, "if-match")
    if not named or "*" in named:
        return ""
    if tag_of(meta) not in named:
        raise PreconditionError(f"the current version is {tag_of(meta)}; GET the {what} again and decide again")
    return meta.resource_version


def _tags(connection: HTTPConnection, name: str) -> set[str]:
    """Return the tags in a header, which may stand several times, without the mark of weak ones."""
    listed = ",".join(connection.headers.getlist(name)).split(",")
    return {tag.strip().removeprefix("W/") for tag in listed if tag.strip()}
