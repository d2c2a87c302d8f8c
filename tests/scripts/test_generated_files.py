"""The files that tools/ write: they are current, and --check names the one that is not."""

import importlib
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import ROOT

from trainyard.command import handler
from trainyard.commands import COMMANDS, GROUPS, INTERNAL
from trainyard.config.key_lookup import leaf_keys
from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.failure_logs.failure_explanation import table

TOOLS = ("write_config_schema", "write_failure_reference", "write_script_reference")


def tool(name: str) -> Any:
    return importlib.import_module(name)


def run(name: str, *words: str) -> int:
    return handler.exit_code_of(lambda: int(tool(name).main(words)))


def page_of(name: str) -> str:
    text: str = tool(name).generated()[tool(name).REFERENCE]
    return text


def test_the_files_of_this_checkout_are_current() -> None:
    assert {name: run(name, "--check") for name in TOOLS} == dict.fromkeys(TOOLS, 0)


def test_it_writes_what_check_then_accepts_until_somebody_edits_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, root = "write_failure_reference", ("--root", str(tmp_path))
    assert run(name, *root, "--check") == 1
    assert (run(name, *root, "--dry-run"), list(tmp_path.iterdir())) == (0, [])
    assert (run(name, *root), run(name, *root, "--check")) == (0, 0)
    (tmp_path / tool(name).REFERENCE).write_text("edited by hand\n")
    capsys.readouterr()
    assert run(name, *root, "--check") == 1
    command = f"Run {shlex.quote(sys.executable)} tools/{name}.py"
    assert f"Not current: docs/runbooks/failures.md. {command}" in capsys.readouterr().err


def test_every_key_of_the_configuration_has_its_default_its_values_and_its_meaning() -> None:
    items = re.findall(r"^- (`[^`]+`.*(?:\n  .*)*)", page_of("write_config_schema"), flags=re.M)
    rows = {re.split("[`=]", item)[1]: " ".join(item.split()) for item in items}
    assert tuple(rows) == leaf_keys()
    for key, start in (
        ("training.max_steps", "`training.max_steps=null`, int>0: "),
        ("training.min_learning_rate_ratio", "`training.min_learning_rate_ratio=0.1`, number≥0,≤1: "),
        ("compute.strategy", '`compute.strategy="single"`, `single|ddp|fsdp|hsdp`: '),
        ("compute.deterministic", "`compute.deterministic=true`: "),
        ("model.name", "`model.name`\\*, text: "),
    ):
        assert rows[key].startswith(start)


def test_every_class_of_failures_is_explained() -> None:
    known = {row["class"] for row in (*table()["rows"], *table()["exceptions"])}
    meanings = set(tool("write_failure_reference").MEANINGS)
    assert known <= meanings <= {str(klass) for klass in FailureClass}
    page = page_of("write_failure_reference")
    assert not [klass for klass in known if f"| `{klass}` |" not in page]


def test_every_command_is_listed_once_in_the_order_of_the_groups() -> None:
    listed, _, rest = page_of("write_script_reference").partition("## Internal commands")
    names = re.findall(r"^- `trainyard (.+?)`: \S", listed, flags=re.M)
    assert names == [name for group in GROUPS.values() for name in group]
    internal, _, files = rest.partition("## Files")
    found = [" ".join(name.split()) for name in re.findall(r"`trainyard\s([^`]+)`", internal)]
    assert found == [name for name in COMMANDS if name in INTERNAL]
    scripts = re.findall(r"`(\w+)\.py` \(", " ".join(files.split()))
    assert scripts == sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))
