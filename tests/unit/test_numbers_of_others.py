"""Texts that look like numbers but are none: each reader of foreign text refuses them like any other invalid text.

`isdigit` is true for a superscript, which `int` refuses. `int` refuses a text of more than 4,300 digits too.
"""

import json
from typing import Any

import pytest

from slipway.cli.importing.kinds import ImportOptions, convert
from slipway.cli.replicas import array_of
from slipway.crd.meta import ANNOTATION_DEVICES, ANNOTATION_GPU_MILLI, LABEL_ALLOCATION_UID, LABEL_ATTEMPT, LABEL_RANK
from slipway.crd.policies import code_range
from slipway.errors import InvalidError
from slipway.facts.core_objects import pod_fact
from slipway.kube.resources import PODS
from slipway.kube.wire import codec_of
from slipway.model.numbers import LONG_DIGITS_MAX, SECONDS_MAX, number_in, seconds_in
from slipway.streams.logpacks import source_of

NO_NUMBERS = ("²", "1²", "٣", "9" * 5000, "-1", "+1", "1_0", " 1", "1\n", "1.0", "")
FAR = [text for text in NO_NUMBERS if text.strip() == text and text and text[0] not in "+-"]
NAMES = [f"{text!r:.9}" for text in NO_NUMBERS]
DOCUMENTS = {
    "slurm": "#SBATCH --nodes={}\nsrun true\n",
    "slurm-gpus": "#SBATCH --gpus={}\nsrun true\n",
    "slurm-time": "#SBATCH --time={}\nsrun true\n",
    "slurm-array": "#SBATCH --array={}\nsrun true\n",
    "skypilot-ports": "resources: {{ports: '{}'}}\nrun: 'true'\n",
    "dstack-port": "type: service\nname: a\nimage: b\ncommands: ['true']\nport: '{}'\n",
    "dstack-gpu": "type: task\nname: a\nimage: b\ncommands: ['true']\nresources: {{gpu: {{count: '{}'}}}}\n",
    "dstack-user": "type: task\nname: a\nimage: b\ncommands: ['true']\nuser: '{}'\n",
}


@pytest.mark.parametrize("text", NO_NUMBERS, ids=NAMES)
def test_what_is_no_number_is_none(text: str) -> None:
    """Signs, spaces, fractions, digits outside of ASCII, and too many digits are no number."""
    assert number_in(text) is None


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), ("9" * LONG_DIGITS_MAX, 10**LONG_DIGITS_MAX - 1)])
def test_digits_are_a_number(text: str, number: int) -> None:
    """Digits are a number, up to the reader's limit."""
    assert number_in(text, LONG_DIGITS_MAX) == number


@pytest.mark.parametrize("value", [True, -1, 10**400, float("inf"), float("nan"), "1", None, [], SECONDS_MAX * 2])
def test_what_is_no_span_of_seconds_is_none(value: Any) -> None:
    """Values that are no span of seconds are None: a bool is no number, and an integer may be too large for `float`."""
    assert seconds_in(value) is None


@pytest.mark.parametrize("text", NO_NUMBERS, ids=NAMES)
def test_an_exit_code_is_refused(text: str) -> None:
    """An exit code of this text is refused, alone and as the end of a range."""
    for entry in (text, f"1-{text}"):
        with pytest.raises(ValueError, match="is not an exit code"):
            code_range(entry)


@pytest.mark.parametrize("text", NO_NUMBERS, ids=NAMES)
def test_a_log_of_that_name_is_none(text: str) -> None:
    """A name with such a text is no log: the name comes from the archive, to which other programs may write."""
    assert source_of(f"{text}/0/stdout/main") is None
    assert source_of(f"1/{text}/stdout/main") is None


@pytest.mark.parametrize("text", NO_NUMBERS, ids=NAMES)
def test_annotations_of_a_pod_are_no_fault(text: str) -> None:
    """Such annotations of a pod cause no error, because any user who may change pods can write them; the pod then uses
    no device."""
    labels = {LABEL_ALLOCATION_UID: "u", LABEL_ATTEMPT: text, LABEL_RANK: text}
    annotations = {ANNOTATION_DEVICES: text, ANNOTATION_GPU_MILLI: text}
    meta = {"name": "p", "namespace": "default", "labels": labels, "annotations": annotations}
    fact = pod_fact(codec_of(PODS).decode(json.dumps({"metadata": meta, "spec": {"containers": []}}).encode()))
    assert (fact.attempt, fact.rank, fact.devices) == (0, -1, ())


@pytest.mark.parametrize("text", FAR, ids=[f"{text!r:.9}" for text in FAR])
@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_an_import_says_so(document: str, text: str) -> None:
    """An import refuses or reports such a text, and never crashes."""
    try:
        (made,) = convert(document.format(text), "file", ImportOptions(image="python:3.11"))
    except InvalidError:
        return
    assert text not in str(made.bodies)


@pytest.mark.parametrize("text", NO_NUMBERS, ids=NAMES)
def test_an_array_says_so(text: str) -> None:
    """An array refuses such a text as an index and as the limit of parallel launches."""
    for given in (text, f"0-9%{text}"):
        if given != "0-9%":
            with pytest.raises(InvalidError, match="--array"):
                array_of(given)
