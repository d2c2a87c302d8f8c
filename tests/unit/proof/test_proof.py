"""The proof: which parts hold, and above all what must never count as proof."""

import copy
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.proof.proof import Configuration, Part, Proof, ProofPlace, Recomputed, prove
from trainyard.proof.repeatability import packages_outside_lock
from trainyard.proof.resume_jumps import ResumeJumps
from trainyard.run.identity import history_of, read_origin

STEPS = 600
PLACE = ProofPlace("runs/a", "file:///store", 7)
STARTED: dict[str, Any] = {"event": "started", "step": 0}
SAVED: dict[str, Any] = {"event": "checkpoint_saved", "step": STEPS, "manifest_sha256": "c4ec" + "0" * 60}
FINISHED: dict[str, Any] = {"event": "finished", "step": STEPS, "status": "succeeded"}
EVENTS = [STARTED, SAVED, FINISHED]
PARENT = {"manifest_sha256": "aaaa" + "0" * 60}
HANG: dict[str, Any] = {"event": "hang_suspected", "step": 9}
FAILED: dict[str, Any] = {"event": "finished", "step": 9, "status": "failed"}
RESUMED: dict[str, Any] = {"event": "resumed", "step": 5, "manifest_sha256": "ab" * 32}
SETTINGS: dict[str, Any] = {
    "training": {"max_steps": STEPS, "epochs": None, "seed": 42, "validation_steps": 300},
    "data": {"sequence_length": 256},
    "monitoring": {"log_steps": 100},
}


@dataclass(frozen=True)
class Verdict:
    objects_total: Any = 6
    objects_verified: Any = 6
    problems: tuple[str, ...] = ()
    run_id: Any = "run-a"
    ok: Any = True
    unlisted_objects: tuple[str, ...] = ()
    records: Mapping[str, str] = field(default_factory=dict)
    compared: str = "SHA-256 equal on disk, in the store and in the manifest"


@dataclass(frozen=True)
class Stored:
    manifest_sha256: str = SAVED["manifest_sha256"]
    run_id: str = "run-a"
    step: int = STEPS
    problem: str | None = None


@dataclass(frozen=True)
class InspectionFacts:
    verification: Verdict | None = Verdict()
    checkpoints: Mapping[int, Stored] = field(default_factory=lambda: {STEPS: Stored()})
    trouble: str | None = None
    taken: bool = False
    damaged: tuple[Path, ...] = ()
    on_disk: Mapping[int, str] = field(default_factory=lambda: {STEPS: SAVED["manifest_sha256"]})


# Has the fields of an `Inspection` that the proof reads, and takes values of wrong types, too.
Found: Any = InspectionFacts


def proven_run() -> dict[str, Any]:
    return {
        "run_id": "run-a",
        "config_sha256": "77d0" + "0" * 60,
        "lock_sha256": "91be" + "0" * 60,
        "seed": 42,
        "git": {"commit": "3f2c1ab" + "0" * 33, "dirty": False, "branch": "main"},
        "data": {"fingerprint": "e01c" + "0" * 60},
        "hardware": {"world_size": 1},
        "plan": {"steps": STEPS},
        "outcome": {
            "status": "succeeded",
            "exit_code": 0,
            "steps": STEPS,
            "first_loss": 5.0 / 100,
            "final_loss": 5.0 / STEPS,
            "state_sha256": {"model": "5a0e" + "0" * 60, "optimizer": "0e5a" + "0" * 60},
            "checkpoint": {"step": STEPS, "manifest_sha256": SAVED["manifest_sha256"]},
        },
    }


def run_of_a_program() -> dict[str, Any]:
    return {**proven_run(), "recipe": "command", "program": {"command": ["train"]}, "plan": {}}


def whole_rows(last: int = STEPS) -> list[dict[str, Any]]:
    return [{"step": step, "loss": 5.0 / step} for step in range(100, last + 1, 100)]


def judge(
    run: dict[str, Any] | None = None,
    rows: list[Any] | None = None,
    events: list[dict[str, Any] | None] | None = None,
    found: Any = None,
    settings: dict[str, Any] | None = None,
    *,
    recomputed: Recomputed | None = None,
) -> Proof:
    return prove(
        proven_run() if run is None else run,
        whole_rows() if rows is None else rows,
        EVENTS if events is None else events,
        Found() if found is None else found,
        place=PLACE,
        configuration=Configuration(settings=SETTINGS if settings is None else settings),
        recomputed=recomputed,
    )


def part(proof: Proof, name: str) -> Part:
    return next(p for p in proof.parts if p.name == name)


def changed(*path: str, to: Any) -> dict[str, Any]:
    run = copy.deepcopy(proven_run())
    inner = run
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return run


def test_a_whole_run_is_proven_with_its_evidence() -> None:
    proof = judge()
    assert proof.proven
    assert [(p.name, p.evidence, p.next_step) for p in proof.parts] == [
        ("trained", "600 of 600 steps, every loss finite, no retries", None),
        ("learned", "too short to say: 6 rows with a loss, 10 are needed", None),
        ("network", "one process: no network was used", None),
        ("stored", "6 of 6 objects: SHA-256 equal on disk, in the store and in the manifest", None),
        ("repeatable", "commit 3f2c1ab (clean), lock 91be…, config 77d0…, data e01c…, seed 42", None),
    ]
    saved = proof.to_json(now=0.0)
    assert saved["proven"] is True
    assert [(p["name"], p["passed"]) for p in saved["parts"]] == [(p.name, True) for p in proof.parts]


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from leaves(inner, (*path, key))
        else:
            yield (*path, key)


