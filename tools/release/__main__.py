"""`python -m tools.release`: writes all the files of a release into one folder; `make release`.

Owns the list of the release's files, and their order. The modules beside this one make the content. `image/build.py`
makes the image, for the architecture of this machine only.

    python -m tools.release [--output dist] [--without-image] [--dirty]

Promises: the same commit on the same kind of machine produces the same bytes; nothing is published.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from tools.release import chart, krew, lockfile, sbom, vex
from tools.release.version import version

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "services/api/slipway/api"
EXTRAS_OF_IMAGE = ("server", "otlp-grpc")
PLATFORMS = {"amd64": "x86_64-manylinux_2_28", "arm64": "aarch64-manylinux_2_28"}
"""{architecture: uv's name for it}"""
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
STEP_S = 900.0


class ReleaseError(Exception):
    """The release cannot be made; the message says what to do."""


class ReleasePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The version, the time, the output folder and the architecture of a release."""

    version: str
    epoch_s: int
    output: Path
    architecture: str


def make(plan: ReleasePlan, root: Path | None) -> list[Path]:
    """Write every file.

    `root` contains the files of the image, as `image/build.py` made them; None: the release has no image.

    Raises:
        ReleaseError: a step failed.
        UnknownPartError: the licence of a shipped component is unknown.
        VexError: a statement of vex.toml cannot be published.
    """
    plan.output.mkdir(parents=True, exist_ok=True)
    made = _python_files(plan)
    digest = ""
    parts: list[sbom.PackagePart] = []
    bills: list[Json] = []
    if root is not None:
        image, digest, found, described = image_files(plan, root)
        made += image
        parts += found
        bills.append(described)
    made += [*_chart_files(plan, digest), *_plugin_files(plan)]
    found, described = _bill_of_wheel(plan)
    made.append(_write_json(plan, f"slipway-wheel-{plan.version}.cdx.json", described))
    statements = vex.read(vex.FILE.read_text(encoding="utf-8"))
    stated = vex.document(statements, [*bills, described], epoch_s=plan.epoch_s)
    made.append(_write_json(plan, f"slipway-{plan.version}.vex.cdx.json", stated))
    made.append(_write(plan, "LICENSES.txt", sbom.licence_list([*parts, *found])))
    made.append(_write(plan, "RELEASE-NOTES.md", notes(plan, has_image=root is not None)))
    made.append(_write(plan, "SHA256SUMS", sums(made)))
    return made


def image_files(plan: ReleasePlan, root: Path) -> tuple[list[Path], str, list[sbom.PackagePart], Json]:
    """Write the archive of the image whose files are in `root`, and its bill of materials.

    Return the files, the digest, the components and the bill.

    Raises:
        ReleaseError: the archive cannot be written.
        UnknownPartError: a component is unknown, or its licence is not allowed.
    """
    stem = f"slipway-image-{plan.version}-linux-{plan.architecture}"
    archive = plan.output / f"{stem}.oci.tar"
    said = _build("archive", "--root", str(root), "--output", str(archive.resolve()))
    digest = said.split()[-1]
    (site,) = root.glob("usr/local/lib/python3.*/site-packages")
    parts = [
        *sbom.plain_install(site, _lock(), EXTRAS_OF_IMAGE),
        *sbom.vendored(PAGES),
        *sbom.system(root, platform.python_version()),
    ]
    purl = f"pkg:oci/slipway@{digest.replace(':', '%3A')}?arch={plan.architecture}"
    subject = sbom.PackagePart(name="slipway", version=plan.version, purl=purl, licence="Apache-2.0")
    properties = {"platform": f"linux/{plan.architecture}"}
    described = sbom.document(subject, "container", parts, epoch_s=plan.epoch_s, properties=properties)
    return [archive, _write_json(plan, f"{stem}.cdx.json", described)], digest, parts, described


def sums(files: list[Path]) -> str:
    """Return the input of `sha256sum --check`."""
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(files))


def changes(text: str, of_version: str) -> str:
    """Return the changelog section of a version; the section Unreleased when the version has none.

    Raises:
        ReleaseError: the changelog has neither.
    """
    for name in (of_version, "Unreleased"):
        found = re.search(rf"^## \[{re.escape(name)}\][^\n]*\n(.*?)(?=^## \[|\Z)", text, re.M | re.S)
        if found:
            return found[1].strip()
    raise ReleaseError(f"CHANGELOG.md has no section [{of_version}] and no section [Unreleased]")


def notes(plan: ReleasePlan, *, has_image: bool) -> str:
    """Return the release notes: the files, for which machine they were made, and what has changed."""
    lines = [f"# Slipway {plan.version}", ""]
    lines += ["How to install: `docs/install.md`. `sha256sum --check SHA256SUMS` checks the files.", ""]
    if has_image:
        lines += [
            f"The image is for linux/{plan.architecture}, made with Python {platform.python_version()}. It was not made"
            " for other architectures, and not run on them: for those, run `make release` at the same commit on a"
            " machine of that kind. The wheel, the sdist and the chart need not be made again there.",
            "",
        ]
    else:
        lines += ["This release was made without an image (`--without-image`).", ""]
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return "\n".join([*lines, "## What changed", "", changes(text, plan.version), ""])


# --- the files --------------------------------------------------------------------------------------------------------


def _python_files(plan: ReleasePlan) -> list[Path]:
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(plan.epoch_s)}
    for target in ("sdist", "wheel"):
        words = ["-m", "hatchling", "build", "--target", target, "--directory", str(plan.output.resolve())]
        _run([sys.executable, *words], cwd=ROOT, env=env)
    stem = f"slipway_ai-{plan.version}"
    return [plan.output / f"{stem}.tar.gz", plan.output / f"{stem}-py3-none-any.whl"]


def _chart_files(plan: ReleasePlan, digest: str) -> list[Path]:
    """Write the chart; `digest` is the digest of this release's image; empty: the release has no image."""
    folder = ROOT / "helm"
    pins = {"slipway": {"repository": "slipway", "tag": plan.version, "digest": digest}} if digest else None
    content = chart.packed(folder, epoch_s=plan.epoch_s, pins=pins)
    packed = plan.output / f"slipway-{plan.version}.tgz"
    packed.write_bytes(content)
    artifact = plan.output / f"slipway-chart-{plan.version}.oci.tar"
    chart.write_artifact(artifact, folder, content, epoch_s=plan.epoch_s)
    return [packed, artifact]


def _plugin_files(plan: ReleasePlan) -> list[Path]:
    content = krew.archive(plan.version, (ROOT / "LICENSE").read_text("utf-8"), epoch_s=plan.epoch_s)
    packed = plan.output / krew.archive_name(plan.version)
    packed.write_bytes(content)
    text = krew.manifest(plan.version, hashlib.sha256(content).hexdigest())
    return [packed, _write(plan, f"{krew.PROGRAM}-{plan.version}.yaml", text)]


def _bill_of_wheel(plan: ReleasePlan) -> tuple[list[sbom.PackagePart], Json]:
    """Return the bill of the plain install, on this machine's platform: its packages are those of this environment."""
    parts = [*sbom.plain_install(None, _lock()), *sbom.vendored(PAGES)]
    properties = {"extras": "none", "platform": sbom.machine()}
    return parts, sbom.document(parts[0], "application", parts, epoch_s=plan.epoch_s, properties=properties)


def _lock() -> list[lockfile.LockedPackage]:
    return lockfile.read((lockfile.FOLDER / lockfile.SHIPPED).read_text(encoding="utf-8"))


def _write_json(plan: ReleasePlan, name: str, value: Json) -> Path:
    """Write a CycloneDX document after validating it against its schema."""
    # Imported here, because the import compiles grammars for three seconds, which other users of this module need not
    # pay.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = json.dumps(value, indent=1, sort_keys=True) + "\n"
    if (wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)) is not None:
        raise ReleaseError(f"{name} is not valid CycloneDX 1.6: {wrong}")
    return _write(plan, name, text)


