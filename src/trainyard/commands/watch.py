"""Watch a run or a job while it trains: progress, cost, checkpoints, network, GPUs, health.

A run is read from its directory, and the GPUs of this machine from the driver; a job's records and GPUs are
read in its pods, in which nothing is changed. On a terminal the view is drawn again at each poll; in a log
each poll and each alert is a line. It ends with the run. A tool that is missing leaves its part unknown,
which is never healthy.

Reads:      the run directory, nvidia-smi, the kernel's Xid lines, /sys/class/infiniband; with --job the API
            of the cluster and the pods of the job, by exec; TRAINYARD_USD_PER_HOUR (price of the machines)
Writes:     the view, or with --json one object for each poll, on stdout; the file of --prometheus
Exit codes: 0 healthy; 1 not healthy, or not known, or the run or the job failed; 2 wrong usage, no such run
            or job; 4 the cluster refuses; 5 the run had not ended after --timeout
Example:    trainyard watch runs/20261120-214501-7c1f --once
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.cluster.check_definition import list_names
from trainyard.command import arguments, output, terminal
from trainyard.command.cluster_options import add_cluster_options, check_cluster_options
from trainyard.command.parser import add_flag, add_option, add_run, script_parser
from trainyard.commands.job import open_jobs
from trainyard.errors import ConfigError, ExitCode, ServiceError, WaitTimeoutError
from trainyard.gateways.local_machine import has_nvidia_driver
from trainyard.gateways.node_reading import SCRIPT, read_node_answer, read_this_node
from trainyard.jobs.follow.job_view import JobView
from trainyard.jobs.follow.pod_readings import PodReader
from trainyard.jobs.job_kind import Observed
from trainyard.jobs.state.job_state import State
from trainyard.program_training import is_alive
from trainyard.report.facts.live_status import LiveStatus, status_samples
from trainyard.report.facts.run_facts import read_facts
from trainyard.report.facts.status import Status
from trainyard.report.terminal.watch_text import status_line, status_lines
from trainyard.run.directory import RunDirectory
from trainyard.run.prometheus_text import write_prometheus_file
from trainyard.run.rank_times import read_rank_times
from trainyard.run.run_lock import last_holder
from trainyard.watch.health import Health

if TYPE_CHECKING:
    from trainyard.gateways.node_reading import NodeReading
    from trainyard.jobs.job_reader import FoundJob
    from trainyard.jobs.state.job_state import JobState
    from trainyard.report.facts.run_facts import RunFacts
    from trainyard.run.rank_times import RankTime

TERMINAL_SECONDS, LOG_SECONDS = 5.0, 60.0
# How long a job may take to be seen for the first time: as long as three calls to the API.
FIRST_SECONDS = 60.0
POD_SECONDS = 20.0
"""Seconds after which a pod without an answer is reported as silent."""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, json="each poll, in one line,")
    what = parser.add_mutually_exclusive_group(required=True)
    add_run(what)
    add_option(what, "--job", "JOB", "a job of a cluster instead", type=arguments.object_name)
    add_flag(parser, "--once", "poll once; the exit code is the health")
    figures = "also write health, cost and machines for Prometheus' node_exporter (*.prom)"
    add_option(parser, "--prometheus", "FILE", figures, type=arguments.path)
    every = "time between two polls; default: 5s on a terminal, else 1m"
    add_option(parser, "--every", "DURATION", every, type=arguments.duration)
    limit = "how long to watch a run that does not end; default: 24h"
    add_option(parser, "--timeout", "DURATION", limit, type=arguments.duration, default="24h")
    place = "namespace of the job; default: the context's, else `default`"
    add_option(parser, "--namespace", "NAME", place, type=arguments.object_name_if_given)
    add_cluster_options(parser, kind=True)
    args = parser.parse_args(argv)
    check_cluster_options(parser, args)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    with ExitStack() as stack:
        watched: RunWatch | JobWatch
        if args.job:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="trainyard-"))
            watched = stack.enter_context(JobWatch(args, folder))
        else:
            watched = RunWatch(args.run_dir)
        return watch(args, watched)


def watch(args: argparse.Namespace, watched: "RunWatch | JobWatch") -> int:
    """Poll until the run has ended, and show each status; return the exit code."""
    is_live = not args.once and not args.json and terminal.can_redraw()
    every = args.every or (TERMINAL_SECONDS if is_live else LOG_SECONDS)
    deadline, view = time.monotonic() + args.timeout, LiveView()
    with terminal.show_live(view) if is_live else nullcontext():
        while True:
            started = time.monotonic()
            status = watched.read_status()
            is_last = args.once or status.is_over
            if args.prometheus:
                try:
                    write_prometheus_file(args.prometheus, status_samples(status))
                except OSError as error:
                    why = f"cannot be written ({error.strerror})"
                    raise ConfigError(f"--prometheus {args.prometheus}: {why}") from None
            if args.json:
                output.print_json(status.record(), indent=None)
            elif is_live:
                view.show(status)
            elif not is_last:
                view.log(status)
            if is_last or time.monotonic() >= deadline:
                break
            # A run with millions of rows takes a while to read.
            time.sleep(max(every, 5 * (time.monotonic() - started)))
    if not args.json:
        view.show(status)
        output.print_text(view.line(terminal.width()))
    if not is_last:
        return ExitCode.TIMED_OUT
    return ExitCode.DONE if status.health == "healthy" else ExitCode.NO


class LiveView:
    """The view on a terminal, and the lines in a log."""

    def __init__(self) -> None:
        self._record: dict[str, Any] | None = None
        self._reported: dict[tuple[str, str, float], bool] = {}

    def show(self, status: LiveStatus) -> None:
        self._record = status.record()

    def line(self, width: int) -> str:
        return "" if self._record is None else "\n".join(status_lines(self._record, width))

    def log_progress(self) -> None:
        """Do nothing: `log` writes each status when it is read."""

    def log(self, status: LiveStatus) -> None:
        """Log a status, and each alert when it starts and when it ends."""
        output.announce("watch", status_line(status.record()))
        for alert in status.alerts:
            key = alert.rule, alert.subject, alert.since
            before = self._reported.get(key)
            if alert.is_open and before is None:
                output.announce("health", alert.text, "degraded")
            elif not alert.is_open and before is True:
                output.announce("health", f"over: {alert.text}", "ok")
            self._reported[key] = alert.is_open


class MachineWatch:
    """The health of the machines over all polls, and the speed of their networks between two polls."""

    def __init__(self) -> None:
        self.health = Health()
        self.rates: dict[str, tuple[float, float]] = {}
        self._bytes: dict[str, tuple[float, tuple[int, int]]] = {}

    def add(self, name: str, reading: "NodeReading", now: float, *, since: float | None) -> None:
        """Add the reading of one machine; Xid lines from before `since` are of another run."""
        self.health.add_gpus(reading.gpus, now, node=name)
        recent = [xid for xid in reading.xids or () if since is None or now - xid.seconds_ago >= since]
        self.health.add_xids((xid.text for xid in recent), now, node=name)
        count, clock = reading.network_bytes, time.monotonic()
        if count is not None:
            before, (sent, received) = self._bytes.get(name, (clock, count))
            if clock > before:
                span = clock - before
                self.rates[name] = (max(0, count[0] - sent) / span, max(0, count[1] - received) / span)
            self._bytes[name] = clock, count

    def add_ranks(self, facts: "RunFacts", now: float) -> "Sequence[RankTime]":
        """Add the step times that the processes of the newest segment have written, and return them."""
        starts = (event.get("time") for event in facts.events if event.get("event") in ("started", "resumed"))
        since = max((start for start in starts if isinstance(start, int | float)), default=0.0)
        ranks = read_rank_times(RunDirectory(facts.directory).logs, since=since)
        self.health.add_ranks({each.rank: each.seconds for each in ranks if each.seconds}, now)
        return ranks


class RunWatch:
    """Reads a run directory, and this machine while the run trains here."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._machines = directory, MachineWatch()

    def read_status(self) -> LiveStatus:
        now = time.time()
        facts = read_facts(self._directory, now=now)
        is_here, unknown, nodes = trains_here(self._directory), list[str](), dict[str, "NodeReading"]()
        is_silent = facts.state.status is Status.INTERRUPTED and is_here
        if is_silent and facts.timestamp is not None:
            self._machines.health.judge_silence(facts.timestamp, now, facts.history.times.tolist())
        ranks: Sequence[RankTime] = ()
        if facts.state.going or is_silent:
            ranks = self._machines.add_ranks(facts, now)
            reading, unknown = self._read_machine(facts, is_here=is_here)
            if reading is not None:
                nodes = {"": reading}
                self._machines.add("", reading, now, since=facts.run.get("created"))
        else:
            self._machines.health.end_all(now)
        alerts = [*facts.alerts, *self._machines.health.alerts]
        rates = self._machines.rates
        return LiveStatus(now, facts, alerts, unknown, nodes, rates, ranks, is_alive=is_here)

    def _read_machine(self, facts: "RunFacts", *, is_here: bool) -> tuple["NodeReading | None", list[str]]:
        """Return the reading of this machine, without unused GPUs, and a list of what is not known."""
        device = str(facts.section("hardware").get("device") or "")
        on_gpu = device.startswith("cuda")
        if not is_here:
            what = "the GPUs" if on_gpu else "its process"
            return None, [f"{what}: the run does not train on this machine"]
        reading, unknown = read_this_node(), list[str]()
        if device == "cpu":
            return replace(reading, gpus=(), gpu_trouble=""), unknown
        if reading.gpu_trouble and (on_gpu or has_nvidia_driver()):
            unknown.append(f"the GPUs: {reading.gpu_trouble}")
        if facts.nodes > 1 and on_gpu:
            unknown.append(f"the GPUs of {facts.nodes - 1} other machines")
        return replace(reading, gpus=tuple(gpu for gpu in reading.gpus if gpu.is_used or gpu.faults)), unknown


