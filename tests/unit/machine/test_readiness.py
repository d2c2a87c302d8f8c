"""Findings from given answers: the store, key and role, the checklist, processes on the GPU, the lock."""

from dataclasses import replace
from itertools import product

import pytest
from tests.cases import each_case

from trainyard.errors import ConfigError
from trainyard.machine.checklist import checklist_rows, conclusion, is_ready, sign_off_page
from trainyard.machine.gpu_processes import GpuProcess, judge_gpu_processes, whose
from trainyard.machine.package_lock import Pin, compare_versions, read_pins
from trainyard.machine.preflight import refusal_text, worst_severity
from trainyard.machine.readiness import Answers, hanging_message, judge_readiness, store_line
from trainyard.plan.finding import Finding, Severity

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


FAILED, DEGRADED, UNKNOWN, UNUSED, OK = (each for each in Severity if each is not Severity.INFO)


@each_case("states", list(product((FAILED, DEGRADED, UNKNOWN, UNUSED, OK), repeat=2)))
def test_only_what_failed_makes_it_not_ready_all_are_counted(states: tuple[Severity, Severity]) -> None:
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


OWNERS = {
    "a workflow run": (
        {"RUNNER_NAME": "gpu-1", "GITHUB_RUN_ID": "4", "GITHUB_REPOSITORY": "me/other"},
        "of GitHub run 4, repository me/other, runner gpu-1",
    ),
    "make train": ({"TRAINYARD_RUN_ID": "20261126-1", "RUNNER_NAME": ""}, "of run 20261126-1"),
}


@pytest.mark.parametrize(("theirs", "said"), OWNERS.values(), ids=OWNERS)
def test_a_process_is_of_the_job_that_its_environment_names(theirs: dict[str, str], said: str) -> None:
    assert whose(GpuProcess(7, "python", 1, "runner", theirs)) == said


def test_otherwise_it_is_of_its_user() -> None:
    users = {"ada": "of user ada", "": "of another container or user"}
    assert {user: whose(GpuProcess(7, "python", 1, user)) for user in users} == users


@each_case("memory", [None, 1978 << 20])
@each_case("count", [1, 2, 5, 6])
def test_each_is_named_with_pid_command_and_memory(count: int, memory: int | None) -> None:
    processes = [GpuProcess(100 + n, f"python train.py {'x' * 200 * n}", memory) for n in range(count)]
    (finding,) = judge_gpu_processes(processes)
    assert finding.severity is Severity.WARNING
    assert "pid 100 (python train.py )" in finding.evidence
    assert ("2.1 GB" if memory else "unknown memory") in finding.evidence
    assert ("; and 1 more" in finding.evidence) is (count == 6)
    assert len(finding.evidence) < 1000
    assert "kill 100" in (finding.fix or "")


def test_a_gpu_without_others_gives_no_finding() -> None:
    assert list(judge_gpu_processes([])) == []


HASH = "a" * 64
LOCK = f"""\
# input-sha256: 00
Absl_Py==2.5.1 \\
    --hash=sha256:{HASH} \\
    --hash=sha256:{"b" * 64}
    # via tensorboard
triton==3.7.0 ; platform_machine == 'x86_64' and sys_platform == 'linux' \\
    --hash=sha256:{HASH}
    # via
    #   torch
bare==1.0
"""


def test_pins_carry_name_version_and_marker() -> None:
    assert read_pins(LOCK) == (
        Pin("absl-py", "2.5.1", None),
        Pin("triton", "3.7.0", "platform_machine == 'x86_64' and sys_platform == 'linux'"),
        Pin("bare", "1.0", None),
    )


def test_a_requirement_that_is_not_pinned_is_refused() -> None:
    for line in ("torch>=2.13", "torch", "torch @ https://example.org/torch.whl", "torch==2.* x"):
        with pytest.raises(ConfigError, match="not pinned"):
            read_pins(line)


def test_options_and_comments_are_not_pins() -> None:
    assert read_pins("--index-url https://example.org\n# a comment\n") == ()


def test_wrong_and_missing_packages_are_named_with_both_versions() -> None:
    assert compare_versions(read_pins("a==1\nb==2\n"), {"a": "1", "b": "2", "extra": "9"}) == ()
    pins = read_pins("zz==1\na==1\nb==2 ; sys_platform == 'never'\n")
    assert compare_versions(pins, {"zz": "3"}) == ("a 1 missing", "zz 3 instead of 1")
