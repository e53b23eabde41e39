"""Converts bodies into structs, strictly: all problems are reported at once, each with a JSON pointer and a remedy.

Owns the limits on bodies (bytes, depth, number of values) and the walk that finds unknown fields, missing fields and
wrong types. Pure, except for `read_body`. Must not know any struct by name.

Invariant: a checked body converts without error, and no field that the client sent is silently ignored.
"""

import difflib
import enum
import re
import types
import typing
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo
from starlette.requests import Request

from slipway.api.http import audit
from slipway.api.http.errors import BodyTooLargeError, MalformedError, UnsupportedMediaError
from slipway.crd.fielderrors import Findings, pointer
from slipway.crd.pools import PRIVILEGE_PATTERN
from slipway.crd.workspacepods import OBJECT_NAME_PATTERN
from slipway.errors import FieldError, InvalidError
from slipway.model.numbers import LONG_DIGITS_MAX, number_in

T = TypeVar("T")
Json = dict[str, Any]

DEPTH_MAX = 32
VALUES_MAX = 20_000
"""Limit of values in one body, at all depths: each costs time on the event loop, which serves all requests."""
_BRACKETS_MAX = 100_000
"""Limit of opening brackets in the bytes of a body: an early, rough check that also counts brackets inside texts."""
_GUESS_MAX = 64
"""Longest unknown name, in characters, that is compared with the known names."""
_PATH = re.compile(r"^(?P<text>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\[\.\.\.\]|\.([^.\[]+)|\[(\d+)\]")
"""`[...]` means a key of a map, which msgspec's message does not contain."""
_TYPE = re.compile(r"^Expected `(?P<wanted>[^`]+)`, got `(?P<got>[^`]+)`$")
_BOUND = re.compile(r"^Expected `(?:int|float)[^`]*` (?P<sign>>=|<=|>|<) (?P<bound>\S+)$")
_LENGTH = re.compile(r"^Expected `(?P<type>\w+)[^`]*` of length (?P<sign>>=|<=|==) (?P<bound>\d+)$")
_PATTERN = re.compile(r"^Expected `str[^`]*` matching regex '(?P<pattern>.*)'$", re.DOTALL)
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_LENGTHS = {">=": "at least", "<=": "at most", "==": "exactly"}
_OPTIONS = re.compile(r"^\^\(([\w|]+)\)\$$")
_PATTERNS = {
    PRIVILEGE_PATTERN: "use root, hostIPC, hostNetwork, or the name of a capability such as IPC_LOCK",
    OBJECT_NAME_PATTERN: "use lower case letters, digits, hyphens and dots, a letter or digit first and last",
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": "use lower case letters, digits and hyphens, the first and last no hyphen",
}
_PLAIN_PATTERN = "must match the pattern"
_SHOWN_MAX = 64
"""Limit of characters of a value that an answer repeats."""
_JSON_TYPES = ("application/json", "text/json")


async def read_body(request: Request, bytes_max: int) -> bytes:
    """Return the whole body. Raises BodyTooLargeError before more than `bytes_max` are in memory."""
    announced = number_in(request.headers.get("content-length", ""), LONG_DIGITS_MAX)
    if announced is not None and announced > bytes_max:
        raise _too_large(bytes_max, announced)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > bytes_max:
            raise _too_large(bytes_max, None)
        parts.append(part)
    return b"".join(parts)


async def read_object(request: Request, bytes_max: int) -> Json:
    """Return the body as a JSON object of at most VALUES_MAX values, DEPTH_MAX deep; an empty body gives {}."""
    raw = await read_body(request, bytes_max)
    if not raw.strip():
        return {}
    check_media_type(request)
    found = object_of(raw)
    audit.note_body(request, found)
    return found


