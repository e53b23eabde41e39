"""Requests that sequences may not contain, because more than one answer is right."""

from tests.models.kubernetes.lanes import draw
from tests.models.kubernetes.servers import Model

CASES = 60


def test_a_list_that_may_be_old_names_the_newest_version() -> None:
    """No object of its kind was written after that version: otherwise a server may show any state since then."""
    model, asked = Model(), 0
    for case in range(CASES):
        played = draw(model, 1, case, f"s-{case}")
        steps = [step for step in zip(played.operations, played.answers, strict=True) if not step[0].is_watch]
        for place, (operation, _) in enumerate(steps):
            if operation.query.get("resourceVersionMatch") != "NotOlderThan" or not operation.references:
                continue
            asked += 1
            since = [
                later
                for later, answer in steps[:place]
                if later.number > max(operation.references)
                and later.method != "GET"
                and f"{later.path}/".startswith(f"{operation.path}/")
                and answer["code"] < 300
                and not later.query.get("dryRun")
            ]
            assert since == [], operation.told()
    assert asked > 0
