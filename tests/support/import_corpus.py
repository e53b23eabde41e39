"""The corpus of `slipway import`: files of other systems, each with the launches and the report that it becomes.

A case is `tests/imports/TOOL/NAME.yaml` (or `.json`, `.sh`) with `NAME.launch.yaml` and `NAME.report.txt` beside it.

    python -m tests.support.import_corpus            shows how the results differ from the files
    python -m tests.support.import_corpus --write    shows the differences, and writes the files anew
"""

import argparse
import difflib
import sys
from pathlib import Path
from typing import Any, NamedTuple

from slipway.cli.importing import report
from slipway.cli.importing.kinds import ImportedDocument, ImportOptions, convert
from slipway.cli.verbs.import_files import launch_text

FOLDER = Path(__file__).parent.parent / "imports"
WIDTH = 100
_MADE = (".launch.yaml", ".report.txt")
_KIND_MARK = "# kind: "


class ImportCase(NamedTuple):
    """One file of the corpus."""

    path: Path

    @property
    def name(self) -> str:
        """`kubernetes/indexed`."""
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def text(self) -> str:
        """The file of the other system."""
        return self.path.read_text("utf-8")

    def documents(self, text: str = "") -> list[ImportedDocument]:
        """Return the documents that the file, or `text` in its place, becomes."""
        first = self.text.partition("\n")[0]
        kind = first.removeprefix(_KIND_MARK) if first.startswith(_KIND_MARK) else ""
        return convert(text or self.text, self.path.name, ImportOptions(kind=kind))

    def made(self) -> dict[Path, str]:
        """{the file beside the case: its text as `slipway import` produces it now}."""
        documents = self.documents()
        launches = "".join(launch_text(document, body) for document in documents for body in document.bodies)
        texts = (launches, report.as_text(documents, WIDTH, is_long=True) + "\n")
        return {self.path.with_name(self.path.stem + end): text for end, text in zip(_MADE, texts, strict=True)}

    def differences(self) -> str:
        """The differences between the results and the files beside the case; empty when there are none."""
        found: list[str] = []
        for path, text in self.made().items():
            before = path.read_text("utf-8") if path.exists() else ""
            if before != text:
                lines = (before.splitlines(), text.splitlines())
                found += difflib.unified_diff(*lines, f"{path.name} as it is written", "as it is made", lineterm="")
        return "\n".join(found)


def cases() -> list[ImportCase]:
    """All cases, sorted by name."""
    return [ImportCase(path) for path in sorted(FOLDER.glob("*/*")) if not path.name.endswith(_MADE)]


def bodies(case: ImportCase) -> list[dict[str, Any]]:
    """The launch bodies of a case."""
    return [body for document in case.documents() for body in document.bodies]


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    is_writing = parser.parse_args().write
    changed = [case for case in cases() if case.differences()]
    for case in changed:
        sys.stdout.write(case.differences() + "\n")
        for path, text in case.made().items() if is_writing else ():
            path.write_text(text, "utf-8")
    return 0 if is_writing or not changed else 1


if __name__ == "__main__":
    sys.exit(_main())
