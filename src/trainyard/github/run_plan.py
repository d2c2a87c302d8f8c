"""Decide once what a workflow run will do; later jobs use this plan and no inputs.

    inputs + variables + configuration ──resolve──> RunPlan ──> step outputs, plan.json, the next segment

It validates the inputs, and plans memory, time and cost if the machine is known.
`report.plan.run_plan_summary` formats the plan for people.

A run needs settings for where to train and where to store. A fresh copy of the repository has neither: there
a push and the daily run train nothing and end green, and a requested training is refused.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.config.registries import COMMAND, store_examples, store_pattern
from trainyard.config.schema import Config
from trainyard.errors import ConfigError, DamagedFileError
from trainyard.github.job_times import JOB_MINUTES, STORING_MINUTES, deadline_of
from trainyard.github.target import HOSTED, PLACES, Machine, Target, machine_for
from trainyard.github.variables import HOSTED_MINUTES, REGION, ROLE, count_in
from trainyard.plan.cost import RentedMachines
from trainyard.plan.device import cpu_of, gpu_of
from trainyard.plan.instances import find_instance
from trainyard.plan.training_plan import plan_training
from trainyard.run.segment import Segment, manifest_place
from trainyard.run.untrusted_files import parse_json_object

MOST_SEGMENTS = 20
_AUTOMATIC_EVENTS = ("push", "schedule")
"""Events that start a run that nobody requested."""
_STORE_EXAMPLE = "s3://BUCKET/PREFIX"
_CONTAINER_EXAMPLE = '{"image": "pytorch/pytorch:2.7.0-cuda12.6-cudnn9-runtime", "options": "--gpus all"}'


@dataclass(frozen=True)
class MissingSetting:
    """A setting that a run needs and that is missing."""

    what: str
    """The missing setting, such as `where to train`."""
    variable: str
    command: str
    """The command that sets it."""


_OVERRIDE = re.compile(r"""(?:(?<![^\s=,\[{])"[^"\n]*"|(?<![^\s=,\[{])'[^'\n]*'|\S)+""")
"""A quote opens at the beginning of a word or of a value; anywhere else it is an ordinary character."""


def overrides_in(text: str) -> tuple[str, ...]:
    """Return the overrides of a dispatch: words, in which quotes keep spaces: `model.name="my model"`.

    `"model.name=my model"` means the same. No override holds a line break.
    """
    return tuple(_normalize_quotes(word) for word in _OVERRIDE.findall(text))


def _normalize_quotes(word: str) -> str:
    quote, key, equals, value = word[0], *word[1:-1].partition("=")
    if quote in "\"'" and word[-1] == quote and len(word) > 1 and equals and quote not in value:
        return f"{key}={quote}{value}{quote}" if " " in value else f"{key}={value}"
    return word


@dataclass(frozen=True)
class DispatchInputs:
    """Inputs of a dispatch; a push and the daily run have the defaults."""

    config: str
    overrides: tuple[str, ...] = ()
    """Overrides, `key=value` each."""
    epochs: str = ""
    """Replaces training.epochs unless empty."""
    resume: str = "auto"
    """auto, none, a manifest in a store, or a checkpoint's directory on the runner."""
    target: Target = Target.GPU_RUNNER
    dry_run: bool = False

    @property
    def changes(self) -> tuple[str, ...]:
        """All changes to the configuration file; the input `epochs` is last. Raises ConfigError."""
        if self.epochs and not re.fullmatch(r"[1-9]\d{0,8}", self.epochs, re.ASCII):
            raise ConfigError(f"epochs: {self.epochs!r} is not a whole number above 0")
        return (*self.overrides, *([f"training.epochs={self.epochs}"] if self.epochs else []))

    def inputs(self) -> dict[str, str]:
        """Return the inputs of an equal run."""
        return {
            "runner": str(self.target) if self.target is not Target.GPU_RUNNER else "",
            "config": self.config,
            "set": "\n".join(self.overrides),
            "epochs": self.epochs,
            "resume": self.resume,
        }


@dataclass(frozen=True)
class RunPlan:
    """The plan of a workflow run."""

    dispatch: DispatchInputs
    segment: Segment
    machine: Machine
    resume: str
    """Where training starts: auto, none, a manifest or a checkpoint."""
    store: str
    deadline: str
    job_minutes: int
    """Time limit of the training job."""
    runs_directory: str
    most_segments: int
    ref: str
    """Branch or tag of the run."""
    again: bool = False
    """Whether this is a repeated attempt of the workflow run."""
    missing_settings: tuple[MissingSetting, ...] = ()
    """Settings that are missing for training."""
    is_requested: bool = True
    """Whether a person requested this run; a push and the schedule do not count."""
    queue: str = ""
    """Concurrency group of the training job."""
    is_program: bool = True
    """Trainyard's own trainer, or another program."""
    role: str = ""
    """The AWS role for the store, assumed by OIDC; empty for the machine's own credentials."""
    region: str = ""
    container: Any = ""
    """The container in which the job trains, as GitHub takes it; empty for none."""
    is_other: bool = False
    """Whether this run continues another call of train.yml in the same workflow."""

    @property
    def trains(self) -> bool:
        return not (self.dispatch.dry_run or self.missing_settings or self.is_other)

    @property
    def is_refused(self) -> bool:
        """Return whether training was requested and is impossible; then the run must not end green."""
        return bool(self.missing_settings) and self.is_requested and not self.dispatch.dry_run

    @property
    def fetch(self) -> bool:
        """Return whether the store may hold a checkpoint to resume from."""
        return self.again or self.segment.number > 1 or manifest_place(self.resume) is not None

    @property
    def run_dir(self) -> str:
        return f"{self.runs_directory}/{self.segment.run_id}"

    def job_plan(self) -> dict[str, Any]:
        """Return the plan for the later jobs of the workflow run: its one output, as JSON."""
        segment = self.segment
        return {
            "trains": self.trains,
            "target": str(self.dispatch.target),
            "config": self.dispatch.config,
            "overrides": "\n".join(self.dispatch.changes),
            "runner": self.machine.runs_on or "none",
            "container": self.container,
            "environment": "eks" if self.dispatch.target is Target.EKS else "training",
            "queue": self.queue or self.machine.queue,
            "job_minutes": self.job_minutes,
            "kind": "program" if self.is_program else "trainer",
            "role": self.role,
            "region": self.region,
            "branch": self.ref,
            "commit": segment.commit,
            "run_id": segment.run_id,
            "run_dir": self.run_dir,
            "title": f"{segment.run_number} {segment.name}".rstrip(),
            "run_number": "auto" if segment.name else str(segment.run_number),
            "segment": str(segment.number),
            "most_segments": str(self.most_segments),
            "resume": self.resume,
            "thread": segment.thread,
            "reason": "the time limit of a job" if segment.number > 1 else "",
            "fetch": "true" if self.fetch else "false",
            "store": self.store,
            "deadline": self.deadline,
            "unless_proven": "false" if self.is_requested else "true",
            "plan": self.to_json(),
        }

    def to_json(self) -> dict[str, Any]:
        """The plan for the next segment and the watchdog."""
        return {
            "inputs": self.dispatch.inputs(),
            "segment": json.loads(self.segment.to_text()),
            "store": self.store,
            "most_segments": self.most_segments,
        }


def resolve(
    inputs: DispatchInputs, config: Config, segment: Segment, *, name: str = "", variables: Mapping[str, str]
) -> RunPlan:
    """Decide a workflow run from its inputs and from GitHub's and the repository's `variables`.

    `name` is that of this call of train.yml; a segment of another one is none of its own.

    Raises ConfigError that names the wrong input or variable.
    """
    store = _store(variables.get("TRAINYARD_STORE", "")) or (config.artifacts.store or "").rstrip("/")
    machine = machine_for(inputs.target, variables)
    again = variables.get("GITHUB_RUN_ATTEMPT", "1") != "1"
    limits = {"least": 2 * STORING_MINUTES, "most": JOB_MINUTES, "default": JOB_MINUTES}
    minutes = count_in(variables, "TRAINYARD_JOB_MINUTES", **limits)
    if machine.labels == HOSTED:
        minutes = min(minutes, int(HOSTED_MINUTES))
    is_requested = again or segment.number > 1 or variables.get("GITHUB_EVENT_NAME") not in _AUTOMATIC_EVENTS
    return RunPlan(
        inputs,
        segment,
        machine,
        resume=_resume(inputs.resume, segment, again=again),
        store=store,
        deadline=deadline_of(variables.get("TRAINYARD_DEADLINE", ""), minutes),
        job_minutes=minutes,
        runs_directory=(variables.get("TRAINYARD_RUNS_DIRECTORY") or "runs").rstrip("/"),
        most_segments=count_in(variables, "TRAINYARD_MAX_SEGMENTS", most=9999, default=MOST_SEGMENTS),
        ref=variables.get("GITHUB_REF_NAME", ""),
        again=again,
        missing_settings=tuple(
            _missing_settings(inputs.target, machine, store, role=variables.get("TRAINYARD_EKS_ROLE", ""))
        ),
        is_requested=is_requested,
        queue=_queue(machine, inputs.target, segment, variables),
        is_program=config.is_program,
        role=variables.get("TRAINYARD_EKS_ROLE" if inputs.target is Target.EKS else ROLE, ""),
        region=variables.get(REGION, ""),
        container=container_in(variables.get("CONTAINER", "")),
        is_other=segment.name != name,
    )


def _queue(machine: Machine, target: Target, segment: Segment, variables: Mapping[str, str]) -> str:
    """Return the concurrency group of the training job, one for each set of labels.

    Above one runner each job has a group of its own: then the runners of the labels are the queue. A next
    segment has another group, so that it waits for the job on the machine, and not for every queued push.
    """
    if target is not Target.GPU_RUNNER:
        return machine.queue
    if count_in(variables, "TRAINYARD_RUNNERS", most=999) > 1:
        return f"trainyard-{segment.run_id}"
    labels = "-".join(sorted(label.lower() for label in machine.labels))
    name = f"trainyard-{labels}" if labels else machine.queue
    return f"{name[:200]}{'-next' if segment.number > 1 else ''}"


def container_in(text: str) -> Any:
    """Return the container of the input: an image, or JSON as GitHub takes it. Raises ConfigError."""
    if not text.lstrip().startswith("{"):
        return text.strip()
    try:
        return dict(parse_json_object(text, "container"))
    except DamagedFileError as error:
        raise ConfigError(f"{error}; write an image, or JSON such as {_CONTAINER_EXAMPLE}") from None


def _store(text: str) -> str:
    if text and (not re.fullmatch(store_pattern(), text) or text.endswith(":///")):
        raise ConfigError(f"TRAINYARD_STORE: {text!r} is not a store; write {store_examples()}")
    return text.rstrip("/")


def _missing_settings(target: Target, machine: Machine, store: str, *, role: str) -> Iterator[MissingSetting]:
    if not machine.is_known:
        variable, example = PLACES[target]
        yield MissingSetting("where to train", variable, f"gh variable set {variable} --body {example}")
    if target is Target.EKS and not role:
        command = "gh variable set TRAINYARD_EKS_ROLE --body arn:aws:iam::ACCOUNT:role/NAME"
        yield MissingSetting("which role may send jobs", "TRAINYARD_EKS_ROLE", command)
    if not store:
        command = f"gh variable set TRAINYARD_STORE --body {_STORE_EXAMPLE}"
        yield MissingSetting("where to store", "TRAINYARD_STORE", command)


def _resume(resume: str, segment: Segment, *, again: bool) -> str:
    """Return where training starts; a further attempt or segment resumes even if `resume` is none."""
    if "://" in resume and manifest_place(resume) is None:
        raise ConfigError(
            f"resume: {resume!r} is not a manifest of a run. Give auto, none, the path of a checkpoint on "
            "the runner, or a manifest such as s3://BUCKET/PREFIX/manifests/run-812-manifest.json"
        )
    if resume == "none" and (again or segment.number > 1):
        return "auto"
    return resume


@dataclass(frozen=True)
class Figures:
    """Figures that are known before a run starts."""

    steps: int | None
    plan: dict[str, Any]
    """`TrainingPlan.to_json`; empty without a plan."""
    why_not: str
    """Why there is no plan."""


def plan_on(machine: Machine, config: Config) -> Figures:
    """Plan `config` on `machine`. Raises ConfigError for an unknown instance type."""
    steps = config.program.steps if config.recipe == COMMAND else config.training.max_steps
    if config.recipe != "pretrain":
        return Figures(steps, {}, f"recipe {config.recipe} is not modelled")
    if machine.cluster:
        return Figures(steps, {}, "memory and world size are checked with the job")
    if machine.hardware is None:
        return Figures(steps, {}, "TRAINYARD_INSTANCE_TYPE is not set")
    instance = find_instance(machine.hardware)
    on_cpu = config.model.device == "cpu"
    device, devices = (cpu_of(instance), 1) if on_cpu else (gpu_of(instance), instance.gpus)
    plan = plan_training(config, device, rented=RentedMachines(instance, 1, devices)).to_json()
    return Figures(steps, plan, "")


def usd_per_hour(text: str) -> float | None:
    """Return the price per hour that the owner set, or None. Raises ConfigError when it is not a number."""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise ConfigError(f"TRAINYARD_USD_PER_HOUR: {text!r} is not an amount such as 1.25")
    return value
