"""The pipeline, once: the steps that train, store and prove a run, and their order.

    check ─> prepare ─> fetch ─> claim ─> train ─> evaluate ─> store ─> prove ─> report ─> notify

`run_pipeline` takes all of them for a run; pods and the jobs of a workflow take them one by one. A step is a
function with its values, so that a plan can be printed and compared. Only our trainer is a process of its
own, which has the memory of torch; the program of somebody else is supervised from here. The commands parse
what a person gave and call this.
"""

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from trainyard.command.handler import code_of
from trainyard.command.output import announce, leave_log_to_terminal
from trainyard.commands.doctor import check_readiness
from trainyard.commands.evaluate import evaluate_run
from trainyard.commands.notify import Notice, notify
from trainyard.commands.prepare import prepare_data
from trainyard.commands.prove import prove_run
from trainyard.commands.report import write_report
from trainyard.commands.step_environment import check_environment
from trainyard.commands.step_fetch_checkpoint import fetch_checkpoint
from trainyard.commands.store_sync import follow_run, store_run
from trainyard.config.load import load_config
from trainyard.config.secret_filter import SecretFilter
from trainyard.deployment_checks import Deployment
from trainyard.errors import ExitCode, StoppedError, TrainyardError
from trainyard.gateways.github import in_actions, log_group
from trainyard.gateways.gpu_lock import with_gpu_lock
from trainyard.gateways.process import SignalForwarder, environment_without, withheld_names
from trainyard.program_training import ProgramOrder, train_program
from trainyard.proof import PARTS
from trainyard.report.facts.run_facts import read_record
from trainyard.run.directory import RunDirectory
from trainyard.run.run_lock import is_locked
from trainyard.run_choice import claim_run_number, require_same_inputs

_NAME_CELLS = 12
ENDLESS = 3650 * 86_400.0


@dataclass(frozen=True)
class Step:
    """A step with its values. `apply` returns an exit code, or a result of a step that is done."""

    name: str
    apply: Callable[..., Any]
    values: Mapping[str, Any]
    is_process: bool = False
    """Whether `apply` returns the command of a process, which gets the signals."""

    def record(self) -> dict[str, Any]:
        """Return the name and the values that are set, as JSON has them."""
        given: dict[str, Any] = {}
        for name, value in self.values.items():
            if is_dataclass(value) and not isinstance(value, type):
                given |= {field: each for field, each in asdict(value).items() if each is not False}
            else:
                given[name] = value
        found = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
        return {"step": self.name} | {name: v for name, v in found.items() if v not in (None, "", (), [])}


