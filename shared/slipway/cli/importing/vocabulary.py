"""Conversions that several systems share: names, times, sizes, variables, scripts, GPUs.

Owns the form of each value here. Raises InvalidError with the path of the field for a value that cannot be read. Pure.
"""

import re
from collections.abc import Mapping

from slipway.cli.importing.foreign import ForeignField, Json, Verdict
from slipway.crd.expansion import literal
from slipway.model.ids import NAME_LENGTH_MAX
from slipway.model.times import format_duration

GPU = "nvidia.com/gpu"
DEFAULT_IMAGE = "python:3.12-slim"
"""The image for a file of a system that runs without images, or has an image of its own."""
LABEL_MAX = 63
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgtp]?i?b?)?\+?", re.IGNORECASE)
_TIME = re.compile(r"(?P<number>\d+)\s*(?P<unit>[smhdw]?)", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def plain_name(text: str, most: int = LABEL_MAX) -> str:
    """Return the nearest name of lower case letters, digits and hyphens, a letter first; empty when none is left."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    name = name if not name or name[0].isalpha() else f"n-{name}"
    return name[:most].rstrip("-")


def name_allocation(body: Json, field: ForeignField) -> None:
    """Set the name of the launch."""
    text = field.text()
    name = plain_name(text, NAME_LENGTH_MAX)
    if not name:
        field.unneeded("a name is made up here")
        return
    body["name"] = name
    if name == text:
        field.carried("name")
    else:
        why = f"at most {NAME_LENGTH_MAX} lower case letters, digits and hyphens"
        field.changed("the name", f"name: {name} ({why})")


def name_of(field: ForeignField, what: str, here: str) -> str:
    """Return the valid name of another object, such as a queue; the verdict says where the name is used."""
    text = field.text()
    name = plain_name(text)
    if not name:
        field.refuse(f"cannot be the name of a {what}; use lower case letters, digits and hyphens")
    field.changed(f"names a {what}", f"{here}: {name}; the {what} must exist here")
    return name


def for_seconds(field: ForeignField, *, least: int = 1) -> str:
    """Return a whole number of seconds as a duration."""
    return format_duration(field.whole(least=least))


def duration(field: ForeignField, default_unit: str = "s") -> str:
    """Parse a duration such as `90s`, `2h`, `1d`, or a number of the default unit."""
    found = _TIME.fullmatch(field.text().strip())
    if found is None or not int(found["number"]):
        field.refuse("must be a time such as 30m, 2h or 1d")
    return format_duration(int(found["number"]) * _SECONDS[(found["unit"] or default_unit).lower()])


def size(field: ForeignField, text: str, default_unit: str = "G") -> str:
    """Convert a size such as `64GB`, `512 MiB` or `32` to a quantity; units are powers of 1024."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        field.refuse("must be a size such as 64GB")
    unit = (found["unit"] or "").lower().removesuffix("b").removesuffix("i").upper() or default_unit
    if found["unit"].lower() == "b" or unit == "B":
        unit = ""
    number = found["number"]
    if "." in number:
        powers = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
        return str(int(float(number) * 1024 ** powers[unit]))
    return f"{number}{'Ki' if unit == 'K' else f'{unit}i' if unit else ''}"


def variables(field: ForeignField) -> dict[str, str]:
    """Parse variables from a map or a list of NAME=VALUE; a name without a value is reported and left out."""
    found: dict[str, str] = {}
    if field.is_list:
        for item in field.items():
            name, has_value, value = item.text().partition("=")
            if has_value:
                found[name] = literal(value)
                item.carried(f"env.{name}")
            else:
                item.lost(
                    "takes the value from the machine of the user", f"launch with --env {name} or --secret {name}"
                )
        return found
    for name, item in field.fields().items():
        if item.is_set:
            text = str(item.value).lower() if isinstance(item.value, bool) else item.text()
            found[name] = literal(text)
            item.carried(f"env.{name}")
        else:
            item.document.note(
                item.steps, Verdict.LOST, "takes the value from the machine of the user", f"launch with --env {name}"
            )
    return found


def image_of_options(container: Json, field: ForeignField, image: str, does: str) -> None:
    """Set the image when the file names none."""
    container["image"] = image or DEFAULT_IMAGE
    here = f"image: {container['image']}; choose one with your libraries: --image"
    field.document.note(field.steps, Verdict.CHANGED, f"absent: {does}", here)


def gpu_types(launch_body: Json, names: list[str]) -> str:
    """Set the flavors that a launch accepts; return their description for the report."""
    flavors = list(dict.fromkeys(plain_name(name) or "gpu" for name in names))
    if len(flavors) == 1:
        launch_body["gpuType"] = flavors[0]
        return f"gpuType: {flavors[0]}; the pool must have a flavor of that name"
    launch_body["flavors"] = flavors
    return f"flavors: [{', '.join(flavors)}]; the pool must have them"


def in_shell(script: str, shell: str = "bash") -> list[str]:
    """Return the command that runs a script."""
    return [shell, "-c", script]


def missing_variables(prefix: str, values: Mapping[str, str], script: str) -> list[str]:
    """Return the other system's variables that the script uses and that are not set here."""
    return [name for name in dict.fromkeys(re.findall(rf"\b{prefix}\w+", script)) if name not in values]


def provided_variables(values: Mapping[str, str], script: str) -> dict[str, str]:
    """Return the variables that the other system sets and the script uses."""
    return {name: value for name, value in values.items() if re.search(rf"\b{name}\b", script)}
