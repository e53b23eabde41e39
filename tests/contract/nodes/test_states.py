"""The status that a node reports of pods: how containers end, what they wait for, how often they were restarted."""

import pytest

from tests.contract.kube.samples import Json
from tests.contract.nodes.conftest import Pods, condition, main_of, terminated

OOM = "held = [b'x' * 2**20 + bytes(n) for n in range(10_000)]"


@pytest.mark.parametrize(("code", "phase", "reason"), [(0, "Succeeded", "Completed"), (3, "Failed", "Error")])
async def test_an_exit_code_is_the_programs_own(pods: Pods, code: int, phase: str, reason: str) -> None:
    """The status has the program's exit code, the matching phase, and a reason."""
    name = await pods.start(["sh", "-c", f"exit {code}"])
    status = await pods.ended(name)
    assert status["phase"] == phase
    assert (terminated(status)["exitCode"], terminated(status)["reason"]) == (code, reason)
    assert terminated(status).keys() - {"message"} == {"exitCode", "reason", "startedAt", "finishedAt", "containerID"}
    assert main_of(status)["restartCount"] == 0
    assert (main_of(status)["ready"], main_of(status)["started"]) == (False, False)
    assert main_of(status)["lastState"] == {}
    word = "PodCompleted" if code == 0 else "PodFailed"
    assert condition(status, "Ready") == condition(status, "ContainersReady") == ("False", word)
    assert condition(status, "Initialized")[0] == "True"


@pytest.mark.parametrize(("sign", "code"), [("KILL", 137), ("TERM", 143), ("SEGV", 139)])
async def test_a_signal_is_told_by_the_code_alone(pods: Pods, sign: str, code: int) -> None:
    """The code is 128 plus the signal's number; the field for signals stays empty."""
    name = await pods.start(["sh", "-c", f"sh -c 'kill -{sign} $$$$'; exit $?"])
    status = await pods.ended(name)
    assert (terminated(status)["exitCode"], terminated(status)["reason"]) == (code, "Error")
    assert "signal" not in terminated(status)


@pytest.mark.usefixtures("real")
async def test_an_out_of_memory_kill_is_named(pods: Pods) -> None:
    """The reason names the lack of memory; the code is that of the signal."""
    name = await pods.start(["python3", "-c", OOM], container={"resources": {"limits": {"memory": "64Mi"}}})
    status = await pods.ended(name)
    assert (terminated(status)["exitCode"], terminated(status)["reason"]) == (137, "OOMKilled")


async def test_a_program_that_is_not_there(pods: Pods) -> None:
    """A missing program never ran: the status has its own reason, and names the program."""
    name = await pods.start(["no-such-program"])
    status = await pods.ended(name)
    assert (terminated(status)["exitCode"], terminated(status)["reason"]) == (128, "StartError")
    assert 'exec: "no-such-program": executable file not found in $PATH' in terminated(status)["message"]
    assert status["phase"] == "Failed"


async def test_a_container_that_fails_is_restarted_where_its_pod_says_so(pods: Pods) -> None:
    """A restart is counted, and the last end is beside the state. Between two starts the container is shown as
    ended, or as waiting once its node has looked at it again: a kubelet does not always look before the next start."""
    name = await pods.start(["sh", "-c", "exit 4"], restartPolicy="OnFailure")
    status = await pods.until(name, lambda status: main_of(status).get("restartCount", 0) >= 1, "it was restarted")
    main = main_of(status)
    assert (main["lastState"]["terminated"]["exitCode"], main["lastState"]["terminated"]["reason"]) == (4, "Error")
    assert status["phase"] == "Running"

    def is_held(status: Json) -> bool:
        main = main_of(status)
        is_again = main.get("restartCount", 0) > 1 and "terminated" in main.get("state", {})
        return is_again or "waiting" in main.get("state", {})

    waiting = main_of(await pods.until(name, is_held, "it waits for its next start"))["state"].get("waiting")
    if waiting is not None:
        uid = (await pods.pod(name))["metadata"]["uid"]
        assert waiting["reason"] == "CrashLoopBackOff"
        assert waiting["message"].startswith("back-off ")
        assert waiting["message"].endswith(f" restarting failed container=main pod={name}_default({uid})")


