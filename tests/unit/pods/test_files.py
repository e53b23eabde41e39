"""Small files: the ConfigMap's keys, the projection and the mounts."""

import base64

import pytest

from slipway.crd.v1alpha1 import FileSpec
from slipway.errors import InvalidError, TooLargeError
from slipway.pods.files import BUNDLE_BYTES_MAX, FILES_PATH, bundle_of, mounts


def test_a_plain_name_is_its_own_key_and_a_path_is_not() -> None:
    """A plain name is its own key; a path gets a generated one, because keys of a ConfigMap have no slash."""
    bundle = bundle_of([FileSpec(path="train.py", content="print()"), FileSpec(path="conf/a b.yaml", content="x: 1")])
    assert bundle.data == {"train.py": "print()", "01__a_b.yaml": "x: 1"}
    assert [item["path"] for item in bundle.items] == ["train.py", "conf/a b.yaml"]


def test_modes_and_binary_content_are_kept() -> None:
    """Modes are kept, and base64 content is put into binaryData unchanged."""
    content = base64.b64encode(b"\x00\xff").decode()
    bundle = bundle_of(
        [FileSpec(path="run.sh", content="#!", mode=0o755), FileSpec(path="w.bin", content=content, encoding="base64")]
    )
    assert bundle.items[0]["mode"] == 0o755
    assert bundle.binary == {"w.bin": content}


def test_generated_keys_never_meet_plain_ones() -> None:
    """Generated keys never equal plain ones, because a file may have the name of a generated key."""
    bundle = bundle_of([FileSpec(path="01__x", content="plain"), FileSpec(path="a/x", content="nested")])
    assert len(bundle.data) == 2


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../b", ".", "a:b"])
def test_a_path_outside_the_directory_is_refused(path: str) -> None:
    """A path outside the directory is refused, and so is one that the server would refuse later."""
    with pytest.raises(InvalidError, match=r"files\[0\]\.path"):
        bundle_of([FileSpec(path=path, content="")])


def test_bad_base64_and_a_repeated_path_are_refused() -> None:
    """Bad base64 and a repeated path are refused with the index of the file."""
    with pytest.raises(InvalidError, match=r"files\[0\]\.content"):
        bundle_of([FileSpec(path="a", content="%", encoding="base64")])
    with pytest.raises(InvalidError, match=r"files\[1\]\.path"):
        bundle_of([FileSpec(path="a", content=""), FileSpec(path="./a", content="")])


def test_more_than_a_configmap_holds_is_too_large() -> None:
    """Files that are larger than a ConfigMap are refused before the write."""
    with pytest.raises(TooLargeError):
        bundle_of([FileSpec(path="a", content="x" * BUNDLE_BYTES_MAX)])


def test_each_file_is_in_one_place_and_at_its_path_below_the_working_directory() -> None:
    """Each file is at one place, at its path below the working directory, so that `python conf/a.py` works with any
    directory of the image."""
    made = mounts(bundle_of([FileSpec(path="conf/a.py", content="")]), working_dir="/app", needs_work=False)
    assert [item["mountPath"] for item in made] == [FILES_PATH, "/app/conf/a.py"]
    assert mounts(bundle_of([]), working_dir="", needs_work=False) == []
