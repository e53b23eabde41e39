"""The bill of materials of a release, as CycloneDX 1.6 in JSON, and as a list of licences.

Owns the list of components. The plain install has its packages. The image has its packages, Python, the shared
libraries of Debian and the certificate authorities. Both have the vendored scripts of our pages. Reads packages from
their metadata, and hashes from the lock. Knows no other part of a release.

Promises: the same contents produce the same bytes; every component has a version, a package URL and a licence.

Source: CycloneDX 1.6 JSON reference; package-url specification.
"""

import json
import platform
import re
import subprocess
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.release import licences
from tools.release.lockfile import LockedPackage

Json = dict[str, Any]

OURS = "slipway-ai"
SPACE = uuid.UUID("6f2d6b0e-6f0c-5a59-9d0e-3d7d3a0b8c11")
"""the namespace of the serial numbers of our bills; any fixed UUID would work"""
QUERY_S = 60.0
_VENDORED = re.compile(r"^\| `([^`]+)` \| `([^` ]+) (\d[^` ]*)` \|", re.MULTILINE)
"""A row of a table of vendored files: the file, its package, and the version of the package."""


class PackagePart(msgspec.Struct, frozen=True, kw_only=True):
    """One component."""

    name: str
    version: str
    purl: str
    """the package URL, which other components use to refer to this one"""
    licence: str
    """an SPDX expression"""
    is_of_system: bool = False
    hashes: tuple[str, ...] = ()
    """sha256 of each file of the package that the lock accepts; empty when the lock has none"""
    needs: tuple[str, ...] = ()
    """package URLs of the components that this one needs"""


class UnknownPartError(Exception):
    """A shipped component has an unknown package, or a licence that is unknown or not allowed."""


def plain_install(site: Path | None, lock: Iterable[LockedPackage], extras: Sequence[str] = ()) -> list[PackagePart]:
    """Return what `pip install slipway-ai[EXTRAS]` installs, our package first.

    The packages are read from `site` (None: from this Python).

    Raises:
        UnknownPartError: a package is missing there, or is not in the lock.
    """
    found = distributions() if site is None else distributions(path=[str(site)])
    there: dict[str, Distribution] = {canonicalize_name(each.name): each for each in found}
    edges = _closure(there, OURS, frozenset(extras))
    hashes = {(each.name, each.version): each.hashes for each in lock}
    parts: list[PackagePart] = []
    for name in [OURS, *sorted(edges.keys() - {OURS})]:
        package = there[canonicalize_name(name)]
        if name != OURS and (name, package.version) not in hashes:
            raise UnknownPartError(f"{name} {package.version} is not in the lock")
        parts.append(
            PackagePart(
                name=name,
                version=package.version,
                purl=_purl("pypi", name, package.version),
                licence=licences.of(package),
                hashes=hashes.get((name, package.version), ()),
                needs=tuple(
                    _purl("pypi", each, there[canonicalize_name(each)].version) for each in sorted(edges[name])
                ),
            )
        )
    return parts


def vendored(pages: Path) -> list[PackagePart]:
    """Return the third-party scripts that our pages load; the table beside them names the package of each.

    Raises:
        UnknownPartError: a file is in no table, or the licence of a package is unknown or not allowed.
    """
    found: set[tuple[str, str]] = set()
    for folder in sorted(path for path in pages.rglob("vendor") if path.is_dir()):
        rows = _VENDORED.findall((folder / "README.md").read_text(encoding="utf-8"))
        files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {"README.md"}
        unknown = files - {file for file, _, _ in rows}
        if unknown:
            raise UnknownPartError(
                f"vendored files that {folder}/README.md does not name: {', '.join(sorted(unknown))}"
            )
        found |= {(name, version) for _, name, version in rows}
    strange = [name for name, _ in sorted(found) if licences.SCRIPTS.get(name) not in licences.ALLOWED]
    if strange:
        raise UnknownPartError(f"the licence of {', '.join(strange)} is not in tools/release/licences.py")
    return [
        PackagePart(name=name, version=version, purl=_purl("npm", quote(name), version), licence=licences.SCRIPTS[name])
        for name, version in sorted(found)
    ]


def system(root: Path, python: str) -> list[PackagePart]:
    """Return Python itself and the Debian packages of the files in the image, from the machine that made it.

    Raises:
        UnknownPartError: a file belongs to no package, or the licence of a package is unknown.
    """
    # Paths in the image follow the links of the system that made the image; /usr/lib and /lib may be the same folder.
    folders = [path for path in root.glob("usr/lib*") if path.is_dir()] + [path for path in root.glob("lib*")]
    files = {
        "/" + str(path.relative_to(root)) for folder in folders for path in folder.rglob("*.so*") if not path.is_dir()
    }
    names = {_owner(file) for file in sorted(files)}
    if (root / "etc/ssl/certs/ca-certificates.crt").exists():
        names.add("ca-certificates")
    parts = [
        PackagePart(
            name="python", version=python, purl=_purl("generic", "python", python), licence="PSF-2.0", is_of_system=True
        )
    ]
    for name in sorted(names):
        if name not in licences.SYSTEM:
            raise UnknownPartError(f"the licence of the Debian package {name} is not in tools/release/licences.py")
        version, architecture = _query("-W", "-f", "${Version} ${Architecture}", name).split()
        purl = _purl("deb", f"debian/{quote(name)}", quote(version, safe=":~")) + f"?arch={architecture}"
        parts.append(
            PackagePart(name=name, version=version, purl=purl, licence=licences.SYSTEM[name], is_of_system=True)
        )
    return parts


