"""Outputs, summaries and annotations, read back the way the runner reads them."""

from pathlib import Path

import pytest

from trainyard.errors import TrainyardError
from trainyard.gateways.github import (
    SUMMARY_BYTES,
    Level,
    annotate,
    annotate_problems,
    append_summary,
    in_actions,
    refusal_in_summary,
    report_step,
    set_output,
)

ACTIONS = {"GITHUB_ACTIONS": "true"}


def outputs(path: Path) -> dict[str, str]:
    """Parse the format of the Actions runner: `name<<delimiter`, lines, `delimiter`."""
    result: dict[str, str] = {}
    lines = iter(path.read_text().split("\n"))
    for line in lines:
        if line:
            name, delimiter = line.split("<<", 1)
            value: list[str] = []
            for inner in lines:
                if inner == delimiter:
                    break
                value.append(inner)
            result[name] = "\n".join(value)
    return result


def test_outputs_of_several_lines_are_read_back_whole(tmp_path: Path) -> None:
    file = tmp_path / "output"
    environment = {"GITHUB_OUTPUT": str(file)}
    hostile = "first\nEOF\nproven<<EOF\nvalue_0\n%0A ✅"
    set_output("report", hostile, environment)
    set_output("run_number", "7", environment)
    assert outputs(file) == {"report": hostile, "run_number": "7"}


def test_a_summary_never_passes_the_limit_and_says_that_it_was_cut(tmp_path: Path) -> None:
    file = tmp_path / "summary"
    environment = {"GITHUB_STEP_SUMMARY": str(file)}
    for _ in range(3):
        append_summary("lösses, a line of them\n" * 20_000, environment)
    content = file.read_bytes()
    assert SUMMARY_BYTES - 200 < len(content) <= SUMMARY_BYTES
    assert content.decode().count("The rest was omitted") == 1
    file.write_bytes(b"x" * (SUMMARY_BYTES - 10))
    append_summary("### A heading", environment)
    assert file.stat().st_size == SUMMARY_BYTES - 10, "without room it is left out"


def test_text_cannot_end_its_annotation(capsys: pytest.CaptureFixture[str]) -> None:
    annotate(
        Level.ERROR, "50% of it\r\n::warning::no", title="Not proven: stored, twice", environment=ACTIONS
    )
    written = capsys.readouterr()
    assert written.err == "::error title=Not proven%3A stored%2C twice::50%25 of it%0D%0A::warning::no\n"
    assert written.out == ""
    annotate(Level.NOTICE, "done", environment=ACTIONS)
    assert capsys.readouterr().err == "::notice::done\n"


def test_problems_are_shown_at_their_file_and_line_and_the_rest_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    annotate_problems("a.yaml:14: training.max_step: unknown: 5%\n1 error. Nothing was started.", ACTIONS)
    assert capsys.readouterr().err == "::error file=a.yaml,line=14::training.max_step: unknown: 5%25\n"
    annotate_problems("target: no\nuse another", ACTIONS)
    assert capsys.readouterr().err == "::error::target: no%0Ause another\n"
    many = [f"a.yaml:{line}: wrong" for line in range(1, 31)]
    annotate_problems("\n".join(many), ACTIONS)
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 10  # GitHub shows ten per step
    assert shown[-1].startswith("::error::a.yaml:10: wrong%0A")


def test_outside_actions_nothing_happens(capsys: pytest.CaptureFixture[str]) -> None:
    set_output("a", "b", {})
    annotate(Level.ERROR, "no", environment={})
    assert not append_summary("### One", {})
    assert not in_actions({})
    assert capsys.readouterr() == ("", "")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainyardError, match=r"missing/output \(GITHUB_OUTPUT\) cannot be written"):
        set_output("a", "b", {"GITHUB_OUTPUT": str(tmp_path / "missing/output")})


def test_an_error_is_shown_in_summary_output_and_annotation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "GITHUB_OUTPUT": str(tmp_path / "output")}
    refused = TrainyardError("corpus/: no text was found\nnext: set data.train_path")
    with (
        pytest.raises(TrainyardError, match="no text was found"),
        refusal_in_summary("No data", {**ACTIONS, **files}),
    ):
        raise refused
    assert (tmp_path / "summary").read_text() == f"### ❌ No data\n\n~~~~~~\n{refused}\n~~~~~~\n"
    assert outputs(tmp_path / "output") == {"reason": "corpus/: no text was found"}
    annotation = "::error title=No data::corpus/: no text was found%0Anext: set data.train_path\n"
    assert capsys.readouterr().err == annotation
    with refusal_in_summary("No data", {"GITHUB_STEP_SUMMARY": str(tmp_path / "none")}):
        pass
    assert not (tmp_path / "none").exists()


def test_a_step_is_told_outputs_summary_and_error_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = {"GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": str(tmp_path / "output")}
    there["GITHUB_STEP_SUMMARY"] = str(tmp_path / "summary")
    report_step({"job": "llama"}, "### Failed", error=("llama: Failed", "rank 3"), environment=there)
    assert "llama" in (tmp_path / "output").read_text()
    assert (tmp_path / "summary").read_text() == "### Failed\n"
    assert capsys.readouterr().err == "::error title=llama%3A Failed::rank 3\n"
    report_step({"job": "next"}, environment=there)
    assert (tmp_path / "summary").read_text() == "### Failed\n"
    report_step({"job": "next"}, "### Failed", error=("t", "x"), environment={})
    assert capsys.readouterr().err == ""