SECTIONS = [("outcome", "state_sha256"), ("git",), ("data",), ("hardware",), ("plan",), ("outcome",)]
NEEDED = [*SECTIONS, *(path for path in leaves(proven_run()) if path[-1] != "branch")]


@each_case("path", NEEDED, ids=".".join)
@each_case("wrong", ["absent", None, True, "", "600", [], math.nan, {}, -1], ids=repr)
def test_no_missing_fact_or_fact_of_another_type_counts(path: tuple[str, ...], wrong: Any) -> None:
    run = changed(*path, to=wrong)
    if wrong == "absent":
        inner = run
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
    assert not judge(run).proven


def test_no_segment_imported_other_versions_than_its_lock_pins() -> None:
    before = {"lock_sha256": "a" * 64, "other_versions": ["x 1, not 2"]}
    resumed = {"lock_sha256": "a" * 64, "history": history_of(before, until=3)}
    for run in (before, resumed):
        assert "x 1, not 2" in str(packages_outside_lock(run)), run
        assert packages_outside_lock({**run, "image_digest": "sha256:0"}) is None
    assert packages_outside_lock({"history": history_of(before, until=0)}) is None


def test_an_empty_run_proves_nothing() -> None:
    proof = prove({}, [], [], Found(None, checkpoints={}))
    assert not any(part.passed for part in proof.parts)
    assert not proof.proven


AGAIN = "trainyard train --config runs/a/config.yaml"


@each_case(
    ("rows", "words"),
    [
        ([], "no row with a step and a loss"),
        (whole_rows(500), "the last loss on record is of step 500"),
        (whole_rows(700), "a row of step 700, but the run has 600 steps"),
        ([*whole_rows(), {"step": 600, "loss": 1.0}], "a row of step 600 after that of step 600"),
        ([*whole_rows(), {"loss": 1.0}], "a row whose step is 'not on record'"),
        ([{"step": 3, "loss": math.nan}, *whole_rows()], "loss is nan at step 3"),
        ([{"step": 3, "loss": math.inf}, *whole_rows()], "loss is inf at step 3"),
        ([{"step": 3, "loss": None}, *whole_rows()], "loss is None at step 3"),
        ([{"step": 3, "loss": "1.0"}, *whole_rows()], "loss is '1.0' at step 3"),
        ([{"step": 3, "loss": True}, *whole_rows()], "loss is True at step 3"),
        ([{"step": 3, "loss": 10**400}, *whole_rows()], "at step 3"),
        ([{"step": 100, "loss": 1.0, "grad_norm": math.nan}], "grad_norm is nan at step 100"),
        ([{"step": 100, "loss": 1.0, "val_loss": math.nan}], "val_loss is nan at step 100"),
        ([{"step": "600", "loss": 1.0}], "a row whose step is '600'"),
        ([{"step": 100, "val_loss": 1.0}], "the row of step 100 has no loss"),
        ([whole_rows()[0], None, *whole_rows()[1:]], "a line that cannot be read after step 100"),
        ([None, *whole_rows()], "a line that cannot be read at the beginning"),
        (whole_rows()[1:], "no row of step 100, which should have been logged; the next is of 200"),
        (
            whole_rows()[:2] + whole_rows()[3:],
            "no row of step 300, which should have been logged; the next is of 400",
        ),
        (
            [whole_rows()[0], {"step": 150, "loss": 1.0}],
            "a row of step 150, which should not have been logged",
        ),
        (list(reversed(whole_rows())), "no row of step 100"),
        ([{"step": 0, "val_loss": 1.0}, *whole_rows()], "the row of step 0 has no loss"),
        ([{"step": 0, "loss": 1.0}, *whole_rows()], "a row of step 0, before the run's first one"),
    ],
)
def test_the_rows_must_confirm_the_outcome(rows: list[Any], words: str) -> None:
    trained = part(judge(rows=rows), "trained")
    assert not trained.passed
    assert words in trained.evidence
    assert trained.next_step == AGAIN


def validated_run() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    run = changed("data", "validation_tokens", to=257)
    run["outcome"] |= {"validation_loss": 2.0, "bits_per_byte": 3.0}
    rows = [
        row | ({"val_loss": 2.0, "val_bits_per_byte": 3.0} if row["step"] % 300 == 0 else {})
        for row in whole_rows()
    ]
    return run, rows


def test_each_due_validation_must_be_recorded() -> None:
    run, rows = validated_run()
    assert judge(run, rows).proven
    del rows[2]["val_loss"]
    assert "step 300 has no validation loss" in part(judge(run, rows), "trained").evidence
    assert "step 300 has no validation loss" in part(judge(run, whole_rows()), "trained").evidence


def test_validations_may_have_rows_between_the_logged_steps() -> None:
    run, rows = validated_run()
    settings = copy.deepcopy(SETTINGS)
    settings["training"]["validation_steps"] = 250
    for step in (250, 500, 600):
        rows = [row for row in rows if row["step"] != step]
        rows.append({"step": step, "loss": 5.0 / step, "val_loss": 2.0, "val_bits_per_byte": 3.0})
    rows.sort(key=lambda row: int(row["step"]))
    assert judge(run, rows, settings=settings).proven
    assert not judge(run, rows).proven


