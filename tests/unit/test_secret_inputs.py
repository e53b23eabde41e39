"""Each input that looks like a secret has an explicit decision whether it carries one."""

from tests.support.secret_inputs import NO_SECRET, PLANTED, inputs


def test_each_input_that_looks_like_a_secret_is_planted_or_is_none() -> None:
    """A new field needs its row: in `PLANTED`, with a canary of `tests/e2e/test_canaries.py` or
    `tests/integration/helm/test_secret_values.py`, or in `NO_SECRET` with the reason."""
    assert inputs() - PLANTED.keys() - NO_SECRET.keys() == set()


def test_no_row_is_about_an_input_that_is_gone() -> None:
    """Each row is about an existing input, and no input is in both tables."""
    assert PLANTED.keys() | NO_SECRET.keys() <= inputs()
    assert PLANTED.keys() & NO_SECRET.keys() == set()
