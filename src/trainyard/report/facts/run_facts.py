"""Everything that the reports say about a run, computed once from its directory.

    run.json, metrics.jsonl, events.jsonl, checkpoints/, report/proof.json  -->  RunFacts

A run may still be running, be cut off mid-line, be empty, or lack any of these. Unknown facts are None.
"""

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainyard.errors import CheckpointError, ConfigError, DamagedFileError
from trainyard.report.facts.history import Curve, MetricsHistory, finite_or_none, newest_rows, read_history
from trainyard.report.facts.proof_record import ProofRecord, read_proof
from trainyard.report.facts.status import RunState, Status, state_of
from trainyard.run.checkpoint_manifest import read_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import instance_type, pod_requests
from trainyard.run.records import Row, read_rows
from trainyard.run.run_advice import advice
from trainyard.run.run_lock import is_locked, leader_here
from trainyard.run.run_settings import settings_of_config
from trainyard.run.untrusted_files import MOST_YAML_BYTES, read_bytes, read_json_object
from trainyard.watch.goodput import Goodput, Price, goodput_of, paid_seconds, price_of
from trainyard.watch.health import Alert, health_of


@dataclass(frozen=True)
class ReportedCheckpoint:
    """A complete checkpoint in the run directory."""

    step: int
    path: Path
    size: int
    """Bytes."""
    files: int
    created: float
    """Unix seconds."""


