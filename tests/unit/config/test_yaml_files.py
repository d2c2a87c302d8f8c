"""Files that are not YAML files, and the nearest name to a missing one."""

from pathlib import Path

import pytest

from trainyard.config.load import load_config
from trainyard.config.yaml_reader import MOST_BYTES
from trainyard.errors import ConfigError


def refusal(path: Path) -> str:
    """The first line of the error, without the path at its start."""
    with pytest.raises(ConfigError) as raised:
        load_config(path)
    assert raised.value.exit_code == 2
    return str(raised.value).split("\n")[0].removeprefix(f"{path}: ")


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfmodel: {name: \xc3\xa9}\ntraining: {epochs: 1}\n")
    assert load_config(tmp_path / "a.yaml").config.model.name == "é"


def test_what_is_no_file_of_text_is_named(folder: Path) -> None:
    Path("folder").mkdir()
    Path("bytes.yaml").write_bytes(b"a: 1\nb: \xff\n")
    Path("sixteen.yaml").write_bytes("a: 1\n".encode("utf-16"))
    with Path("large.yaml").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    refusals = {
        "/dev/zero": "more than 4 MB",
        "folder": "cannot be read (Is a directory)",
        "bytes.yaml": "bytes.yaml:2: byte 0xff is not UTF-8; is this YAML?",
        "sixteen.yaml": "sixteen.yaml:1: byte 0xff is not UTF-8; is this YAML?",
        "large.yaml": "more than 4 MB",
        "a" * 5000: "cannot be read (File name too long)",
    }
    assert {name: refusal(Path(name)) for name in refusals} == refusals


def test_a_missing_file_is_answered_with_the_nearest_name(folder: Path) -> None:
    (folder / "configs/models").mkdir(parents=True)
    (folder / "configs/models/llama-3.1-8b.yaml").touch()
    (folder / "configs/smoke.yaml").touch()
    (folder / "configs/smoke.json").touch()
    nearest = {
        "configs/smok.yaml": "configs/smoke.yaml",
        "config/smoke.yaml": "configs/smoke.yaml",
        "configs/smoke": "configs/smoke.yaml",
        "configs/smoke.yml": "configs/smoke.yaml",
        "smoke": "configs/smoke.yaml",
        "smoke.yaml": "configs/smoke.yaml",
        "llama-3.1-8b": "configs/models/llama-3.1-8b.yaml",
        "configs/llama-3.1-8b": "configs/models/llama-3.1-8b.yaml",
        "zzz.yaml": "",
        "no/such/folder/a.yaml": "",
    }
    said = {
        name: f"no such file; did you mean {near}?" if near else "no such file"
        for name, near in nearest.items()
    }
    assert {name: refusal(Path(name)) for name in nearest} == said