@pytest.mark.parametrize("figure", ["first_loss", "final_loss", "validation_loss", "bits_per_byte"])
def test_the_figures_of_the_outcome_must_equal_those_of_the_rows(figure: str) -> None:
    run, rows = validated_run()
    run["outcome"][figure] += 0.001
    evidence = part(judge(run, rows), "trained").evidence
    assert f"the outcome's {figure.replace('_', ' ')} is " in evidence
    assert ", that of the rows " in evidence


def test_without_a_known_cadence_the_steps_only_have_to_increase() -> None:
    assert judge(rows=[*whole_rows()[:3], *whole_rows()[5:]], settings={}).proven
    assert not judge(rows=[*whole_rows()[3:], *whole_rows()[:3]], settings={}).proven


def test_rows_under_an_earlier_configuration_may_follow_another_cadence() -> None:
    run = proven_run()
    run["history"] = [{"until": 250, "config_sha256": "f" * 64}]
    early = [{"step": step, "loss": 5.0 / 100} for step in (50, 250)]
    assert part(judge(run, [*early, *whole_rows()[2:]]), "trained").passed
    assert not part(judge(run, [*early, *whole_rows()[3:]]), "trained").passed


def test_a_run_from_another_runs_checkpoint_begins_after_its_step() -> None:
    run, rows = proven_run(), whole_rows()[2:]
    run["parent"] = PARENT
    run["outcome"]["first_loss"] = rows[0]["loss"]
    begun = resumed(200, **PARENT)
    proof = judge(run, rows, [begun, SAVED, FINISHED])
    assert proof.proven
    assert part(proof, "trained").evidence.endswith("no retries")
    assert "no row of step 300" in part(judge(run, rows[1:], [begun, FINISHED]), "trained").evidence
    del run["parent"]
    assert (
        "not of the checkpoint that run.json has as parent"
        in part(judge(run, rows, [begun, FINISHED]), "trained").evidence
    )


def test_a_run_that_was_given_a_checkpoint_and_did_not_begin_from_it_says_so() -> None:
    run, given = with_(parent=PARENT), resumed(200, **PARENT)
    anew: dict[str, Any] = {"event": "not_resumed", "step": 50}
    assert not part(judge(run, whole_rows(), [given, SAVED, FINISHED]), "trained").passed
    trained = part(judge(run, whole_rows(), [given, anew, SAVED, FINISHED]), "trained")
    assert trained.passed
    words = "given the checkpoint of step 200 and did not resume from it: trained again from step 50"
    assert trained.evidence.endswith(f"no retries; it was {words}")


@pytest.mark.parametrize(
    ("losses", "rates", "words"),
    [
        ((2.0, 2.1), (1e-3, 1e-3), None),
        ((2.0, 3.1), (1e-3, 1e-3), "the loss jumped from 2 to 3.1 where it was resumed after step 10"),
        ((2.0, 2.0), (1e-3, 4e-4), "the learning rate jumped from 0.001 to 0.0004 where it was"),
        ((2.0, 2.0), (1e-3, 2e-3), None),
    ],
)
def test_a_figure_that_jumps_at_a_resume_is_a_remark(
    losses: tuple[float, float], rates: tuple[float, float], words: str | None
) -> None:
    rows = [{"step": at, "loss": losses[at > 10], "learning_rate": rates[at > 10]} for at in range(1, 15)]
    jumps = ResumeJumps([10])
    assert list(jumps.collect(rows)) == rows
    assert (words or "") in "".join(jumps.remarks) and bool(jumps.remarks) == bool(words)
    few = ResumeJumps([3])
    assert list(few.collect(rows[:3] + rows[11:])) and few.remarks == []


@each_case(
    ("after", "source", "is_anew"),
    [(3.0, "observed", True), (2.0, "observed", False), (3.0, "printed", False)],
)
def test_a_loss_that_jumps_back_to_its_start_shows_that_observed_steps_did_not_resume(
    after: float, source: str, is_anew: bool
) -> None:
    run = run_of_a_program()
    run["outcome"] = {**run["outcome"], "sources": {"steps": source}}
    losses = {1: 3.1, **dict.fromkeys(range(2, 301), 1.0), **dict.fromkeys(range(301, STEPS + 1), after)}
    rows = [{"step": step, "loss": loss, "time": 1.0 + step} for step, loss in losses.items()]
    run["outcome"] |= {"first_loss": 3.1, "final_loss": after}
    trained = part(judge(run, rows, [STARTED, resumed(300), SAVED, FINISHED], settings={}), "trained")
    assert ("nothing shows that it resumed there" in trained.evidence) is is_anew, trained
    assert "the loss jumped from 1" in trained.evidence and trained.passed is not is_anew


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"max_steps": 1000}, "run.json plans 600 steps, config.yaml requests 1,000"),
        ({"max_steps": 500}, "requests 500"),
        ({"epochs": 2}, "config.yaml requests 80"),
        ({"max_steps": None, "epochs": 16}, "requests 640"),
    ],
)
def test_the_plan_must_agree_with_the_configuration(asked: dict[str, Any], words: str) -> None:
    run, settings = changed("plan", "steps_per_epoch", to=40), copy.deepcopy(SETTINGS)
    settings["training"] |= asked
    assert words in part(judge(run, settings=settings), "trained").evidence
    settings["training"] |= {"max_steps": None, "epochs": 15}
    assert judge(run, settings=settings).proven
    del run["plan"]["steps_per_epoch"]
    assert not judge(run, settings=settings).proven