async def test_an_init_container_that_fails_fails_its_pod(pods: Pods) -> None:
    """The other containers never begin, and wait for ever."""
    name = await pods.start(initContainers=[pods.container("first", ["sh", "-c", "exit 7"])])
    status = await pods.ended(name)
    ended = status["initContainerStatuses"][0]["state"]["terminated"]
    assert (status["phase"], ended["exitCode"], ended["reason"]) == ("Failed", 7, "Error")
    assert main_of(status)["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert condition(status, "Initialized") == ("False", "ContainersNotInitialized")
    assert condition(status, "Ready") == ("False", "PodFailed")


async def test_a_sidecar_ends_with_the_others(pods: Pods) -> None:
    """The sidecar gets SIGTERM when the main container has ended, and the pod is complete."""
    sidecar = pods.container("beside", ["sh", "-c", "trap 'exit 0' TERM; while true; do sleep 0.1; done"])
    name = await pods.start(
        ["sh", "-c", "sleep 0.5"],
        initContainers=[{**sidecar, "restartPolicy": "Always"}],
        terminationGracePeriodSeconds=9,
    )
    status = await pods.ended(name)
    beside = status["initContainerStatuses"][0]
    assert (status["phase"], beside["state"]["terminated"]["exitCode"]) == ("Succeeded", 0)
    assert beside["restartCount"] == 0


@pytest.mark.usefixtures("real")
async def test_an_image_that_must_be_there_is_missed(pods: Pods) -> None:
    """With the pull policy Never the reason states that the image is missing."""
    gone = {"image": "slipway.local/missing:1", "imagePullPolicy": "Never"}
    waiting = (await pods.waits(await pods.start(container=gone), "ErrImageNeverPull"))["state"]["waiting"]
    assert waiting["message"] == 'Container image "slipway.local/missing:1" is not present with pull policy of Never'


@pytest.mark.usefixtures("real")
async def test_an_image_that_cannot_be_pulled_is_tried_again(pods: Pods) -> None:
    """The status shows the failure, then the backoff; a log query is refused with the words for each."""
    name = await pods.start(container={"image": "slipway.local/missing:1", "imagePullPolicy": "IfNotPresent"})
    await pods.waits(name, "ImagePullBackOff")
    words = f'container "main" in pod "{name}" is waiting to start: '
    code, text = await pods.log(name)
    assert code == 400
    assert text in (words + "trying and failing to pull image", words + "image can't be pulled")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"configMapKeyRef": {"name": "missing", "key": "word"}}, 'configmap "missing" not found'),
        ({"secretKeyRef": {"name": "missing", "key": "word"}}, 'secret "missing" not found'),
    ],
    ids=["configmap", "secret"],
)
async def test_what_its_configuration_lacks_is_named(pods: Pods, source: dict[str, object], words: str) -> None:
    """The container waits, and the message names what is missing."""
    name = await pods.start(container={"env": [{"name": "WORD", "valueFrom": source}]})
    assert (await pods.waits(name, "CreateContainerConfigError"))["state"]["waiting"]["message"] == words
    assert (await pods.pod(name))["status"]["phase"] == "Pending"


async def test_a_volume_that_is_missing_keeps_a_container_from_being_made(pods: Pods) -> None:
    """The state is only ContainerCreating."""
    volume = {"name": "words", "configMap": {"name": "missing"}}
    name = await pods.start(container={"volumeMounts": [{"name": "words", "mountPath": "/words"}]}, volumes=[volume])
    waiting = (await pods.waits(name, "ContainerCreating"))["state"]["waiting"]
    assert waiting == {"reason": "ContainerCreating"}


