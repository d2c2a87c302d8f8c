"""The facts of a run, above all which proof counts and how long the run trained."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jobs.plans import plan

from trainyard.jobs.pod_template import pod_template
from trainyard.proof import PARTS
from trainyard.report.dashboard.html import html_report
from trainyard.report.dashboard.json_report import json_report
from trainyard.report.dashboard.markdown import markdown_report
from trainyard.report.dashboard.text import text_report
from trainyard.report.facts.run_facts import read_facts, seconds_to_cost_limit
from trainyard.report.facts.troubles import degradation
from trainyard.report.facts.verdict_line import RunVerdict, run_headline
from trainyard.report.slack.slack_events import SUCCEEDED
from trainyard.report.slack.slack_message import Surroundings, slack_message
from trainyard.run.atomic_files import write_json_atomically
from trainyard.run.identity import pod_requests, read_run, write_outcome
from trainyard.run.records import RecordWriter, append_event
from trainyard.run.run_lock import locked, note_session

NewRun = Callable[[], Any]
START = 1_790_000_000.0


def test_a_proof_counts_only_for_the_run_as_it_is_now(new_run: NewRun) -> None:
    run = new_run().train().succeed().prove()
    proof = read_facts(run.path).proof
    assert proof is not None
    assert proof.proven
    append_event(run.layout.events_file, "resumed", step=600, time=START + 1000)
    assert read_facts(run.path).proof is None, "the run continued after it was proven"


def test_a_proof_is_not_of_the_rows_of_another_file(new_run: NewRun) -> None:
    run = new_run().train().succeed().prove()
    other = run.path / "other.jsonl"
    other.write_bytes(run.layout.metrics_file.read_bytes())
    assert read_facts(run.layout.metrics_file).proof is not None
    assert read_facts(other).proof is None
    assert run_headline(read_facts(other)).verdict is not RunVerdict.PROVEN


def test_a_proof_that_is_torn_or_of_another_run_or_end_does_not_count(new_run: NewRun) -> None:
    run = new_run().train().succeed().prove()
    path = run.layout.report / "proof.json"
    proof = json.loads(path.read_text())
    changes: tuple[dict[str, Any], ...] = (
        *({"finished": value} for value in (None, START, "yesterday")),
        *({"proven": value} for value in ("true", 1, False)),
        *({"parts": value} for value in ([], None, [{"name": "trained", "passed": True}] * 4)),
        {"parts": [{"name": name, "passed": 1} for name in PARTS]},
    )
    contents = ["", "[]", '{"proven": true', '{"proven": true, "time": "later"}']
    contents += [json.dumps(proof | change) for change in changes]
    for key in ("run_id", "finished", "records"):
        contents.append(json.dumps({name: value for name, value in proof.items() if name != key}))
    for content in contents:
        path.write_text(content)
        facts = read_facts(run.path)
        assert facts.proof is None or not facts.proof.proven, content
        assert run_headline(facts).verdict is not RunVerdict.PROVEN, content


@pytest.mark.parametrize("outcome", [None, {}, {"status": "stopped"}, {"status": "failed"}])
def test_no_report_says_proven_without_success(new_run: NewRun, outcome: dict[str, Any] | None) -> None:
    run = new_run().train().succeed().prove()
    write_outcome(run.layout.run_file, outcome)
    proof = run.layout.report / "proof.json"
    proof.write_text(json.dumps({k: v for k, v in json.loads(proof.read_text()).items() if k != "finished"}))
    facts = read_facts(run.path, now=START + 200)
    assert facts.proof is None
    assert run_headline(facts).verdict is not RunVerdict.PROVEN
    assert "proof" not in json_report(facts)
    for text in (
        text_report(facts),
        markdown_report(facts),
        str(slack_message(SUCCEEDED, facts, Surroundings("gh-99"))),
    ):
        assert "proven" not in text.lower().replace("not proven yet", "")


def test_settings_are_empty_unless_the_configuration_is_a_mapping(new_run: NewRun) -> None:
    run = new_run()
    assert read_facts(run.path).settings["model"] == {"name": "smoke-llama"}
    for text in ("", "a: [", "\t", "3", "- a"):
        run.layout.config_file.write_text(text)
        assert read_facts(run.path).settings == {}, text
    run.layout.config_file.unlink()
    assert (read_facts(run.path).settings, read_facts(run.path).config_text) == ({}, None)


def test_pauses_between_segments_are_not_training(new_run: NewRun) -> None:
    run = new_run().train(100)
    append_event(run.layout.events_file, "resumed", step=100, time=START + 5000)
    writer = RecordWriter(run.layout.metrics_file)
    writer.write({"step": 101, "loss": 1.0, "time": START + 5004})
    writer.write({"step": 102, "loss": 1.0, "time": START + 5010})
    writer.close()
    seconds = read_facts(run.path).training_seconds
    assert seconds is not None
    assert math.isclose(seconds, 18 + 10)


def test_a_program_that_counts_from_zero_did_one_step_more_than_its_last_number(new_run: NewRun) -> None:
    run = new_run().train(599)
    run.end("succeeded", 0, "all steps done", counts_from_zero=True)
    facts = read_facts(run.path)
    assert (facts.step, facts.steps_done) == (599, 600)
    assert "Completion: 100 %" in text_report(facts)
    assert "Total Steps: 600 / 600" in text_report(facts)
    assert "600 steps" in markdown_report(facts)


def test_a_checkpoint_without_a_manifest_is_ignored(new_run: NewRun) -> None:
    run = new_run().train(200)
    (run.layout.checkpoint(200) / "manifest.json").write_text('{"step": 2')
    assert [checkpoint.step for checkpoint in read_facts(run.path).checkpoints] == [100]


def test_the_stores_run_number_is_preferred_to_the_workflows(new_run: NewRun) -> None:
    run = new_run().train().succeed()
    write_json_atomically(run.layout.run_file, read_run(run.layout.run_file) | {"ci": {"run_number": "31"}})
    assert read_facts(run.path).title == "run 31"
    run.prove()
    assert read_facts(run.path).title == "run 7"


def test_a_run_that_was_judged_as_cut_off_does_not_run(new_run: NewRun) -> None:
    run, now = new_run().train(12), START + 3
    assert str(read_facts(run.path, now=now).state) == "RUNNING"
    run.prove(failing="trained")
    assert str(read_facts(run.path, now=now).state).startswith("INTERRUPTED (no outcome, last row ")
    with locked(run.path):  # its trainer has been started again
        assert str(read_facts(run.path, now=now).state) == "RUNNING"
        note_session(run.path, os.getpid(), 1)
    assert str(read_facts(run.path, now=now).state) == "RUNNING", "the program outlived its command"
    append_event(run.layout.events_file, "resumed", step=12, time=now)
    assert str(read_facts(run.path, now=now).state) == "RUNNING"


def test_the_reason_of_a_failure_is_one_line(new_run: NewRun) -> None:
    run = new_run().train(12).end("failed", 1, "loss is nan\nin batch 12")
    assert str(read_facts(run.path).state) == "FAILED (loss is nan in batch 12)"
    write_outcome(run.layout.run_file, {"status": "failed"})
    assert str(read_facts(run.path).state) == "FAILED"


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "metrics.jsonl", "events.jsonl"])
def test_a_proof_of_other_bytes_does_not_count_and_the_report_says_so(new_run: NewRun, name: str) -> None:
    run = new_run().train().succeed().prove()
    assert run_headline(read_facts(run.path)).verdict is RunVerdict.PROVEN
    path = run.path / name
    path.write_text(path.read_text() + "\n")
    facts = read_facts(run.path)
    assert facts.proof is None
    assert run_headline(facts).reason == "The run has changed since it was proven: prove it again."
    assert "trainyard prove" in run_headline(facts).next_step


def test_a_grace_period_that_is_too_short_is_a_trouble_of_the_run(new_run: NewRun) -> None:
    run = new_run().train()
    append_event(run.layout.events_file, "grace_too_short", grace_seconds=30, needed_seconds=42.3)
    said = degradation(read_facts(run.path))
    assert "grace period: a stop takes up to 42 s, and the process is killed after 30 s" in said


def test_a_pod_with_a_part_of_a_machine_reaches_the_limit_of_the_cost_later(tmp_path: Path) -> None:
    """From the environment that a job's template gives its pods, and again from the record of the run."""
    part = ("compute.strategy=ddp", "cluster.pod.cpu=24", "cluster.pod.memory=64Gi")
    for gpus, share in ((1, 0.125), (2, 0.25), (8, 1.0)):
        planned = plan(*part, nodes=2, gpus_per_node=gpus)
        given = pod_template(planned, "pytorch")["spec"]["containers"][0]["env"]
        environment = {each["name"]: each["value"] for each in given if "value" in each}
        left = seconds_to_cost_limit(100, tmp_path, nodes=2, environment=environment)
        assert left == pytest.approx(100 / (2 * 55.04 * share) * 3600)
        run = {"instance_type": "p5.48xlarge", "requests": pod_requests(environment), "run_id": "a"}
        (tmp_path / "run.json").write_text(json.dumps(run))
        price = read_facts(tmp_path, environment={}).price
        assert price is not None and price.usd_per_hour == pytest.approx(55.04 * share)


def test_the_machine_of_a_program_is_the_one_that_the_observer_saw(new_run: NewRun) -> None:
    run = new_run().train(20).succeed()
    record = read_run(run.layout.run_file) | {"hardware": {"world_size": 2}}
    for gpus, device in ((["L4", "L4"], "2 × L4"), (None, ""), ("damaged", "")):
        seen = {"torch": "2.13.0", "host": "gpu-box", "gpus": gpus}
        write_json_atomically(run.layout.run_file, record | {"observed": {"machine": seen}})
        facts = read_facts(run.path)
        assert facts.machine["device_name"] == device
        assert (" · on 2 × L4" in markdown_report(facts)) is bool(device)
        assert "gpu-box" in html_report([facts]) and "torch 2.13.0" in html_report([facts])
