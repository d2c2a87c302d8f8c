"""The dashboard of complete, running, killed, torn, empty and malformed runs."""

import json
import math
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.cases import each_case
from tests.unit.report.conftest import compare_golden

from trainyard.errors import ConfigError
from trainyard.report.dashboard.dashboard import Format, TrainingDashboard, render_dashboards
from trainyard.report.dashboard.markdown import PALETTE, line_chart
from trainyard.report.dashboard.run_comparison import comparison_report
from trainyard.report.facts.history import AXES
from trainyard.run.directory import RunDirectory
from trainyard.run.records import append_event

NewRun = Callable[[], Any]
START = 1_790_000_000.0
ROOT = Path(__file__).resolve().parents[4]


def report(path: object, *, now: float | None = None) -> str:
    return TrainingDashboard(str(path), now=now).generate_text_report()


ENDED = "Stopped at step 340 of 600: the deadline is near. runs/x/checkpoints/step-00000340 is whole."
STATES: dict[str, Callable[[Any], Any]] = {
    "proven": lambda run: run.train().succeed().prove(),
    "not-proven": lambda run: run.train().succeed().prove(failing="stored"),
    "running": lambda run: run.train(340, gpu=True),
    "stopped": lambda run: run.train(340).end("stopped", 75, ENDED),
}


@pytest.mark.parametrize("state", STATES)
def test_the_whole_text_and_summary_of_each_state(new_run: NewRun, state: str) -> None:
    path = STATES[state](new_run()).path
    dashboard = TrainingDashboard(str(path), now=START + 62 if state == "running" else None)
    compare_golden(f"{state}.txt", dashboard.generate_text_report())
    compare_golden(f"{state}.md", dashboard.generate_markdown_report())


def test_the_summary_says_what_was_degraded_in_a_run_that_is_proven(new_run: NewRun) -> None:
    run = new_run().train(100)
    reason = "TCP between machines on rank 8, though the machine has EFA"
    append_event(run.layout.events_file, "network_degraded", step=1, ranks=[8], reason=reason)
    summary = TrainingDashboard(str(run.succeed().prove().path)).generate_markdown_report()
    assert summary.startswith("### ✅ Trained and proven")
    assert f"\n\n⚠ network: {reason}\n\n" in summary


def test_a_killed_run_counts_as_interrupted_after_a_silence(new_run: NewRun) -> None:
    run = new_run().train(340)
    rows = run.layout.metrics_file
    rows.write_bytes(rows.read_bytes()[:-25])  # the last one is torn, as a crash leaves it
    assert "Status: RUNNING\n" in report(run.path, now=START + 339 * 0.18 + 590)
    text = report(run.path, now=START + 339 * 0.18 + 3 * 3600 + 5)
    assert "Status: INTERRUPTED (no outcome, last row 3 h ago)" in text
    assert "Total Steps: 339 / 600" in text
    assert "Time Remaining" not in text


def test_a_run_that_logs_rarely_may_be_silent_for_longer(new_run: NewRun) -> None:
    run = new_run()
    rows = [{"step": step, "loss": 1.0, "time": START + 900.0 * step} for step in range(1, 5)]
    run.layout.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "Status: RUNNING" in report(run.path, now=START + 3600 + 8000)
    assert "Status: INTERRUPTED" in report(run.path, now=START + 3600 + 9100)


def test_a_run_without_a_step_yet(new_run: NewRun) -> None:
    run = new_run()
    text = report(run.path, now=START + 5)
    assert "Status: RUNNING (no step on record yet)" in text
    assert "TRAINING METRICS" not in text
    assert "0" not in text.split("Git SHA")[1].split("\n", 1)[1], "nothing unknown is shown as zero"
    assert "Status: INTERRUPTED" in report(run.path, now=START + 3600)


def test_a_run_that_has_only_its_empty_folders(tmp_path: Path) -> None:
    RunDirectory(tmp_path).create()
    dashboard = TrainingDashboard(str(tmp_path))
    assert "Status: EMPTY (nothing on record yet)" in dashboard.generate_text_report()
    assert dashboard.generate_markdown_report().startswith("### ⚠ Nothing on record yet · run ")
    assert dashboard.generate_json_report()["status"] == "EMPTY"
    assert "<h1" in dashboard.generate_html_report()


