"""Write metrics to MLflow: to the server of MLFLOW_TRACKING_URI, else to a SQLite file in the run directory.

A thread of its own writes, because MLflow takes seconds to start and a server may be slow to answer: training
waits for neither. Rows that a killed run wrote after the checkpoint to resume from stay beside the new ones:
MLflow cannot delete single values.
"""

import importlib.util
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from trainyard.errors import TrainyardError
from trainyard.run.identity import read_run

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from trainyard.run.directory import RunDirectory
    from trainyard.training.run.trackers import TrackedRun

_TAG = "trainyard.run_id"
_NOTE = "mlflow.note.content"
"""The tag that MLflow shows as the description of a run, in Markdown."""
_LONGEST_TAG = 5000
_LARGEST_BATCH = 60
"""Rows of one request; MLflow takes at most 1,000 figures."""
_CLOSING_SECONDS = 60.0
_NOT_PLOTTED = {"step", "time", "skipped"}
_ENDS = {"succeeded": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # The defaults let one request take many minutes.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
}
"""Settings of MLflow, unless the environment has its own."""
Row = dict[str, Any]


class MlflowTracker:
    """A run of MLflow, named as ours, which a resumed run continues."""

    def __init__(self, run: "TrackedRun") -> None:
        """Raises ImportError if MLflow is not installed."""
        if importlib.util.find_spec("mlflow") is None:
            raise ImportError("mlflow is not installed; docs/watching.md#mlflow has the command")
        self._run = run
        self._rows: SimpleQueue[Row | tuple[str, str] | None] = SimpleQueue()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._write_all, name="MLflow", daemon=True)
        self._thread.start()

    def write(self, row: Row) -> None:
        self._raise_error()
        self._rows.put(row)

    def show(self, sample: str, step: int) -> None:
        indented = "\n".join(f"    {line}" for line in sample.splitlines())
        self._rows.put((_NOTE, f"Sample after step {step}:\n\n{indented}"[:_LONGEST_TAG]))

    def close(self) -> None:
        self._rows.put(None)
        self._thread.join(_CLOSING_SECONDS)
        self._raise_error()
        if self._thread.is_alive():
            raise TimeoutError(f"it did not take the last rows within {_CLOSING_SECONDS:.0f} s")

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _write_all(self) -> None:
        try:
            client, run_id = self._open()
            while (items := self._next_items()) is not None:
                _write_items(client, run_id, items)
            client.set_terminated(run_id, status=_end_of(self._run))
        except _expected_errors() as error:
            self._error = error

    def _next_items(self) -> list[Row | tuple[str, str]] | None:
        """Wait for the first item, and return the items to write; None at the end."""
        items = []
        item = self._rows.get()
        while item is not None:
            items.append(item)
            if len(items) == _LARGEST_BATCH:
                return items
            try:
                item = self._rows.get_nowait()
            except Empty:
                return items
        if items:
            self._rows.put(None)
            return items
        return None

    def _open(self) -> "tuple[MlflowClient, str]":
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        client = MlflowClient(tracking_uri=_address(self._run))
        name = self._run.config.mlflow.experiment
        experiment = client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(name)
        found = client.search_runs([experiment_id], f"tags.`{_TAG}` = '{self._run.run_id}'", max_results=1)
        if found:
            run_id, known = found[0].info.run_id, found[0].data.params
            client.update_run(run_id, status="RUNNING")
        else:
            created = client.create_run(
                experiment_id, run_name=self._run.run_id, tags={_TAG: self._run.run_id}
            )
            run_id, known = created.info.run_id, {}
        # MLflow refuses another value for a parameter, and a run can resume with another configuration.
        values = {key: str(value) for key, value in self._run.hyperparameters.items()}
        client.log_batch(run_id, params=[Param(key, values[key]) for key in values.keys() - known.keys()])
        for key in sorted(key for key in values.keys() & known.keys() if values[key] != known[key]):
            client.set_tag(run_id, f"resumed_at_{self._run.resumed_at}.{key}", values[key])
        return client, run_id


def mlflow_file(directory: "RunDirectory") -> Path:
    """Return the database that a run writes when no server is named."""
    return directory.logs / "mlflow" / "mlflow.db"


def _address(run: "TrackedRun") -> str:
    if address := os.environ.get("MLFLOW_TRACKING_URI"):
        return address
    logging.getLogger("alembic").setLevel(logging.WARNING)
    file = mlflow_file(run.directory)
    file.parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{file.resolve()}"


def _write_items(client: "MlflowClient", run_id: str, items: list[Row | tuple[str, str]]) -> None:
    from mlflow.entities import Metric

    figures = [
        Metric(name, float(value), int(row["time"] * 1000), row["step"])
        for row in items
        if isinstance(row, dict)
        for name, value in row.items()
        if name not in _NOT_PLOTTED and isinstance(value, int | float)
    ]
    for start in range(0, len(figures), 1000):
        client.log_batch(run_id, metrics=figures[start : start + 1000])
    for item in items:
        if isinstance(item, tuple):
            client.set_tag(run_id, *item)


def _end_of(run: "TrackedRun") -> str:
    """MLflow's word for how the run ended, by the outcome in `run.json`."""
    with suppress(TrainyardError):
        outcome: Mapping[str, Any] = read_run(run.directory.run_file).get("outcome") or {}
        return _ENDS.get(str(outcome.get("status")), "FAILED")
    return "FAILED"


def _expected_errors() -> tuple[type[Exception], ...]:
    return (ImportError, OSError, ValueError, *mlflow_failures())


def mlflow_failures() -> tuple[type[Exception], ...]:
    """Return the errors with which MLflow, and the database of its own file, may fail."""
    if importlib.util.find_spec("mlflow") is None:
        return ()
    from mlflow.exceptions import MlflowException

    if importlib.util.find_spec("sqlalchemy") is None:
        return (MlflowException,)
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError
