"""The blocks of commands and of Python on our pages, and what their reader has: files, programs, and allocations.

Owns which test runs which blocks, and what replaces a text of a page here. The tests that follow a whole page
(docs/tutorials, docs/install.md, docs/sdk.md) run the blocks of it, so they are not among these.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support import documented
from tests.support.documented import Step
from tests.support.documented_blocks import DocumentedBlock, blocks, without_explanations

FOLLOWED_WHOLE = ("docs/tutorials/", "docs/install.md", "docs/sdk.md")
NEEDS = "needs "
PICTURE = "a picture"

ELSEWHERE: Mapping[str, str] = {
    "$ make check": ".ci/run",
    "$ make demo": "tests/e2e/test_demo.py",
    "$ make up": "tests/e2e/test_tutorials.py",
    "$ make conformance ": ".ci/run",
    "SLIPWAY_CONFORMANCE_IMAGE=": "tests/conformance/system/test_own_cluster.py",
    "-m tests.conformance.cluster": f"{NEEDS}kube-apiserver and etcd, which `make conformance` builds",
    "[y/N]": "tests/unit/cli/test_many.py",
    "2 of 4 are launched": "tests/unit/cli/test_array.py",
    "slipway ssh ID": "tests/e2e/test_rank_exec.py",
    "slipway simulate retiring.yaml": "tests/test_scheduling_page.py",
    "slipway login https://slipway.example --kubernetes": "tests/conformance/system/test_users.py",
    "slipway restore -f": "tests/e2e/test_backup.py",
    "kubectl krew": f"{NEEDS}krew",
    "ray start": f"{NEEDS}Ray",
    "deepspeed --hostfile": f"{NEEDS}DeepSpeed and MPI",
    "kind create cluster": f"{NEEDS}kind",
    "k3s ctr": f"{NEEDS}k3s",
    "eks.yaml": f"{NEEDS}EKS",
    "observe  ->": PICTURE,
    "kube | streams": PICTURE,
    "user / CLI / browser": PICTURE,
}
"""{text in the block: the test that runs it, or what the block needs and no test has}"""

IN_A_RANK = ("python -m slipway.inside ready", "$SLIPWAY_TOKEN_FILE")
"""Texts in the blocks that are for a program in a rank."""

PYTHON_ELSEWHERE: Mapping[str, str] = {
    "jax.distributed": f"{NEEDS}JAX",
    "mlflow.search_runs": f"{NEEDS}MLflow",
    "SlipwaySpawner": "tests/e2e/test_adapter_jupyterhub.py",
    "SlipwayRunOperator(": "tests/e2e/test_adapter_airflow.py",
    "client.xread(": "tests/integration/redis/test_documented_consumers.py",
    "client.xreadgroup(": "tests/integration/redis/test_documented_consumers.py",
    "def verified(": "tests/unit/api/webhooks/test_documented_receiver.py",
    "NodeRetiring": "tests/test_scheduling_page.py",
}
"""The same for blocks of Python."""


class Script(NamedTuple):
    """How a block of Python is run as `block.py`: the code `before` it, the assertions `after` it, and the commands
    that run it."""

    command: str
    before: str = ""
    after: str = ""


SCRIPTS: Mapping[str, Script] = {
    "with SlipwayExecutor(": Script(
        "python block.py", after="assert [round(each['loss'], 4) for each in results] == [0.0081, 0.0, 0.81]"
    ),
    "TF_CONFIG": Script(
        "slipway run --ranks 2 --file block.py -- python block.py",
        after="""\
told = json.loads(os.environ["TF_CONFIG"])
assert len(set(told["cluster"]["worker"])) == 2 and told["task"]["index"] == int(os.environ["RANK"])
""",
    ),
    "inside.ack()": Script(
        """\
slipway run --detach --name steps --file block.py -- python block.py
slipway wait steps --for ready --timeout 60s
slipway preempt steps
slipway wait steps --timeout 60s | grep Preempted
slipway logs steps | grep 'saved after'""",
        before="""\
import itertools, socket, threading
steps = itertools.count(1)
train_a_step = lambda: (next(steps), threading.Event().wait(0.05))
save = lambda: print("saved after", next(steps) - 1, "steps", flush=True)
""",
        after="assert hosts == [socket.gethostname()]",
    ),
    "SLIPWAY_CHECKPOINT_DIR": Script(
        "slipway run --ranks 2 --checkpoints results --file block.py -- python block.py",
        before="import os, pathlib",
        after="assert folder.is_dir()",
    ),
    "# billing.py": Script(
        """\
