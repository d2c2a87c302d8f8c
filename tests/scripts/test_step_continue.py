"""The next segment of a run: its request to GitHub, when there is none, and what it resumes from."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.scripts.conftest import load_script

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.command import handler
from trainyard.commands import step_continue
from trainyard.errors import ServiceError, ServiceTroubleError
from trainyard.gateways import bounded_calls
from trainyard.github import continuation
from trainyard.run.directory import RunDirectory
from trainyard.run.segment import Segment

ADDRESS = "https://github.com/o/r/actions/runs"
FIRST = Segment("4711", 1, 812, "0123456789abcdef0123456789abcdef01234567")
PLAN = {
    "inputs": {"runner": "", "config": "x.yaml", "set": "", "epochs": "", "resume": "none"},
    "segment": json.loads(FIRST.to_text()),
    "store": "s3://ml-runs/phase2",
    "most_segments": 20,
}
END = {"exit_code": "75", "step": "500", "stored": "true", "manifest": "run-812-manifest.json"}
END |= {"thread": "", "outage": ""}
TAG = "trainyard-lineage-4711"


def continue_run(*words: str, plan: Any = PLAN, **changes: str) -> int:
    """Call the step after a segment that ended as END, with changes."""
    end = json.dumps({**END, "continues": "1", **changes})
    os.environ["NEEDS"] = json.dumps({"train": {"result": "success", "outputs": {"end": end}}})
    os.environ["TRAINYARD_PLAN"] = json.dumps(plan)
    return step_continue.main(words)


@dataclass
class Actions:
    """GitHub's runs of the workflow, as far as a dispatch needs them."""

    url: str = ""
    runs: list[dict[str, Any]] = field(default_factory=list)
    dispatched: list[dict[str, Any]] = field(default_factory=list)
    troubles: list[tuple[int, bool]] = field(default_factory=list)
    """For each of the next dispatches: the status, and whether a run starts all the same."""
    tags: list[str] = field(default_factory=list)
    refuses_tags: bool = False

    def create_tag(self, body: dict[str, str]) -> tuple[int, Any]:
        assert body["sha"] == FIRST.commit
        if self.refuses_tags or body["ref"] in self.tags:
            return 422 if body["ref"] in self.tags else 403, {"message": "refused"}
        self.tags.append(body["ref"])
        return 201, body

    def read(self, path: str) -> tuple[int, Any]:
        place, _, query = path.partition("?")
        if "/git/ref/tags/" in place:
            found = f"refs/tags/{place.rpartition('/')[2]}" in self.tags
            return (200, {}) if found else (404, {"message": "Not Found"})
        assert place == "/repos/o/r/actions/workflows/training.yml/runs"
        assert query.startswith(f"event=workflow_dispatch&branch={TAG}&")
        return 200, {"workflow_runs": self.runs}

    def begin(self, ref: str) -> dict[str, Any]:
        number = len(self.runs) + 2
        run = {"id": number, "head_branch": ref, "html_url": f"{ADDRESS}/{number}", "status": "completed"}
        self.runs.insert(0, run)
        return run

    def dispatch(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.dispatched.append({"workflow": path.split("/")[-2], **body})
        status, done = self.troubles.pop(0) if self.troubles else (200, True)
        return status, self.begin(body["ref"]) if done else {"message": "trouble"}


@pytest.fixture
def actions(serve_github: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Actions:
    there = Actions()

    def answer(method: str, path: str, body: Any, _headers: Mapping[str, str]) -> tuple[int, Any]:
        if method == "POST":
            return there.create_tag(body) if path.endswith("/git/refs") else there.dispatch(path, body)
        return there.read(path)

    there.url = serve_github(answer)
    known = {"GITHUB_REPOSITORY": "o/r", "GITHUB_TOKEN": "t", "GITHUB_ACTIONS": "true"}
    known |= {"GITHUB_API_URL": there.url, "GITHUB_RUN_ID": "4711"}
    for name, value in (known | dict.fromkeys(("NEEDS", "TRAINYARD_PLAN"), "")).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GITHUB_RUN_ATTEMPT", raising=False)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("GITHUB_WORKFLOW_REF", "o/r/.github/workflows/training.yml@refs/heads/main")
    monkeypatch.setattr(bounded_calls, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(continuation, "PAUSES", (0.0, 0.0))
    return there


def test_the_next_segment_goes_on_from_what_was_stored(actions: Actions, tmp_path: Path) -> None:
    assert continue_run(thread="C0123:1732140000.000100") == 0
    [asked] = actions.dispatched
    assert (asked["workflow"], asked["ref"]) == ("training.yml", TAG), "whatever the branch has now"
    following = json.loads(asked["inputs"]["continues"])
    assert following["inputs"]["resume"] == "s3://ml-runs/phase2/manifests/run-812-manifest.json"
    assert (following["number"], following["step"]) == (2, 500)
    assert following["thread"] == "C0123:1732140000.000100"
    assert "Continued: segment 2 of at most 20" in (tmp_path / "summary").read_text()


@each_case(
    ("change", "reason"), [({"manifest": ""}, "not in the store"), ({"exit_code": "1"}, "exit code 1")]
)
def test_what_does_not_go_on_is_red_and_says_why(
    actions: Actions,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    change: dict[str, str],
    reason: str,
) -> None:
    for name, file in (("GITHUB_STEP_SUMMARY", "summary"), ("GITHUB_OUTPUT", "output")):
        monkeypatch.setenv(name, str(tmp_path / file))
    assert continue_run(**change) == 1
    assert actions.dispatched == []
    told = capsys.readouterr().err
    assert "::error title=The run is not done%2C and there is no further segment::" in told
    assert reason in (tmp_path / "output").read_text().partition("reason<<")[2]


def test_a_dry_run_dispatches_nothing(actions: Actions, capsys: pytest.CaptureFixture[str]) -> None:
    assert continue_run("--dry-run") == 0
    assert actions.dispatched == []
    assert json.loads(capsys.readouterr().out)["ref"] == TAG


def test_a_segment_that_is_there_already_is_not_dispatched_again(actions: Actions, tmp_path: Path) -> None:
    actions.begin("main")
    actions.begin("trainyard-lineage-47")
    assert continue_run() == 0
    assert len(actions.dispatched) == 1
    (tmp_path / "summary").unlink()
    assert continue_run() == 0  # the job was run again
    assert len(actions.dispatched) == 1
    told = (tmp_path / "summary").read_text()
    assert "nothing was dispatched now" in told
    assert f"{ADDRESS}/4" in told


@pytest.mark.parametrize(("did", "asked"), [(True, 1), (False, 2)])
def test_a_server_in_trouble_is_asked_again_for_what_it_has_not_done(
    actions: Actions, did: bool, asked: int
) -> None:
    actions.troubles = [(502, did)]
    assert continue_run() == 0
    assert len(actions.dispatched) == asked
    assert len(actions.runs) == 1


@pytest.mark.parametrize(("status", "kind", "asked"), [(503, ServiceTroubleError, 3), (422, ServiceError, 1)])
def test_a_server_that_stays_in_trouble_or_refuses_is_not_asked_for_ever(
    actions: Actions, status: int, kind: type[Exception], asked: int
) -> None:
    actions.troubles = [(status, False)] * 5
    with pytest.raises(kind, match=str(status)):
        continue_run()
    assert len(actions.dispatched) == asked


def test_without_its_tag_a_segment_is_not_started_and_the_command_that_makes_it_is_named(
    actions: Actions,
) -> None:
    """GitHub lets no token of a workflow tag a commit whose workflow files are not on the default branch."""
    actions.refuses_tags = True
    with pytest.raises(ServiceError, match=f"git tag {TAG} {FIRST.commit} && git push origin {TAG}"):
        continue_run()
    actions.tags = [f"refs/tags/{TAG}"]  # as the plan made it
    assert continue_run() == 0


@pytest.mark.parametrize("outages", range(8))
def test_an_outage_is_retried_by_a_next_segment_with_a_growing_pause_and_not_for_ever(
    actions: Actions, monkeypatch: pytest.MonkeyPatch, outages: int
) -> None:
    later = replace(FIRST, number=3, step=40, outages=outages)
    plan = {**PLAN, "segment": json.loads(later.to_text())}
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    end = dict.fromkeys(("exit_code", "step", "stored", "manifest"), "")
    code = continue_run(plan=plan, outage="true", **end)
    if outages >= len(continuation.OUTAGE_MINUTES):
        assert (code, actions.dispatched) == (1, [])
        return
    assert code == 0
    assert slept == [60 * continuation.OUTAGE_MINUTES[outages]]
    following = json.loads(actions.dispatched[0]["inputs"]["continues"])
    assert (following["number"], following["step"], following["outages"]) == (4, 40, outages + 1)
    assert following["inputs"]["resume"] == "auto"


@pytest.mark.parametrize(("continues", "asked"), [("2", 1), ("1", 0), ("", 0), (None, 0)])
def test_it_finds_in_the_results_of_the_jobs_whether_a_segment_is_due(
    actions: Actions, monkeypatch: pytest.MonkeyPatch, continues: str | None, asked: int
) -> None:
    """A segment that an earlier attempt requested is dispatched already."""
    monkeypatch.setenv("GITHUB_RUN_ATTEMPT", "2")
    end = "" if continues is None else json.dumps({**END, "continues": continues})
    monkeypatch.setenv("NEEDS", json.dumps({"train": {"result": "failure", "outputs": {"end": end}}}))
    monkeypatch.setenv("TRAINYARD_PLAN", json.dumps({"segment": "1", "plan": PLAN}))
    assert step_continue.main([]) == 0
    assert len(actions.dispatched) == asked


fetch_resume = load_script("step_fetch_checkpoint")


def test_a_later_segment_on_a_new_machine_gets_the_run_from_the_store(
    finished_run: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = (tmp_path / "store").as_uri()
    sync_run(open_store(store), finished_run, 812)
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    there = tmp_path / "new" / finished_run.path.name
    line = ["--run-dir", str(there), "--resume", f"{store}/manifests/run-812-manifest.json", "--store", store]
    line += ["--run-number", "812", "--segment", "2", "--json"]
    assert fetch_resume.main([*line, "--dry-run"]) == 0
    assert not there.exists()
    capsys.readouterr()
    assert fetch_resume.main(line) == 0
    assert json.loads(capsys.readouterr().out)["resume"] == "auto"
    assert RunDirectory(there).checkpoint_steps() == [20]
    assert "resume<<" in (tmp_path / "output").read_text()
    new = ["--run-dir", str(tmp_path / "gh-2"), "--resume", "none", "--store", store, "--run-number", "2"]
    assert handler.exit_code_of(lambda: fetch_resume.main([*new, "--segment", "2"])) == 1
    assert "could not be fetched" in (tmp_path / "summary").read_text()
    where: Any = {"store": store, "run_number": 2, "segment": 2, "resume": "none"}
    found = fetch_resume.fetch_checkpoint(tmp_path / "gh-2", **where, allow_missing_checkpoint=True)
    assert found.resume == "none"
