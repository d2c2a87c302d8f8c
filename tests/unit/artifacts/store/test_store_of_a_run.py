"""The choice of the store for a run."""

from pathlib import Path

import pytest

from trainyard.artifacts.store.store_address import store_settings
from trainyard.errors import ConfigError


def config(tmp_path: Path, text: str) -> Path:
    (tmp_path / "config.yaml").write_text(text)
    return tmp_path


def test_the_command_line_comes_before_the_configuration(tmp_path: Path) -> None:
    run = config(tmp_path, "artifacts: {store: 's3://theirs', encryption: none}\n")
    assert store_settings(run, url=None, encryption=None) == ("s3://theirs", "none")
    assert store_settings(run, url="s3://ours", encryption="aws:kms") == ("s3://ours", "aws:kms")


def test_encryption_is_asked_for_unless_it_is_switched_off(tmp_path: Path) -> None:
    assert store_settings(None, url="s3://ours", encryption=None)[1] == "AES256"


@pytest.mark.parametrize("text", ["", "artifacts: {store: null}\n", "artifacts: 3\n", "- a\n"])
def test_no_store_anywhere_is_a_usage_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"give --store, or set artifacts\.store"):
        store_settings(config(tmp_path, text), url=None, encryption=None)


def test_a_configuration_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml:(\d+:)? not valid YAML"):
        store_settings(config(tmp_path, "a: ["), url=None, encryption=None)


def test_a_run_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the run directory does not exist"):
        store_settings(tmp_path / "none", url="s3://ours", encryption=None)