def plan_record(steps: Sequence[Step]) -> dict[str, Any]:
    """Return the plan as JSON; secrets are masked."""
    secrets = SecretFilter.of({"environment": dict(os.environ)})

    def mask(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [mask(each) for each in value]
        return secrets.mask_under("", value) if isinstance(value, str) else value

    return {"steps": [{name: mask(value) for name, value in step.record().items()} for step in steps]}


def plan_text(steps: Sequence[Step]) -> str:
    """Return the plan as a line for each step, with its values."""
    lines = []
    for record in plan_record(steps)["steps"]:
        words = [f"{record.pop('step'):<{_NAME_CELLS}}"]
        for key, value in record.items():
            text = shlex.join(map(str, value)) if isinstance(value, list) else str(value)
            words.append(f"{key}={shlex.quote(text)}")
        lines.append(" ".join(words))
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Pipeline(ProgramOrder):
    """The settings of a run, which are those of its training and more, and its steps."""

    run_dir: Path = field()
    store: str
    """Address of the store; empty only in a pod, which then does not store the run."""
    run_number: int | None = None
    """None: the number that the store has for the run, else a free one."""
    run_id: str | None = None
    """The id of a run that is new in `run_dir`; None: the name of the directory; empty: that of the run that
    has `run_number` in the store."""
    may_adopt: bool = False
    """Whether this may be a start of a run that another machine began, and that is in the store."""
    lineage: str = ""
    segment: int = 1
    searches: bool = True
    """Whether the store is searched for a checkpoint to resume from."""
    allow_missing_checkpoint: bool = False
    """Whether a later segment may start if the earlier ones stored nothing."""
    notifies: bool = False
    """Whether messages are posted to Slack."""
    prepares: bool = True
    """Whether there is data to prepare; another program prepares its own."""
    notice: Mapping[str, str] = field(default_factory=dict)
    """Values of a Notice that every message has: `segment`, `thread`."""
    start: Mapping[str, str] = field(default_factory=dict)
    """Values of a Notice that only the first message has: `plan`, `reason`."""
    is_retried: bool = False
    """Whether a next segment follows an outage of the store, which then is no end."""

    @property
    def _configuration(self) -> dict[str, Any]:
        return {"file": self.config, "changes": tuple(self.changes)}

    @property
    def stored(self) -> dict[str, Any]:
        """The values that name the run and its place in the store."""
        return {"run_dir": self.run_dir, "store": self.store, "run_number": self.run_number}

    def check_machine(self) -> Step:
        where = {"run_dir": self.run_dir, "store": self.store}
        return Step("machine", check_environment, {**self._configuration, **where})

    def check_store(self) -> Step:
        # A run that is taken from the store by its number has no id yet that the number could belong to.
        number = None if self.run_id == "" else self.run_number
        wanted = Deployment(self.config, tuple(self.changes), **{**self.stored, "run_number": number})
        return Step("readiness", check_readiness, {"wanted": wanted})

    def prepare(self) -> list[Step]:
        """Return the step that prepares the data; nothing for another program, which prepares its own."""
        return [Step("prepare", prepare_data, self._configuration)] if self.prepares else []

    def before(self) -> list[Step]:
        """Return the steps before the training: check the machine and the store, prepare the data."""
        return [self.check_machine(), self.check_store(), *self.prepare()]

    @property
    def has_fetch(self) -> bool:
        """Return whether the store may have a checkpoint that is not on this machine."""
        return self.may_adopt or "://" in self.resume

    def fetch(self) -> Step:
        """Return the step that restores the checkpoint to resume from; its result names it."""
        where = {"resume": self.resume, "segment": self.segment, "searches": self.searches}
        named = {"run_id": self.run_id, "allow_missing_checkpoint": self.allow_missing_checkpoint}
        return Step("fetch", fetch_checkpoint, {**self.stored, **where, **named})

    def check_fetched(self, *, was_here: bool) -> list[Step]:
        """Return the step that compares the inputs of a run that was just fetched from the store."""
        if was_here or not (self.run_dir / "run.json").exists():
            return []
        return [Step("inputs", require_same_inputs, {"order": self.order})]

    def claim(self) -> list[Step]:
        """Return the step that claims the run's number in the store, before it trains."""
        values = {**self.stored, "run_id": self.run_id, "may_adopt": self.may_adopt}
        return [Step("claim", claim_run_number, values)] if self.store else []

    @property
    def order(self) -> ProgramOrder:
        """The training that is requested."""
        names = (each.name for each in fields(ProgramOrder))
        return ProgramOrder(**{name: getattr(self, name) for name in names})

    def train(self) -> Step:
        """Return the step that trains: with our trainer, in a process, or with another program."""
        if not self.prepares:
            return Step("train", supervise_program, {"order": self.order})
        return Step("train", training_command, {"order": self.order}, is_process=True)

    def evaluate(self) -> list[Step]:
        """Return the step that evaluates the last checkpoint; nothing without `evaluation.command`."""
        if not self.config.is_file():
            return []
        loaded = load_config(self.config, self.changes)
        if not loaded.config.evaluation.command:
            return []
        # The records of the run have no secrets, so a command with some is that of the configuration.
        has_secrets = loaded.config.evaluation != loaded.given.evaluation
        given = {"config": self.config, "changes": tuple(self.changes)} if has_secrets else {}
        return [Step("evaluate", evaluate_run, {"run_dir": self.run_dir, **given})]

    @property
    def stores_failed(self) -> bool:
        """Return whether a run that fails is stored, and each checkpoint while it trains."""
        if not self.config.is_file():
            return True
        return load_config(self.config, self.changes).config.artifacts.store_failed

    @property
    def follows(self) -> bool:
        """Return whether each checkpoint is stored while it trains."""
        return self.stores_failed and os.environ.get("TRAINYARD_FOLLOW") not in ("false", "off")

    def follow(self) -> Step:
        """Return the step that stores each checkpoint while it trains; what is left is stored after it."""
        # It is ended after the training, so it needs no time limit of its own.
        return Step("follow", follow_run, {**self.stored, "patience": ENDLESS, "stores_rest": False})

    def store_run(self) -> Step:
        return Step("store", store_run, self.stored)

    def prove(self) -> Step:
        return Step("prove", prove_run, {**self.stored, "only": PARTS})

    def judge(self) -> Step:
        """Return the step that proves what can be proven of a run before it is stored."""
        parts = tuple(part for part in PARTS if part != "stored")
        return Step("judge", prove_run, {**self.stored, "only": parts})

    def report(self) -> Step:
        return Step("report", write_report, {"run_dir": self.run_dir})

    def after(self) -> list[Step]:
        """Return the steps after a training that is done: evaluate, store, prove, report."""
        return [*self.evaluate(), self.store_run(), self.prove(), self.report()]

    def notify(self, event: str, **values: str) -> list[Step]:
        """Return the step that posts an event to Slack; nothing where Slack is not enabled."""
        start = self.start if event in ("started", "resumed") else {}
        plain = Notice(event=event, run_dir=self.run_dir, lineage=self.lineage or None)
        known: dict[str, Any] = {**self.notice, **start, **values}
        notice = replace(plain, **known)
        return [Step("notify", notify, {"notice": notice})] if self.notifies else []

    def steps(self) -> list[Step]:
        """Return all steps up to the report, in their order."""
        fetch = [self.fetch()] if self.has_fetch else []
        return [*self.before(), *fetch, *self.claim(), self.train(), *self.after()]


def training_command(order: ProgramOrder) -> list[str]:
    """Return the command of the process that trains."""
    # -P: a folder `trainyard` in the working directory is not this package.
    command = [sys.executable, "-P", "-m", "trainyard", "train", "--config", str(order.config)]
    command += [word for each in order.changes for word in ("--set", each)]
    command += ["--run-dir", str(order.run_dir), "--grace", f"{order.grace:.3f}s", "--resume", order.resume]
    command += ["--nproc-per-node", str(order.processes)] if order.processes else []
    return command + ([] if order.deadline is None else ["--deadline", f"{order.deadline:.3f}s"])


def supervise_program(order: ProgramOrder) -> int:
    """Train with another program, one after the other where TRAINYARD_GPU_LOCK says so."""
    return with_gpu_lock(lambda: train_program(order, closing_follows=True))()


class StepRunner(SignalForwarder):
    """Runs steps in this process, and keeps a signal between two of them from ending it.

    A signal interrupts the step that runs, as Ctrl-C does, or is passed on to the process of the training.
    """

    def __init__(self, *, prints: bool = True, is_grouped: bool = False) -> None:
        """`prints`: whether steps print to stdout, else to stderr; `is_grouped`: in groups of the log."""
        super().__init__()
        self.result: Any = None
        """What the last step returned."""
        self.codes: dict[str, int] = {}
        """Step -> its exit code."""
        self.results: dict[str, Any] = {}
        """Step -> what it returned."""
        self.reason = ""
        """The first line of the last error."""
        self._prints, self._is_grouped = prints, is_grouped
        self._is_in_step = False

    def run(self, *steps: Step) -> int:
        """Run steps in order until one fails; return its exit code, else 0."""
        for step in steps:
            with log_group(step.name) if self._is_grouped else nullcontext():
                code = self._run_process(step) if step.is_process else self._run_here(step)
            self.codes[step.name], self.results[step.name] = code, self.result
            if code:
                return code
        return ExitCode.DONE

    def take(self, number: int) -> None:
        super().take(number)
        if self._is_in_step:
            raise KeyboardInterrupt

    def _run_process(self, step: Step) -> int:
        with suppress(OSError):
            sys.stdout.flush()
        # The trainer of this repository gets no secret of the pipeline either.
        given = environment_without(withheld_names(os.environ), keeps_torchrun=True)
        stdout = None if self._prints else sys.stderr
        return self.run_process(step.apply(**step.values), stdout=stdout, environment=given)

    def _run_here(self, step: Step) -> int:
        before = len(self.passed)
        try:
            self._is_in_step = True
            try:
                with redirect_stdout(sys.stdout if self._prints else sys.stderr):
                    code = code_of(lambda: self._apply(step))
            finally:
                self._is_in_step = False
        except KeyboardInterrupt:  # it came while the end of the step was handled
            self._is_in_step = False
            code = ExitCode.INTERRUPTED
        came = self.passed[before:]
        # The import of torch may swallow an exception; what a signal asks for is then done after the step.
        if not came or code not in (ExitCode.DONE, ExitCode.INTERRUPTED):
            return code
        return ExitCode.INTERRUPTED if came[-1] == signal.SIGINT else 128 + signal.SIGTERM

    def _apply(self, step: Step) -> int:
        try:
            self.result = step.apply(**step.values)
        except TrainyardError as error:
            self.reason = str(error).partition("\n")[0]
            raise
        return self.result if isinstance(self.result, int) else ExitCode.DONE


def run_pipeline(
    pipeline: Pipeline,
    runner: StepRunner | None = None,
    *,
    is_needless: Callable[[StepRunner], bool] | None = None,
) -> int:
    """Run the steps in order; return the exit code of the first that fails. Report on a run that exists.

    `is_needless` is asked once the data are prepared; a run that is needless is not trained.
    """
    # Loaded here, because a signal between two steps interrupts neither.
    evaluation, was_here = pipeline.evaluate(), (pipeline.run_dir / "run.json").exists()
    with runner or StepRunner() as steps:
        if code := steps.run(*pipeline.before()):
            return finish_unstarted(pipeline, steps, code)
        if is_needless and is_needless(steps):
            return ExitCode.DONE
        if pipeline.has_fetch and (code := steps.run(pipeline.fetch())):
            return finish_unstarted(pipeline, steps, code)
        started = replace(pipeline, resume=steps.result.resume) if pipeline.has_fetch else pipeline
        if code := steps.run(*started.check_fetched(was_here=was_here), *started.claim()):
            return finish_unstarted(pipeline, steps, code)
        steps.run(*pipeline.notify("resumed" if pipeline.segment > 1 else "started"))
        if steps.passed:
            return finish_unstarted(pipeline, steps, ExitCode.INTERRUPTED)
        # The training shows its own live line, which the follower's lines would break.
        shown = leave_log_to_terminal() if pipeline.prepares else nullcontext()
        with shown, follow_beside(started.follow() if started.follows else None):
            code = steps.run(started.train())
        has_ended = code == ExitCode.DONE or has_stopped(pipeline.run_dir, code)
        # A start that was refused made no run, or somebody else trains it.
        is_over = (pipeline.run_dir / "run.json").is_file() and not is_locked(pipeline.run_dir)
        if not has_ended and not (pipeline.stores_failed and is_over):
            return finish(pipeline, steps, code, prove=True)
        evaluated = steps.run(*evaluation) if code == ExitCode.DONE else ExitCode.DONE
        judges = code == ExitCode.DONE and not pipeline.stores_failed
        if judges and (failure := steps.run(pipeline.judge()) or evaluated):
            return finish(pipeline, steps, failure)
        failure = steps.run(pipeline.store_run())
        if code == ExitCode.DONE and not failure:
            failure = steps.run(pipeline.prove()) or evaluated
            return finish(pipeline, steps, failure)
        return finish(pipeline, steps, code or failure, prove=code == ExitCode.DONE or not has_ended)


@contextmanager
def follow_beside(step: Step | None, *, pause: float = 60.0, patience: float = 3600.0) -> Iterator[None]:
    """Take the step of a follower in a thread while the body trains, if there is one; no signal reaches it.

    A follower that ends before the body is started again after `pause` seconds. At the end it has `patience`
    seconds to store what is left; after that the last step stores it.
    """
    if step is None:
        yield
        return
    stop = threading.Event()

    def apply() -> int:
        try:
            return int(step.apply(**step.values, stop=stop))
        except StoppedError:  # the training has ended without a run
            return ExitCode.DONE

    def follow() -> None:
        os.nice(19)  # of this thread: Linux has a priority for each one (sched(7))
        while not stop.is_set():
            code = code_of(apply)
            if code and not stop.is_set():
                text = (
                    f"storing checkpoints ended with exit code {int(code)} and starts again in {pause:.0f} s"
                )
                announce("artifacts", text, "degraded")
            stop.wait(pause)

    thread = threading.Thread(target=follow, name="follower", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(patience)


def finish_unstarted(pipeline: Pipeline, steps: StepRunner, code: int) -> int:
    """Report that the training was not started, and return `code`."""
    if is_outage := pipeline.is_retried and code == ExitCode.REFUSED:
        steps.run(*pipeline.notify("degraded", reason=f"{steps.reason}; the next segment tries again"))
    if pipeline.lineage and not is_outage and not (pipeline.run_dir / "run.json").exists():
        reason = steps.reason or f"it could not start (exit code {int(code)}); the log has the cause"
        run = os.environ.get("GITHUB_RUN_ID") if in_actions() else ""
        next_step = f"gh run view {run} --log-failed" if run else ""
        steps.run(*pipeline.notify("failed", reason=reason, next_step=next_step))
    return finish(pipeline, steps, code)


def finish(pipeline: Pipeline, steps: StepRunner, code: int, *, prove: bool = False) -> int:
    """Report on the run, if it exists; return `code`, or for 0 the exit code of the reports."""
    if code == ExitCode.DONE:
        return steps.run(pipeline.report(), *pipeline.notify("degraded"), *pipeline.notify("succeeded"))
    if (pipeline.run_dir / "run.json").exists():
        event = "stopped" if has_stopped(pipeline.run_dir, code) else "failed"
        proof = [pipeline.prove()] if prove else []
        is_outage = pipeline.is_retried and ExitCode.REFUSED in (code, steps.codes.get("store"))
        end = () if is_outage else pipeline.notify(event)
        for each in (*proof, pipeline.report(), *pipeline.notify("degraded"), *end):
            steps.run(each)
    return code


def has_stopped(run_dir: Path, code: int) -> bool:
    """Return whether the trainer's exit code says that it ended early with a good checkpoint.

    At limits.cost_usd the code is 1, and after Ctrl-C 130, so that nothing continues the run; the record says
    that it stopped.
    """
    outcome = read_record(RunDirectory(run_dir).run_file).get("outcome")
    recorded = outcome if isinstance(outcome, dict) else {}
    is_on_record = recorded.get("status") == "stopped" and recorded.get("exit_code") == code
    return code == ExitCode.STOPPED or is_on_record