def check_media_type(request: Request) -> None:
    """Refuse a body without a JSON media type: a browser sends other types for any page without a CORS preflight."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in _JSON_TYPES and not given.endswith("+json"):
        what = f"a body of type {given[:64]!r}" if given else "a body without a type"
        raise UnsupportedMediaError(f"{what} is not accepted; send Content-Type: application/json")


def object_of(raw: bytes) -> Json:
    """Parse `raw` as a JSON object. Raises MalformedError."""
    if raw.count(b"[") + raw.count(b"{") > _BRACKETS_MAX:
        raise _too_many()
    try:
        value: object = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedError(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise _too_deep() from error
    if not isinstance(value, dict):
        raise MalformedError(f"the body must be a JSON object, not {_name_of(value)}")
    found = cast("Json", value)
    _check_size(found)
    return found


def checked(value: Json, kind: type[T], *, what: str = "the body") -> T:
    """Convert `value` into a `kind`. Raises InvalidError with one entry per problem."""
    findings = Findings()
    _walk(kind, value, "", findings)
    if not findings.errors:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            at, detail = place_of(str(error))
            findings.refuse(at, detail)
    raise InvalidError(summary(what, findings.errors), fields=findings.errors)


def summary(what: str, errors: tuple[FieldError, ...]) -> str:
    """Return one sentence for all errors."""
    if len(errors) == 1:
        where = errors[0].pointer.removeprefix("/").replace("/", ".")
        return f"{where}: {errors[0].detail}" if where else errors[0].detail
    return f"{len(errors)} problems in {what}; each is listed under errors"


def place_of(message: str) -> tuple[str, str]:
    """Return (JSON pointer, plain text) for a message of msgspec, which ends with a path such as `$.ranks[0].count`."""
    found = _PATH.match(message)
    if found is None:
        return "", message
    steps = [name or int(index) for name, index in _STEP.findall(found["path"] or "") if name or index]
    return pointer(*steps), _in_words(found["text"])


def _in_words(text: str) -> str:
    """Return a message of msgspec in plain words, without the names of its types."""
    if (found := _TYPE.match(text)) is not None:
        wanted = " or ".join(_TYPES.get(name, name) for name in found["wanted"].split(" | "))
        return f"must be {wanted}, not {_TYPES.get(found['got'], found['got'])}"
    if (found := _BOUND.match(text)) is not None:
        return f"must be {_BOUNDS[found['sign']]} {found['bound']}"
    if (found := _LENGTH.match(text)) is not None:
        what = "characters" if found["type"] == "str" else "entries"
        return f"must have {_LENGTHS[found['sign']]} {found['bound']} {what}"
    if (found := _PATTERN.match(text)) is not None:
        return _pattern_in_words(found["pattern"])
    return text


def _pattern_in_words(pattern: str) -> str:
    if (options := _OPTIONS.match(pattern)) is not None:
        return f"must be one of {', '.join(filter(None, options[1].split('|')))}"
    return _PATTERNS.get(pattern.removeprefix("^$|"), f"{_PLAIN_PATTERN} {pattern}")


def _walk(kind: Any, value: Any, at: str, findings: Findings) -> None:
    """Add an error for each reason why `value` is no `kind`. msgspec checks the leaves; containers are walked here."""
    metas: list[Meta] = []
    while typing.get_origin(kind) is Annotated:
        kind, *extra = typing.get_args(kind)
        metas += [part for part in extra if isinstance(part, Meta)]
    options = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else ()
    if options:
        if value is None and type(None) in options:
            return
        others = [option for option in options if option is not type(None)]
        if len(others) == 1:
            _walk(others[0] if not metas else Annotated[others[0], *metas], value, at, findings)
            return
    origin = typing.get_origin(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, dict):
        _walk_struct(kind, cast("Json", value), at, findings)
    elif origin is list and isinstance(value, list):
        items = cast("list[Any]", value)
        for index, item in enumerate(items if _is_few(items, metas, at, findings) else ()):
            if findings.is_full:
                return
            _walk(typing.get_args(kind)[0], item, f"{at}/{index}", findings)
    elif origin is dict and isinstance(value, dict):
        entries = cast("Json", value)
        for key, item in entries.items() if _is_few(entries, metas, at, findings) else ():
            if findings.is_full:
                return
            _walk(typing.get_args(kind)[1], item, at + pointer(key), findings)
    else:
        _convert(kind, value, metas, at, findings)


def _walk_struct(kind: type[msgspec.Struct], value: Json, at: str, findings: Findings) -> None:
    fields = _fields_of(kind)
    for name in value:
        if findings.is_full:
            return
        if name not in fields:
            findings.refuse(at + pointer(name), _unknown(name, kind))
    for name, field in fields.items():
        if name in value:
            _walk(field.type, value[name], at + pointer(name), findings)
        elif field.required:
            findings.refuse(at + pointer(name), "is required")


# Facts about a type are cached, because a body can have very many unknown fields.
@cache
def _fields_of(kind: type[msgspec.Struct]) -> dict[str, FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _unknown(name: str, kind: type[msgspec.Struct]) -> str:
    known = _fields_of(kind)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6) if len(name) <= _GUESS_MAX else ()
    meant = close[0] if close else _inner(kind).get(name, "")
    if meant:
        return f"unknown field; did you mean {meant}?"
    return f"unknown field; known are {', '.join(sorted(known))}"


@cache
def _inner(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return {name: path} of the fields of structs in lists of `kind`, with paths such as `ranks[].count`."""
    found: dict[str, str] = {}
    for name, field in _fields_of(kind).items():
        for option in (field.type, *typing.get_args(field.type)):
            if typing.get_origin(option) is Annotated:
                option = typing.get_args(option)[0]
            item = typing.get_args(option)[0] if typing.get_origin(option) is list else None
            if isinstance(item, type) and issubclass(item, msgspec.Struct):
                for inner in _fields_of(item):
                    found.setdefault(inner, f"{name}[].{inner}")
    return found


