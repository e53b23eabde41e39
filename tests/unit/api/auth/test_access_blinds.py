"""Redaction: in our messages, callers do not read the names of work that they may not see."""

import msgspec
import pytest

from slipway.api.auth.scoped_client import OTHERS_WORK, Redactor


def some_blinds(*hidden: str) -> Redactor:
    """The redaction for a caller who sees the workspace `mine`; the workspaces `hidden` exist too."""
    return Redactor(hidden, lambda name: name == "mine")


def drawn(value: object, *hidden: str) -> object:
    return msgspec.json.decode(some_blinds(*hidden)(msgspec.json.encode(value)))


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (
            "queue q has strict order, and red/model-1 waits before it",
            f"queue q has strict order, and {OTHERS_WORK} waits before it",
        ),
        ("room is reserved for red/a, red/b", f"room is reserved for {OTHERS_WORK}, {OTHERS_WORK}"),
        ("red-two/a is before it", "red-two/a is before it"),
        ("infrared/a and a/red/b stay", "infrared/a and a/red/b stay"),
        ("nothing of anybody", "nothing of anybody"),
    ],
)
def test_names_of_hidden_work_are_redacted(words: str, read: str) -> None:
    """Only whole names are hidden: a workspace whose name begins or ends alike is another."""
    assert drawn({"message": words}, "red") == {"message": read}
    assert some_blinds("red").sentence(words) == read


def test_only_our_own_words_are_touched() -> None:
    """Text of the user stays, in any field."""
    image = {"containers": [{"image": "red/app:1", "message": "red/app"}]}
    spec = {"template": image, "env": {"message": "red/x"}, "labels": {"by": "red/x"}, "pool": "red/x"}
    value = {"spec": spec, "status": {"stop": {"by": "red/a"}, "conditions": [{"message": "red/a goes first"}]}}
    assert drawn(value, "red") == {
        "spec": spec,
        "status": {"stop": {"by": OTHERS_WORK}, "conditions": [{"message": f"{OTHERS_WORK} goes first"}]},
    }


def test_a_caller_with_full_access_reads_unredacted_text() -> None:
    """An answer from which nothing is hidden is not changed, not even decoded."""
    raw = b'{"message":  "red/a"}'
    assert some_blinds()(raw) is raw
    assert some_blinds("blue")(raw) is raw


def test_the_preemptor_may_be_gone_with_its_workspace() -> None:
    """A text in `by` is always a name of work, so no list of workspaces is needed; the groups of a sum are something
    else."""
    assert drawn({"by": "gone/a"}) == {"by": OTHERS_WORK}
    assert drawn({"by": "mine/a"}) == {"by": "mine/a"}
    assert drawn({"by": {"user": "red/a"}}, "red") == {"by": {"user": "red/a"}}


@pytest.mark.parametrize("said", [{"problem": {"detail": "red/x"}}, {"error": "red/x"}, {"reason": "red/x"}])
def test_what_a_caller_has_sent_comes_back_as_it_was(said: dict[str, object]) -> None:
    """Otherwise a guess that comes back changed would show that such a workspace exists."""
    assert drawn(said, "red") == said