def document(
    subject: PackagePart, kind: str, parts: Sequence[PackagePart], *, epoch_s: int, properties: Mapping[str, str]
) -> Json:
    """Return the bill of `subject` with these parts; a part with the name of `subject` is `subject` itself.

    `kind` is `application` or `container`.

    Raises:
        UnknownPartError: the licence of a part is not allowed.
    """
    wrong = [problem for each in parts if (problem := _problem(each))]
    if wrong:
        raise UnknownPartError("; ".join(wrong))
    others = [each for each in parts if each.name != subject.name]
    inner = next((each.needs for each in parts if each.name == subject.name), ())
    loose = [each.purl for each in others if each.purl not in {need for part in parts for need in part.needs}]
    body: Json = {
        "components": [_component(each, "library") for each in sorted(others, key=lambda each: each.purl)],
        "dependencies": [
            {"ref": subject.purl, "dependsOn": sorted({*inner, *loose})},
            *({"ref": each.purl, "dependsOn": sorted(each.needs)} for each in sorted(others, key=lambda x: x.purl)),
        ],
    }
    about: Json = {
        "timestamp": datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "component": _component(subject, kind),
        "properties": [{"name": f"slipway:{name}", "value": value} for name, value in sorted(properties.items())],
    }
    serial = uuid.uuid5(SPACE, json.dumps([about, body], sort_keys=True))
    head: Json = {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}", "version": 1}
    return {**head, "metadata": about, **body}


def licence_list(parts: Iterable[PackagePart]) -> str:
    """Return one line per part, sorted: name, version, licence."""
    lines = sorted({f"{each.name} {each.version}: {each.licence}" for each in parts}, key=str.lower)
    return "\n".join(lines) + "\n"


def machine() -> str:
    """Return the platform for which markers chose the packages: `Linux x86_64, Python 3.11`."""
    return f"{platform.system()} {platform.machine()}, Python {'.'.join(platform.python_version_tuple()[:2])}"


def _problem(part: PackagePart) -> str:
    allowed = licences.ALLOWED_OF_SYSTEM if part.is_of_system else licences.ALLOWED
    return licences.problem(part.name, part.licence, allowed)


def _component(part: PackagePart, kind: str) -> Json:
    made: Json = {
        "type": kind,
        "bom-ref": part.purl,
        "name": part.name,
        "version": part.version,
        "purl": part.purl,
        "licenses": [{"expression": part.licence}],
    }
    hashes = [{"alg": "SHA-256", "content": each} for each in sorted(part.hashes)]
    return made | ({"hashes": hashes} if hashes else {})


def _purl(kind: str, name: str, version: str) -> str:
    return f"pkg:{kind}/{name}@{version}"


def _closure(there: Mapping[str, Distribution], first: str, extras: frozenset[str]) -> dict[str, set[str]]:
    """Return `{package: what it needs here}` of everything that `first` with these extras needs."""
    edges: dict[str, set[str]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    queue: list[tuple[str, frozenset[str]]] = [(first, extras)]
    while queue:
        name, wanted = each = queue.pop()
        if each in seen:
            continue
        seen.add(each)
        if name not in there:
            raise UnknownPartError(f"{name} is needed, and is not installed")
        needs = edges.setdefault(name, set())
        for line in there[name].requires or ():
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in {"", *wanted}):
                key = canonicalize_name(needed.name)
                if key != name:
                    needs.add(key)
                queue.append((key, frozenset(needed.extras)))
    return edges


def _owner(file: str) -> str:
    """Return the Debian package of a file; the path is tried with and without /usr in front."""
    other = file.removeprefix("/usr") if file.startswith("/usr/") else f"/usr{file}"
    for path in (file, other):
        said = _query("-S", path, may_fail=True)
        if said:
            return said.partition(":")[0]
    raise UnknownPartError(f"{file} is in the image and in no Debian package of this machine")


def _query(*words: str, may_fail: bool = False) -> str:
    done = subprocess.run(  # noqa: S603 - a fixed program, words of ours
        ["/usr/bin/dpkg-query", *words], capture_output=True, text=True, timeout=QUERY_S, check=False
    )
    if done.returncode and not may_fail:
        raise UnknownPartError(f"dpkg-query {' '.join(words)}: {done.stderr.strip()}")
    return "" if done.returncode else done.stdout.strip()