def trains_here(directory: Path) -> bool:
    """Return whether a process of this machine trains in the run directory."""
    holder = last_holder(directory)
    with suppress(OSError):
        return holder is not None and holder.is_here and is_alive(directory)
    return False


class JobWatch:
    """Reads a job of a cluster, and its pods. A context manager: its watches end with the block."""

    def __init__(self, args: argparse.Namespace, folder: str) -> None:
        reader, namespace = open_jobs(args)
        self._job: FoundJob = reader.find_job(namespace, args.job, args.kind)
        self._view = JobView(reader.api, Observed(self._job.kind, namespace, self._job.name, None))
        self._pods: PodReader = PodReader(reader.api, self._job, seconds=POD_SECONDS)
        self._folder, self._machines = Path(folder), MachineWatch()
        self._last: tuple[RunFacts, float] | None = None
        """The newest facts, and when they were read."""

    def __enter__(self) -> "JobWatch":
        self._view.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._view.__exit__()

    def _judge(self) -> tuple[Observed, "JobState"]:
        """Return what the watches have shown of the job, and the state of the job.

        Raises ServiceError if the job cannot be read, WaitTimeoutError if the cluster shows it too late.
        """
        self._view.catch_up(FIRST_SECONDS)
        if not self._view.is_seen:
            late = f"The cluster showed nothing of {self._job.name} in {FIRST_SECONDS:.0f} seconds"
            raise self._view.trouble or WaitTimeoutError(late)
        state = self._view.current_state()
        return self._view.observation(), state

    def read_status(self) -> LiveStatus:
        observed, state = self._judge()
        now = observed.now
        pods = [pod for pod in observed.pods if pod.running and not pod.helps]
        unknown, nodes, health = list[str](), dict[str, "NodeReading"](), self._machines.health
        health.add_job_alerts(state.alerts, now)
        if state.ended:
            health.end_all(now)
        elif state.state is not State.RUNNING:
            unknown.append(f"the job is {state.state}: {state.reason}")
        elif not pods:
            unknown.append("the pods: none is running")
        facts = self._facts(pods, now) if pods else None
        if facts is not None:
            self._last = facts, now
        if pods:
            nodes, silent = self._read_pods(pods, now, facts)
            unknown += silent
            try:
                health.add_node_notices(self._pods.leaving_nodes(pods), now)
            except ServiceError as error:
                unknown.append(f"the nodes: {error}")
            if facts is None:
                unknown.append("the steps: no pod has the record of a run")
        if self._view.trouble is not None and not state.ended:
            unknown.append(f"the state of the job: {self._view.trouble}")
        ranks = self._machines.add_ranks(facts, now) if facts else ()
        alerts, age = [*(facts.alerts if facts else ()), *health.alerts], None
        if facts is None and state.ended and self._last is not None:
            facts, age = self._last[0], now - self._last[1]
        rates = self._machines.rates
        return LiveStatus(now, facts, alerts, unknown, nodes, rates, ranks, state, facts_age=age)

    def _read_pods(
        self, pods: Sequence[Any], now: float, facts: "RunFacts | None"
    ) -> tuple[dict[str, "NodeReading"], list[str]]:
        """Return the readings of the pods' machines by pod name, and a list of what is not known."""
        nodes, plan = dict[str, "NodeReading"](), self._job.plan
        unknown: dict[str, list[str]] = {}  # reason -> the pods that share it
        answers = self._pods.run_script(pods, SCRIPT)
        silent = [name for name, answer in answers.items() if answer is None]
        self._machines.health.add_silent_pods(silent, answers, now)
        since = facts.run.get("created") if facts else None
        for name, answer in answers.items():
            if not isinstance(answer, str):
                reason = str(answer or "it does not answer").replace(name, "the pod")
                unknown.setdefault(reason, []).append(name)
                continue
            reading = read_node_answer(answer)
            if plan is not None and not plan.resources.gpus:
                reading = replace(reading, gpus=(), gpu_trouble="")
            if reading.gpu_trouble:
                unknown.setdefault(f"the GPUs: {reading.gpu_trouble}", []).append(name)
            nodes[name] = reading
            self._machines.add(name, reading, now, since=since)
        return nodes, [f"{list_names(names)}: {reason}" for reason, names in unknown.items()]

    def _facts(self, pods: Sequence[Any], now: float) -> "RunFacts | None":
        """Return the facts of the run's record in the pods; None if no pod has one."""
        if not self._pods.read_records(pods, self._folder):
            return None
        with suppress(ConfigError):
            facts = read_facts(self._folder, now=now)
            plan = self._job.plan
            known = (
                {"instance_type": plan.instance_type, "requests": plan.resources.of_machine} if plan else {}
            )
            return replace(facts, run={**known, **facts.run})
        return None