async def test_a_pod_that_is_too_large_is_refused(pods: Pods) -> None:
    """The pod is refused with the lacking resource, and its status has no container."""
    name = await pods.start(container={"resources": {"requests": {"cpu": "10000"}}})
    status = await pods.ended(name)
    assert (status["phase"], status["reason"]) == ("Failed", "OutOfcpu")
    words = "Pod was rejected: Node didn't have enough resource: cpu, requested: 10000000, used: "
    assert status["message"].startswith(words)
    assert "containerStatuses" not in status


async def test_a_deadline_ends_a_pod(pods: Pods) -> None:
    """The pod has the reason, and the container shows how it ended."""
    name = await pods.start(["sleep", "60"], activeDeadlineSeconds=2, terminationGracePeriodSeconds=1)
    status = await pods.ended(name)
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    assert status["message"] == "Pod was active on the node longer than the specified deadline"
    ended = await pods.until(name, lambda status: "terminated" in main_of(status)["state"], "its container has ended")
    assert terminated(ended)["exitCode"] in (137, 143)


async def test_the_end_of_a_log_becomes_the_message_where_the_pod_says_so(pods: Pods) -> None:
    """A failed container's last log lines become its message."""
    name = await pods.start(
        ["sh", "-c", "echo the cause >&2; exit 1"], container={"terminationMessagePolicy": "FallbackToLogsOnError"}
    )
    assert terminated(await pods.ended(name))["message"] == "the cause\n"


@pytest.mark.parametrize("code", [0, 3])
async def test_what_a_container_writes_for_its_end_becomes_the_message(pods: Pods, code: int) -> None:
    """The file for the termination message becomes the message, whether the container failed or not, also where the
    end of the log could replace it."""
    name = await pods.start(
        ["sh", "-c", f"echo a line; echo the cause > /dev/termination-log; exit {code}"],
        container={"terminationMessagePolicy": "FallbackToLogsOnError"},
    )
    assert terminated(await pods.ended(name))["message"] == "the cause\n"


async def test_a_pod_that_runs(pods: Pods) -> None:
    """A running pod has an address, is ready, and its container shows its start time."""
    name = await pods.start(["sleep", "60"], terminationGracePeriodSeconds=1)
    await pods.running(name)
    status = await pods.until(name, lambda status: condition(status, "Ready")[0] == "True", "it is ready")
    main = main_of(status)
    assert (main["ready"], main["started"], list(main["state"])) == (True, True, ["running"])
    assert list(main["state"]["running"]) == ["startedAt"]
    assert status["podIPs"] == [{"ip": status["podIP"]}]
    assert status["hostIPs"] == [{"ip": status["hostIP"]}]
    for type_ in ("PodReadyToStartContainers", "Initialized", "ContainersReady"):
        assert condition(status, type_) == ("True", "")


async def test_a_command_probes_the_files_of_its_container(pods: Pods) -> None:
    """The probe reads files at their mounted paths; until its file exists the pod runs and is not ready."""
    probe: Json = {"exec": {"command": ["/bin/sh", "-c", "test -e /data/go"]}, "periodSeconds": 1}
    mounted: Json = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    volumes: list[Json] = [{"name": "data", "emptyDir": {}}]
    name = await pods.start(
        ["sh", "-c", "touch /data/go; exec sleep 600"], container={"readinessProbe": probe, **mounted}, volumes=volumes
    )
    await pods.until(name, lambda status: main_of(status).get("ready"), "it is ready")


async def test_a_probe_without_its_program_fails(pods: Pods) -> None:
    """The container runs, and is not ready."""
    probe: Json = {"exec": {"command": ["no-such-program"]}, "periodSeconds": 1, "failureThreshold": 1}
    name = await pods.start(["sh", "-c", "sleep 2"], container={"readinessProbe": probe})
    status = await pods.running(name)
    assert (main_of(status)["ready"], main_of(status)["started"]) == (False, True)
    assert (await pods.ended(name))["phase"] == "Succeeded"