@dataclass(frozen=True)
class RunFacts:
    """The known facts of one run."""

    directory: Path
    run: Mapping[str, Any]
    """`run.json`; empty when it is missing or unreadable."""
    history: MetricsHistory
    events: list[Row]
    checkpoints: tuple[ReportedCheckpoint, ...]
    proof: ProofRecord | None
    config_text: str | None
    """The unchanged text of `config.yaml`."""
    state: RunState
    timestamp: float | None
    """Time of the newest record, in Unix seconds."""
    stated_price: str = ""
    """US dollars per hour of all machines, as TRAINYARD_USD_PER_HOUR has it."""
    read_at: float | None = None
    """Unix seconds."""
    proof_is_outdated: bool = False
    """There is a proof, but the run has changed since, so the proof does not count."""

    @property
    def name(self) -> str:
        return str(self.run.get("run_id") or self.directory.resolve().name)

    @property
    def run_number(self) -> int | str | None:
        """The run number in the store, else that of the workflow."""
        if self.proof is not None and self.proof.run_number is not None:
            return self.proof.run_number
        return self.section("ci").get("run_number")

    @property
    def title(self) -> str:
        """`run 812`, or the run's id where it has no number."""
        return f"run {self.run_number or self.name}"

    @property
    def commit(self) -> str | None:
        return _text(self.section("git").get("commit"))

    @property
    def dirty(self) -> bool:
        return self.section("git").get("dirty") is True

    @property
    def step(self) -> int | None:
        """The last step on record."""
        last = self.outcome_figure("steps", self.history.last.get("step"))
        return None if last is None else int(last)

    @property
    def steps_done(self) -> int | None:
        """The number of steps on record, which the last one's number is not if a program counts from 0."""
        return None if self.step is None else self.step + (self.outcome.get("counts_from_zero") is True)

    @property
    def steps(self) -> int | None:
        """The number of planned steps."""
        return self._plan("steps")

    @property
    def steps_per_epoch(self) -> int | None:
        return self._plan("steps_per_epoch")

    @property
    def epoch(self) -> float | None:
        """Passes over the data until now; a partial pass counts as its share."""
        if self.step is None or self.steps_per_epoch is None:
            return self.history.last.get("epoch")
        return self.step / self.steps_per_epoch

    @property
    def epochs(self) -> float | None:
        """Planned passes over the data."""
        value = finite_or_none(self.section("plan").get("epochs"))
        return None if value is None or value <= 0 else value

    def curve(self, name: str) -> Curve:
        """A figure over the steps; without values where it is not known, as MFU on a CPU."""
        return self.history.curve("" if name == "mfu" and self.is_on_cpu else name)

    @property
    def figures(self) -> list[str]:
        """The names of the figures that have a curve."""
        return [name for name in self.history.figures if len(self.curve(name))]

    @property
    def is_on_cpu(self) -> bool:
        return str(self.section("hardware").get("device", "")).startswith("cpu")

    @property
    def first_loss(self) -> float | None:
        return self._first("loss")

    @property
    def loss(self) -> float | None:
        return self.outcome_figure("final_loss", self.history.last.get("loss"))

    @property
    def first_reward(self) -> float | None:
        return self._first("reward")

    @property
    def reward(self) -> float | None:
        """The reward of a run that trains on rewards, where the loss says little; None with other recipes."""
        return self.outcome_figure("final_reward", self.history.last.get("reward"))

    @property
    def validation_loss(self) -> float | None:
        return self.outcome_figure("validation_loss", self.history.last.get("val_loss"))

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte on the validation data."""
        return self.outcome_figure("bits_per_byte", self.history.last.get("val_bits_per_byte"))

    @cached_property
    def training_seconds(self) -> float | None:
        """Time spent training; the pause between a stop and the next segment does not count."""
        recorded = self.outcome_figure("seconds")
        return _seconds_trained(self.history, self.events) if recorded is None else recorded

    @cached_property
    def seconds_remaining(self) -> float | None:
        pace = self.history.seconds_per_step()
        if not self.state.going or pace is None or self.step is None or self.steps is None:
            return None
        return max(0, self.steps - self.step) * pace

    @property
    def usd(self) -> float | None:
        """The cost of the machines so far, without pauses between segments; None where no price is known."""
        price = self.price
        if price is None:
            return None
        seconds = self.training_seconds if self.goodput is None else self.goodput.paid
        return None if seconds is None else seconds / 3600 * price.usd_per_hour

    @property
    def usd_expected(self) -> float | None:
        """The cost of the training up to its last step, at its present pace."""
        price, usd, left = self.price, self.usd, self.seconds_remaining
        if price is None or usd is None or left is None:
            return None
        return usd + left / 3600 * price.usd_per_hour

    @property
    def nodes(self) -> int:
        """The number of machines; 1 where it is not on record."""
        hardware = self.section("hardware")
        size, here = (finite_or_none(hardware.get(f"{name}world_size")) for name in ("", "local_"))
        return max(1, math.ceil(size / here)) if size and here else 1

    @property
    def price(self) -> Price | None:
        """The price of all machines of the run, or of its pods' share of them."""
        kind = str(self.run.get("instance_type") or "")
        return price_of(self.stated_price, kind, self.nodes, self.section("requests"))

    @cached_property
    def alerts(self) -> list[Alert]:
        """The faults that the run has had in its newest rows, oldest first; after its end they are over."""
        health = health_of(newest_rows(RunDirectory(self.directory).metrics_file), self.events)
        has_ended = self.state.status in (Status.SUCCEEDED, Status.STOPPED, Status.FAILED)
        if self.timestamp is not None and has_ended:
            health.end_all(self.timestamp)
        return health.alerts

    @cached_property
    def goodput(self) -> Goodput | None:
        """The time of the run by what it was spent on."""
        steps, times = self.history.timed_steps()
        return goodput_of(
            steps,
            times,
            self.events,
            saves=float(self.history.curve("checkpoint_seconds").values.sum()),
            created=finite_or_none(self.run.get("created")),
            end=self.read_at if self.state.going else self.timestamp,
        )

    @property
    def mfu(self) -> float | None:
        """The rate of MFU, 0 to 1; None on a CPU, whose peak is not known."""
        return None if self.is_on_cpu else self.history.rate("mfu")

    @property
    def sample(self) -> str | None:
        return _text(self.outcome.get("sample"))

    @property
    def weights_sha256(self) -> str | None:
        """The digest of the model's tensors at the end of the run."""
        digests = self.outcome.get("state_sha256")
        return _text(digests.get("model")) if isinstance(digests, Mapping) else None

    @property
    def outcome(self) -> Mapping[str, Any]:
        return self.section("outcome")

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The sections of `config.yaml`, not validated; empty if it is missing or not YAML."""
        return settings_of_config((self.config_text or "").encode())

    def section(self, name: str) -> Mapping[str, Any]:
        """The object `name` in `run.json`; empty when there is none."""
        value = self.run.get(name)
        return value if isinstance(value, Mapping) else {}

    @property
    def machine(self) -> Mapping[str, Any]:
        """The recorded hardware; of another program also what the observer saw of its machine."""
        seen = self.section("observed").get("machine")
        known = {**(seen if isinstance(seen, Mapping) else {}), **self.section("hardware")}
        gpus = Counter(map(str, gpus if isinstance(gpus := known.get("gpus"), list) else ()))
        names = ", ".join(f"{count} × {name}" for name, count in gpus.items())
        return {"device_name": names, **known}

    def outcome_figure(self, name: str, logged: float | None = None) -> float | None:
        """The figure `name` of the outcome; `logged` where the outcome does not have it."""
        found = finite_or_none(self.outcome.get(name))
        return logged if found is None else found

    def _first(self, name: str) -> float | None:
        return self.outcome_figure(f"first_{name}", self.history.curve(name).first)

    def _plan(self, name: str) -> int | None:
        value = finite_or_none(self.section("plan").get(name))
        return None if value is None or value < 1 else int(value)


def read_facts(
    source: Path,
    *,
    now: float | None = None,
    clock: Callable[[], float] = time.time,
    environment: Mapping[str, str] = os.environ,
) -> RunFacts:
    """The facts of a run directory, given as the directory or as the metrics file in it.

    Raises ConfigError when `source` does not exist, or is neither of the two.
    """
    directory, metrics_file = _locate(source)
    layout = RunDirectory(directory)
    run = read_record(layout.run_file)
    events = read_rows(layout.events_file)
    history = read_history(metrics_file)
    newest = _newest(run, history, events)
    proof = read_proof(layout, run)
    outdated = proof is not None and proof.is_of_another_state
    now = clock() if now is None else now
    judged = None if outdated else proof
    state = state_of(run, history, newest, now=now, is_cut_off=_is_cut_off(directory, judged))
    return RunFacts(
        directory=directory,
        run=run,
        history=history,
        events=events,
        checkpoints=_checkpoints(layout),
        proof=judged if metrics_file == layout.metrics_file else None,
        read_at=now,
        proof_is_outdated=outdated,
        config_text=_config_text(layout.config_file),
        state=state,
        timestamp=newest,
        stated_price=environment.get("TRAINYARD_USD_PER_HOUR", ""),
    )


def _is_cut_off(directory: Path, proof: ProofRecord | None) -> bool:
    """Return whether the newest records were judged as not trained, and no trainer holds the run.

    The program of a run may outlive the command that holds the lock.
    """
    if proof is None or not any(part.name == "trained" for part in proof.failing):
        return False
    with suppress(OSError):
        program = leader_here(directory)
        return not is_locked(directory) and not (program and Path("/proc", str(program[0])).exists())
    return False


def seconds_to_cost_limit(
    limit: float | None, directory: Path, *, nodes: int, environment: Mapping[str, str] = os.environ
) -> float | None:
    """Return the seconds until the machines of a run have cost `limit` US dollars; None without one.

    Its earlier segments in this directory count. Raises ConfigError if the limit is reached, or no price is
    known.
    """
    if limit is None:
        return None
    stated, kind = environment.get("TRAINYARD_USD_PER_HOUR", ""), instance_type(environment) or ""
    price = price_of(stated, kind, nodes, pod_requests(environment))
    before = facts_if_any(directory)
    return paid_seconds(limit, price, before.goodput if before is not None else None)


def facts_if_any(source: Path) -> RunFacts | None:
    """The facts from `read_facts`; None while there is no run, for steps that can fail before it exists."""
    try:
        return read_facts(source)
    except ConfigError:
        return None


def _locate(source: Path) -> tuple[Path, Path]:
    if source.is_dir() and _is_run(source):
        return source, RunDirectory(source).metrics_file
    not_yet = source.name == "metrics.jsonl" and not source.exists() and _is_run(source.parent)
    if not_yet or (source.is_file() and source.suffix == ".jsonl"):
        return source.parent, source
    what = "no such run directory or metrics file"
    if source.is_dir():
        what = "is not a run directory: it has no run.json, no metrics.jsonl and no checkpoints/"
    elif source.exists():
        what = "is neither a run directory nor a metrics file, which ends with .jsonl"
    raise ConfigError(f"{source}: {what}. {advice(source)}")


def _is_run(directory: Path) -> bool:
    """Return whether a trainer has written anything here.

    Before its first step that may be only empty folders.
    """
    layout = RunDirectory(directory)
    files = (layout.run_file, layout.metrics_file, layout.events_file)
    return any(file.is_file() for file in files) or layout.checkpoints.is_dir()


def _newest(run: Mapping[str, Any], history: MetricsHistory, events: list[Row]) -> float | None:
    outcome = run.get("outcome")
    candidates = [
        finite_or_none(run.get("created")),
        finite_or_none(outcome.get("finished")) if isinstance(outcome, Mapping) else None,
        history.last.get("time"),
        finite_or_none(events[-1].get("time")) if events else None,
    ]
    return max((time_ for time_ in candidates if time_ is not None), default=None)


def _checkpoints(layout: RunDirectory) -> tuple[ReportedCheckpoint, ...]:
    """The checkpoints that have a manifest, oldest first; their other files are not read."""
    found = []
    for step in layout.checkpoint_steps():
        path = layout.checkpoint(step)
        try:
            manifest = read_manifest(path)
        except CheckpointError:
            continue
        total = sum(file.size for file in manifest.files)
        found.append(ReportedCheckpoint(step, path, total, len(manifest.files), manifest.created))
    return tuple(found)


def _seconds_trained(history: MetricsHistory, events: list[Row]) -> float | None:
    """The sum over the run's segments of the time from the segment's start to its last row."""
    import numpy as np

    times = history.times
    if not len(times):
        return None
    marks = [event.get("time") for event in events if event.get("event") in ("started", "resumed")]
    known = {mark for value in marks if (mark := finite_or_none(value)) is not None}
    starts = np.array(sorted(known) or [times[0]])
    ends, segments = starts.copy(), np.searchsorted(starts, times, side="right") - 1
    np.maximum.at(ends, segments[segments >= 0], times[segments >= 0])
    return float((ends - starts).sum())


def _config_text(path: Path) -> str | None:
    with suppress(OSError, DamagedFileError):
        return read_bytes(path, most=MOST_YAML_BYTES).decode("utf-8", errors="replace")
    return None


def _text(value: object) -> str | None:
    """`value` if it is a text that is not empty."""
    return value if isinstance(value, str) and value else None


def read_record(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when the file is missing or damaged."""
    with suppress(FileNotFoundError, DamagedFileError):
        return read_json_object(path)
    return {}
