"""The job summary's part about the configuration: the changes since the last green run in the same folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.report.dashboard.markdown import markdown_report
from trainyard.report.facts.config_changes import ConfigChange, changed_settings, config_changes
from trainyard.report.facts.run_facts import read_facts
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.judged_records import digests_now
from trainyard.run.records import append_event

NewRun = Callable[[], Any]


def neighbour(
    name: str, config: str, *, finished: float, proven: bool = True, of: str = "", fails: str = ""
) -> Path:
    """A run in the same folder that ended before the run of `new_run` began."""
    folder = Path("runs") / name
    (folder / "report").mkdir(parents=True)
    run = {"run_id": name, "outcome": {"status": "succeeded", "finished": finished}}
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "config.yaml").write_text(config)
    records = digests_now(RunDirectory(folder))
    names = ("trained", "learned", "network", "stored", "repeatable")
    parts = [{"name": part, "passed": part != fails, "evidence": ""} for part in names]
    proof = {"proven": proven, "run_id": of or name, "finished": finished, "records": records, "parts": parts}
    (folder / "report" / "proof.json").write_text(json.dumps(proof))
    return folder


def test_a_run_is_compared_with_the_last_green_run_before_it(new_run: NewRun) -> None:
    run = new_run()
    began = read_run(run.layout.run_file)["created"]
    neighbour("older", "model: {name: x}\n", finished=began - 900)
    neighbour("last", "model: {name: old-llama}\ntraining: {max_steps: 5}\n", finished=began - 300)
    neighbour("red", "model: {name: red}\n", finished=began - 200, proven=False)
    neighbour("forged", "model: {name: forged}\n", finished=began - 100, of="other")
    neighbour("contradictory", "model: {name: torn}\n", finished=began - 100, fails="stored")
    neighbour("later", "model: {name: later}\n", finished=began + 100)
    changes = (
        ConfigChange("model.name", ("old-llama", "smoke-llama")),
        ConfigChange("training.max_steps", (5, None)),
        ConfigChange("training.seed", (None, 42)),
    )
    assert config_changes(run.path) == ("last", changes)


def test_without_an_earlier_green_run_nothing_is_compared(new_run: NewRun) -> None:
    run = new_run()
    (Path("runs") / "empty").mkdir()
    (Path("runs") / "a-file").write_text("")
    assert config_changes(run.path) is None
    neighbour("unreadable", "a: [", finished=1.0)
    assert config_changes(run.path) is None


def test_an_empty_mapping_is_no_change(tmp_path: Path) -> None:
    for name, program in (("before", "{}"), ("now", "{A: 1}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(
            f"recipe: command\nprogram: {{environment: {program}}}\n"
        )
    changes = changed_settings([tmp_path / "before", tmp_path / "now"])
    assert changes == (ConfigChange("program.environment.A", (None, 1)),)


def test_the_summary_shows_the_changes_and_never_the_whole_configuration(new_run: NewRun) -> None:
    run = new_run().train(3)
    text = markdown_report(read_facts(run.path))
    assert "not at the default</summary>" in text and "| key | default | this run |" in text
    neighbour("a_<b>", "model: {name: 'a|b'}\ntraining: {seed: 42}\n", finished=1.0)
    text = markdown_report(read_facts(run.path))
    assert "<summary>Configuration: 1 key changed since the last green run, a_&lt;b&gt;</summary>" in text
    assert '| model.name | "a\\|b" | "smoke-llama" |' in text
    assert "```yaml" not in text
    run.layout.config_file.write_text("model: {name: 'a|b'}\ntraining: {seed: 42}\n")
    text = markdown_report(read_facts(run.path))
    assert "The configuration has not changed since the last green run, a\\_\\<b\\>." in text


def test_the_summary_links_to_commit_workflow_run_and_artifacts(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run().train().succeed().prove()
    record = read_run(run.layout.run_file)
    record["ci"] = {
        "server": "https://github.com",
        "repository": "me/lab",
        "run_id": "99",
        "run_number": "812",
    }
    run.layout.run_file.write_text(json.dumps(record))
    proof_file = run.layout.report / "proof.json"
    more = {"store": "s3://ml-runs/phase2/", "records": digests_now(run.layout)}
    proof_file.write_text(json.dumps(json.loads(proof_file.read_text()) | more))
    monkeypatch.setenv("TRAINYARD_USD_PER_HOUR", "98.32")
    text = markdown_report(read_facts(run.path))
    lab, commit = "https://github.com/me/lab", record["git"]["commit"]
    assert (
        f"[commit 0123456]({lab}/commit/{commit}) · [workflow run]({lab}/actions/runs/99) · "
        f"[artifacts]({lab}/actions/runs/99#artifacts) · stored in `s3://ml-runs/phase2/run-7`"
    ) in text
    assert "· **$ 3.03**\n" in text
    assert "trainyard store restore --store s3://ml-runs/phase2/ --run-number 7 --step 600 --to" in text


def test_a_run_of_several_segments_shows_the_segment_number(new_run: NewRun) -> None:
    run = new_run().train(120)
    assert "segment" not in markdown_report(read_facts(run.path)).splitlines()[0]
    append_event(run.layout.events_file, "resumed", step=120)
    assert markdown_report(read_facts(run.path)).splitlines()[0].endswith("· segment 2")
