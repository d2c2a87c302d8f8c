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


def test_every_listed_cause_is_below_its_class_with_the_fix_that_explain_prints(script: ModuleType) -> None:
    page = script.generated()[script.REFERENCE]
    sections = {part.partition("\n")[0]: plain(part) for part in page.split("\n## ")[1:]}
    assert sections.keys() == {str(rule.klass) for rule in rules()}
    listed = [rule for rule in rules() if script.is_listed(rule)]
    assert len(listed) > 150
    for rule in listed:
        items = sections[str(rule.klass)].split(" - ")
        cause = plain(rule.cause.partition(" (")[0])
        assert [item for item in items if cause in item and plain(f": {rule.fix}") in item], rule.cause


def test_causes_that_the_line_itself_names_are_left_to_explain(script: ModuleType) -> None:
    page = script.generated()[script.REFERENCE]
    assert f"{script.SAID_BY_THE_LINE}\n" not in page
    assert {rule for rule in rules() if str(rule.klass) == "user-code"}.isdisjoint(
        filter(script.is_listed, rules())
    )


def test_who_acts_and_the_retry_are_named_where_they_differ_from_the_class(script: ModuleType) -> None:
    page = script.generated()[script.REFERENCE]
    memory = page.partition("\n## oom-gpu\n")[2].partition("\n## ")[0]
    assert "too little memory. *configuration, no retry*\n" in memory
    assert re.search(r"another process \(PID\)[^-]+\*\(node, retry\s+elsewhere\)\*\n", memory)


def test_every_class_has_a_meaning(script: ModuleType) -> None:
    assert {str(rule.klass) for rule in rules()} <= script.MEANINGS.keys()
