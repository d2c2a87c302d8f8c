"""The facts of a run in words and figures: events, troubles, curves, commands, changes, metrics."""

import json
import re
import shlex
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.report.conftest import START

from trainyard.gateways.node_reading import NodeReading
from trainyard.gateways.nvidia import GpuReading
from trainyard.report.dashboard.json_report import json_report
from trainyard.report.dashboard.markdown import markdown_report
from trainyard.report.dashboard.text import text_report
from trainyard.report.facts import next_commands, quantities
from trainyard.report.facts.config_changes import ConfigChange, changed_settings, config_changes
from trainyard.report.facts.curve import thin_curve
from trainyard.report.facts.event_words import axis_marks, event_lines
from trainyard.report.facts.figures import brief_figures, figure_tiles, figure_values
from trainyard.report.facts.history import Curve, MetricsHistory, read_history
from trainyard.report.facts.live_status import LiveStatus, status_samples
from trainyard.report.facts.run_facts import read_facts
from trainyard.report.facts.troubles import degradation
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.judged_records import digests_now
from trainyard.run.prometheus_text import Sample, prometheus_text, row_samples, write_prometheus_file
from trainyard.run.record_models import MetricRow
from trainyard.run.records import append_event
from trainyard.run.sizes import format_size
from trainyard.watch.health import Alert, HealthRule

ROOT = Path(__file__).resolve().parents[4]
LINE = re.compile(r'trainyard_[a-z_]+\{([a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)*\} -?[0-9.e+-]+')


def a_status(new_run: Callable[[], Any]) -> LiveStatus:
    path = new_run().train().path
    now = (read_facts(path).timestamp or 0.0) + 5
    facts = read_facts(path, now=now, environment={"TRAINYARD_USD_PER_HOUR": "10"})
    gpu = GpuReading(0, "H200", 97.0, 6e10, 1.5e11, 68.0, 600.0, 700.0, 1900.0, False, 0.0, 0.0)
    alert = Alert(HealthRule.SLOW, "", 1.0, "slow")
    nodes = {"n1": NodeReading((gpu,))}
    return LiveStatus(now, facts, [alert], (), nodes, {"n1": (5.0, 6.0)})


def test_a_status_is_text_in_the_format_and_without_the_figures_of_rows(new_run: Callable[[], Any]) -> None:
    samples = status_samples(a_status(new_run))
    text = prometheus_text(samples)
    assert [
        line for line in text.splitlines() if not (LINE.fullmatch(line) or line.startswith("# TYPE "))
    ] == []
    assert 'trainyard_alerts{run="20261120-214501-7c1f",rule="slow"} 1.0' in text
    assert 'trainyard_gpu_celsius{run="20261120-214501-7c1f",node="n1",gpu="0"} 68.0' in text
    assert len({(each.name, *each.labels.items()) for each in samples}) == len(samples)
    assert {each.name for each in samples} & set(MetricRow.model_fields) == set()


def test_a_row_is_its_numbers_and_its_time(tmp_path: Path) -> None:
    row = {"step": 7, "loss": 2.5, "val_loss": "nan", "time": 1.7e9, "odd": True}
    write_prometheus_file(tmp_path / "new folder" / "a.prom", row_samples(row, 'a "run"\n'))
    assert (tmp_path / "new folder" / "a.prom").read_text().splitlines()[1::2] == [
        r'trainyard_step{run="a \"run\"\n"} 7.0',
        r'trainyard_loss{run="a \"run\"\n"} 2.5',
        r'trainyard_last_row_timestamp_seconds{run="a \"run\"\n"} 1700000000.0',
    ]


def test_samples_of_a_name_stand_together() -> None:
    samples = [Sample(name, 1.0, {"gpu": gpu}) for gpu in "01" for name in ("a", "b")]
    names = re.findall(r"^trainyard_(\w)", prometheus_text(samples), re.M)
    assert names == ["a", "a", "b", "b"]