def _write(plan: ReleasePlan, name: str, text: str) -> Path:
    file = plan.output / name
    file.write_text(text, encoding="utf-8")
    return file


# --- the steps --------------------------------------------------------------------------------------------------------


def make_root(folder: Path) -> Path:
    """Make the files of the image with the Python that is copied into the image.

    Raises:
        ReleaseError: that Python cannot be copied, or a step failed.
    """
    if sys.base_prefix == "/usr":
        raise ReleaseError(
            "the image needs a Python with a prefix of its own, not the one of the distribution in /usr: run "
            "`make clean release PYTHON=/path/to/python3`, build the image with docker (image/README.md), or make the "
            "release without it: make release ARGS=--without-image"
        )
    root = folder / "root"
    for step in ("libraries", "program", "system", "seal"):
        _build(step, "--root", str(root), cwd=folder)
    return root


def wheels_missing(architecture: str) -> str:
    """Return why another architecture cannot install the image's packages; empty when each has a wheel for it."""
    extras = [word for extra in EXTRAS_OF_IMAGE for word in ("--extra", extra)]
    with tempfile.TemporaryDirectory() as folder:
        argv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--dry-run"]
        argv += ["--target", folder, "--python", sys.executable, "--python-platform", PLATFORMS[architecture]]
        argv += ["--only-binary", ":all:", "--require-hashes", "-r", "pyproject.toml", *extras]
        argv += ["-c", "requirements/runtime.txt"]
        done = subprocess.run(  # noqa: S603 - words of ours
            argv, cwd=ROOT, capture_output=True, text=True, timeout=STEP_S, check=False
        )
    return done.stderr.strip() if done.returncode else ""


