"""The pictures in the docs: each page of the product has one in both themes, and no other picture exists."""

import re
from pathlib import Path

from tests.browser.gallery import docs_file, pages

DOCS = Path(__file__).parents[3] / "docs"


def _names() -> list[str]:
    return list(pages({name: name for name in ("big", "gang", "failed", "held")}))


def test_every_page_has_its_pictures() -> None:
    """Each page of the gallery has a light and a dark picture, and there are no others."""
    wanted = {docs_file(name, is_dark=is_dark) for name in _names() for is_dark in (False, True)}
    assert {path.name for path in (DOCS / "pictures").iterdir()} == wanted


def test_the_docs_show_each_of_them() -> None:
    """Each picture is on the page of pictures, with an alternative text."""
    shown = (DOCS / "page-pictures.md").read_text()
    for name in _names():
        light, dark = docs_file(name, is_dark=False), docs_file(name, is_dark=True)
        pair = rf'srcset="pictures/{re.escape(dark)}">\n  <img alt="[^"]+" src="pictures/{re.escape(light)}"'
        assert re.search(pair, shown), f"docs/page-pictures.md shows no {name}"
