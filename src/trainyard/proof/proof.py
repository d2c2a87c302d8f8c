"""Decide whether a run is proven: the five parts of the proof, each with the evidence that was compared.

Pure: it reads no file and no store; records and the store's verification are passed in. A missing fact,
or one of the wrong type, never counts as proof, because a false green is the worst bug.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.config.registries import COMMAND, is_program_run
from trainyard.proof import PARTS
from trainyard.proof.completion import completion_problem, is_unfinished, steps_of_program
from trainyard.proof.gates import ComparedFigure, ComparedRun, Learned, judge_learning
from trainyard.proof.joining_network import joining_network
from trainyard.proof.learning import Curves, curves_of
from trainyard.proof.recorded_events import Course, course_of
from trainyard.proof.recorded_facts import (
    RecordedFacts,
    integer_or_none,
    section_or_empty,
)
from trainyard.proof.repeatability import (
    changed_inputs,
    changed_seed,
    fixes_of_program,
    missing_facts,
    mixed_origin,
    packages_outside_lock,
    provenance_line,
)
from trainyard.proof.resume_jumps import ResumeJumps
from trainyard.proof.stored_checkpoints import (
    CheckpointProblem,
    changed_record,
    checkpoint_problem,
    kept_step,
    leftover_problem,
    store_problem,
)
from trainyard.run.failure import next_step
from trainyard.run.run_settings import setting
from trainyard.run.source_words import describe_count, describe_steps, source_in_words
from trainyard.run.suggested_commands import again_command, sync_command, trainyard_command

if TYPE_CHECKING:
    from trainyard.artifacts.verify.inspection import Inspection
    from trainyard.artifacts.verify.verify import Verification


@dataclass(frozen=True)
class ProofPlace:
    """Place of the run; used only to write the suggested commands."""

    run_directory: str = "RUN_DIR"
    store: str | None = None
    run_number: int | None = None
    command_line: tuple[str, ...] = ()
    """The pipeline that a new run is started with; empty: the trainer's script."""

    def next_step(self, run: RecordedFacts) -> str:
        """What to do after an unfinished run: a command, or first the change without which it fails again."""
        return next_step(run, Path(self.run_directory))

    @property
    def again(self) -> str:
        """The command that trains the run again in a new directory."""
        return again_command(Path(self.run_directory), command_line=list(self.command_line))

    @property
    def evaluate_command(self) -> str:
        """The command that evaluates the newest checkpoint of the run."""
        return trainyard_command(f"evaluate --run-dir {shlex.quote(self.run_directory)}")

    def sync_command(self, *, as_another: bool = False) -> str:
        """Return the command that stores the run; `as_another` under a number of its own."""
        number = None if as_another else self.run_number
        return sync_command(self.run_directory, store=self.store or "URL", run_number=number)

    def prune_command(self, *, keep_last: int) -> str:
        """The command that plans to remove older checkpoints from the store; `--apply` removes them."""
        where = f"--store {shlex.quote(self.store or 'URL')} --run-number {self.run_number}"
        return trainyard_command(f"store prune {where} --keep-last {keep_last}")

    def set_aside_command(self, damaged: Iterable[Path]) -> str:
        """The command that renames damaged checkpoints, as the trainer does, and proves the run again."""
        away = [
            f"mv {shlex.quote(str(path))} {shlex.quote(str(path.with_name(f'.set-aside-{path.name}')))}"
            for path in damaged
        ]
        where = f"--run-dir {shlex.quote(self.run_directory)} --store {shlex.quote(self.store or 'URL')}"
        return " && ".join([*away, trainyard_command(f"prove {where}")])


@dataclass(frozen=True)
class Configuration:
    """The present content of the run's `config.yaml`."""

    digests: frozenset[str] | None = None
    """Its possible recorded SHA-256 values; None when they were not computed."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Its sections; empty when it cannot be read."""


