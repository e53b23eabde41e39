"""Our sentences about the work of others, as those read them who may not see it."""

import msgspec
import pytest

from slipway.api.access.redaction import SOMEBODY, Blinds


def some_blinds(*hidden: str) -> Blinds:
    """For who sees the workspace `mine`, beside these that are there."""
    return Blinds(hidden, lambda name: name == "mine")


def drawn(value: object, *hidden: str) -> object:
    return msgspec.json.decode(some_blinds(*hidden)(msgspec.json.encode(value)))


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
    assert some_blinds("red").sentence(words) == read


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
    assert some_blinds()(raw) is raw
    assert some_blinds("blue")(raw) is raw


def test_who_is_made_room_for_may_be_gone_with_its_workspace() -> None:
    """That field has names of work only, so no list of workspaces is needed; groups of a sum are something else."""
    assert drawn({"by": "gone/a"}) == {"by": SOMEBODY}
    assert drawn({"by": "mine/a"}) == {"by": "mine/a"}
    assert drawn({"by": {"user": "red/a"}}, "red") == {"by": {"user": "red/a"}}


@pytest.mark.parametrize("said", [{"problem": {"detail": "red/x"}}, {"error": "red/x"}, {"reason": "red/x"}])
def test_what_a_caller_has_sent_comes_back_as_it_was(said: dict[str, object]) -> None:
    """Else a guess that comes back changed would tell that there is such a workspace."""
    assert drawn(said, "red") == said