slipway run -- true
exec 3< <(exec python block.py)
grep -m1 'GPU seconds' <&3
kill -TERM $!
grep '0 dead letters' <&3"""
    ),
}
"""{text in the block: how it is run}"""

FILES: Mapping[str, str] = {
    "train.py": """\
import os

print("epoch 1 loss", {"0": 0.71, "2": 0.69}.get(os.environ["RANK"], 0.7))
""",
    "prepare.py": "print('prepared')\n",
    "report.py": "print('reported')\n",
    "DIR/train.py": "print('trained')\n",
    "job.yaml": """\
apiVersion: batch/v1
kind: Job
metadata: {name: imported}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: "python:3.11", command: [python, -c, "print('imported')"]}
""",
    "team.yaml": 'env: {LR: "0.1"}\n',
    "setup.sh": "echo installed\n",
    "query.sql": "select 1;\n",
    "config.yaml": "lr: 0.1\n",
    "secret": "of-the-issuer",
    "state": "warm\n",
    "data/ckpt/last.pt": "weights\n",
    "measured/cpu.txt": "main 100%\n",
    "allowed.yaml": "spec: {allowedPrivileges: [root, hostNetwork, IPC_LOCK]}\n",
    "policy.yaml": "backfill: false\n",
    "scenario.yaml": """\
nodes: [{name: n, cpu: 8, gpus: 8}]
allocations: [{name: train, ranks: [{cpu: 1, gpus: 2}]}]
until: 10
""",
    "cluster.yaml": "nodes: [{name: n, cpu: 8, memory: 64Gi, gpus: 8}]\n",
    "jobs.csv": "submitted,seconds,gpus\n0,60,4\n30,60,8\n",
    "jobs.mapping.yaml": "columns: {submit: submitted, duration: seconds, gpus: gpus}\n",
    "changes.yaml": """\
pool: default
addNodes: [{name: big, cpu: 64, memory: 256Gi, gpus: 64}]
allocations: [{allocation: late, priority: 90, hold: false}]
""",
}
"""{path: text} of the files that a page assumes."""

PROGRAMS: Mapping[str, str] = {
    "serve": "#!/bin/sh\necho serving\n",
    "server": "#!/bin/sh\necho Listening\n",
}
"""Programs of images that pages name; `server` also runs beside a rank's command."""

SET_UP = """\
kubectl label node node-0 gpu=h100
kubectl label node node-1 gpu=a100
kubectl apply -f objects.yaml
kubectl label namespace default pod-security.kubernetes.io/enforce=privileged
kubectl patch resourcepool default --type merge --patch-file allowed.yaml
slipway apply -f running.yaml
slipway shell start --name desk
slipway workspace create crew
slipway job create nightly
slipway run --detach --hold --name early -- true
slipway run --detach --hold --name late -- true
slipway run --detach --hold --job nightly --name night -- true
slipway wait running --for running --timeout 60s
"""
"""Prepare and start what the first block needs. The objects are those that the pages show as YAML."""

RUNNING = """\
name: running
kind: training
image: x
command: [sleep, "3600"]
ranks: [{count: 4, resources: {cpu: 50m, memory: 64Mi}}]
template:
  spec:
    containers:
    - {name: main}
    - {name: sidecar, image: x, command: [sleep, "3600"]}
"""
NAMED_OBJECTS = """\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: dataset}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: results}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}
---
apiVersion: slipway.dev/v1alpha1
kind: Queue
metadata: {name: research}
spec: {flavors: [{name: h100, nominal: {nvidia.com/gpu: 4}}]}
"""
"""Objects that pages name and no page creates."""

SHOWN_OBJECTS = (("docs/gpu-types.md", "metadata: {name: "), ("docs/launching.md", "kind: ResourcePool"))
"""(page, a text in its block of YAML)"""


