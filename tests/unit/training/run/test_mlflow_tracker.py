"""The records of a training in MLflow, read by MLflow itself; no trouble with MLflow ends a training."""

import importlib.util
import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trainyard.config.schema import Config, MonitoringConfig
from trainyard.errors import StoppedError
from trainyard.run.directory import RunDirectory
from trainyard.run.records import read_rows
from trainyard.training.run import mlflow_tracker
from trainyard.training.run.mlflow_tracker import mlflow_file
from trainyard.training.run.trackers import TrackedRun, close_trackers, open_trackers

needs_mlflow = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("mlflow", "sqlalchemy")),
    reason="mlflow-skinny is not installed (requirements-development.txt has it)",
)
MONITORING = {"tensorboard": False, "mlflow": {"enabled": True, "experiment": "tiny"}}
Run = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name, value in {**mlflow_tracker._QUIET, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}.items():
        monkeypatch.setenv(name, value)  # removed after the test


@contextmanager
def refusing_server(status: int) -> Iterator[str]:
    """A server that answers every request with `status`, and its address."""

    class Handler(BaseHTTPRequestHandler):
        def _refuse(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = _refuse  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def client_of(run: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{mlflow_file(RunDirectory(run))}")


def only_run(client: Any) -> Any:
    experiment = client.get_experiment_by_name("tiny")
    (run,) = client.search_runs([experiment.experiment_id])
    return run


@needs_mlflow
def test_mlflow_reads_rows_parameters_sample_and_end_of_a_resumed_training(
    tiny_config: Callable[..., Config],
    run_training: Run,
    stop_after: Callable[[int], dict[str, Any]],
    tmp_path: Path,
) -> None:
    with pytest.raises(StoppedError):
        run_training(tiny_config(monitoring=MONITORING), **stop_after(4))
    client = client_of(tmp_path / "run")
    assert only_run(client).info.status == "KILLED"
    outcome = run_training(tiny_config(monitoring=MONITORING, training={"learning_rate": 2e-3}))
    run = only_run(client)
    assert (run.info.run_name, run.info.status) == ("id-of-run", "FINISHED")
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    for name in ("loss", "val_loss", "learning_rate", "tokens_per_second"):
        history = client.get_metric_history(run.info.run_id, name)
        found = {each.step: each.value for each in history}
        assert found == {row["step"]: row[name] for row in rows if name in row}, name
        assert len(history) == len(found)
    before = float(run.data.params["training.learning_rate"])
    assert (before, run.data.tags["resumed_at_4.training.learning_rate"]) == (
        tiny_config().training.learning_rate,
        "0.002",
    )
    layers = tiny_config().model.architecture.num_layers
    assert run.data.params["model.architecture.num_layers"] == str(layers)
    note = run.data.tags["mlflow.note.content"]
    assert note.split("\n    ")[1:][:1] == outcome["sample"].splitlines()[:1]


@needs_mlflow
def test_many_rows_are_written_in_order_and_values_that_are_not_finite_too(tmp_path: Path) -> None:
    config = MonitoringConfig.model_validate(MONITORING)
    opened = open_trackers(TrackedRun(config, RunDirectory(tmp_path), "r", 0, {}))
    for step in range(1, 501):
        opened[0].write({"step": step, "time": 1.5, "loss": math.nan if step == 3 else step, "skipped": True})
    close_trackers(opened)
    client = client_of(tmp_path)
    run = only_run(client)
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [each.step for each in sorted(history, key=lambda each: each.step)] == list(range(1, 501))
    assert math.isnan(next(each.value for each in history if each.step == 3))
    assert "skipped" not in run.data.metrics
    assert run.info.status == "FAILED", "there is no outcome on record"


@needs_mlflow
@pytest.mark.parametrize("status", [403, 500])
def test_a_server_that_refuses_ends_no_training(
    status: int,
    tiny_config: Callable[..., Config],
    run_training: Run,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with refusing_server(status) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        outcome = run_training(tiny_config(monitoring=MONITORING))
    assert outcome["status"] == "succeeded"
    assert caplog.text.count("MLflow failed") == 1


@needs_mlflow
def test_a_folder_that_cannot_be_written_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "logs").write_text("in the way")
    config = MonitoringConfig.model_validate(MONITORING)
    opened = open_trackers(TrackedRun(config, RunDirectory(tmp_path), "r", 0, {}))
    opened[0].write({"step": 1, "loss": 2.0, "time": 3.0})
    close_trackers(opened)
    assert [record.getMessage().count(str(tmp_path / "logs")) for record in caplog.records] == [1]


def test_a_missing_mlflow_is_a_warning_that_names_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = MonitoringConfig.model_validate(MONITORING)
    opened = open_trackers(TrackedRun(config, RunDirectory(tmp_path), "r", 0, {}))
    opened[0].write({"step": 1, "loss": 2.0, "time": 3.0})
    close_trackers(opened)
    assert caplog.messages == [
        "MLflow failed (mlflow is not installed; docs/watching.md#mlflow has the command); "
        "training continues without it"
    ]


@needs_mlflow
def test_a_server_that_never_answers_is_left_after_a_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mlflow_tracker, "_CLOSING_SECONDS", 0.2)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "4")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        config = MonitoringConfig.model_validate(MONITORING)
        opened = open_trackers(TrackedRun(config, RunDirectory(tmp_path), "r", 0, {}))
        opened[0].write({"step": 1, "loss": 2.0, "time": 3.0})
        close_trackers(opened)
        assert "did not take the last rows within" in caplog.text
        for thread in threading.enumerate():
            if thread.name == "MLflow":
                thread.join(60)
