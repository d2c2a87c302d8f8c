"""trainyard report as people and the pipeline call it."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.scripts.conftest import Call, require_success

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.commands import report
from trainyard.proof import PARTS
from trainyard.report.dashboard.markdown import escape_markdown
from trainyard.run.directory import RunDirectory
from trainyard.run.judged_records import digests_now

FORMS = {
    "text": "TRAINING PROGRESS REPORT\n  Status: SUCCEEDED\n",
    "markdown": "### ⚠ Trained, not proven yet",
    "html": "<!DOCTYPE html>",
    "json": "{",
}


def test_a_report_has_the_form_that_is_named_or_that_of_its_file(
    called: Call, finished_run: RunDirectory, tmp_path: Path
) -> None:
    run = finished_run.path
    for form, start in FORMS.items():
        done = called("report", run, "--format", form)
        assert (done.returncode, done.stderr, done.stdout.startswith(start)) == (0, "", True), form
        (tmp_path / f"link.{form}").symlink_to(f"linked.{form}")
        for name in (f"new/report.{form}", f"link.{form}"):
            assert called("report", run, "--output", name).stdout == ""
            assert (tmp_path / name).read_text().startswith(start if form != "markdown" else FORMS["text"])
        assert (tmp_path / f"link.{form}").is_symlink(), "what it leads to is the report"
    assert called("report", run).stdout.startswith(FORMS["text"])
    called("report", run, "--output", "report.html", "--format", "text")
    assert (tmp_path / "report.html").read_text().startswith(FORMS["text"])
    one = json.loads(called("report", run, "--json").stdout)
    assert one["training_metrics"]["loss"] == 0.25
    assert json.loads(called("report", run, run, "--format", "json").stdout)["runs"] == [one, one]


def test_the_job_summary_is_appended(called: Call, finished_run: RunDirectory, tmp_path: Path) -> None:
    line = ("report", finished_run.path, "--github-summary")
    assert "summary: none written: GITHUB_STEP_SUMMARY is not set" in called(*line).stderr
    summary = tmp_path / "summary"
    summary.write_text("before\n")
    done = called(*line, GITHUB_STEP_SUMMARY=str(summary))
    assert (done.returncode, done.stdout) == (0, "")
    assert summary.read_text().startswith("before\n### ⚠ Trained, not proven yet")


def test_what_is_no_run_and_what_cannot_be_written_is_named(called: Call, finished_run: RunDirectory) -> None:
    run, folder = finished_run.path, finished_run.report
    folder.rmdir()
    folder.touch()
    for words, message in (
        (("/etc/passwd",), "/etc/passwd: is n"),
        (("/etc",), "/etc: is n"),
        (("/dev/null",), "/dev/null: is n"),
        ((run, "runs/missing"), "runs/missing: no such run directory"),
        ((run, "--output", "/dev/null/report.html"), "/dev/null/report.html: the report cannot be written"),
        ((run, "--write"), f"{folder}: is a file and must be a folder"),
    ):
        done = called("report", *words)
        assert (done.returncode, done.stdout) == (2, "") and message in done.stderr, words


def test_the_pipeline_writes_three_reports_and_says_where(called: Call, finished_run: RunDirectory) -> None:
    done = called("report", finished_run.path, "--write")
    assert done.returncode == 0
    assert done.stdout == ""
    assert f"report: {finished_run.path}/report/index.html" in done.stderr
    assert "trainyard prove --run-dir" in done.stderr
    assert (finished_run.report / "index.html").read_text().startswith("<!DOCTYPE html>")
    assert (finished_run.report / "summary.md").read_text().startswith("### ")
    assert json.loads((finished_run.report / "dashboard.json").read_text())["status"] == "SUCCEEDED"


def test_the_last_green_run_and_the_thresholds_are_beside_two_runs(
    called: Call, finished_run: RunDirectory, tmp_path: Path
) -> None:
    def compare(*words: object) -> list[str]:
        done = require_success(called("report", finished_run.path, head, "--compare", *words))
        return [line for line in done.stdout.splitlines() if line.startswith("|")]

    head, green = tmp_path / "head", tmp_path / "last-green" / "training-812-1"
    for copy in (head, green):
        shutil.copytree(finished_run.path, copy)
    record = json.loads((green / "run.json").read_text())
    record["outcome"] |= {"final_loss": 0.125, "validation_loss": 1.1}
    (green / "run.json").write_text(json.dumps(record))
    figures = [{"name": "accuracy", "value": 0.61, "threshold": ">= 0.60"}]
    parts = [{"name": name, "passed": True, "evidence": ""} for name in PARTS]
    known = {"run_id": record["run_id"], "finished": record["outcome"].get("finished"), "run_number": 812}
    for proven in (False, True):
        proof = {"proven": proven, "parts": parts, "figures": figures, "time": 1.0, **known}
        proof["records"] = digests_now(RunDirectory(green))
        (green / "report").mkdir(exist_ok=True)
        (green / "report" / "proof.json").write_text(json.dumps(proof))
        found = compare("--last-green", green.parent)
        assert ("last green" in found[0]) is proven, found
    assert "| last green run 812 |" in found[0]
    assert next(line for line in found if line.startswith("| loss |")).endswith("| 0.12 |")
    assert "| accuracy |  |  |  | 0.61 |" in found
    gates: dict[str, Any] = {"proof": {"learned": {"max_validation_loss": 1.3}}}
    gates["evaluation"] = {"thresholds": {"accuracy": ">= 0.60", "a|b": "< 3"}}
    (head / "config.yaml").write_text(yaml.safe_dump(gates))
    found = compare("--last-green", green.parent)
    assert found[0].endswith("| last green run 812 | threshold |")
    assert f"| accuracy |  |  |  | 0.61 | {escape_markdown('>= 0.60')} |" in found
    assert f"| {escape_markdown('a|b')} |  |  |  |  | {escape_markdown('< 3')} |" in found
    one = called("report", head, "--compare", "--last-green", green.parent)
    assert one.stdout.startswith("### Compared: run 812 "), "the last green run is the base of one run"
    alone = compare("--last-green", tmp_path / "nothing")
    assert alone[0].endswith("| change | threshold |")
    refused = called("report", head, "--last-green", green)
    assert (refused.returncode, "--last-green needs --compare" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["one", "--compare"], "--compare takes two runs, or one with --last-green"),
        (["one", "two", "--compare", "--write"], "--compare takes two runs, or one with --last-green"),
        (["one", "two", "--compare", "--json"], "--compare takes two runs, or one with --last-green"),
        ([], "name run directories, or a --store"),
        (["one", "--store", "file:///s"], "name run directories, or a --store"),
        (["--store", "file:///s", "--watch"], "takes --format and --output only"),
        (["one", "--watch", "--github-summary"], "--watch excludes --github-summary"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        report.parse_args(given)
    assert refused.value.code == 2
    assert message in capsys.readouterr().err


def test_a_run_is_watched_until_it_is_over(
    finished_run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page reloads itself while the run is in progress; the outcome is written while the report waits."""
    record = json.loads(finished_run.run_file.read_text())
    outcome = record.pop("outcome")
    finished_run.run_file.write_text(json.dumps(record))
    rows = [json.loads(line) for line in finished_run.metrics_file.read_text().splitlines()]
    now = time.time()
    finished_run.metrics_file.write_text("".join(json.dumps(row | {"time": now}) + "\n" for row in rows))
    page, seen = tmp_path / "page.html", []

    def wait(seconds: float) -> None:
        seen.append((seconds, page.read_text()))
        finished_run.run_file.write_text(json.dumps(record | {"outcome": outcome}))

    monkeypatch.setattr(time, "sleep", wait)
    words = [str(finished_run.path), "--watch", "--every", "3s", "--output", str(page)]
    assert report.main(words) == 0
    ((seconds, before),) = seen
    assert seconds == 3
    assert '<noscript><meta http-equiv="refresh" content="3"></noscript>' in before
    assert '"refresh":3.0' in before
    assert "refresh" not in page.read_text().split("<style>")[0]


