"""The text of the verdict on a cluster, on a terminal and in the job summary."""

import itertools
from typing import Any

from trainyard.cluster.verdict import Readiness
from trainyard.report.cluster.verdict_text import (
    summarize_verdict,
    verdict_lines,
    verdict_markdown,
    verdict_refusal,
)

MARKS = ("error", "warning", "skipped", "passed")
ANSWERS = {"ready": "Ready", "not ready": "Not ready", "not known": "Not known"}


def entry(severity: str, number: int = 1, fix: str | None = None) -> dict[str, str]:
    fixes = severity in ("error", "warning")
    return {
        "check": f"{severity}-{number}",
        "severity": severity,
        "evidence": f"evidence of {severity} {number}",
        "fix": (f"mend {severity} {number}" if fixes else "") if fix is None else fix,
    }


def data(*checks: dict[str, str], verdict: str = "not ready") -> dict[str, Any]:
    return {
        "cluster": {"context": "train", "server": "https://1.2.3.4", "version": "1.31"},
        "plan": {"shape": "2 nodes × 8 GPUs"},
        "ready": verdict == "ready",
        "verdict": verdict,
        "checks": list(checks),
        "findings": [one for one in checks if one["severity"] != "passed"],
    }


EVERY = [entry(severity) for severity in ("passed", "skipped", "warning", "error")]


def test_the_whole_text_is_the_answer_then_the_checks_then_what_to_do_worst_first() -> None:
    assert verdict_lines(data(*EVERY), width=80) == [
        "train · Kubernetes 1.31 · 2 nodes × 8 GPUs",
        "",
        "Not ready: 1 error, 1 warning, 1 skipped.",
        "",
        "         check      evidence",
        "ok       passed-1   evidence of passed 1",
        "skipped  skipped-1  evidence of skipped 1",
        "warning  warning-1  evidence of warning 1",
        "error    error-1    evidence of error 1",
        "",
        "check      what to do",
        "error-1    mend error 1",
        "warning-1  mend warning 1",
    ]


def test_the_whole_summary_has_what_is_wrong_first_and_all_checks_folded() -> None:
    assert verdict_markdown(data(EVERY[0], EVERY[3])).splitlines() == [
        "### ❌ Not ready · train · Kubernetes 1.31 · 2 nodes × 8 GPUs",
        "",
        "Not ready: 1 error.",
        "",
        "| | check | evidence | what to do |",
        "|---|---|---|---|",
        "| ❌ | error-1 | evidence of error 1 | mend error 1 |",
        "",
        "<details><summary>All checks</summary>",
        "",
        "| | check | evidence |",
        "|---|---|---|",
        "| ✅ | passed-1 | evidence of passed 1 |",
        "| ❌ | error-1 | evidence of error 1 |",
        "",
        "</details>",
    ]


def test_each_state_and_severity_is_said_and_counted() -> None:
    for state, severity, count in itertools.product(Readiness, MARKS, range(3)):
        given = data(*(entry(severity, n) for n in range(count)), verdict=state.value)
        many = f"{severity}s" if count == 2 and severity != "skipped" else severity
        counted = f"{count} {many}" if count and severity != "passed" else "every check passed"
        assert summarize_verdict(given) == f"{ANSWERS[state.value]}: {counted}."
        mark = "✅" if state is Readiness.READY else "❌"
        assert verdict_markdown(given).startswith(f"### {mark} {ANSWERS[state.value]} · ")


def test_what_to_do_is_in_the_order_of_severity_and_a_finding_without_a_fix_is_no_task() -> None:
    for order in itertools.permutations(("error", "warning")):
        text = verdict_lines(data(*map(entry, order)), width=80)
        assert [line.split()[0] for line in text[-2:]] == ["error-1", "warning-1"]
    given = data(entry("error", fix=""))
    assert "what to do" not in "\n".join([*verdict_lines(given, width=80), verdict_markdown(given)])


def test_no_text_of_a_cluster_ends_a_cell_or_becomes_markup() -> None:
    hostile = entry("error") | {
        "evidence": "a | b\n| c `x` <script> [l](u) *b* _i_ \\ @team &",
        "fix": "<b>|</b>",
    }
    rows = [line for line in verdict_markdown(data(hostile)).splitlines() if "error-1" in line]
    evidence = r"a \| b \| c \`x\` \<script\> \[l\](u) \*b\* \_i\_ \\ \@team \&"
    assert rows == [
        f"| ❌ | error-1 | {evidence} | \\<b\\>\\|\\</b\\> |",
        f"| ❌ | error-1 | {evidence} |",
    ]


def test_an_annotation_names_the_first_error_only() -> None:
    given = data(entry("warning"), entry("error", 1), entry("error", 2))
    assert verdict_refusal(given) == "Not ready: 2 errors, 1 warning. error-1: evidence of error 1"
    blind = data(entry("skipped"), verdict="not known")
    assert verdict_refusal(blind) == "Not known: 1 skipped."
