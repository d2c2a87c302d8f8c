"""tools/write_failure_reference.py: every cause of the table is in the runbook, under its class."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from trainyard.command import handler
from trainyard.watch.failure_logs.evidence_rules import rules

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return importlib.import_module("tools.write_failure_reference")


def test_the_runbook_of_this_checkout_is_current(script: ModuleType) -> None:
    assert handler.exit_code_of(lambda: int(script.main(["--check"]))) == 0


def plain(text: str) -> str:
    return " ".join(re.sub(r"[`{}]", "", text).split()).lower()


def test_every_cause_is_below_its_class_with_the_fix_that_explain_prints(script: ModuleType) -> None:
    page = script.generated()[script.REFERENCE]
    sections = {part.partition("\n")[0]: plain(part) for part in page.split("\n## ")[1:]}
    assert sections.keys() == {str(rule.klass) for rule in rules()}
    for rule in rules():
        assert plain(f"{rule.cause}: {rule.fix}") in sections[str(rule.klass)]


def test_every_class_has_a_meaning(script: ModuleType) -> None:
    assert {str(rule.klass) for rule in rules()} <= script.MEANINGS.keys()
