"""The metrics for Prometheus: text in its format, and a dashboard that reads no others."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainyard.gateways.node_reading import NodeReading
from trainyard.gateways.nvidia import GpuReading
from trainyard.report.facts.live_status import LiveStatus, status_samples
from trainyard.report.facts.run_facts import read_facts
from trainyard.run.prometheus_text import Sample, prometheus_text, row_samples, write_prometheus_file
from trainyard.run.record_models import MetricRow
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