@dataclass(frozen=True)
class Recomputed:
    """Digests computed again, to compare with those in `run.json`; None where that was not done."""

    records: Callable[[], Mapping[str, str]] = dict
    """Returns name -> SHA-256 of the records that were judged; called after all of them were read."""
    state: Mapping[str, str] | None = None
    """The digests of the tensors in the last checkpoint, by part: model, optimizer."""
    state_problem: str | None = None
    """Why these tensors could not be read."""
    data: str | None = None
    """The fingerprint of the prepared data."""
    data_problem: str | None = None
    """Why the prepared data is known to differ from the run's; None if that is not known."""
    image_problem: str | None = None
    """Why the image of the run cannot be pulled again, according to its registry."""
    image_note: str = ""
    """The result of the query of its registry, or why it was not queried."""


@dataclass(frozen=True)
class Part:
    """One of the five parts of the proof."""

    name: str
    """One of `PARTS`."""
    passed: bool
    evidence: str
    """The facts that were compared, or the fact that is missing."""
    next_step: str | None = None
    """The command or action that would make the part hold; None when it holds."""
    is_judged: bool = True
    """False if the run is too short to judge, which counts as holding."""


@dataclass(frozen=True)
class Proof:
    """The verdict on a run."""

    parts: tuple[Part, ...]
    judged: Mapping[str, Any] = field(default_factory=dict)
    """`run_id`, the outcome's `finished`, and the digests of the records.

    With them the proof counts only for this run, this end of it and these bytes.
    """
    figures: tuple[ComparedFigure, ...] = ()
    compared_with: str = ""
    """The run whose figures are shown beside these."""

    @property
    def proven(self) -> bool:
        return len(self.parts) == len(PARTS) and all(part.passed is True for part in self.parts)

    @property
    def failing(self) -> tuple[Part, ...]:
        """The parts that do not hold, in order."""
        return tuple(part for part in self.parts if part.passed is not True)

    @property
    def holding(self) -> frozenset[str]:
        """The names of the parts that hold."""
        return frozenset(part.name for part in self.parts if part.passed is True)

    @property
    def outputs(self) -> dict[str, str]:
        """The step outputs for later steps and jobs of a workflow."""
        return {"proven": str(self.proven).lower(), "stored": str("stored" in self.holding).lower()}

    def to_json(self, *, now: float) -> dict[str, Any]:
        """Return the content of `proof.json`; `now` is the time of the judgement in Unix seconds."""
        parts = [
            {"name": p.name, "passed": p.passed, "evidence": p.evidence, "fix": p.next_step}
            | ({} if p.is_judged else {"is_judged": False})
            for p in self.parts
        ]
        own = {"compared_with": self.compared_with, "figures": [each.to_json() for each in self.figures]}
        return {"schema_version": 1, "proven": self.proven, "parts": parts, **own, "time": now, **self.judged}


def prove(
    run: RecordedFacts,
    rows: Iterable[RecordedFacts | None],
    events: Iterable[RecordedFacts | None],
    found: "Inspection",
    *,
    place: ProofPlace | None = None,
    configuration: Configuration | None = None,
    recomputed: Recomputed | None = None,
    evaluations: Sequence[RecordedFacts | None] = (),
    compared: ComparedRun | None = None,
) -> Proof:
    """Judge a run by its `run.json`, its metrics and events, and the findings in the store.

    A row or an event that is None is an unreadable line. `recomputed` has digests that were computed
    again from the present files. `compared` is the run whose figures are shown beside those of this one.
    """
    at, config, again = place or ProofPlace(), configuration or Configuration(), recomputed or Recomputed()
    if is_program_run(run):
        at = replace(at, command_line=("trainyard", "run"))
    lines, curves = list(events), curves_of(config.settings)
    course = course_of(run, lines)
    jumps = ResumeJumps(course.resumed_after)
    passing = curves.collect(jumps.collect(rows))
    completion = completion_problem(run, passing, course, settings=config.settings)
    for _ in passing:  # it ends at the first problem
        pass
    sources = section_or_empty(section_or_empty(run, "outcome"), "sources")
    if jumps.restart and sources.get("steps") == "observed":
        # Optimizers count from the start of a process, so their steps after a resume are only assumed.
        completion, jumps.remarks = completion or jumps.restart, []
    curves.start_with(lines, course.begins_after)
    learned = judge_learning(
        run,
        curves,
        begins_after=course.begins_after,
        settings=config.settings,
        evaluations=evaluations,
        compared=compared,
    )
    known = {"run_id": run.get("run_id"), "finished": section_or_empty(run, "outcome").get("finished")}
    trained = _trained_part(run, completion, course, place=at)
    return Proof(
        (
            replace(trained, evidence="; ".join((trained.evidence, *jumps.remarks))),
            _learned_part(learned, at, has_failed=section_or_empty(run, "outcome").get("status") == "failed"),
            _network_part(run, lines, at, requested=setting(config.settings, "compute.network")),
            _stored_part(run, course, found, again=again, place=at, curves=curves),
            _repeatable_part(run, at, config, again),
        ),
        judged={key: value for key, value in known.items() if value is not None},
        figures=learned.figures,
        compared_with="" if compared is None or compared.problem else compared.name,
    )


