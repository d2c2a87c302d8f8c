"""GitHub: outputs as the runner reads them, the REST API on a local server, the runner's process."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.answering import answering

from trainyard.errors import ConfigError, ServiceError, TrainyardError
from trainyard.gateways import bounded_calls, github, process_tree
from trainyard.gateways.actions_runner import lost_machine
from trainyard.gateways.github_api import GitHub, github_from

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
    github.set_output("report", hostile, environment)
    github.set_output("run_number", "7", environment)
    assert outputs(file) == {"report": hostile, "run_number": "7"}


def test_a_summary_never_passes_the_limit_and_says_that_it_was_cut(tmp_path: Path) -> None:
    file = tmp_path / "summary"
    environment = {"GITHUB_STEP_SUMMARY": str(file)}
    for _ in range(3):
        github.append_summary("lösses, a line of them\n" * 20_000, environment)
    content = file.read_bytes()
    assert github.SUMMARY_BYTES - 200 < len(content) <= github.SUMMARY_BYTES
    assert content.decode().count("The rest was omitted") == 1
    file.write_bytes(b"x" * (github.SUMMARY_BYTES - 10))
    github.append_summary("### A heading", environment)
    assert file.stat().st_size == github.SUMMARY_BYTES - 10, "without room it is left out"


def test_text_cannot_end_its_annotation(capsys: pytest.CaptureFixture[str]) -> None:
    github.annotate(
        github.Level.ERROR,
        "50% of it\r\n::warning::no",
        title="Not proven: stored, twice",
        environment=ACTIONS,
    )
    written = capsys.readouterr()
    assert written.err == "::error title=Not proven%3A stored%2C twice::50%25 of it%0D%0A::warning::no\n"
    assert written.out == ""
    github.annotate(github.Level.NOTICE, "done", environment=ACTIONS)
    assert capsys.readouterr().err == "::notice::done\n"


def test_problems_are_shown_at_their_line_and_the_rest_together(capsys: pytest.CaptureFixture[str]) -> None:
    github.annotate_problems(
        "a.yaml:14: training.max_step: unknown: 5%\n1 error. Nothing was started.", ACTIONS
    )
    assert capsys.readouterr().err == "::error file=a.yaml,line=14::training.max_step: unknown: 5%25\n"
    github.annotate_problems("target: no\nuse another", ACTIONS)
    assert capsys.readouterr().err == "::error::target: no%0Ause another\n"
    many = [f"a.yaml:{line}: wrong" for line in range(1, 31)]
    github.annotate_problems("\n".join(many), ACTIONS)
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 10  # GitHub shows ten per step
    assert shown[-1].startswith("::error::a.yaml:10: wrong%0A")


def test_outside_actions_nothing_happens(capsys: pytest.CaptureFixture[str]) -> None:
    github.set_output("a", "b", {})
    github.annotate(github.Level.ERROR, "no", environment={})
    assert not github.append_summary("### One", {})
    assert not github.in_actions({})
    assert capsys.readouterr() == ("", "")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainyardError, match=r"missing/output \(GITHUB_OUTPUT\) cannot be written"):
        github.set_output("a", "b", {"GITHUB_OUTPUT": str(tmp_path / "missing/output")})


def test_an_error_is_shown_in_all_three_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "GITHUB_OUTPUT": str(tmp_path / "output")}
    refused = TrainyardError("corpus/: no text was found\nnext: set data.train_path")
    with (
        pytest.raises(TrainyardError, match="no text was found"),
        github.refusal_in_summary("No data", {**ACTIONS, **files}),
    ):
        raise refused
    assert (tmp_path / "summary").read_text() == f"### ❌ No data\n\n~~~~~~\n{refused}\n~~~~~~\n"
    assert outputs(tmp_path / "output") == {"reason": "corpus/: no text was found"}
    annotation = "::error title=No data::corpus/: no text was found%0Anext: set data.train_path\n"
    assert capsys.readouterr().err == annotation
    with github.refusal_in_summary("No data", {"GITHUB_STEP_SUMMARY": str(tmp_path / "none")}):
        pass
    assert not (tmp_path / "none").exists()


def test_outputs_summary_and_error_come_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = {"GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": str(tmp_path / "output")}
    there["GITHUB_STEP_SUMMARY"] = str(tmp_path / "summary")
    github.report_step({"job": "llama"}, "### Failed", error=("llama: Failed", "rank 3"), environment=there)
    assert "llama" in (tmp_path / "output").read_text()
    assert (tmp_path / "summary").read_text() == "### Failed\n"
    assert capsys.readouterr().err == "::error title=llama%3A Failed::rank 3\n"
    github.report_step({"job": "next"}, environment=there)
    assert (tmp_path / "summary").read_text() == "### Failed\n"
    github.report_step({"job": "next"}, "### Failed", error=("t", "x"), environment={})
    assert capsys.readouterr().err == ""


TOKEN = "ghs_very-secret"


@dataclass
class Server:
    """Answers by method and path; records the requests."""

    url: str = ""
    answers: dict[str, list[tuple[int, Any, dict[str, str]]]] = field(default_factory=dict)
    asked: list[tuple[str, Any, str | None]] = field(default_factory=list)

    def say(self, call: str, *answers: tuple[int, Any] | tuple[int, Any, dict[str, str]]) -> None:
        self.answers[call] = [(*a, {}) if len(a) == 2 else a for a in answers]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(bounded_calls, "FIRST_SECONDS", 0.0)
    told = Server()

    def answer(method: str, path: str, body: Any, headers: Mapping[str, str]) -> tuple[Any, ...]:
        call = f"{method} {path}"
        told.asked.append((call, body, headers.get("Authorization")))
        answers = told.answers.get(call) or [(404, {"message": "Not Found"}, {})]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    with answering(answer) as told.url:
        yield told


def repository(server: Server) -> GitHub:
    return GitHub("owner/name", TOKEN, server=server.url)


def test_a_dispatch_sends_branch_and_inputs_and_returns_the_new_run(server: Server) -> None:
    call = "POST /repos/owner/name/actions/workflows/training_ci.yml/dispatches"
    server.say(call, (200, {"workflow_run_id": 9, "html_url": "https://example.org/runs/9"}))
    address = repository(server).dispatch("training_ci.yml", ref="main", inputs={"resume": "auto"})
    assert address == "https://example.org/runs/9"
    body = {"ref": "main", "inputs": {"resume": "auto"}, "return_run_details": True}
    assert server.asked == [(call, body, f"Bearer {TOKEN}")]


def test_a_dispatch_is_never_sent_twice_and_its_answer_may_lack_the_url(server: Server) -> None:
    server.say("POST /repos/owner/name/actions/workflows/x.yml/dispatches", (502, None), (204, None))
    with pytest.raises(ServiceError, match="502"):
        repository(server).dispatch("x.yml", ref="main", inputs={})
    assert len(server.asked) == 1
    assert repository(server).dispatch("x.yml", ref="main", inputs={}) == ""


def test_a_read_is_retried_after_errors_that_can_heal(server: Server) -> None:
    server.say("GET /repos/owner/name/actions/runs?status=queued", (502, None), (200, {"ok": 1}))
    assert repository(server).get("/actions/runs", status="queued") == {"ok": 1}


def test_a_refusal_quotes_github_and_never_the_token(server: Server) -> None:
    refused = {"message": "Resource not accessible by integration"}
    server.say("POST /repos/owner/name/actions/runs/5/cancel", (403, refused))
    with pytest.raises(ServiceError, match="403 Resource not accessible by integration") as caught:
        repository(server).post("/actions/runs/5/cancel")
    assert TOKEN not in str(caught.value)
    assert len(server.asked) == 1


def test_all_pages_of_a_list_are_read(server: Server) -> None:
    first, second = [{"id": n} for n in range(100)], [{"id": 100}]
    server.say("GET /repos/owner/name/actions/runs?per_page=100&page=1", (200, {"workflow_runs": first}))
    server.say("GET /repos/owner/name/actions/runs?per_page=100&page=2", (200, {"workflow_runs": second}))
    assert len(list(repository(server).pages("/actions/runs", "workflow_runs"))) == 101
    server.say("GET /repos/owner/name/issues?per_page=100&page=1", (200, second))
    assert list(repository(server).pages("/issues")) == second


def test_an_answer_that_is_no_json_and_an_unreachable_server_are_named(server: Server) -> None:
    server.say("GET /repos/owner/name/issues/1", (200, b"<html>"))
    with pytest.raises(ServiceError, match="not JSON"):
        repository(server).get("/issues/1")
    with pytest.raises(ServiceError, match="could not be reached"):
        GitHub("owner/name", TOKEN, server="http://127.0.0.1:9").get("/actions/runs")


def test_repository_and_token_come_from_the_workflows_variables() -> None:
    with pytest.raises(ConfigError, match="GITHUB_REPOSITORY is not set"):
        github_from({"GITHUB_TOKEN": "x"})
    with pytest.raises(ConfigError, match="WATCH_TOKEN is not set"):
        github_from({"GITHUB_REPOSITORY": "a/b", "GITHUB_TOKEN": "x"}, variable="WATCH_TOKEN")
    with pytest.raises(ConfigError, match="owner/name"):
        github_from({"GITHUB_REPOSITORY": "a/b/../c", "GITHUB_TOKEN": "x"})
    with pytest.raises(ConfigError, match="GITHUB_API_URL"):
        github_from({"GITHUB_REPOSITORY": "a/b", "GITHUB_TOKEN": "x", "GITHUB_API_URL": "file:///etc"})
    assert github_from({"GITHUB_REPOSITORY": "a/b", "GITHUB_TOKEN": "x"})


def test_an_ephemeral_runner_is_known_by_the_process_that_started_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/scripts/test_step_environment.py finds it by the workspace."""
    proc, programs = tmp_path / "proc", tmp_path / "actions-runner" / "bin.2.337.0"
    programs.mkdir(parents=True)
    monkeypatch.setattr(process_tree, "_PROC", proc)
    for pid, parent, program in (
        (os.getpid(), 50, "/bin/bash"),
        (50, 40, "/bin/bash"),
        (40, 0, programs / "Runner.Worker"),
    ):
        (folder := proc / str(pid)).mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (a (name) R {parent}{' 1' * 20}\n")
        (folder / "exe").symlink_to(program)
    for registration, expected in (('{"ephemeral": true}', "an ephemeral runner"), ("{}", ""), ("no", "")):
        (programs.parent / ".runner").write_text(registration)
        for actions, found in (("true", expected), ("", "")):
            assert lost_machine({"GITHUB_ACTIONS": actions}) == found
