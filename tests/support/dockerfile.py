"""A Dockerfile followed without Docker: its COPY and RUN lines done in folders, and how a container of it starts.

Owns reading the few instructions that our Dockerfile uses, and what `.dockerignore` excludes. Anything else is refused,
so that the result cannot differ from what Docker would make. Base images are not pulled: the RUN lines of the first
stage run here, with the Python that `python3` is on the given PATH.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pathspec

IGNORED = ("MAINTAINER", "CMD")
RUN_S = 600.0


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """The files of the last stage, and how its containers start."""

    root: Path
    env: Mapping[str, str]
    labels: Mapping[str, str]
    user: str
    bases: tuple[str, ...]
    """the stages, in order"""


class Stage(msgspec.Struct, kw_only=True):
    """One FROM and the instructions below it; `folder` is the stage's file system."""

    base: str
    folder: Path
    workdir: str = "/"
    user: str = ""
    env: dict[str, str] = {}
    labels: dict[str, str] = {}


def instructions(text: str) -> list[tuple[str, str]]:
    """`[(instruction, rest)]`, comments left out and continued lines joined."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", kept)
    words = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name.upper(), rest.strip()) for name, _, rest in words]


def follow(dockerfile: Path, context: Path, folder: Path, *, path: str) -> Image:
    """Follow the Dockerfile, in `folder`.

    Raises:
        LookupError: an unknown instruction, or an unknown form of one.
        AssertionError: a RUN line failed.
    """
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for name, rest in instructions(dockerfile.read_text(encoding="utf-8")):
        rest = _filled(rest, arguments) if name in ("FROM", "LABEL") else rest
        if name == "ARG":
            key, _, value = rest.partition("=")
            arguments.setdefault(key, value)
        elif name == "FROM":
            base, _, alias = rest.partition(" AS ")
            stage = Stage(base=base, folder=folder / (alias or "last"))
            stage.folder.mkdir(parents=True)
            stages[alias or "last"] = stage
        elif stage is None:
            raise LookupError(f"{name} before FROM")
        else:
            _do(name, rest, stage, stages, context, path)
    assert stage is not None
    return Image(
        root=stage.folder,
        env=stage.env,
        labels=stage.labels,
        user=stage.user,
        bases=tuple(each.base for each in stages.values()),
    )


def _do(name: str, rest: str, stage: Stage, stages: Mapping[str, Stage], context: Path, path: str) -> None:
    match name:
        case "WORKDIR":
            stage.workdir = rest
            _inside(stage, rest).mkdir(parents=True, exist_ok=True)
        case "COPY" if rest.startswith("--from="):
            source, *words = shlex.split(rest.removeprefix("--from="))
            _copy_stage(stages[source], words, stage)
        case "COPY":
            _copy_context(context, shlex.split(rest), stage)
        case "RUN":
            _run(rest, _inside(stage, stage.workdir), {**stage.env, "PATH": path})
        case "ENV":
            stage.env |= dict(word.split("=", 1) for word in shlex.split(rest))
        case "LABEL":
            stage.labels |= dict(word.split("=", 1) for word in shlex.split(rest))
        case "USER":
            stage.user = rest
        case _ if name in IGNORED:
            pass
        case _:
            raise LookupError(f"this reader does not know {name} {rest}")


def _run(line: str, folder: Path, env: Mapping[str, str]) -> None:
    """The environment of a RUN line: variables for reaching the package index stay; variables that would change a
    Python go."""
    here = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        ["sh", "-c", line], cwd=folder, env={**here, **env}, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    if done.returncode:
        raise AssertionError(f"{line} ended with {done.returncode}: {done.stderr[-2000:]}")


def _copy_stage(source: Stage, words: Sequence[str], stage: Stage) -> None:
    """Move a whole folder of an earlier stage into its place: no later line needs it again."""
    folder, target = words
    if not folder.endswith("/") or target != "/":
        raise LookupError(f"this reader copies whole folders to / only, not {words}")
    stage.folder.rmdir()
    _inside(source, folder).rename(stage.folder)


def _copy_context(context: Path, words: Sequence[str], stage: Stage) -> None:
    *sources, target = words
    ignored = pathspec.PathSpec.from_lines("gitignore", _ignored(context))
    for source in sources:
        there = context / source
        place = _inside(stage, str(Path(stage.workdir, target, there.name if target.endswith("/") else "")))
        files = [there] if there.is_file() else [file for file in there.rglob("*") if file.is_file()]
        for file in files:
            if ignored.match_file(file.relative_to(context)):
                continue
            copy = place / file.relative_to(there) if there.is_dir() else place
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)


def _ignored(context: Path) -> list[str]:
    """The lines of `.dockerignore`, translated to `.gitignore`. In `.dockerignore` a pattern begins at the top."""
    lines = (context / ".dockerignore").read_text(encoding="utf-8").splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    # In `.dockerignore`, `!folder/file` after `*` includes the file although its folder is ignored.
    again = [f"!/{Path(line[1:]).parent}/" for line in wanted if line.startswith("!") and "/" in line]
    return [*(f"/{line}" if line == "*" else line for line in wanted[:1]), *again, *(_anchored(x) for x in wanted[1:])]


def _anchored(line: str) -> str:
    if line.startswith("**/"):
        return line
    return f"!/{line[1:]}" if line.startswith("!") else f"/{line}"


def _inside(stage: Stage, path: str) -> Path:
    return stage.folder / path.lstrip("/")


def _filled(text: str, arguments: Mapping[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], text)