def _trained_part(run: RecordedFacts, problem: str | None, course: Course, *, place: ProofPlace) -> Part:
    if problem is not None:
        # Resuming a finished run does nothing, so the only fix is to train again.
        step = place.next_step(run) if is_unfinished(run) else place.again
        return Part("trained", False, problem, step)
    if is_program_run(run):
        seen = f"every logged figure finite{_seen_weights(run, course)}"
        saved = section_or_empty(section_or_empty(run, "outcome"), "checkpoint").get("manifest_sha256")
        remark = "; whether the last checkpoint has the trained weights is not known"
        retries = course.retries + (remark if saved in course.unrelated else "")
        return Part("trained", True, f"{_program_length(run)}, {seen}, {retries}")
    steps = f"{run['plan']['steps']:,}"
    skipped = f"{len(course.skipped):,} skipped, every other" if course.skipped else "every"
    return Part("trained", True, f"{steps} of {steps} steps, {skipped} loss finite, {course.retries}")


def _seen_weights(run: RecordedFacts, course: Course) -> str:
    """Return what was read of the tensors in the last checkpoint, which has no fault."""
    named = section_or_empty(section_or_empty(run, "outcome"), "checkpoint").get("manifest_sha256")
    tensors = course.tensors.get(str(named))
    if tensors is None:
        return ""
    unread = [str(each) for each in tensors.get("unread") or ()]
    count = integer_or_none(tensors.get("count")) or 0
    words = "without NaN" if tensors.get("infinite") else "finite"
    read = (
        f", last weights {words} ({describe_count(count, 'tensor')})" if count else ", last weights not read"
    )
    more = f" and {len(unread) - 1:,} more" if len(unread) > 1 else ""
    return f"{read} (unread: {unread[0]}{more})" if unread else read


def _learned_part(learned: Learned, place: ProofPlace, *, has_failed: bool) -> Part:
    if not learned.is_red:
        # The figures of a run that failed are shown, and prove nothing.
        evidence = f"{learned.evidence}, before it failed" if has_failed else learned.evidence
        return Part("learned", True, evidence, is_judged=learned.is_judged and not has_failed)
    step = learned.next_step.format(again=place.again, evaluate=place.evaluate_command)
    return Part("learned", False, learned.evidence, step, is_judged=learned.is_judged)


def _program_length(run: RecordedFacts) -> str:
    """Return how many steps a program did, and of how many that were requested or announced."""
    outcome = section_or_empty(run, "outcome")
    requested = integer_or_none(section_or_empty(run, "plan").get("steps"))
    announced = integer_or_none(outcome.get("announced_steps"))
    done, source = steps_of_program(outcome), source_in_words(outcome, "steps")
    if requested is not None:
        return f"{done:,} of {describe_steps(outcome, requested)}{source}"
    if announced is None:
        return f"{describe_steps(outcome, done)}{source}, and the program ended with exit code 0"
    planned = integer_or_none(section_or_empty(run, "plan").get("announced_steps"))
    if planned is not None and planned > announced:
        of = f"of at most {planned:,}: the program itself ended its training there"
        return f"{describe_steps(outcome, done)}{source} {of}"
    of = f"of the {describe_steps(outcome, announced)} that the program announced{source}"
    return f"{done:,} {of}, and it ended with exit code 0"


