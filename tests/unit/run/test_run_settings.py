"""A run's configuration as plain values: equal to what the loader of configurations reads."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainyard.config.load import dump_yaml, load_config
from trainyard.config.yaml_reader import CoreLoader, dump_values, value_of
from trainyard.errors import ConfigError
from trainyard.run.run_settings import read_settings, setting

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
LOOK_LIKE_VALUES = [
    "yes", "off", "n", "1:30", "0o7", "0o17", "08", "017", "1_000", "1e3", "5e-5", "2026-01-01", ".inf",
    ".nan", "=", "<<", "~", "",
]  # fmt: skip


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_what_a_run_writes_is_read_back_equal(path: Path) -> None:
    weights = ["model.path=weights"] if path.stem == "fine_tuning" else []
    config = load_config(path, weights).config
    assert read_settings(dump_yaml(config)) == config.model_dump(mode="json")


@given(
    st.sampled_from(LOOK_LIKE_VALUES)
    | st.text()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.none()
)
def test_any_value_is_the_one_that_the_loader_reads(value: Any) -> None:
    text = dump_values({"section": {"key": value}})
    assert yaml.safe_load(text) == {"section": {"key": value}}, "for readers of YAML 1.1"
    node = CoreLoader(text).get_single_node().value[0][1].value[0][1]
    for found in (setting(read_settings(text), "section.key"), value_of(node.tag, node.value)):
        assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("key", ["a.x", "a.b.c.d", "x", "a.b.c.d.e", ""])
def test_a_key_that_is_not_there_has_no_value(key: str) -> None:
    assert setting(read_settings("a: {b: {c: 1}}"), key) is None


@pytest.mark.parametrize("content", ["", "3", "- a", b"\n"])
def test_what_is_no_mapping_has_no_settings(content: str | bytes) -> None:
    assert read_settings(content) == {}


@pytest.mark.parametrize("content", ["a: [", "\t", b"a: \xff", "[" * 5000])
def test_what_is_no_yaml_is_an_error_of_configuration(content: str | bytes) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml.*(not valid YAML|a tab|not UTF-8|more than)"):
        read_settings(content)
