"""Objects as YAML: the same objects when read back, with blocks of text and without anchors."""

import string
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.config.yaml_reader import dump_documents

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
SHARED = {"matchLabels": {"trainyard.dev/job": "smoke"}}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(string.printable) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner),
    max_leaves=8,
)


@settings(max_examples=settings().max_examples // 3)  # PyYAML writes each value: few are enough
@given(st.lists(st.dictionaries(st.text(min_size=1), VALUES), max_size=3))
def test_what_is_written_reads_back_equal(objects: list[dict[str, object]]) -> None:
    assert list(yaml.load_all(dump_documents(objects), LOADER)) == objects


def test_files_are_blocks_and_values_are_repeated() -> None:
    text = dump_documents([{"data": {"config.yaml": "a: 1\nb: 2\n"}}, {"first": SHARED, "second": SHARED}])
    assert "  config.yaml: |\n    a: 1\n    b: 2\n" in text
    assert "&" not in text
    assert text.count("trainyard.dev/job: smoke") == 2
