"""The checklist before a deployment: each answer of each command becomes an item by a rule."""

from itertools import product

from tests.cases import each_case

from trainyard.machine.checklist import (
    checklist_rows,
    conclusion,
    is_ready,
    sign_off_page,
)
from trainyard.plan.finding import Finding, Severity

FAILED, DEGRADED, UNKNOWN, UNUSED, OK = (each for each in Severity if each is not Severity.INFO)


@each_case("states", list(product((FAILED, DEGRADED, UNKNOWN, UNUSED, OK), repeat=2)))
def test_only_what_failed_makes_it_not_ready_and_every_other_state_is_counted(
    states: tuple[Severity, Severity],
) -> None:
    items = [Finding(str(index), state, "f", "do it", "a") for index, state in enumerate(states)]
    assert is_ready(items) is (FAILED not in states)
    text = conclusion(items)
    assert text.startswith("Not ready: " if FAILED in states else "Ready: ")
    words = {FAILED: "failed", DEGRADED: "degraded", UNKNOWN: "not checked", UNUSED: "not used"}
    for state, word in words.items():
        assert (f"{states.count(state)} {word}" in text) is (state in states)
    assert f"{states.count(OK)} of 2 items are ok" in text
    rows = list(checklist_rows(items))
    assert sum("fix: do it" in row for row in rows) == sum(state is not OK for state in states)
    assert all(len(line) <= 80 for row in rows for line in row.splitlines())


def test_a_page_to_sign_has_every_item_and_what_it_refers_to() -> None:
    items = [Finding("run | number", FAILED, "line 1\nline 2", "a | b", "store")]
    page = sign_off_page(items, {"commit": "0123"})
    assert page.startswith("# Not ready: 0 of 1 items are ok, 1 failed.\n")
    assert "- commit: 0123\n" in page
    assert "| store | run \\| number | failed | line 1<br>line 2 | a \\| b |\n" in page
    assert "Signed by:" in page