def _network_part(
    run: RecordedFacts, events: Sequence[RecordedFacts | None], place: ProofPlace, *, requested: object
) -> Part:
    hardware = section_or_empty(run, "hardware")
    found = joining_network(run, events, requested)
    is_alone = integer_or_none(hardware.get("world_size")) == 1
    if found.passed and is_alone and is_program_run(run):
        return Part("network", True, "one machine: no network was used")  # its launcher may start processes
    if found.passed:
        return Part("network", True, found.evidence)
    if found.fix:
        return Part("network", False, found.evidence, f"{found.fix}; then train it again: {place.again}")
    step = f"record it in {place.run_directory}/run.json"
    return Part("network", False, found.evidence, step)


def _stored_part(
    run: RecordedFacts,
    course: Course,
    found: "Inspection",
    *,
    again: Recomputed,
    place: ProofPlace,
    curves: Curves,
) -> Part:
    nothing_there = found.trouble is not None or found.verification is None
    if nothing_there and not found.taken and section_or_empty(run, "outcome").get("status") == "failed":
        kept = f"this run failed and was not stored; its files are in {place.run_directory}"
        return Part("stored", False, kept, place.next_step(run))
    if found.trouble is not None:
        sync = place.sync_command(as_another=found.taken)
        return Part("stored", False, found.trouble, sync if found.taken else f"once that is fixed: {sync}")
    if found.verification is None:
        where = f"{place.store} holds nothing of this run" if place.store else "no store was named"
        # A run that was cut off is stored when it is resumed.
        step = place.sync_command() if run.get("outcome") else place.next_step(run)
        return Part("stored", False, where, step)
    objects = _format_count(found.verification)
    checkpoint = checkpoint_problem(run, course.saved, found.checkpoints, curves=curves)
    problem = (
        store_problem(run, found.verification)
        or leftover_problem(course.saved, found.verification)
        or changed_record(again.records(), found.verification)
    )
    if checkpoint is not None:
        step = _fixing_step(run, checkpoint, found, rejected=course.rejected, place=place)
        has_none = not section_or_empty(run, "outcome").get("checkpoint") and checkpoint.fix
        why = "; ".join((checkpoint.text if has_none else problem or checkpoint.text, *course.rejected))
        return Part("stored", False, f"{objects} verified; {why}", step)
    if problem is not None and found.damaged:
        text = f"the store has the complete run, but the copy on this disk is damaged: {problem}"
        return Part("stored", False, text, place.set_aside_command(found.damaged))
    if problem is not None:
        return Part("stored", False, f"{objects} verified; {problem}", place.sync_command())
    if (other := _other_state(run, again)) is not None:
        return Part("stored", False, f"{objects} verified; {other}", place.again)
    read = "; its last tensors have the digests in run.json" if again.state is not None else ""
    left = len(found.verification.unlisted_objects)
    leftovers = describe_count(left, "leftover")
    note = f"; not verified: {leftovers} of an interrupted sync or removal" if left else ""
    if (older := kept_step(run, curves)) is not None:
        note += f"; the last checkpoint is of step {older[0]:,}, {older[1]}"
    return Part("stored", True, f"{objects}: {found.verification.compared}{read}{note}")


def _other_state(run: RecordedFacts, again: Recomputed) -> str | None:
    """Return how the tensors in the last checkpoint differ from the run's final state.

    None if they do not.
    """
    if again.state_problem is not None:
        return again.state_problem
    recorded = section_or_empty(section_or_empty(run, "outcome"), "state_sha256")
    for part, digest in (again.state or {}).items():
        if recorded.get(part) != digest:
            on_record = str(recorded.get(part))[:12]
            return (
                f"the {part} in the last checkpoint has the digest {digest[:12]}…, run.json has {on_record}…"
            )
    return None


def _format_count(verification: "Verification") -> str:
    verified = integer_or_none(verification.objects_verified) or 0
    return f"{verified:,} of {describe_count(integer_or_none(verification.objects_total) or 0, 'object')}"


