"""Our sentences about the work of others, as those read them who may not see it."""

import msgspec
import pytest

from slipway.api.access.redaction import SOMEBODY, blinds


def drawn(value: object, *hidden: str) -> object:
    return msgspec.json.decode(blinds(hidden)(msgspec.json.encode(value)))


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (
            "queue q keeps strict order and red/model-1 is before it",
            f"queue q keeps strict order and {SOMEBODY} is before it",
        ),
        ("room is kept for red/a, red/b", f"room is kept for {SOMEBODY}, {SOMEBODY}"),
        ("red-two/a is before it", "red-two/a is before it"),
        ("infrared/a and a/red/b stay", "infrared/a and a/red/b stay"),
        ("nothing of anybody", "nothing of anybody"),
    ],
)
def test_names_of_hidden_work_go(words: str, read: str) -> None:
    """Whole names only: a workspace whose name begins or ends alike is another."""
    assert drawn({"message": words}, "red") == {"message": read}


def test_only_our_own_words_are_touched() -> None:
    """What the user wrote stays, wherever it stands."""
    image = {"containers": [{"image": "red/app:1", "message": "red/app"}]}
    spec = {"template": image, "env": {"message": "red/x"}, "labels": {"by": "red/x"}, "pool": "red/x"}
    value = {"spec": spec, "status": {"stop": {"by": "red/a"}, "conditions": [{"message": "red/a goes first"}]}}
    assert drawn(value, "red") == {
        "spec": spec,
        "status": {"stop": {"by": SOMEBODY}, "conditions": [{"message": f"{SOMEBODY} goes first"}]},
    }


def test_who_sees_everything_reads_everything() -> None:
    """Nothing is hidden, nothing is changed, not even decoded."""
    raw = b'{"message":  "red/a"}'
    assert blinds([])(raw) is raw
    assert blinds(["blue"])(raw) is raw