def test_the_dashboard_asks_only_for_figures_that_are_written(new_run: Callable[[], Any]) -> None:
    board = json.loads((ROOT / "infrastructure" / "grafana" / "trainyard.json").read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"trainyard_(\w+)", target["expr"])
    }
    written = {sample.name for sample in status_samples(a_status(new_run))}
    written |= {*MetricRow.model_fields, "last_row_timestamp_seconds"}
    # The tiny run of the test has no checkpoint, plan or second segment.
    assert asked - written <= {"checkpoint_age_seconds", "planned_steps", "cost_usd_expected"}
    assert len(asked) > 15


DURATIONS = ((0, "0.0 s"), (4.23, "4.2 s"), (38, "0:38"), (112, "1:52"), (3599.7, "1 h 0 m"))
LONG = ((22320, "6 h 12 m"), (273600, "3 d 4 h"))
AGES = ((-3, "0 s ago"), (40, "40 s ago"), (720, "12 m ago"), (10800, "3 h ago"), (259200, "3 d ago"))
SCALED = ((41200, "41.2 k"), (19_660_800, "19.7 M"), (1.1e9, "1.1 G"), (2e12, "2 T"), (999_700, "1.0 M"))
SMALL = ((950, "950"), (0, "0"), (0.123, "0.123"))
SIZES = ((912, "912 B"), (43_100, "43.1 kB"), (1e6, "1.0 MB"), (43_100_000, "43.1 MB"), (8.8e9, "8.8 GB"))
LOSSES = ((5.5573, "5.56"), (0.01234, "0.0123"), (123.4, "123"), (0, "0"))
WORDS: tuple[tuple[Callable[[float], str], tuple[tuple[float, str], ...]], ...] = (
    (quantities.format_duration, DURATIONS + LONG),
    (quantities.format_age_ago, AGES),
    (quantities.format_scaled, SCALED + SMALL),
    (format_size, SIZES),
    (quantities.format_loss, LOSSES),
    (quantities.format_percent, ((0.583, "58 %"),)),
)


def test_each_number_has_its_unit_and_the_digits_that_matter() -> None:
    for form, table in WORDS:
        assert [form(value) for value, _ in table] == [words for _, words in table]


def test_nouns_agree_with_their_number() -> None:
    assert quantities.format_count(1, "step") == "1 step"
    assert quantities.format_count(5000, "step") == "5,000 steps"


def test_an_alert_that_lasts_is_a_trouble_beside_the_events(new_run: Callable[[], Any]) -> None:
    run = new_run().train(last_step=300)
    last = json.loads(run.layout.metrics_file.read_text().splitlines()[-1])
    with run.layout.metrics_file.open("a") as file:
        file.write(json.dumps({**last, "step": 301, "time": last["time"] + 1, "loss": "nan"}) + "\n")
    append_event(run.layout.events_file, "checkpoint_failed", time=last["time"] + 2, step=300, reason="full")
    facts = read_facts(run.path, now=last["time"] + 3)
    assert degradation(facts) == "checkpoint not saved, step 300: full; the loss is nan"
    assert "HEALTH\n  Alert: the loss is nan\n" in text_report(facts)
    [alert] = json_report(facts)["alerts"]
    assert (alert["rule"], alert["since"]) == ("loss-spike", last["time"] + 1)


def test_an_alert_of_an_ended_run_is_over_and_stays_in_its_reports(new_run: Callable[[], Any]) -> None:
    run = new_run().train()
    rows = [json.loads(line) for line in run.layout.metrics_file.read_text().splitlines()]
    rows[-1]["loss"] = "inf"
    run.layout.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run.succeed()
    facts = read_facts(run.path)
    assert degradation(facts) == ""
    assert "  Alert: the loss is inf, for " in text_report(facts)
    assert "\n- the loss is inf, for " in markdown_report(facts)


NewRun = Callable[[], Any]


@pytest.mark.parametrize(
    ("event", "status", "words"),
    [
        ("finished", "succeeded", "finished"),
        ("finished", "failed", "failed"),
        ("interrupted", "stopped", "interrupted"),
    ],
)
def test_a_runs_end_is_named_by_how_it_ended(new_run: NewRun, event: str, status: str, words: str) -> None:
    run = new_run().train(40)
    append_event(run.layout.events_file, event, step=40, status=status, reason="why", time=START + 50)
    facts = read_facts(run.path)
    assert axis_marks(facts)[-1][1] == words
    last = event_lines(facts)[-1]
    assert (last.words, last.details) == (words, "why")


