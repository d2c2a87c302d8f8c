"""Tiny runs that tests train in their own process, and what these runs wrote."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.config.schema import Config
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.records import Row, read_rows
from trainyard.training.data.training_data import ready_data
from trainyard.training.loop import train
from trainyard.training.run.run_context import Request
from trainyard.training.runtime.stop_signals import StopRequest

TINY: dict[str, Any] = {
    "model": {
        "name": "tiny",
        "device": "cpu",
        "architecture": {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32,
        },
    },
    "training": {
        "batch_size": 4,
        "learning_rate": 1e-2,
        "warmup_steps": 3,
        "max_steps": 12,
        "validation_steps": 5,
        "validation_batches": 2,
    },
    "compute": {"threads": 1},
    "data": {"sequence_length": 16},
    "checkpointing": {"save_steps": 4, "keep_last": 2},
    "monitoring": {"log_steps": 1, "tensorboard": False},
}


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merge(result[key], value) if nested else value
    return result


class Spy:
    """A listener that records rows and events, and can request a stop at a step."""

    def __init__(self, stop: StopRequest | None = None, stop_after: int | None = None) -> None:
        self.rows: list[Row] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.stop, self.stop_after = stop, stop_after

    def on_row(self, row: Row) -> None:
        self.rows.append(row)
        if self.stop and row["step"] == self.stop_after:
            self.stop.reason = "requested by the test"

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        if event != "working":  # which is displayed, not recorded
            self.events.append((event, fields))


@dataclass(frozen=True)
class Lab:
    """Trains in this process, each run in a folder of its name; the default name is `run`."""

    folder: Path
    config: Callable[..., Config]
    """Builds the tiny configuration with changes: `config(training={"max_steps": 3})`."""
    kept: Path
    """The runs of `once`."""

    def run(
        self,
        config: Config | None = None,
        name: str = "run",
        *,
        resume: str = "auto",
        listener: Any = None,
        stop: StopRequest | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Train, with fields of a Request as well, and return the outcome."""
        config = config or self.config()
        data = ready_data(config.data, config.model)
        version = {"version": "test"}
        request = Request(config, self.directory(name), data, resume, f"id-of-{name}", version, **fields)
        return train(request, stop=stop or StopRequest(), listener=listener or Spy())

    def once(self, name: str) -> dict[str, Any]:
        """Copy the finished run of the tiny configuration, trained once a session; return its outcome."""
        kept = self.kept / name
        if not kept.exists():
            self.run(name=name)
            shutil.copytree(self.folder / name, kept)
        else:
            shutil.copytree(kept, self.folder / name)
        return self.outcome(name)

    @staticmethod
    def stop_after(step: int) -> dict[str, Any]:
        """Return the arguments of `run` that stop it after a step."""
        stop = StopRequest()
        return {"stop": stop, "listener": Spy(stop, step)}

    def directory(self, name: str = "run") -> RunDirectory:
        return RunDirectory(self.folder / name)

    def record(self, name: str = "run") -> dict[str, Any]:
        return read_run(self.directory(name).run_file)

    def outcome(self, name: str = "run") -> dict[str, Any]:
        found: dict[str, Any] = self.record(name)["outcome"]
        return found

    def rows(self, name: str = "run") -> list[Row]:
        return read_rows(self.directory(name).metrics_file)

    def steps(self, name: str = "run") -> list[int]:
        return [row["step"] for row in self.rows(name)]

    def numbers(self, name: str = "run") -> list[tuple[Any, ...]]:
        """Return everything in the metrics that must repeat, to the bit."""
        exact = ("step", "loss", "grad_norm", "val_loss", "learning_rate")
        return [tuple(row.get(key) for key in exact) for row in self.rows(name)]

    def events(self, name: str, event: str) -> list[Row]:
        return [row for row in read_rows(self.directory(name).events_file) if row["event"] == event]
