"""How the servers of a hub are told apart: a start ends what an earlier start of the same server left, and no other."""

import re

from slipway.adapters.jupyterhub import label_of, label_of_server

LABEL = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?")


def test_no_two_servers_of_a_user_have_one_label() -> None:
    """Names that differ in what a label cannot hold, or behind its length; and the server without a name."""
    names = ["", "default", "a b", "a-b", "a--b", "-a-b", "x" * 40, "x" * 41, "x" * 42, "\u00e9", "\u00e8"]
    labels = [label_of_server(name) for name in names]
    assert len(set(labels)) == len(names)
    assert all(LABEL.fullmatch(label) for label in labels)


def test_a_plain_name_is_its_label() -> None:
    """So it is found by who looks for it, and by hubs of other versions."""
    assert [label_of_server(name) for name in ("", "training")] == ["default", "training"]
    assert label_of("hub") == "hub"
    assert len({label_of(name) for name in ("lab 1", "lab-1")}) == 2
