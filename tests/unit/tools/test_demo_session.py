"""The recorded session in the docs: the demo's output, at the width of a terminal."""

from pathlib import Path

import pytest

from tools.demo_session import HEAD, WIDTH, SessionError, page_of

PAGE = Path(__file__).parents[3] / "docs" / "demo.md"


def test_the_page_is_a_whole_session_that_fits_a_terminal() -> None:
    """Each scene is there, every check is ok, and no line is broken by 80 columns."""
    text = PAGE.read_text("utf-8")
    assert text.startswith(HEAD)
    session = text.removeprefix(HEAD)
    assert page_of(session.removesuffix("```\n")) == text
    assert [title for title in ("a. ", "b. ", "c. ", "d. ", "e. ", "summary") if f"\n── {title}" not in session] == []
    assert max(len(line) for line in session.splitlines()) <= WIDTH


@pytest.mark.parametrize(
    ("printed", "why"),
    [("x" * 81 + "\n   26 checks, all ok", "wider than 80"), ("   26 checks, 1 NO", "check of the demo")],
)
def test_what_does_not_fit_or_has_failed_is_not_shown(printed: str, why: str) -> None:
    """A session that does not fit or has failed is not written, and the page stays unchanged."""
    with pytest.raises(SessionError, match=why):
        page_of(printed)


def test_the_folder_of_the_session_has_one_name() -> None:
    """The folder of the session has a fixed name, so that a new page differs only where the runs differ."""
    page = page_of("kubeconfig /tmp/slipway-demo-j91ngxpb/kubeconfig\n   26 checks, all ok")
    assert "kubeconfig /tmp/slipway-demo/kubeconfig\n" in page
