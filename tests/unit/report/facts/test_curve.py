"""Reduced curves keep their extremes, their ends and their means."""

from array import array
from pathlib import Path

import numpy as np

from trainyard.report.facts.curve import thin_curve
from trainyard.report.facts.history import Curve, MetricsHistory, read_history


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
