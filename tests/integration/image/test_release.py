"""The image as a release ships it: one file that unpacks to the same files, and whose command runs."""

import gzip
import hashlib
import json
import platform
import tarfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.container import Container, let_in
from tests.support.dockerfile import Image
from tools.release.__main__ import MACHINES, ReleasePlan, image_files, version


@pytest.fixture(scope="module")
def shipped(image: Image, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """The archive, its bill, and the digest that the chart of the release names."""
    output = tmp_path_factory.mktemp("shipped")
    architecture = MACHINES[platform.machine()]
    plan = ReleasePlan(version=version(), epoch_s=0, output=output, architecture=architecture)
    (archive, bill), digest, _, _ = image_files(plan, image.root)
    return archive, bill, digest


def test_a_container_of_the_archive_runs_the_command(
    shipped: tuple[Path, Path, str], image: Image, tmp_path: Path
) -> None:
    """Unpacked as a runtime does it: by the digests of its index, and started by its configuration."""
    with tarfile.open(shipped[0]) as archive:

        def blob(digest: str) -> bytes:
            file = archive.extractfile("blobs/" + digest.replace(":", "/"))
            assert file is not None
            content = file.read()
            assert digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
            return content

        index = archive.extractfile("index.json")
        assert index is not None
        (described,) = json.load(index)["manifests"]
        assert described["digest"] == shipped[2]
        manifest = json.loads(blob(described["digest"]))
        config = json.loads(blob(manifest["config"]["digest"]))
        (layer,) = manifest["layers"]
        unpacked = gzip.decompress(blob(layer["digest"]))
    assert config["architecture"] == described["platform"]["architecture"] == MACHINES[platform.machine()]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(unpacked).hexdigest()}"]
    plain = tmp_path / "layer.tar"
    plain.write_bytes(unpacked)
    root = tmp_path / "root"
    with tarfile.open(plain) as files:
        files.extractall(root, filter="tar")
    let_in(tmp_path)
    env = dict(word.split("=", 1) for word in config["config"]["Env"])
    again = Container(replace(image, root=root, env=env, user=config["config"]["User"]), tmp_path / "container")
    ran = again.run("slipway", "version")
    assert (ran.code, ran.out.split()[:2]) == (0, ["slipway", version()]), ran.err


def test_its_sbom_is_valid_and_names_every_package(shipped: tuple[Path, Path, str], image: Image) -> None:
    """The bill is valid by the schema of CycloneDX and lists each distribution in the image, Python, and the C
    library."""
    text = shipped[1].read_text("utf-8")
    # Imported here because it compiles grammars for three seconds, which each worker would pay while collecting this
    # file.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    named = {each["name"] for each in json.loads(text)["components"]}
    there = {
        path.name.partition("-")[0] for path in image.root.glob("usr/local/lib/python3.*/site-packages/*.dist-info")
    }
    assert {name.lower().replace("_", "-").replace(".", "-") for name in there} <= named
    assert {"python", "libc6", "ca-certificates"} <= named