def _fixing_step(
    run: RecordedFacts,
    problem: CheckpointProblem,
    found: "Inspection",
    *,
    rejected: Sequence[str],
    place: ProofPlace,
) -> str:
    """Return the command that fixes `problem`: a sync helps only if the disk has the bytes the run wrote.

    The run does not need an earlier checkpoint, so one that only the store has is removed there.
    """
    is_damaged = any(not reason.startswith("program.checkpoints:") for reason in rejected)
    if problem.step is None and not is_unfinished(run) and is_damaged:
        return f"let the program write its last checkpoint completely; then train it again: {place.again}"
    if problem.fix and not is_unfinished(run):
        return problem.fix.format(again=place.again)
    if problem.step is None:
        return place.next_step(run) if is_unfinished(run) else place.again
    on_disk = found.on_disk.get(problem.step)
    if on_disk is not None and problem.written in (None, on_disk):
        return place.sync_command()
    newer = sum(step > problem.step for step in found.checkpoints)
    is_sound = found.verification is not None and not found.verification.problems
    if on_disk is None and newer and place.run_number and is_sound:
        return place.prune_command(keep_last=newer)
    return place.again


def _repeatable_part(
    run: RecordedFacts, place: ProofPlace, configuration: Configuration, again: Recomputed
) -> Part:
    if missing := missing_facts(run):
        step = _recording_step(run, missing, place)
        return Part("repeatable", False, f"not on record: {', '.join(missing)}", step)
    if configuration.digests is not None and run["config_sha256"] not in configuration.digests:
        text = "config.yaml is missing or no longer the run's: its SHA-256 is not the one in run.json"
        step = f"restore {place.run_directory}/config.yaml, for example from the store"
        return Part("repeatable", False, text, step)
    fingerprint = section_or_empty(run, "data").get("fingerprint")
    other_data = f"the prepared data has the fingerprint {again.data}, run.json has {fingerprint}"
    # What changed, and what to do about it.
    changes = (
        (mixed_origin(run), "train it in one piece"),
        (changed_inputs(run), "train it again without changing them"),
        (
            packages_outside_lock(run),
            "install what the lock pins, or lock what is installed, and train it again",
        ),
        (changed_seed(run, configuration.settings), "train it again"),
        (
            None if again.data in (None, fingerprint) else other_data,
            "prepare the run's own data again, or train with these",
        ),
        (again.data_problem, "train it again, which also prepares the data again"),
        (again.image_problem, "push that image again, or train in one that its registry keeps"),
    )
    for problem, step in changes:
        if problem is not None:
            return Part("repeatable", False, problem, f"{step}: {place.again}")
    note = f"; {again.image_note}" if again.image_note else ""
    return Part("repeatable", True, f"{provenance_line(run)}{note}")


def _recording_step(run: RecordedFacts, missing: list[str], place: ProofPlace) -> str:
    if is_program_run(run):
        return _recording_step_of_program(run, place)
    if "commit" in missing:
        return (
            "train from a git repository with at least one commit, or in an image that was built from one "
            "without changes, so that the code is on record"
        )
    return f"train it again, which records it in run.json: {place.again}"


def _recording_step_of_program(run: RecordedFacts, place: ProofPlace) -> str:
    """Return what records the missing facts; the run's own configuration, which lacks them, would not."""
    fixes = fixes_of_program(run)
    if fixes.keys().isdisjoint({"lock", "data"}):
        steps = list(fixes.values()) or ["run it with this version of Trainyard"]
        return f"{'; '.join(steps)}; then: {place.again}"
    if run.get("recipe") != COMMAND:
        return f"{'; '.join(fixes.values())}; then start it with that configuration"
    words = section_or_empty(run, "program").get("command")
    command = shlex.join(map(str, words)) if isinstance(words, list) else "COMMAND"
    steps = [fix for name, fix in fixes.items() if name not in ("lock", "data")]
    return "; then: ".join([*steps, trainyard_command(f"init program -- {command}")])