@each_case(
    ("events", "words"),
    [
        ([], "no record of events"),
        ([STARTED, None, FINISHED], "line 2 of events.jsonl cannot be read"),
        ([SAVED, FINISHED], "does not say that the run started"),
        ([STARTED, SAVED], "does not say that the run finished"),
        ([STARTED, FINISHED | {"status": "failed"}], "the last event says failed at step 600"),
        ([STARTED, {"event": "finished", "step": STEPS}], "the last event says finished at step 600"),
        ([STARTED, FINISHED, {"event": "preempted", "status": "stopped"}], "the last event says stopped"),
        ([STARTED, FINISHED | {"step": 500}], "it finished at step 500"),
        ([STARTED, HANG, FINISHED], "a hang was suspected at step 9"),
        ([STARTED, HANG, FAILED], "a hang was suspected at step 9"),
        ([STARTED, HANG, SAVED, RESUMED, SAVED, FINISHED], "a hang was suspected at step 9"),
        ([STARTED, HANG, FAILED, RESUMED, HANG, FINISHED], "a hang was suspected at step 9"),
        ([STARTED, FINISHED, {"event": "failed", "step": 600}], "after it finished, the run failed"),
        ([STARTED, FINISHED, {"event": "resumed", "step": 500}], "the run was resumed at step 500"),
        ([STARTED, FINISHED, STARTED], "the run started again at step 0"),
    ],
)
def test_the_events_must_confirm_the_outcome(events: list[Any], words: str) -> None:
    trained = part(judge(events=events), "trained")
    assert not trained.passed
    assert words in trained.evidence
    assert trained.next_step == AGAIN


WHOLE = "Stopped at step 340 of 600: SIGTERM. runs/a/checkpoints/step-00000340 is whole."


@each_case(
    ("status", "code", "steps", "reason", "evidence"),
    [
        ("stopped", 75, 340, "deadline of 8h", "stopped at step 340 of 600: deadline of 8h"),
        ("stopped", 75, 340, WHOLE, f"s{WHOLE[1:]}"),  # the reason is not repeated
        ("failed", 1, 12, "loss is nan at step 13", "failed at step 12 of 600: loss is nan at step 13"),
    ],
)
def test_another_end_has_its_reason(status: str, code: int, steps: int, reason: str, evidence: str) -> None:
    outcome = {"status": status, "exit_code": code, "steps": steps, "reason": reason, "final_loss": 2.0}
    trained = part(judge(changed("outcome", to=outcome), rows=whole_rows(300)), "trained")
    assert (trained.passed, trained.evidence) == (False, evidence)
    assert "--resume auto" in str(trained.next_step)


@pytest.mark.parametrize(
    ("recipe", "claimed"),
    [("pretrain", True), ("megatron", False), (3, False), (None, False), (["pretrain"], False)],
)
def test_of_another_program_exactness_is_not_claimed(recipe: Any, claimed: bool) -> None:
    run = {**changed("recipe", to=recipe), "program_sha256": "e" * 64}
    evidence = part(judge(run), "repeatable").evidence
    assert ("the program's own determinism is not checked" in evidence) is not claimed


@each_case(
    ("tensors", "passed", "words"),
    [
        ({"count": 3}, True, "last weights finite (3 tensors), no retries"),
        ({"count": 1, "infinite": ["mask"]}, True, "last weights without NaN (1 tensor)"),
        ({"unread": ["a.pkl: not a zip"]}, True, "last weights not read (unread: a.pkl: not a zip)"),
        ({"count": 1, "unread": ["a.pkl: x", "b.pkl: x"]}, True, "(1 tensor) (unread: a.pkl: x and 1 more)"),
        (None, True, "every logged figure finite, no retries"),
        ({"count": 3, "nan": ["w"]}, False, "NaN"),
    ],
)
def test_the_proof_says_what_was_read_of_the_last_weights(tensors: Any, passed: bool, words: str) -> None:
    run = run_of_a_program()
    saved = SAVED | ({} if tensors is None else {"tensors": tensors})
    trained = part(judge(run, events=[STARTED, saved, FINISHED], settings={}), "trained")
    assert (trained.passed, words in trained.evidence) == (passed, True), trained.evidence


BEFORE = "validated: the step after it is not saved"
BEST = "best validation loss: the 200 steps after it are not"