def _convert(kind: Any, value: Any, metas: list[Meta], at: str, findings: Findings) -> None:
    try:
        msgspec.convert(value, Annotated[kind, *metas] if metas else kind)
    except msgspec.ValidationError as error:
        inner, text = place_of(str(error))
        hints = [meta.description for meta in metas if meta.description]
        if text.startswith("Invalid enum value"):
            options = ", ".join(map(str, _options(kind)))
            text = f"must be one of {options}, not {str(value)[:_SHOWN_MAX]!r}" if options else text
        elif "matching regex" in str(error):
            if hints and text.startswith(_PLAIN_PATTERN):
                text = f"{str(value)[:_SHOWN_MAX]!r} is not valid"
            else:
                hints = []
        findings.refuse(at + inner, "; ".join([text, *hints]))


def _options(kind: Any) -> list[Any]:
    """Return the values of an enumeration or a Literal; empty for other types."""
    if typing.get_origin(kind) is Literal:
        return list(typing.get_args(kind))
    return [option.value for option in kind] if isinstance(kind, type) and issubclass(kind, enum.Enum) else []


def _is_few(value: Json | list[Any], metas: list[Meta], at: str, findings: Findings) -> bool:
    """Whether the container has no more entries than permitted; if it has more, its entries are not checked."""
    most = min((meta.max_length for meta in metas if meta.max_length is not None), default=None)
    if most is None or len(value) <= most:
        return True
    findings.refuse(at, f"has {len(value)} entries; at most {most} are allowed")
    return False


def _check_size(value: Json) -> None:
    """Refuse a body that is too deep or has too many values. The walk stops at the limit."""
    level: list[Any] = [value]
    count = 0
    for _ in range(DEPTH_MAX + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += cast("Json", item).values()
            elif isinstance(item, list):
                below += cast("list[Any]", item)
            if count + len(below) > VALUES_MAX:
                raise _too_many()
        if not below:
            return
        level, count = below, count + len(below)
    raise _too_deep()


def _name_of(value: object) -> str:
    names = {"list": "a list", "str": "a string", "bool": "true or false", "NoneType": "null"}
    return names.get(type(value).__name__, "a number")


def _too_many() -> MalformedError:
    return MalformedError(f"the body has more than {VALUES_MAX} values; put large data into files")


def _too_deep() -> MalformedError:
    return MalformedError(f"the body is nested deeper than {DEPTH_MAX} levels")


def _too_large(bytes_max: int, size: int | None) -> BodyTooLargeError:
    has = f"has {size} bytes" if size else "is too long"
    return BodyTooLargeError(
        f"the body {has}; at most {bytes_max} bytes are allowed. Put large files on a volume or into the image"
    )
