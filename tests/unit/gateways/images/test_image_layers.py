"""Layers of a saved image: every regular file is judged, and a file that is not an image is refused."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from trainyard.errors import DamagedFileError
from trainyard.gateways.images.image_layers import read_layers


def tar_of(files: dict[str, bytes], mode: str = "w") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def image(folder: Path, *layers: bytes, manifest: bytes | None = None) -> Path:
    names = [f"{number}/layer.tar" if number else "abc.tar" for number in range(len(layers))]
    listed = json.dumps([{"Layers": names}]).encode() if manifest is None else manifest
    path = folder / "image.tar"
    path.write_bytes(tar_of({"manifest.json": listed, **dict(zip(names, layers, strict=True))}))
    return path


def found(path: Path) -> list[tuple[str, str, str]]:
    def judge(name: str, head: bytes) -> str | None:
        if name.endswith(".pem"):
            return "a private key"
        return "a token" if head.startswith(b"token") else None

    return [(one.layer, one.path, one.kind) for one in read_layers(path, judge).found]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_secrets_of_every_layer_are_found_by_name_and_by_their_beginning(tmp_path: Path, mode: str) -> None:
    first = tar_of({"./home/key.pem": b"", "etc/passwd": b"root"}, mode)
    second = tar_of({"a/b": b"token of somebody", "c": b"xtoken"}, mode)
    assert found(image(tmp_path, first, second)) == [
        ("abc", "home/key.pem", "a private key"),
        ("layer", "a/b", "a token"),
    ]


def test_of_a_large_file_only_the_name_is_looked_at(tmp_path: Path) -> None:
    content = b"token" + bytes(1 << 20)
    layer = tar_of({"large": content, "large.pem": content, "small": content[: 1 << 20]})
    assert [name for _, name, _ in found(image(tmp_path, layer))] == ["large.pem", "small"]


def test_a_link_is_no_file(tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        entry = tarfile.TarInfo("link.pem")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/key.pem"
        archive.addfile(entry)
    assert found(image(tmp_path, made.getvalue())) == []


LAYER = tar_of({"a": b"1"})


def test_a_manifest_that_names_no_layers_is_damage(tmp_path: Path) -> None:
    listed = ('[{"Layers": null}]', '[{"Layers": [1]}]', '[{"Layers": ["b"]}]')
    for manifest in ("[]", "{}", "null", "[{}]", "[", "", *listed):
        with pytest.raises(DamagedFileError, match=r"image\.tar: is not an archive of an image"):
            found(image(tmp_path, LAYER, manifest=manifest.encode()))


def test_a_file_that_is_no_image_is_damage(tmp_path: Path) -> None:
    torn = tar_of({"manifest.json": b"[{}]"}, "w:gz")[:-20]
    for content in (b"", b"no archive", tar_of({"other": b""}), torn):
        (tmp_path / "image.tar").write_bytes(content)
        with pytest.raises(DamagedFileError, match="is not an archive of an image"):
            found(tmp_path / "image.tar")


def test_a_layer_that_is_cut_off_is_damage(tmp_path: Path) -> None:
    for layer in (b"no archive", tar_of({"a": b"x" * 5000}, "w:gz")[:-20], LAYER[:700]):
        with pytest.raises(DamagedFileError, match="is not an archive of an image"):
            found(image(tmp_path, layer))