@each_case(
    ("saved", "validated", "text"),
    [
        (599, {599: 1.0}, BEFORE),
        (599, {500: 1.0}, ""),
        (598, {598: 1.0}, ""),
        (400, {200: 4.0, 400: 2.0, 600: 3.0}, BEST),
        (400, {200: 4.0, 400: 3.0, 600: 2.0}, ""),
        (200, {200: 4.0, 400: 2.0, 600: 3.0}, ""),
    ],
)
@each_case("axis", ["step", "epoch"])
def test_an_older_checkpoint_counts_if_its_validation_was_the_last_or_the_best(
    saved: int, validated: dict[int, float], text: str, axis: str
) -> None:
    run = run_of_a_program()
    run["outcome"] = {**run["outcome"], "checkpoint": {**SAVED, "step": saved}}
    losses = [
        {axis: step if axis == "step" else step // 200, "val_loss": each} for step, each in validated.items()
    ]
    rows = sorted([*whole_rows(), *losses], key=lambda row: row.get("step", 0))
    found = Found(checkpoints={saved: Stored(step=saved)})
    stored = part(judge(run, rows=rows, found=found, settings={}), "stored")
    text = "" if axis == "epoch" and text == BEFORE else text
    assert (stored.passed, text in stored.evidence) == (bool(text), True), stored


NO_MATCH = "program.checkpoints: out/*.pt names nothing that this run has written; it has saved out/model.npz"


@each_case(
    ("checkpoint", "reason", "words"),
    [
        (None, None, "trainyard run --config runs/a/config.yaml --set program.checkpoints=PATH"),
        (None, NO_MATCH, "trainyard run --config runs/a/config.yaml --set program.checkpoints=PATH"),
        (None, "a.pt is cut off", "let the program write its last checkpoint completely"),
        ({"step": 500}, None, "let the program save once more after its last step"),
        ({"step": STEPS, "source": "guessed"}, None, "report the step of each checkpoint"),
    ],
)
def test_a_program_that_lacks_its_last_checkpoint_is_not_just_started_again(
    checkpoint: dict[str, Any] | None, reason: str | None, words: str
) -> None:
    run = run_of_a_program()
    run["outcome"] = {**run["outcome"], "checkpoint": checkpoint and {**SAVED, **checkpoint}}
    rejected = [{"event": "checkpoint_rejected", "reason": reason}] if reason else []
    found = Found(Verdict(problems=("run-7: the manifest lists no checkpoint",)), checkpoints={})
    stored = part(judge(run, events=[STARTED, *rejected, FINISHED], found=found, settings={}), "stored")
    assert words in str(stored.next_step), stored
    assert checkpoint or "no complete checkpoint of the program was found" in stored.evidence


def resumed(step: int | None, **more: Any) -> dict[str, Any]:
    return {"event": "resumed", "step": step, **more}


GUESSED = SAVED | {"step": 30, "manifest_sha256": "b" * 64, "source": "guessed"}
ANEW = "it was given the checkpoint of step 30 and did not resume from it: trained again from step 1"


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([resumed(340)], "1 retry (resumed after step 340)"),
        ([resumed(340), resumed(400)], "2 retries (resumed after step 340, 400)"),
        ([*map(resumed, (1, 2, 3, 4))], "4 retries (resumed after step 1, 2, 3, …)"),
        ([resumed(None)], "1 retry"),
        ([HANG, FAILED, RESUMED], "1 retry (resumed after step 5)"),
        ([GUESSED, resumed(30, manifest_sha256="b" * 64)], "1 retry"),
        ([resumed(30), {"event": "not_resumed", "step": 1}], f"1 retry; {ANEW}"),
    ],
)
def test_retries_are_counted_from_the_events(events: list[Any], words: str) -> None:
    proof = judge(events=[STARTED, *events, SAVED, FINISHED])
    assert proof.proven
    assert part(proof, "trained").evidence.endswith(f", {words}")


REJECTED = [{"event": "checkpoint_rejected", "reason": f"{word}.pt is damaged"} for word in "ab"]
DIRTY = {"commit": "3f2c1ab" + "0" * 33, "dirty": True}
EIGHT = {"world_size": 8, "local_world_size": 8}
HASHED = DIRTY | {"diff_sha256": "ab12" + "0" * 60}
IMAGE = {"image_digest": "sha256:0c4d" + "0" * 60}


def with_(**sections: Any) -> dict[str, Any]:
    """A proven run with these sections, without those that are None."""
    return {key: value for key, value in {**proven_run(), **sections}.items() if value is not None}


def skipping(value: Any) -> list[dict[str, Any]]:
    return [*whole_rows(500), {**whole_rows()[-1], "nan_steps": value}]


HOLD: list[tuple[str, dict[str, Any], str]] = [
    ("trained", {"rows": skipping(0)}, "every loss finite"),
    ("network", {"run": with_(hardware=EIGHT)}, "8 processes on one machine: no network was used"),
    ("repeatable", {"run": with_(git=HASHED)}, "commit 3f2c1ab (dirty, difference ab12…)"),
    ("repeatable", {"run": with_(**IMAGE, parent=PARENT)}, "image 0c4d…, parent aaaa…, seed 42"),
    ("repeatable", {"recomputed": Recomputed(image_note="r holds it")}, "seed 42; r holds it"),
]
BROKEN: list[tuple[str, dict[str, Any], str]] = [
    *(("trained", {"rows": skipping(value)}, "") for value in (1, None, "0")),
    ("trained", {"run": changed("outcome", "validation_loss", to=math.inf)}, "validation loss is inf"),
    ("trained", {"run": with_(outcome=None)}, "no outcome on record, so the run was cut off; the last row"),
    ("stored", {"events": [STARTED, SAVED | {"manifest_sha256": "f" * 64}, FINISHED]}, ""),
    ("repeatable", {"run": with_(seed=7)}, "run.json has seed 7, config.yaml has 42"),
    ("repeatable", {"run": with_(git=None)}, "not on record: commit"),
    ("repeatable", {"run": with_(git=None)}, "git repository"),
    ("repeatable", {"run": with_(git=DIRTY)}, "state of the working tree"),
    ("repeatable", {"run": changed("outcome", "state_sha256", to={})}, "digests of the final state"),
    ("repeatable", {"run": with_(image_digest="latest", parent={"a": "b"})}, "image, parent checkpoint"),
    ("repeatable", {"recomputed": Recomputed(image_problem="r lost a@b")}, "r lost a@b"),
    ("repeatable", {"recomputed": Recomputed(image_problem="r lost a@b")}, "push that image again"),
    ("repeatable", {"recomputed": Recomputed(data_problem="a: its content")}, "a: its content"),
]


