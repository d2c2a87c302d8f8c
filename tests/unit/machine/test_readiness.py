"""Findings from given answers of the store, the key and the role; no test asks them."""

from dataclasses import replace

import pytest

from trainyard.machine.preflight import refusal_text, worst_severity
from trainyard.machine.readiness import Answers, hanging_message, judge_readiness, store_line
from trainyard.plan.finding import Severity

READY = Answers("s3://ml-runs/phase2", "gh-1", "trainyard doctor --store", number=4)
WRONG = {
    "store": replace(READY, problems=("The bucket ml-runs does not exist.",)),
    "run number": replace(READY, owner="gh-2", free=5),
    "signing": replace(READY, signing="x", signing_problem="TRAINYARD_SIGNING_KEY: is a public key."),
    "role": replace(READY, role="arn:aws:iam::1:role/x", role_problem="STS refused", number=None),
}


@pytest.mark.parametrize(
    ("answers", "checks"),
    [
        (READY, ["store", "run number"]),
        (replace(READY, owner="gh-1"), ["store", "run number"]),
        (replace(READY, signing="the key can be used"), ["store", "run number", "signing"]),
        (replace(READY, role="arn:aws:iam::1:role/x"), ["role", "store", "run number"]),
    ],
)
def test_a_finding_without_problems_has_no_fix(answers: Answers, checks: list[str]) -> None:
    findings = judge_readiness(answers)
    assert [found.subject for found in findings] == checks
    assert worst_severity(findings) == Severity.PASSED
    assert {found.fix for found in findings} == {""}


def test_a_store_is_called_writable_only_after_a_write() -> None:
    read = replace(READY, written=False)
    assert "writable" not in store_line(read)
    assert store_line(replace(READY, url="s3://b/p")) == "s3://b/p writable, run 4 is free"
    assert "written to" not in str(judge_readiness(read))


@pytest.mark.parametrize("check", WRONG)
def test_each_problem_is_a_failed_check_with_its_fix(check: str) -> None:
    findings = judge_readiness(WRONG[check])
    (bad,) = (found for found in findings if found.severity != Severity.PASSED)
    assert (bad.subject, bad.severity) == (check, Severity.ERROR)
    assert bad.fix
    assert check in refusal_text(findings)


def test_the_fix_asks_the_same_store_only_where_that_can_help() -> None:
    for url, is_address, asks in (
        ("foo", False, "s3://BUCKET/PREFIX"),
        ("s3:/b", False, "s3://BUCKET/PREFIX"),
        ("file://tmp/x", False, "file:///FOLDER"),
        ("file:///proc/none", True, "file:///FOLDER"),
        ("s3://b/it is", True, "'s3://b/it is'"),
    ):
        answers = replace(READY, url=url, is_address=is_address, problems=("wrong",))
        (bad,) = (found for found in judge_readiness(answers) if found.subject == "store")
        assert str(bad.fix).endswith(f": {READY.again} {asks}")


def test_all_problems_are_reported_at_once() -> None:
    everything = replace(WRONG["store"], owner="", free=5, signing_problem="no key")
    text = refusal_text(judge_readiness(everything))
    for check in ("store", "run number", "signing"):
        assert f"{check}: " in text
    assert "3 checks failed. Nothing was started." in text
    assert "belongs to run (unreadable record)" in text


def test_a_store_that_was_not_asked_has_no_finding() -> None:
    assert [found.subject for found in judge_readiness(WRONG["role"])] == ["role"]


def test_a_store_that_does_not_answer_is_named() -> None:
    for url, endpoint, named in (
        ("s3://b", "http://h:1", True),
        ("s3://b", None, False),
        ("file:///x", "http://h:1", False),
    ):
        text = hanging_message(url, 20.0, endpoint)
        assert text.startswith(url)
        assert "within 20 seconds" in text
        assert ("http://h:1" in text) is named