def here(folder: Path, address: str) -> Mapping[str, str]:
    """{text of a page: its replacement}, for a reader in this folder whose api has this address; applied in this
    order."""
    log_in = "slipway login"
    newest_token = "$(slipway token ls --secret slipway-tokens | awk 'END {print $1}')"
    return {
        # programs and machines that do not exist here
        "pipx install ./slipway_ai-0.1.0-py3-none-any.whl": "true",
        "helm upgrade slipway ./helm": "true",
        ". .venv/bin/activate": "true",
        "nvidia-smi": "true",
        "py-spy dump --pid 1": "true",
        "psql < ": "cat < ",
        f"{log_in} https://slipway.example.org": f"{log_in} {address}",
        f"{log_in} https://slipway.example --token -": "true",
        "http://127.0.0.1:8080": address,
        "https://hooks.slack.com/": "https://hooks.slack.example/",
        "$SLIPWAY_API_TOKEN": "$(cat ~/.local/state/slipway/token)",
        # a launch that waits for capacity, or is one of many
        "slipway run --gpus 64": "slipway run --detach --gpus 64",
        "slipway run --privilege": "slipway run --detach --privilege",
        "slipway audit --every 5m --for 1m --listen 0.0.0.0:8085": "true",  # runs for ever: tests/e2e/test_audit.py
        "--for 5m": "--for 1s",
        "--for 1m": "--for 1s",
        "0-99%10": "0-3%2",
        # files of an image
        "-- python train.py": "--file train.py -- python train.py",
        "-- sh -c 'python train.py": "--file train.py -- sh -c 'python train.py",
        "-- python prepare.py": "--file prepare.py -- python prepare.py",
        "-- python report.py": "--file report.py -- python report.py",
        # what the reader has
        "slipway shell open ID --session S ": "true ",  # a session that stays open: tests/e2e/test_shells.py
        "slipway shell open ID": "slipway shell open desk",
        "df -h /data": "df -h .",
        "slipway move ID --ahead-of OTHER": "slipway move late --ahead-of early",
        "slipway job move NAME --behind OTHER": "slipway job move nightly --behind early",
        "llm-0123abcd": "early",
        "default/nightly": "default/late",
        "--kubeconfig FILE --namespace NAME": "--kubeconfig $KUBECONFIG --namespace slipway-system",
        "simulate FILE": "simulate scenario.yaml",
        "simulate - --explain-scores": "simulate - --explain-scores < scenario.yaml",
        "--pool gpus --from 120 --to 140": "--pool default --from 1 --to 2",
        " ID/3:/tmp/profile": f" running/3:{folder}/measured",
        " ID:/data/": f" running:{folder}/data/",
        "/tmp/state": f"{folder}/state",
        " ID": " running",
        "namespace team slipway.dev/": "namespace crew slipway.dev/",
        "--namespace team create secret": "--namespace crew create secret",
        "workspace set team --pull-secret": "workspace set crew --pull-secret",
        "workspace set team --home 10Gi": "workspace set crew --home 10Gi",
        "-n team --home": "-n crew --home",
        "token revoke 4f0c21d9a1b2c3d4": f"token revoke {newest_token}",
        # curl exits with 0 even when the server refuses
        "curl -sS": "curl --fail-with-body -sS",
        "curl -H": "curl --fail-with-body -sS -H",
        "/tmp/preempted": "preempted",
        # in the output that pages show
        "run-fjmm3v-e92595fa": "run-...",
        "slipway_4f0c21d9a1b2c3d4_": "slipway_",
        "  3s": "  ...",
    }


def documented_blocks(*languages: str) -> Sequence[DocumentedBlock]:
    """All blocks in these languages that no test follows with their whole page."""
    return [block for block in blocks(*languages) if not block.page.startswith(FOLLOWED_WHOLE)]


def holds(block: DocumentedBlock, marks: Iterable[str]) -> bool:
    """Whether the block contains one of the marks."""
    return any(mark in block.text for mark in marks)


def steps_of(block: DocumentedBlock) -> tuple[Step, ...]:
    """The commands of a block, each with the output shown below it; without prompts every line is a command."""
    if block.language == "console":
        return tuple(documented.steps_of(block.text, block.line))
    lines = without_explanations(block).text.splitlines()
    begins = [number == 0 or not lines[number - 1].endswith("\\") for number in range(len(lines))]
    prompted = [f"$ {line}" if is_first else line for line, is_first in zip(lines, begins, strict=True)]
    return tuple(documented.steps_of("\n".join(prompted), block.line))


def objects() -> str:
    """The YAML of pools and queues that pages show, and the other objects that they name."""
    shown = [
        block.text
        for block in blocks("yaml")
        for page, kind in SHOWN_OBJECTS
        if block.page == page and kind in block.text
    ]
    return "---\n".join([*shown, NAMED_OBJECTS])


def furnish(folder: Path) -> None:
    """Write the reader's files into an empty folder."""
    for name, text in {**FILES, "running.yaml": RUNNING, "objects.yaml": objects()}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
