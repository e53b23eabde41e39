"""The folder of checkpoints on a volume claim: one for all ranks and attempts, and for launches that name it."""

from tests.support.local_stack import RunningStack
from tests.support.names import fresh

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
COUNTS = """
set -e
mkdir -p "$SLIPWAY_CHECKPOINT_DIR"
kept="$SLIPWAY_CHECKPOINT_DIR/rank-$SLIPWAY_RANK"
step=$(cat "$kept" 2>/dev/null || echo 0)
echo "rank $SLIPWAY_RANK begins at $step"
echo $((step + 10)) > "$kept.new"
mv "$kept.new" "$kept"  # a rank that is killed meanwhile leaves the step before
test "$SLIPWAY_ATTEMPT" -gt "${FAILS:-0}"
"""
"""Continues from its checkpoint, counts ten more steps, and fails in the first attempts."""


def begun(stack: RunningStack, name: str) -> list[str]:
    """Where each rank began, from its output."""
    lines = stack.command("logs", name, "--stream", "stdout").out.splitlines()
    return sorted(line[line.index("rank") :] for line in lines if "begins at" in line)


def test_four_ranks_go_on_from_their_checkpoints(stack: RunningStack) -> None:
    """After a restart the ranks use the same folder; another launch continues there if it names that folder, else it
    has its own."""
    work = fresh("work")
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": work}}
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    stack.kubernetes("POST", CLAIMS, {**claim, "spec": spec})
    words = ("--ranks", "4", "--cpus", "50m", "--memory", "64Mi", "--image", "local")
    first, again, alone = fresh("first"), fresh("again"), fresh("alone")
    ran = stack.command(
        *("run", "--name", first, *words, "--checkpoints", work, "--max-restarts", "1", "--env", "FAILS=1"),
        *("--", "sh", "-c", COUNTS),
    )
    assert ran.code == 0, ran.err
    expected = [f"rank {rank} begins at {step}" for rank in range(4) for step in (0, 10)]
    assert begun(stack, first) == expected
    folder = f"{work}/{stack.view(first)['id']}"
    for name, checkpoints, step in ((again, folder, 20), (alone, work, 0)):
        ran = stack.command("run", "--name", name, *words, "--checkpoints", checkpoints, "--", "sh", "-c", COUNTS)
        assert ran.code == 0, ran.err
        assert begun(stack, name) == [f"rank {rank} begins at {step}" for rank in range(4)]
