"""scripts/training_dashboard.py as people and the pipeline call it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.run.directory import RunDirectory

Program = Callable[..., Any]


def test_text_is_the_default(program: Program, finished_run: RunDirectory) -> None:
    done = program("training_dashboard.py", finished_run.path)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("TRAINING PROGRESS REPORT\n  Status: SUCCEEDED\n")
    assert "  Total Steps: 20 / 20\n" in done.stdout


@pytest.mark.parametrize(
    ("form", "start"), [("markdown", "### ⚠ Trained, not proven yet"), ("html", "<!DOCTYPE html>")]
)
def test_other_forms(program: Program, finished_run: RunDirectory, form: str, start: str) -> None:
    assert program("training_dashboard.py", finished_run.path, "--format", form).stdout.startswith(start)


@pytest.mark.parametrize("flag", [["--json"], ["--format", "json"]])
def test_json(program: Program, finished_run: RunDirectory, flag: list[str]) -> None:
    one = json.loads(program("training_dashboard.py", finished_run.path, *flag).stdout)
    assert one["training_metrics"]["loss"] == 0.25
    two = json.loads(program("training_dashboard.py", finished_run.path, finished_run.path, *flag).stdout)
    assert two == [one, one]


def test_the_form_follows_the_ending_of_the_output(
    program: Program, finished_run: RunDirectory, tmp_path: Path
) -> None:
    done = program("training_dashboard.py", finished_run.path, "--output", "new/report.html")
    assert done.stdout == ""
    assert (tmp_path / "new" / "report.html").read_text().startswith("<!DOCTYPE html>")
    program("training_dashboard.py", finished_run.path, "--output", "report.html", "--format", "text")
    assert (tmp_path / "report.html").read_text().startswith("TRAINING")


def test_the_pipeline_writes_three_reports_and_says_where(
    program: Program, finished_run: RunDirectory
) -> None:
    done = program("training_dashboard.py", finished_run.path, "--write")
    assert done.returncode == 0
    assert done.stdout == ""
    assert f"report: {finished_run.path}/report/index.html" in done.stderr
    assert "next: scripts/prove_run.py" in done.stderr
    assert (finished_run.report / "index.html").read_text().startswith("<!DOCTYPE html>")
    assert (finished_run.report / "summary.md").read_text().startswith("### ")
    assert json.loads((finished_run.report / "dashboard.json").read_text())["status"] == "SUCCEEDED"


def test_the_job_summary_is_appended(program: Program, finished_run: RunDirectory, tmp_path: Path) -> None:
    summary = tmp_path / "summary"
    summary.write_text("before\n")
    done = program(
        "training_dashboard.py", finished_run.path, "--github-summary", GITHUB_STEP_SUMMARY=str(summary)
    )
    assert done.stdout == ""
    assert summary.read_text().startswith("before\n### ⚠ Trained, not proven yet")
    assert program("training_dashboard.py", finished_run.path, "--github-summary").returncode == 0


def test_an_empty_directory_is_a_report_too(program: Program, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = program("training_dashboard.py", "empty")
    assert done.returncode == 0
    assert "Status: EMPTY" in done.stdout


def test_a_missing_run_is_named(program: Program, finished_run: RunDirectory) -> None:
    done = program("training_dashboard.py", finished_run.path, "runs/missing")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "runs/missing: no such run directory" in done.stderr


def test_a_place_that_cannot_be_written_is_named(program: Program, finished_run: RunDirectory) -> None:
    done = program("training_dashboard.py", finished_run.path, "--output", "/dev/null/report.html")
    assert done.returncode == 2
    assert "/dev/null/report.html: the report cannot be written there" in done.stderr
