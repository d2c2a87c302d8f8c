"""Fixes: what is applied, what is left to people, and that nothing is forced."""

import os
import sys
from pathlib import Path

from tests import warm_start
from tests.cases import each_case
from tests.unit.cluster.judging import SCRIPT
from tests.unit.cluster.recorded import Recorded


@each_case(
    ("options", "said"),
    [
        (("check", "--apply"), "--apply is for fix"),
        (("fix", "--apply", "--dry-run"), "without --dry-run"),
        (("check", "--cluster", "a", "--kubeconfig", "b"), "leave --kubeconfig"),
        (("check", "--set", "a=b"), "--config"),
        (("check", "--prometheus", "http://x"), "--prometheus is for nodes"),
        (("check", "--num-nodes", "0"), "above 0"),
        (("check", "--gpu-per-node", "-1"), "--gpu-per-node"),
        (("look",), "invalid choice"),
    ],
)
def test_wrong_usage_is_said(options: tuple[str, ...], said: str) -> None:
    done = warm_start.run([sys.executable, str(SCRIPT), *options], timeout=120)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_the_summary_of_a_job_and_a_narrow_terminal(recorded: Recorded, tmp_path: Path) -> None:
    kubeconfig = str(recorded.kubeconfig(tmp_path))
    summary, output = tmp_path / "summary.md", tmp_path / "output"
    environment = os.environ | {
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_OUTPUT": str(output),
        "COLUMNS": "80",
    }
    line = [sys.executable, str(SCRIPT), "check", "--kubeconfig", kubeconfig, "--num-nodes", "9"]
    done = warm_start.run(line, timeout=120, env=environment)
    assert done.returncode == 1
    assert "Not ready: 1 error" in done.stdout
    assert [row for row in done.stdout.splitlines() if len(row) > 80] == []
    text = summary.read_text()
    assert text.startswith("### ❌ Not ready")
    assert "| ❌ | capacity |" in text
    assert "capacity: 4 places for 9" in output.read_text()