def test_a_store_and_a_folder_have_an_index_of_their_runs(
    called: Call, finished_run: RunDirectory, tmp_path: Path
) -> None:
    store, folder = f"file://{tmp_path}/my store", finished_run.path.parent
    sync_run(open_store(store), finished_run, 7)
    for place, run in ((("--store", store), "7"), ((folder,), str(finished_run.path))):
        value = json.loads(called("report", *place, "--json").stdout)
        (entry,) = value["runs"]
        assert (value["schema_version"], entry["run"]) == (1, run)
        assert (entry["steps"], entry["loss"], entry["status"]) == (20, 0.25, "succeeded")
        assert len(entry["curve"]) == 20, "of a store, too"
        assert called("report", *place).stdout.splitlines()[1].startswith(run.removeprefix(f"{tmp_path}/"))
        assert called("report", *place, "--output", "index.html").returncode == 0
        page = (tmp_path / "index.html").read_text()
        data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
        assert data["rows"][0][data["fields"].index("loss")] == 0.25
        assert called("report", *place, "--format", "markdown").returncode == 2


def test_runs_are_listed_sorted_and_annotated(
    called: Call, finished_run: RunDirectory, tmp_path: Path
) -> None:
    folder, store = finished_run.path.parent, f"file://{tmp_path}/my store"
    other = folder / "other run"
    shutil.copytree(finished_run.path, other)
    record = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps(record | {"created": 1.0, "outcome": {"final_loss": 0.1}}))

    def names(*words: object) -> list[str]:
        return [run["run"] for run in json.loads(called("runs", folder, "--json", *words).stdout)["runs"]]

    assert names() == [str(finished_run.path), str(other)]
    assert names("--sort", "loss") == [str(other), str(finished_run.path)]
    assert names("--sort", "loss", "--limit", 1) == [str(other)]
    assert called("note", other, "warm-up too short", "--tag", "baseline", "--tag", "x").returncode == 0
    assert called("note", other, "--untag", "x", "--dry-run").stdout.startswith("tags  baseline\n")
    assert called("note", other, "--untag", "x").returncode == 0
    assert names("--tag", "baseline") == [str(other)] and names("--tag", "x") == []
    listed = called("runs", folder).stdout
    assert "baseline · warm-up too short" in listed
    assert max(map(len, listed.splitlines())) < 80
    assert called("runs", folder, "--tag", "none").stdout == "no runs\n"

    sync_run(open_store(store), finished_run, 7)
    before = called("store ls", "--store", store, "--json").stdout
    for text in ("first", "second"):
        assert called("note", 7, text, "--store", store).returncode == 0
    note = json.loads((tmp_path / "my store" / "notes" / "run-7.json").read_text())
    assert [each["text"] for each in note["notes"]] == ["first", "second"]
    after = json.loads(called("store ls", "--store", store, "--json").stdout)["runs"][0]
    assert after["note"] == "second" and after["objects"] == json.loads(before)["runs"][0]["objects"]
    assert called("store verify", "--store", store, "--run-number", 7).returncode == 0
    for words in (("note", other), ("note", other, "--tag", "two words"), ("note", tmp_path / "none", "x")):
        assert called(*words).returncode == 2, words


def test_figures_are_printed_by_name(called: Call, finished_run: RunDirectory, tmp_path: Path) -> None:
    run, store = finished_run.path, f"file://{tmp_path}/my store"
    sync_run(open_store(store), finished_run, 7)
    for words in ((run,), (7, "--store", store)):
        value = json.loads(called("metrics", *words, "lo*", "--json").stdout)
        assert value["metrics"]["loss"]["steps"] == list(range(1, 21)), words
        assert value["last"]["loss"] == value["metrics"]["loss"]["values"][-1]
    assert called("metrics", run, "loss").stdout.splitlines()[0].split("\t")[:2] == ["loss", "1"]
    assert len(called("metrics", run, "loss", "--points", 8).stdout.splitlines()) <= 8
    assert "loss" in called("metrics", run).stdout
    missing = called("metrics", run, "accuracy")
    assert missing.returncode == 1 and "it has: loss" in missing.stderr