def test_a_metrics_file_alone_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text('{"step": 3, "loss": 2.5}\n{"step": 4, "loss": 2.25, "lo')
    text = report(file)
    assert "Training Loss: 2.50" in text
    assert "Total Steps: 3\n" in text
    assert "INTERRUPTED (no outcome, no time on record)" in text


def test_the_metrics_file_of_a_run_can_replace_its_directory(new_run: NewRun) -> None:
    run = new_run().train(10).succeed()
    assert report(run.layout.metrics_file) == report(run.path)
    run.layout.metrics_file.unlink()
    assert "Training Loss" in report(run.layout.metrics_file), "the outcome still knows"


def test_what_is_no_run_is_refused_and_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for file in ("notes.txt", "metrics.json", "passwd"):
        (tmp_path / file).write_text("root:x:0:0:root\n")
    for name in ("", "notes.txt", "metrics.json", "passwd", "folder/metrics.jsonl"):
        with pytest.raises(
            ConfigError, match=r"is not a run directory|is neither a run directory|no such run"
        ):
            TrainingDashboard(str(tmp_path / name))
    for name in ("missing", "missing/metrics.jsonl", "missing.jsonl"):
        with pytest.raises(ConfigError, match=r"missing.*: no such run directory or metrics file"):
            TrainingDashboard(str(tmp_path / name))


def test_a_malformed_record_of_a_run_is_tolerated(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0, "time": 1.0}\n')
    for content in ("", "{", "[]", "3", '{"outcome": 3, "git": [], "plan": null, "ci": "x"}'):
        (tmp_path / "run.json").write_text(content)
        for form in Format:
            assert render_dashboards([TrainingDashboard(str(tmp_path))], form)


@each_case("value", ["NaN", "Infinity", "-Infinity", '"1.0"', "true", "null", "[]", "1" + "0" * 400])
def test_values_that_are_no_numbers_are_left_out(tmp_path: Path, value: str) -> None:
    keys = (
        *("loss", "val_loss", "learning_rate", "tokens_per_second", "mfu", "step_seconds", "time", "epoch"),
        *("backward_seconds", "gpu_memory_bytes"),
    )
    row = ", ".join(f'"{key}": {value}' for key in keys)
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, {row}}}\n{{"step": {value}, "loss": 1.5}}\n')
    dashboard = TrainingDashboard(str(tmp_path))
    text = dashboard.generate_text_report()
    assert "Training Loss: 1.50" in text
    assert not any(
        word in text
        for word in ("nan", "inf", "Learning Rate", "Validation", "MFU", "GPU", "Tokens", "Step Time")
    )
    json.dumps(dashboard.generate_json_report(), allow_nan=False)
    page = re.sub(r"<script>.*?</script>", "", dashboard.generate_html_report(), flags=re.DOTALL)
    assert "nan" not in page.lower().split("</style>")[1]