@each_case(("name", "records", "words"), [*HOLD, *BROKEN])
def test_each_part_judges_its_own_records(name: str, records: dict[str, Any], words: str) -> None:
    found = part(judge(**records), name)
    assert found.passed is ((name, records, words) in HOLD), found
    assert words in f"{found.evidence} {found.next_step}"


def test_a_checkpoint_that_is_missing_has_the_reasons_of_the_last_attempt() -> None:
    again = resumed(500, manifest_sha256="a" * 64)
    events: list[Any] = [STARTED, REJECTED[0], again, REJECTED[1], SAVED, FINISHED]
    stored = part(judge(events=events, found=Found(checkpoints={})), "stored")
    assert not stored.passed and "b.pt is damaged" in stored.evidence and "a.pt" not in stored.evidence


@each_case("asked", ["tcp", "efa", "auto", None])
@each_case(
    ("size", "here"),
    [(1, 1), (1, None), (8, 8), (8, 4), (8, None), (None, None), (0, 0), ("8", "8"), (True, 1)],
)
def test_each_segment_of_a_run_must_show_its_network(size: Any, here: Any, asked: str | None) -> None:
    run = changed("history", to=[{"until": 100, **read_origin(proven_run())}])
    run["history"][0] |= {"world_size": size, "local_world_size": here}
    network = part(judge(run, settings={**SETTINGS, "compute": {"network": asked}}), "network")
    is_count = isinstance(size, int) and not isinstance(size, bool) and size > 0
    assert network.passed is (is_count and (size == 1 or size == here or asked == "tcp"))
    if not network.passed:
        assert network.evidence.startswith("until step 100: ")


@each_case(
    ("verdict", "words"),
    [
        (None, "file:///store holds nothing of this run"),
        (Verdict(problems=("checkpoint-600/a.pt: SHA-256 differs", "b: missing")), "differs (and 1 more)"),
        (Verdict(objects_verified=5), "5 of 6 objects verified; the rest was not compared"),
        (Verdict(objects_total=0, objects_verified=0), "the manifest lists no object"),
        (Verdict(run_id="run-b"), "the manifest is of run 'run-b', this is run 'run-a'"),
        (Verdict(ok=False), "the rest was not compared"),
        (Verdict(ok=1), "the rest was not compared"),
        (Verdict(objects_total=True, objects_verified=True), "the manifest lists no object"),
    ],
)
def test_an_incomplete_store_does_not_count_as_stored(verdict: Verdict | None, words: str) -> None:
    stored = part(judge(found=Found(verdict)), "stored")
    assert not stored.passed
    assert words in stored.evidence
    assert stored.next_step == (
        "trainyard store sync --run-dir runs/a --store file:///store --run-number 7 --once"
    )


@each_case(
    ("checkpoints", "words"),
    [
        ({}, "the checkpoint of step 600, the last one, is not stored; none is stored"),
        ({500: Stored(step=500)}, "is not stored; the newest stored one is of step 500"),
        ({STEPS: Stored(run_id="run-b")}, "the stored checkpoint of step 600 is of run run-b"),
        ({STEPS: Stored(step=500)}, "the stored checkpoint of step 600 is a copy of step 500"),
        ({STEPS: Stored(manifest_sha256="f" * 64)}, "of step 600 is not the one that the run wrote"),
        ({STEPS: Stored(problem="has no manifest.json")}, "of step 600 has no manifest.json"),
        ({STEPS: Stored(), 500: Stored(step=499)}, "the stored checkpoint of step 500 is a copy of step 499"),
        (
            {STEPS: Stored(), 500: Stored(step=500, run_id="b")},
            "the stored checkpoint of step 500 is of run b",
        ),
    ],
)
def test_each_stored_checkpoint_is_the_one_the_run_wrote(checkpoints: dict[int, Stored], words: str) -> None:
    stored = part(judge(found=Found(checkpoints=checkpoints)), "stored")
    assert not stored.passed
    assert words in stored.evidence


def test_an_earlier_checkpoint_must_be_the_one_that_was_saved_last() -> None:
    first: dict[str, Any] = {"event": "checkpoint_saved", "step": 500, "manifest_sha256": "a" * 64}
    second = first | {"manifest_sha256": "b" * 64}
    back = resumed(400, manifest_sha256="d" * 64)

    def stored(sha256: str, events: list[Any]) -> Part:
        found = Found(checkpoints={STEPS: Stored(), 500: Stored(sha256, step=500)})
        return part(judge(events=[STARTED, *events, SAVED, FINISHED], found=found), "stored")

    assert stored("a" * 64, [first]).passed
    assert "step 500 is not the one" in stored("b" * 64, [first]).evidence
    assert stored("b" * 64, [first, back, second]).passed
    stale = stored("a" * 64, [first, back, second])
    assert not stale.passed
    assert stale.next_step == "trainyard store prune --store file:///store --run-number 7 --keep-last 1"
    assert stored("c" * 64, []).passed, "nothing is on record of it"
    assert stored("b" * 64, [first, back, second | {"event": "resumed"}]).passed, "it went on from it"


@pytest.mark.parametrize("on_disk", [{}, {STEPS: "f" * 64}, {STEPS: SAVED["manifest_sha256"]}])
def test_a_sync_is_suggested_only_if_the_disk_has_the_runs_bytes(on_disk: dict[int, str]) -> None:
    found = Found(checkpoints={STEPS: Stored(manifest_sha256="f" * 64)}, on_disk=on_disk)
    step = str(part(judge(found=found), "stored").next_step)
    assert ("store sync" in step) is (on_disk == {STEPS: SAVED["manifest_sha256"]})
    assert (step == AGAIN) is not ("store sync" in step)


