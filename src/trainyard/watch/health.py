"""Decide whether a run is healthy, from its rows, its events and the readings of its machines.

    rows, events, readings of GPUs and ranks  --Health-->  alerts, each with its start and its end

The report, Slack, `trainyard watch` and the metrics all use it, so that they agree. A run is only compared
with itself: a step with the usual time of the run, a rank with the other ranks. Pure.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trainyard.run.usual_value import (
    KEPT_VALUES,
    LEAST_VALUES,
    longest_pause,
    median_of,
    noise_limit,
    usual_value,
)
from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.failure_logs.failure_explanation import explain_logs
from trainyard.watch.failure_logs.log_text import log_of

if TYPE_CHECKING:
    from trainyard.gateways.nvidia import GpuReading

_SILENT_SECONDS = 600.0
"""A run may be silent this long, because compiling, validating and saving write no rows."""
_SILENT_ROWS = 10
"""A run that logs rarely may be silent for this many of its own logging intervals."""
IDLE_SECONDS = 300.0
"""A GPU is idle when it has computed nothing for this long: a save or a validation takes less."""
_IDLE_PERCENT = 5.0
_RECENT_ROWS = 12
"""Speed and waiting are judged by the median of so many rows, so that single slow steps do not count."""
_SLOWER = math.log(1.5)
_WAITING_SHARE, _WAITING_SHARE_OVER = 0.3, 0.15
"""Share of a step spent waiting for data at which an alert starts, and at which it ends."""
_RANK_BEHIND = 1.2
_FIGURES = ("step", "step_seconds", "data_seconds", "gpu_utilization_percent")
_LARGEST = 1e100
_MEDIAN_ERROR = 1.2533
"""The standard error of a median of n normal values is this, times their deviation, over the root of n."""


class HealthRule(StrEnum):
    """The faults that are detected. The values are the names in JSON, and the labels of the metrics."""

    HUNG = "hung"
    SLOW = "slow"
    STRAGGLER = "straggler"
    IDLE_GPU = "idle-gpu"
    DATA_STARVED = "data-starved"
    LOSS_SPIKE = "loss-spike"
    THROTTLED = "throttled"
    GPU_FAULT = "gpu-fault"
    NODE_LEAVING = "node-leaving"
    TWO_ZONES = "two-zones"


_LASTING = {
    HealthRule.SLOW: 60.0,
    HealthRule.STRAGGLER: 60.0,
    HealthRule.DATA_STARVED: 60.0,
    HealthRule.THROTTLED: 30.0,
    HealthRule.IDLE_GPU: IDLE_SECONDS,
}
"""The seconds that a fault lasts before it is reported; others are reported at once."""


@dataclass
class Alert:
    """One fault, from its start to its end."""

    rule: HealthRule
    subject: str
    """The rank, GPU or node; empty for the run."""
    since: float
    """Unix seconds."""
    text: str
    until: float | None = None
    """None while it lasts."""

    @property
    def is_open(self) -> bool:
        return self.until is None

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "rule": self.rule.value, "subject": self.subject or None}


class _Usual:
    """The usual value of a stream: median and deviation of the logarithms of its last good values."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=KEPT_VALUES)
        self._new = 0
        self.median: float | None = None
        """None until enough values have come."""
        self.deviation = 0.0

    def add(self, value: float) -> None:
        self._values.append(value)
        self._new += 1
        if len(self._values) < LEAST_VALUES or (self.median is not None and self._new < LEAST_VALUES // 2):
            return
        self._new = 0
        self.median, self.deviation = usual_value(self._values)


class Health:
    """The alerts of one run. Rows, events and readings are added in the order of their times."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []
        """All alerts, in the order in which they were found."""
        self._open: dict[tuple[HealthRule, str], Alert] = {}
        self._first: dict[tuple[HealthRule, str], float] = {}
        """When a fault that has not lasted long enough was first seen."""
        self._start_segment()

    def _start_segment(self) -> None:
        self._pace, self._loss = _Usual(), _Usual()
        self._paces: deque[float] = deque(maxlen=_RECENT_ROWS)
        self._waits: deque[float] = deque(maxlen=_RECENT_ROWS)
        self._before: tuple[float, float] | None = None

    @property
    def open_alerts(self) -> list[Alert]:
        return [alert for alert in self.alerts if alert.is_open]

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Take an event. A new segment may run on other machines, so its speed is learned again."""
        now, name = _time_of(event), event.get("event")
        if now is None:
            return
        if name in ("started", "resumed"):
            self.end_all(now)
            self._start_segment()
        elif name == "hang_suspected":
            step, reason = event.get("step"), event.get("reason")
            at = f", step {step:,}" if isinstance(step, int) else ""
            because = f": {reason}" if isinstance(reason, str) else ""
            self._start(HealthRule.HUNG, "", now, f"nothing moves{at}{because}")

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Take a row of `metrics.jsonl`; numbers that no training produces are ignored."""
        now, loss = _time_of(row), row.get("loss")
        if now is None:
            return
        known = {key: row[key] for key in _FIGURES if _is_number(row.get(key))}
        self._end(HealthRule.HUNG, "", now)
        if (pace := self._pace_of(known, now)) is not None:
            self._judge_pace(math.log(pace), now)
        if "loss" in row and "reward" not in row:  # a run that trains on rewards: its loss says little
            self._judge_loss(loss, known.get("step"), now)
        self._judge_waiting(known, now)
        if (use := known.get("gpu_utilization_percent")) is not None:
            self._judge_use("the first GPU", use, now)

    def add_gpus(self, gpus: Iterable["GpuReading"], now: float, *, node: str = "") -> None:
        """Take the readings of one machine's GPUs while the run trains."""
        for gpu in gpus:
            name = f"GPU {gpu.index}" + (f" of {node}" if node else "")
            if gpu.utilization_percent is not None:
                self._judge_use(name, gpu.utilization_percent, now)
            if gpu.is_throttled is not None:
                hot = "" if gpu.temperature_celsius is None else f" at {gpu.temperature_celsius:.0f} °C"
                text = f"{name} is slowed down because it is too hot{hot}"
                self._judge(HealthRule.THROTTLED, name, now, text, holds=gpu.is_throttled)
            faults = f"{name}: {', '.join(gpu.faults)}"
            self._judge(HealthRule.GPU_FAULT, name, now, faults, holds=bool(gpu.faults))

    def add_ranks(self, seconds: Mapping[int, float], now: float) -> None:
        """Take the seconds of a step that each rank needed before it waited for the others."""
        for rank, own in seconds.items():
            others = [value for other, value in seconds.items() if other != rank]
            if not others or (usual := median_of(others)) <= 0:
                continue
            text = f"rank {rank} needs {own:.3g} s for its part of a step, the others {usual:.3g} s"
            self._judge(HealthRule.STRAGGLER, f"rank {rank}", now, text, holds=own > _RANK_BEHIND * usual)

    def add_xids(self, lines: Iterable[str], now: float, *, node: str = "") -> None:
        """Take lines of the kernel about faults of GPUs; those that a program causes are left to its log."""
        for line in lines:
            if explain_logs([log_of("kernel", line)]).klass is FailureClass.HARDWARE:
                text = line.removeprefix("NVRM: ") + (f" on {node}" if node else "")
                self._start(HealthRule.GPU_FAULT, text, now, text)

    def add_silent_pods(self, silent: Iterable[str], asked: Iterable[str], now: float) -> None:
        """Take the pods that were asked, and those of them that gave no answer in time."""
        silent = set(silent)
        for pod in asked:
            self._judge(HealthRule.HUNG, pod, now, f"{pod} does not answer", holds=pod in silent)

    def add_node_notices(self, notices: Mapping[str, str], now: float) -> None:
        """Take the nodes that are about to be replaced, each with the reason."""
        leaving = {subject for rule, subject in self._open if rule is HealthRule.NODE_LEAVING}
        for node in leaving | notices.keys():
            text = f"node {node} is about to be replaced: {notices.get(node, '')}"
            self._judge(HealthRule.NODE_LEAVING, node, now, holds=node in notices, text=text)

    def add_job_alerts(self, alerts: Sequence[str], now: float) -> None:
        """Take what is wrong with the state of the job: its pods are in several zones."""
        self._judge(HealthRule.TWO_ZONES, "", now, "; ".join(alerts), holds=bool(alerts))

    def judge_silence(self, newest: float, now: float, times: Sequence[float]) -> None:
        """Take the age of the newest record of a run that has not ended."""
        silent = now - newest
        if silent > silence_limit(times):
            self._first.setdefault((HealthRule.HUNG, ""), newest)
            self._start(HealthRule.HUNG, "", now, f"no step and no event for {silent / 60:.0f} minutes")

    def end_all(self, now: float) -> None:
        """End every alert, because the run has ended or starts again."""
        for alert in self._open.values():
            alert.until = now
        self._open.clear()
        self._first.clear()

    def _pace_of(self, row: Mapping[str, Any], now: float) -> float | None:
        """Return the seconds per step, by the row itself or by the time since the row before."""
        step, before = row.get("step"), self._before
        if isinstance(step, int | float):
            self._before = (step, now)
        seconds = row.get("step_seconds")
        if seconds is None and before is not None and isinstance(step, int | float) and step > before[0]:
            seconds = (now - before[1]) / (step - before[0])
        return seconds if isinstance(seconds, int | float) and 1e-100 < seconds < math.inf else None

    def _judge_pace(self, pace: float, now: float) -> None:
        usual = self._pace
        if len(self._paces) == _RECENT_ROWS and (HealthRule.SLOW, "") not in self._first:
            usual.add(self._paces[0])
        self._paces.append(pace)
        if usual.median is None:
            return
        excess = median_of(self._paces) - usual.median
        limit = max(_SLOWER, 6 * _MEDIAN_ERROR * usual.deviation / math.sqrt(_RECENT_ROWS))
        limit = _SLOWER / 2 if (HealthRule.SLOW, "") in self._open else limit
        text = f"steps take {math.exp(excess):.1f} times as long as before ({math.exp(usual.median):.3g} s)"
        self._judge(HealthRule.SLOW, "", now, text, holds=excess > limit)

    def _judge_loss(self, loss: object, step: object, now: float) -> None:
        if isinstance(loss, str) or (isinstance(loss, float) and not math.isfinite(loss)):
            self._start(HealthRule.LOSS_SPIKE, "", now, f"the loss is {loss}")
            return
        if not _is_number(loss) or not isinstance(loss, int | float) or loss <= 0:
            return
        value, usual = math.log(loss), self._loss
        limit = noise_limit(usual.deviation)
        limit = limit / 2 if (HealthRule.LOSS_SPIKE, "") in self._open else limit
        if usual.median is None or value - usual.median <= limit:
            usual.add(value)
            self._end(HealthRule.LOSS_SPIKE, "", now)
            return
        at = f" at step {step:,.0f}" if isinstance(step, int | float) else ""
        text = f"the loss is {loss:.3g}{at}, it was {math.exp(usual.median):.3g}"
        self._start(HealthRule.LOSS_SPIKE, "", now, text)

    def _judge_waiting(self, row: Mapping[str, Any], now: float) -> None:
        data, step = row.get("data_seconds"), row.get("step_seconds")
        if not isinstance(data, int | float) or not isinstance(step, int | float) or step <= 0:
            return
        self._waits.append(data / step)
        if len(self._waits) < _RECENT_ROWS:
            return
        share = median_of(self._waits)
        limit = _WAITING_SHARE_OVER if (HealthRule.DATA_STARVED, "") in self._open else _WAITING_SHARE
        text = f"{100 * share:.0f} % of a step is spent waiting for data"
        self._judge(HealthRule.DATA_STARVED, "", now, text, holds=share > limit)

    def _judge_use(self, name: str, percent: float, now: float) -> None:
        since = self._first.get((HealthRule.IDLE_GPU, name), now)
        text = f"{name} has been idle for {(now - since) / 60:.0f} minutes"
        self._judge(HealthRule.IDLE_GPU, name, now, text, holds=percent <= _IDLE_PERCENT)

    def _judge(self, rule: HealthRule, subject: str, now: float, text: str, *, holds: bool) -> None:
        if holds:
            self._start(rule, subject, now, text)
        else:
            self._end(rule, subject, now)

    def _start(self, rule: HealthRule, subject: str, now: float, text: str) -> None:
        """Start the alert once the fault has lasted."""
        key = (rule, subject)
        first = self._first.setdefault(key, now)
        if key in self._open:
            self._open[key].text = text
        elif now - first >= _LASTING.get(rule, 0.0):
            self._open[key] = alert = Alert(rule, subject, first, text)
            self.alerts.append(alert)

    def _end(self, rule: HealthRule, subject: str, now: float) -> None:
        if self._first.pop((rule, subject), None) is not None and (rule, subject) in self._open:
            self._open.pop((rule, subject)).until = now


def health_of(rows: Iterable[Mapping[str, Any]], events: Iterable[Mapping[str, Any]]) -> Health:
    """Return the health by the rows and the events of a run, in the order of their times."""
    health, waiting = Health(), [event for event in events if _time_of(event) is not None][::-1]
    for row in rows:
        now = _time_of(row)
        while waiting and now is not None and (_time_of(waiting[-1]) or 0.0) <= now:
            health.add_event(waiting.pop())
        health.add_row(row)
    while waiting:
        health.add_event(waiting.pop())
    return health


def _time_of(record: Mapping[str, Any]) -> float | None:
    value = record.get("time")
    return float(value) if isinstance(value, int | float) and _is_number(value) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def silence_limit(times: Sequence[float]) -> float:
    """Return the seconds for which a run with rows at these times may write nothing."""
    intervals = [after - before for before, after in pairwise(times[-20:])]
    return longest_pause(intervals, factor=_SILENT_ROWS, least=_SILENT_SECONDS)