def _build(*words: str, cwd: Path = ROOT) -> str:
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return _run([str(Path(sys.base_prefix) / "bin" / name), str(ROOT / "image" / "build.py"), *words], cwd=cwd)


def _run(argv: list[str], *, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(  # noqa: S603 - words of ours
        argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=STEP_S, check=False
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def _epoch() -> int:
    """Return SOURCE_DATE_EPOCH, or the time of the commit, in seconds."""
    given = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct")
    if not given.isdigit():
        raise ReleaseError("set SOURCE_DATE_EPOCH to the seconds of the release: this folder is no checkout of Git")
    return int(given)


def _git(*words: str) -> str:
    """Return the output of git; empty without Git or a repository. The checkout may belong to another account."""
    git = shutil.which("git")
    if git is None:
        return ""
    argv = [git, "-c", f"safe.directory={ROOT}", *words]
    done = subprocess.run(  # noqa: S603 - words of ours
        argv, cwd=ROOT, capture_output=True, text=True, timeout=STEP_S, check=False
    )
    return done.stdout.strip()


def main(arguments: list[str]) -> int:
    """Return 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="make release", description="Write the files of a release. ARGS= gives:")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="the folder; it is emptied first")
    parser.add_argument("--without-image", action="store_true", help="where the image is built with docker")
    parser.add_argument("--dirty", action="store_true", help="also with changes that are not committed")
    words = parser.parse_args(arguments)
    try:
        if not words.dirty and (changed := _git("status", "--porcelain")):
            raise ReleaseError(f"commit these changes first, or try it with ARGS=--dirty:\n{changed}")
        machine = platform.machine()
        architecture = MACHINES.get(machine, machine)
        plan = ReleasePlan(version=version(), epoch_s=_epoch(), output=words.output, architecture=architecture)
        shutil.rmtree(plan.output, ignore_errors=True)
        for other in PLATFORMS.keys() - {architecture} if not words.without_image else ():
            if missing := wheels_missing(other):
                raise ReleaseError(f"the image cannot be made on {other}: {missing}")
        with tempfile.TemporaryDirectory() as folder:
            made = make(plan, None if words.without_image else make_root(Path(folder)))
    except (ReleaseError, sbom.UnknownPartError, vex.VexError) as error:
        sys.stderr.write(f"make release: {error}\n")
        return 1
    size = sum(file.stat().st_size for file in made)
    sys.stdout.write(
        f"make release: Slipway {plan.version}, {len(made)} files, {size / 1e6:.0f} MB, in {plan.output}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