def test_the_values_of_no_two_figures_have_the_same_name(new_run: Callable[[], Any]) -> None:
    groups = figure_values(read_facts(new_run().path))
    names = [name for figures in groups.values() for name in figures]
    assert len(names) == len(set(names)) > 30


def test_a_figure_that_is_not_known_is_in_no_report(new_run: Callable[[], Any]) -> None:
    facts = read_facts(new_run().path)
    for report in (text_report(facts), str(json_report(facts))):
        assert not any(words in report for words in ("Loss", "loss", "GPU", "gpu_", "Goodput", "goodput"))


def test_tiles_and_words_keep_their_order(new_run: Callable[[], Any]) -> None:
    facts = read_facts(new_run().train(gpu=True).succeed().path)
    names = ["training loss", "validation loss", "steps", "training time"]
    assert [tile.name for tile in figure_tiles(facts)][:4] == names
    assert [words.split()[0] for words in brief_figures(facts)][:1] == ["loss"]


def curve(values: list[float]) -> Curve:
    return Curve(np.arange(1.0, len(values) + 1), np.array(values, dtype=float))


def test_a_spike_of_one_step_survives() -> None:
    values = [1.0] * 10_000
    values[7_777] = 9.0
    values[2_222] = 0.1
    points = thin_curve(curve(values), 100)
    assert len(points) <= 202
    assert (points.values.max(), points.values.min()) == (9.0, 0.1)
    steps = points.steps.tolist()
    assert (steps[0], steps[-1]) == (1, 10_000) and steps == sorted(steps)


def test_a_rate_is_the_median_of_the_last_tenth() -> None:
    history = MetricsHistory(
        columns={"step": array("d", range(100)), "mfu": array("d", [0.1] * 90 + [0.5] * 9 + [9.0])}
    )
    history.size = 100
    assert history.rate("mfu") == 0.5
    assert history.rate("tokens_per_second") is None


def test_a_history_skips_what_is_no_number_and_what_was_trained_again(tmp_path: Path) -> None:
    lines = (
        *('{"step": 1, "loss": 5, "time": 10}', '{"step": 2, "loss": 4, "val_loss": 4.5, "time": 11}'),
        *('{"step": 3, "loss": 3, "loss": 1}', '{"step": 3, "loss": "3"}', "[1]", '{"val_loss": 9}', "{torn"),
        *(
            '{"step": 4, "loss": 2, "nested": {"x": 1}}',
            '{"step": 2, "loss": 4.25, "time": 20}',
            '{"step": 2}',
        ),
    )
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    history = read_history(tmp_path / "metrics.jsonl")
    loss, validation = history.curve("loss"), history.curve("val_loss")
    assert [*zip(loss.steps, loss.values, strict=True)] == [(1, 5), (2, 4.25)]
    assert [*zip(validation.steps, validation.values, strict=True)] == [(2, 4.5)]
    assert history.last == {"step": 2, "loss": 4.25, "time": 20, "val_loss": 9}
    assert history.times.tolist() == [10, 11, 20]
    assert len(history.curve("mfu")) == len(read_history(tmp_path / "none.jsonl").curve("loss")) == 0


@pytest.mark.parametrize("name", ["runs/a", "/mnt/my runs/it's; rm -rf $HOME"])
def test_a_directory_of_any_name_stays_one_word(name: str) -> None:
    assert shlex.split(next_commands.prove_command(Path(name)))[3] == name


def test_the_tensorboard_of_this_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / ".venv" / "bin" / "tensorboard"
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    assert next_commands.tensorboard_command(Path("r"), run_id="x") == "tensorboard --logdir r/tensorboard"
    program.parent.mkdir(parents=True)
    program.touch()
    assert (
        next_commands.tensorboard_command(Path("r"), run_id="x")
        == ".venv/bin/tensorboard --logdir r/tensorboard"
    )
    monkeypatch.chdir("/")
    monkeypatch.setattr(Path, "cwd", lambda: Path("/elsewhere"))
    assert next_commands.tensorboard_command(Path("r"), run_id="x") == f"{program} --logdir r/tensorboard"


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


def test_the_summary_links_to_commit_run_and_files(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
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