@each_case("seed", range(8))
def test_any_numbers_in_any_rows_give_every_report(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    names = (*AXES, "loss", "val_loss", "reward", "learning_rate", "mfu", "gpu_memory_bytes", "eval/f1")
    numbers = (0, 1e308, -1e308, 5e-324, -1, 1e-300, 10**30, 0.1, math.nan, math.inf)
    values: tuple[Any, ...] = (*numbers, None, "x", True, [], {})
    rows = [{name: draw.choice(values) for name in names if draw.random() < 0.7} for _ in range(6 * seed + 1)]
    if seed % 2:
        rows = [row | {"step": number} for number, row in enumerate(rows)]
    events = [
        {name: draw.choice(values) for name in ("event", "time", "step", "x_seconds")} for _ in range(5)
    ]
    for file, content in (("metrics.jsonl", rows), ("events.jsonl", events)):
        (tmp_path / file).write_text("".join(json.dumps(row) + "\n" for row in content))
    for form in Format:
        assert render_dashboards([TrainingDashboard(tmp_path)], form)


def test_json_has_the_figures_in_base_units_and_nothing_unknown(new_run: NewRun) -> None:
    run = new_run().train(gpu=True).succeed().prove()
    value = TrainingDashboard(str(run.path)).generate_json_report()
    assert value["status"] == "SUCCEEDED"
    assert value["run_number"] == 7
    assert value["git_sha"].startswith("0123456")
    assert value["git_dirty"] is False
    assert value["training_metrics"]["step"] == value["training_metrics"]["steps"] == 600
    assert value["training_metrics"]["bits_per_byte"] == 1.71
    assert value["gpu_resource_usage"]["gpu_memory_bytes"] == 22_100_000_000
    assert math.isclose(value["timing"]["training_seconds"], 108)
    assert value["performance_metrics"]["backward_seconds"] == 0.108
    assert value["performance_metrics"]["checkpoint_seconds"] == 0.0
    assert "seconds_remaining" not in value["performance_metrics"], "it is done"
    assert value["proof"]["proven"] is True
    assert [c["step"] for c in value["checkpoints"]] == [100, 200, 300, 400, 500, 600]
    assert None not in flatten(value)


def flatten(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in flatten(inner)]
    return [leaf for inner in value for leaf in flatten(inner)] if isinstance(value, list) else [value]


def test_reports_are_saved_in_the_format_of_the_suffix(new_run: NewRun, tmp_path: Path) -> None:
    dashboard = TrainingDashboard(str(new_run().train(10).succeed().path))
    starts = {"r.json": '{\n  "schema_version": 1', "r.md": "### ", "r.txt": "TRAINING PROGRESS"}
    starts |= {"r.HTML": "<!DOCTYPE html>"}
    for name, start in starts.items():
        dashboard.save_report(str(tmp_path / "new" / name))
        assert (tmp_path / "new" / name).read_text().startswith(start)


def test_the_report_is_printed(new_run: NewRun, capsys: pytest.CaptureFixture[str]) -> None:
    dashboard = TrainingDashboard(str(new_run().train(10).succeed().path))
    dashboard.print_report()
    assert capsys.readouterr().out == dashboard.generate_text_report()


def test_several_runs_make_one_document(new_run: NewRun) -> None:
    dashboard = TrainingDashboard(str(new_run().train(10).succeed().path))
    assert render_dashboards([dashboard] * 2, Format.TEXT).count("TRAINING PROGRESS REPORT") == 2
    assert len(json.loads(render_dashboards([dashboard] * 2, Format.JSON))["runs"]) == 2
    assert render_dashboards([dashboard] * 2, Format.HTML).count('<details class="card run">') == 2
    summary = render_dashboards([dashboard] * 2, Format.MARKDOWN)
    assert summary.startswith("### Compared: ")
    assert summary.count("### ") == 3


def test_several_runs_are_compared_before_their_reports(new_run: NewRun) -> None:
    short = new_run().train(40).succeed().path.rename("short")
    boards = [TrainingDashboard(str(path)) for path in (short, new_run().train(80).succeed().path)]
    text = render_dashboards(boards, Format.TEXT)
    table = text.partition("TRAINING PROGRESS REPORT")[0].splitlines()
    assert table[0] == "COMPARED"
    (steps,) = [line.split() for line in table if line.strip().startswith("steps ")]
    assert steps[:3] == ["steps", "40", "80"]
    assert len({len(line) for line in table[1:4]}) == 1, "the last column ends at one place"
    assert "COMPARED" not in render_dashboards(boards[:1], Format.TEXT)
    limit = "proof: {learned: {max_validation_loss: 1.3}}\n"
    (boards[1].facts.directory / "config.yaml").write_text(limit)
    boards = [TrainingDashboard(one.facts.directory) for one in boards]
    assert "change  threshold\n" in render_dashboards(boards, Format.TEXT)
    page = render_dashboards(boards, Format.HTML)
    assert '<th scope="col" class="figure">threshold</th>' in page and "&lt;= 1.3" in page


def test_the_lines_of_a_summary_can_be_seen_on_white_and_on_black() -> None:
    def brightness(colour: str) -> float:  # WCAG 2.2: relative luminance
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return float(0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)

    for colour in PALETTE.values():  # 3:1 is what it asks for lines
        assert min(1.05 / brightness(colour), brightness(colour) / brightness("#0d1117")) >= 3, colour
    chart = line_chart("loss", 1, 9, {"a": [2, 1], "b": [3, 1]})
    assert f'"{PALETTE["blue"]}, {PALETTE["orange"]}"' in chart and 'title "a (blue), b (orange)"' in chart


def test_a_comparison_has_the_curves_over_common_steps_and_fits_a_comment(new_run: NewRun) -> None:
    short = new_run().train(40).succeed().path.rename("short")
    runs = [TrainingDashboard(str(path)).facts for path in (short, new_run().train(80).succeed().path)]
    chart = comparison_report(runs).partition("```mermaid\n")[2].partition("```")[0]
    assert 'x-axis "step" 1 --> 40' in chart and chart.count("line [") == 2
    assert "mermaid" not in comparison_report(runs[:1])
    for run, value in zip(runs, (0.5, 0.6), strict=True):
        run.history.last["eval/f1"] = value
    assert "| eval/f1 | 0.50 | 0.60 | +20.0 % |" in comparison_report(runs).replace("\\", "")
    same = comparison_report([runs[0], runs[0]]).replace("\\", "")
    assert "| eval/f1 | 0.50 | 0.50 | none |" in same and "The configurations are the same." in same
    settings = "".join(f"key_{number}: {'x' * 200}\n" for number in range(50))
    (runs[1].directory / "config.yaml").write_text(settings)
    long = comparison_report([runs[0], *[runs[1]] * 20])
    assert len(long) < 65_536 and long.endswith("a comment ends at 65,536 characters.*\n")


def test_the_report_fits_its_schema(new_run: NewRun, tmp_path: Path) -> None:
    schema = json.loads((ROOT / "docs/schemas/dashboard.schema.json").read_text())
    runs = [new_run().train(340, gpu=True).prove(failing="stored").path, tmp_path / "empty"]
    RunDirectory(runs[1]).create()
    for run in runs:
        jsonschema.validate(TrainingDashboard(str(run)).generate_json_report(), schema)


def test_markup_in_the_text_of_a_run_stays_text(new_run: NewRun) -> None:
    hostile = "</details><script>alert(1)</script> | `x` ## [a](b)\n```\n# heading"
    run = new_run().train(10).end("failed", 1, hostile, sample="```\n" + hostile)
    run.layout.config_file.write_text("a: |\n  ````\n  <b>\n")
    (run.layout.logs / "node-0.log").write_text(hostile)
    text = TrainingDashboard(str(run.path)).generate_markdown_report()
    outside = "".join(part for index, part in enumerate(split_at_fences(text)) if index % 2 == 0)
    assert "<script>" not in outside
    assert "<summary>The end of node-0.log</summary>" in outside and f"````\n{hostile}\n````" in text
    assert "\n# heading" not in outside
    assert r"\<script\>" in outside
    assert text.count("<details>") == outside.count("</details>") + outside.count(r"\</details\>") - 1


def split_at_fences(text: str) -> list[str]:
    """Split into text and code alternately. CommonMark's rule: a closing fence is at least as long."""
    parts, fence = [""], ""
    for line in text.split("\n"):
        ticks = line[: len(line) - len(line.lstrip("`"))]
        if not fence and len(ticks) >= 3:
            fence = ticks
            parts.append("")
        elif fence and line.strip() == line and len(ticks) >= len(fence) and ticks == line:
            fence = ""
            parts.append("")
        else:
            parts[-1] += line + "\n"
    return parts


def test_a_long_run_is_reported_in_reasonable_time(tmp_path: Path) -> None:
    line = '{{"step": {0}, "loss": {1}, "learning_rate": 0.001, "tokens_per_second": 9e4, "time": {0}}}\n'
    with (tmp_path / "metrics.jsonl").open("w") as file:
        file.writelines(line.format(step, 99 if step == 77_777 else 5 / step) for step in range(1, 100_001))
    began = time.process_time()
    page = TrainingDashboard(str(tmp_path)).generate_html_report()
    assert time.process_time() - began < 120
    assert len(page) < 200_000
    drawn = json.loads(page.split('id="data">')[1].split("</script>")[0])
    loss = next(panel for panel in drawn["panels"] if panel["title"] == "Loss")["series"][0]
    assert dict(zip(loss["steps"], loss["values"], strict=True))[77_777] == 99, "a spike of one step stays"
