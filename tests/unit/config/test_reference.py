"""The generated reference of keys."""

from pathlib import Path

from trainyard.config.keys import leaf_keys
from trainyard.config.reference import render_config_reference

DOCUMENT = Path(__file__).parents[3] / "docs/configuration.md"


def test_the_shipped_document_is_current() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == render_config_reference()


def test_every_key_has_a_row_of_four_cells() -> None:
    rows = {
        line.split("`")[1]: line for line in render_config_reference().split("\n") if line.startswith("| `")
    }
    assert tuple(rows) == leaf_keys()
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows.values())
    assert rows["training.max_steps"].startswith(
        "| `training.max_steps` | a whole number above 0 or null | `null` |"
    )
    assert "must be given" in rows["model.name"]