def test_a_run_that_was_cut_off_is_resumed_and_not_only_stored() -> None:
    cut_off = {key: value for key, value in proven_run().items() if key != "outcome"}
    proof = judge(cut_off, found=Found(None))
    assert part(proof, "stored").evidence == "file:///store holds nothing of this run"
    assert part(proof, "stored").next_step == part(proof, "trained").next_step


def test_a_damaged_copy_on_disk_of_a_whole_store_is_set_aside() -> None:
    damaged = Path("runs/a/checkpoints/step-00000600")
    problem = "run-7/checkpoint-600/state.bin: SHA-256 0… on disk"
    stored = part(judge(found=Found(Verdict(problems=(problem,)), damaged=(damaged,))), "stored")
    said = "the store has the complete run, but the copy on this disk is damaged"
    assert stored.evidence == f"{said}: {problem}"
    assert stored.next_step == (
        f"mv {damaged} runs/a/checkpoints/.set-aside-step-00000600"
        " && trainyard prove --run-dir runs/a --store file:///store"
    )


@pytest.mark.parametrize("taken", [True, False])
def test_a_store_that_could_not_be_asked_is_named_and_does_not_hold(taken: bool) -> None:
    trouble = "run number 7 belongs to run run-b" if taken else "The bucket ml-runs does not answer."
    stored = part(judge(found=Found(trouble=trouble, taken=taken)), "stored")
    assert (stored.passed, stored.evidence) == (False, trouble)
    assert str(stored.next_step).endswith("--run-number auto --once") is taken


def test_a_failed_run_is_not_blamed_for_missing_store_credentials() -> None:
    failed = changed("outcome", "status", to="failed")
    stored = part(judge(failed, found=Found(trouble="There are no AWS credentials for s3://a.")), "stored")
    assert not stored.passed
    assert stored.evidence == "this run failed and was not stored; its files are in runs/a"
    assert "trainyard train" in str(stored.next_step)
    nothing = part(judge(failed, found=Found(None)), "stored")
    assert (nothing.evidence, nothing.next_step) == (stored.evidence, stored.next_step)
    taken = part(judge(failed, found=Found(trouble="number 7 is another run's", taken=True)), "stored")
    assert taken.evidence == "number 7 is another run's"


def test_without_a_store_the_next_step_has_a_placeholder_for_its_address() -> None:
    proof = prove(proven_run(), whole_rows(), EVENTS, Found(None), place=ProofPlace("runs/a"))
    stored = part(proof, "stored")
    assert stored.evidence == "no store was named"
    assert "--store URL --run-number auto" in str(stored.next_step)


def test_the_suggested_commands_are_quoted_for_any_name() -> None:
    directory, store = "/mnt/my runs/it's; rm -rf $HOME", "file:///my store"
    place = ProofPlace(directory, store, 7)
    run = changed("outcome", "status", to="stopped")
    run["history"] = [{"until": 100, "commit": "0" * 40}]
    proof = prove(run, whole_rows(), EVENTS, Found(None), place=place)
    config = ["--config", f"{directory}/config.yaml"]
    resume = shlex.split(str(part(proof, "trained").next_step))
    assert resume[2:] == [*config, "--run-dir", directory, "--resume", "auto"]
    stored = shlex.split(str(part(proof, "stored").next_step))
    assert stored[3:7] == ["--run-dir", directory, "--store", store]
    assert shlex.split(str(part(proof, "repeatable").next_step).partition(": ")[2])[2:] == config


@each_case(
    ("changes", "missing", "step"),
    [
        ({"data": {}}, "data", "trainyard init program -- python train.py"),
        ({"lock_sha256": None}, "lock", "trainyard init program -- python train.py"),
        (
            {"data": {}, "git": {"commit": "a" * 40, "dirty": True}},
            "a clean working tree, data",
            "ignore files that do not matter in .gitignore; then: trainyard init program -- python train.py",
        ),
        ({"git": {"commit": "a" * 40, "dirty": True}}, "a clean working tree", "commit the changes"),
        ({"data": {}, "recipe": "hf-trainer"}, "data", "name the files that it reads in program.data"),
    ],
)
def test_what_a_program_lacks_is_written_into_a_configuration_and_never_runs_again_as_it_is(
    changes: dict[str, Any], missing: str, step: str
) -> None:
    program = {"command": ["python", "train.py"]}
    run = {**proven_run(), "recipe": "command", "program": program, "program_sha256": "e" * 64, **changes}
    repeatable = part(judge(run), "repeatable")
    assert repeatable.evidence == f"not on record: {missing}"
    assert step in str(repeatable.next_step)
    runs_again_as_it_is = "config.yaml" in str(repeatable.next_step)
    assert runs_again_as_it_is == (missing == "a clean working tree")


def test_a_configuration_that_was_changed_after_the_run_is_noticed() -> None:
    run, rows = proven_run(), whole_rows()
    recorded = run["config_sha256"]
    assert prove(run, rows, EVENTS, Found(), configuration=Configuration(frozenset({recorded}))).proven
    other = part(
        prove(run, rows, EVENTS, Found(), configuration=Configuration(frozenset({"f" * 64}))), "repeatable"
    )
    assert not other.passed
    assert "no longer the run's" in other.evidence


def test_a_run_with_a_segment_of_another_origin_is_not_repeatable() -> None:
    run = proven_run()
    same = {"until": 100, **read_origin(run)}
    run["history"] = [same]
    assert part(judge(run), "repeatable").passed
    run["history"] = [{**same, "config_sha256": "f" * 64, "commit": "0" * 40}, same]
    repeatable = part(judge(run), "repeatable")
    assert not repeatable.passed
    assert repeatable.evidence == "until step 100 it ran with another commit and another config"
    run["history"] = "lost"
    assert part(judge(run), "repeatable").evidence == "not on record: history of the segments"


@each_case(
    ("segment", "words"),
    [
        ({"lock_sha256": "f" * 64}, "another lock"),
        ({"diff_sha256": "f" * 64}, "another working tree"),
        ({"image_digest": "sha256:" + "f" * 64}, "another image"),
        ({"device": "cuda:0", "device_name": "NVIDIA H200", "threads": 8}, "another device"),
        ({"simd_bits": 128}, "another vector width"),
        ({"torch": "2.13.0+cpu"}, "another torch"),
    ],
)
def test_a_segment_with_another_rounding_is_named_once(segment: dict[str, Any], words: str) -> None:
    run = proven_run()
    run["history"] = [{"until": 100, **read_origin(run), **segment}]
    repeatable = part(judge(run), "repeatable")
    assert (repeatable.passed, repeatable.evidence) == (False, f"until step 100 it ran with {words}")


TOPOLOGY = {"threads": 4, "world_size": 4, "local_world_size": 4, "nccl": "2.29.7"}
TOPOLOGY |= {"nccl_algorithm": "Ring", "nccl_protocol": "Simple"}


@each_case(
    ("name", "value", "words"),
    [
        ("threads", 2, "other threads"),
        ("world_size", 8, "another world size"),
        ("local_world_size", 2, "other processes per machine"),
        ("nccl", "2.30.1", "another NCCL"),
        ("nccl_algorithm", "auto", "another NCCL algorithm"),
        ("nccl_protocol", "LL128", "another NCCL protocol"),
    ],
)
def test_a_run_of_two_topologies_is_repeatable_up_to_rounding(name: str, value: Any, words: str) -> None:
    run = proven_run()
    run["hardware"] |= TOPOLOGY
    before = read_origin({**run, "hardware": run["hardware"] | {name: value}})
    run["history"] = [{"until": 100, **before}]
    repeatable = part(judge(run), "repeatable")
    assert repeatable.passed
    said = f"seed 42; repeatable up to rounding, not to the bit: until step 100 it ran with {words}"
    assert repeatable.evidence.endswith(said)
    run["history"] = [{"until": 100, **read_origin(run)}]
    assert part(judge(run), "repeatable").evidence.endswith("seed 42")


@pytest.mark.parametrize("same", [True, False])
def test_another_config_is_another_division_only_where_it_computes_the_same(same: bool) -> None:
    run = proven_run()
    run["computation_sha256"] = "a" * 64
    before = read_origin(run) | {"config_sha256": "f" * 64, "computation_sha256": ("a" if same else "b") * 64}
    run["history"] = [{"until": 100, **before}]
    repeatable = part(judge(run), "repeatable")
    assert repeatable.passed == same
    words = "another division of the global batch" if same else "another config"
    assert repeatable.evidence.endswith(f"until step 100 it ran with {words}")
    del run["computation_sha256"], before["computation_sha256"]
    run["history"] = [{"until": 100, **before}]
    assert not part(judge(run), "repeatable").passed


def test_a_proof_with_a_part_missing_is_no_proof() -> None:
    proof = judge()
    assert not Proof(proof.parts[:3]).proven
    assert not Proof(()).proven


def skip(step: int) -> dict[str, Any]:
    return {"event": "step_skipped", "step": step, "reason": "loss nan is not finite"}


SKIPPED: list[tuple[list[Any], dict[int, Any], bool, str]] = [
    ([skip(150)], {}, True, "600 of 600 steps, 1 skipped, every other loss finite, no retries"),
    ([skip(200)], {200: {"skipped": True}}, True, "1 skipped"),
    ([skip(200)], {200: {"skipped": True, "loss": 9.0}}, True, "1 skipped"),
    # Steps after a resume are trained again; the one skipped at its checkpoint is not.
    ([skip(5), skip(550), RESUMED, skip(560)], {}, True, "2 skipped, every other loss finite"),
    ([], {200: {"skipped": True}}, False, "row of step 200 and the events differ"),
    ([], {200: {}}, False, "row of step 200 has no loss"),
    ([skip(200)], {}, False, "row of step 200 and the events differ"),
    ([skip(200)], {200: {"skipped": 1}}, False, "row of step 200 and the events differ"),
    ([skip(200)], {200: {"skipped": True, "loss": "nan"}}, False, "loss is 'nan' at step 200"),
    ([*map(skip, range(1, STEPS + 1))], {}, False, "the update of every step was skipped"),
]


@pytest.mark.parametrize(("skips", "rows", "passed", "words"), SKIPPED)
def test_skipped_updates_are_stated_and_those_that_the_records_contradict_are_no_training(
    skips: list[Any], rows: dict[int, Any], passed: bool, words: str
) -> None:
    kept = [{"step": at, **rows[at]} if (at := row["step"]) in rows else row for row in whole_rows()]
    trained = part(judge(rows=kept, events=[STARTED, *skips, FINISHED]), "trained")
    assert (trained.passed, words in trained.evidence) == (passed, True), trained.evidence
