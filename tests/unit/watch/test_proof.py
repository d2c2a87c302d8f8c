"""The proof: what holds, and above all what must never count as holding."""

import copy
import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from trainyard.run.identity import origin_of
from trainyard.watch.proof import Checks, Part, Place, Proof, prove

STEPS = 600
PLACE = Place("runs/a", "file:///store", 7)
EVENTS: list[dict[str, Any]] = [{"event": "started", "step": 0}, {"event": "finished", "step": STEPS}]


@dataclass(frozen=True)
class Verdict:
    objects_total: Any = 6
    objects_verified: Any = 6
    problems: tuple[str, ...] = ()
    run_id: Any = "run-a"
    ok: Any = True


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
        "outcome": {"status": "succeeded", "exit_code": 0, "steps": STEPS, "final_loss": 1.08},
    }


def whole_rows(last: int = STEPS) -> list[dict[str, Any]]:
    return [{"step": step, "loss": 5.0 / step} for step in range(100, last + 1, 100)]


def judge(
    run: dict[str, Any] | None = None,
    rows: list[dict[str, Any]] | None = None,
    events: list[dict[str, Any]] | None = None,
    verdict: Verdict | None = Verdict(),
) -> Proof:
    return prove(
        proven_run() if run is None else run,
        whole_rows() if rows is None else rows,
        EVENTS if events is None else events,
        verdict,
        place=PLACE,
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
        ("network", "one process: no network was used", None),
        ("stored", "6 of 6 objects: SHA-256 equal on disk, in the store and in the manifest", None),
        ("repeatable", "commit 3f2c1ab (clean), lock 91be…, config 77d0…, data e01c…, seed 42", None),
    ]


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from leaves(inner, (*path, key))
        else:
            yield (*path, key)


NEEDED = [path for path in leaves(proven_run()) if path[-1] != "branch"]


@pytest.mark.parametrize("path", NEEDED, ids=".".join)
@pytest.mark.parametrize("wrong", ["absent", None, True, "", "600", [], math.nan, {}, -1], ids=repr)
def test_no_fact_that_is_missing_or_of_another_type_counts(path: tuple[str, ...], wrong: Any) -> None:
    run = changed(*path, to=wrong)
    if wrong == "absent":
        inner = run
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
    negative_is_a_value = wrong == -1 and path in (("outcome", "final_loss"), ("seed",))
    assert judge(run).proven is negative_is_a_value


@pytest.mark.parametrize("section", ["git", "data", "hardware", "plan", "outcome"])
@pytest.mark.parametrize("wrong", [None, "x", [], {}, 3])
def test_no_section_may_be_missing(section: str, wrong: Any) -> None:
    assert not judge(changed(section, to=wrong)).proven


def test_an_empty_run_proves_nothing() -> None:
    proof = prove({}, [], [], None)
    assert not proven_names(proof)
    assert not proof.proven


def proven_names(proof: Proof) -> list[str]:
    return [p.name for p in proof.parts if p.holds]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no row with a step and a loss"),
        (whole_rows(500), "the last loss on record is of step 500"),
        (whole_rows(700), "the last loss on record is of step 700"),
        ([*whole_rows(), {"step": 700, "val_loss": 1.0}], "of step 600"),
        ([*whole_rows(), {"val_loss": 1.0}], "of step 600"),
        ([{"step": 3, "loss": math.nan}, *whole_rows()], "loss is nan at step 3"),
        ([{"step": 3, "loss": math.inf}, *whole_rows()], "loss is inf at step 3"),
        ([{"step": 3, "loss": None}, *whole_rows()], "loss is None at step 3"),
        ([{"step": 3, "loss": "1.0"}, *whole_rows()], "loss is '1.0' at step 3"),
        ([{"step": 3, "loss": True}, *whole_rows()], "loss is True at step 3"),
        ([{"step": 3, "loss": 10**400}, *whole_rows()], "at step 3"),
        ([*whole_rows(), {"step": 600, "val_loss": math.nan}], "val_loss is nan at step 600"),
        ([{"step": "600", "loss": 1.0}], "no row with a step and a loss"),
    ],
)
def test_the_rows_must_bear_the_outcome_out(rows: list[dict[str, Any]], words: str) -> None:
    trained = part(judge(rows=rows), "trained")
    assert not trained.holds
    assert words in trained.evidence
    assert trained.next_step == "scripts/train.py --config runs/a/config.yaml --run-dir runs/a --resume auto"


def test_a_stopped_run_says_where_it_stopped_and_how_to_go_on() -> None:
    outcome = {
        "status": "stopped",
        "exit_code": 75,
        "steps": 340,
        "reason": "deadline of 8h",
        "final_loss": 2.0,
    }
    trained = part(judge(changed("outcome", to=outcome), rows=whole_rows(300)), "trained")
    assert not trained.holds
    assert trained.evidence == "stopped at step 340 of 600: deadline of 8h"
    assert "--resume auto" in str(trained.next_step)


def test_a_stop_is_told_once() -> None:
    reason = "Stopped at step 340 of 600: SIGTERM. runs/a/checkpoints/step-00000340 is whole."
    outcome = {"status": "stopped", "exit_code": 75, "steps": 340, "reason": reason}
    assert part(judge(changed("outcome", to=outcome)), "trained").evidence == (
        "stopped at step 340 of 600: SIGTERM. runs/a/checkpoints/step-00000340 is whole."
    )


def test_a_failed_run_gives_its_reason() -> None:
    outcome = {"status": "failed", "exit_code": 1, "steps": 12, "reason": "loss is nan at step 13"}
    assert part(judge(changed("outcome", to=outcome)), "trained").evidence == (
        "failed at step 12 of 600: loss is nan at step 13"
    )


def test_a_killed_run_has_no_outcome_and_is_not_trained() -> None:
    run = proven_run()
    del run["outcome"]
    assert part(judge(run, rows=whole_rows(300)), "trained").evidence == (
        "no outcome on record, so the run was cut off; the last row is step 300"
    )


def test_a_validation_loss_that_is_not_finite_is_not_trained() -> None:
    run = changed("outcome", "validation_loss", to=math.inf)
    assert "validation loss is inf" in part(judge(run), "trained").evidence


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([340], "1 retry (resumed after step 340)"),
        ([340, 400], "2 retries (resumed after step 340, 400)"),
        ([1, 2, 3, 4], "4 retries (resumed after step 1, 2, 3, …)"),
        ([None], "1 retry"),
    ],
)
def test_retries_are_counted_from_the_events(steps: list[int | None], words: str) -> None:
    events = [{"event": "resumed", "step": step} for step in steps]
    trained = part(judge(events=[*EVENTS, *events]), "trained")
    assert trained.holds
    assert trained.evidence.endswith(words)


def test_several_processes_without_a_network_verdict_do_not_hold() -> None:
    network = part(judge(changed("hardware", "world_size", to=8)), "network")
    assert not network.holds
    assert "8 processes" in network.evidence
    assert "NCCL_DEBUG=INFO" in str(network.next_step)


@pytest.mark.parametrize(
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
def test_what_is_not_whole_in_the_store_is_not_stored(verdict: Verdict | None, words: str) -> None:
    stored = part(judge(verdict=verdict), "stored")
    assert not stored.holds
    assert words in stored.evidence
    assert stored.next_step == (
        "scripts/training_artifact_sync.py --run-dir runs/a --store file:///store --run-number 7 --once"
    )


def test_the_last_checkpoint_must_be_among_the_stored_ones() -> None:
    def stored(steps: set[int]) -> Part:
        checks = Checks(stored_steps=frozenset(steps))
        return part(prove(proven_run(), whole_rows(), EVENTS, Verdict(), checks=checks), "stored")

    assert stored({500, STEPS}).holds
    assert (
        "step 600, the last one, is not stored; the newest stored one is of step 500"
        in stored({500}).evidence
    )
    assert "none is stored" in stored(set()).evidence


def test_a_store_that_could_not_be_asked_is_named_and_does_not_hold() -> None:
    checks = Checks(store_trouble="The bucket ml-runs does not answer.")
    stored = part(prove(proven_run(), whole_rows(), EVENTS, Verdict(), checks=checks), "stored")
    assert not stored.holds
    assert stored.evidence == "The bucket ml-runs does not answer."


def test_without_a_store_the_next_step_leaves_its_address_to_be_filled_in() -> None:
    stored = part(prove(proven_run(), whole_rows(), [], None, place=Place("runs/a")), "stored")
    assert stored.evidence == "no store was named"
    assert "--store URL --run-number auto" in str(stored.next_step)


def test_the_proposed_commands_can_be_pasted_whatever_the_names() -> None:
    directory, store = "/mnt/my runs/it's; rm -rf $HOME", "file:///my store"
    place = Place(directory, store, 7)
    run = changed("outcome", "status", to="failed")
    run["history"] = [{"until": 100, "commit": "0" * 40}]
    proof = prove(run, whole_rows(), EVENTS, None, place=place)
    config = ["--config", f"{directory}/config.yaml"]
    resume = shlex.split(str(part(proof, "trained").next_step))
    assert resume[1:] == [*config, "--run-dir", directory, "--resume", "auto"]
    assert shlex.split(str(part(proof, "stored").next_step))[1:5] == [
        *("--run-dir", directory, "--store", store)
    ]
    assert shlex.split(str(part(proof, "repeatable").next_step).partition(": ")[2])[1:] == config


def test_a_dirty_tree_holds_with_the_hash_of_its_difference_and_is_shown_as_dirty() -> None:
    run = changed("git", "dirty", to=True)
    assert "state of the working tree" in part(judge(run), "repeatable").evidence
    run["git"]["diff_sha256"] = "ab12" + "0" * 60
    repeatable = part(judge(run), "repeatable")
    assert repeatable.holds
    assert "commit 3f2c1ab (dirty, difference ab12…)" in repeatable.evidence


def test_outside_git_nothing_can_be_repeated() -> None:
    run = proven_run()
    del run["git"]
    repeatable = part(judge(run), "repeatable")
    assert repeatable.evidence == "not on record: commit"
    assert "git repository" in str(repeatable.next_step)


def test_a_configuration_that_was_changed_after_the_run_is_noticed() -> None:
    run, rows = proven_run(), whole_rows()
    recorded = run["config_sha256"]
    assert prove(run, rows, EVENTS, Verdict(), checks=Checks(config_digests=frozenset({recorded}))).proven
    other = part(
        prove(run, rows, EVENTS, Verdict(), checks=Checks(config_digests=frozenset({"f" * 64}))), "repeatable"
    )
    assert not other.holds
    assert "no longer the run's" in other.evidence


def test_segments_of_another_origin_are_not_repeated_by_the_record() -> None:
    run = proven_run()
    same = {"until": 100, **origin_of(run)}
    run["history"] = [same]
    assert part(judge(run), "repeatable").holds
    run["history"] = [{**same, "config_sha256": "f" * 64, "commit": "0" * 40}, same]
    repeatable = part(judge(run), "repeatable")
    assert not repeatable.holds
    assert repeatable.evidence == "until step 100 it ran with another commit and another config"
    run["history"] = "lost"
    assert part(judge(run), "repeatable").evidence == "not on record: history of the segments"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("lock_sha256",), "f" * 64, "another lock"),
        (("git", "diff_sha256"), "f" * 64, "another working tree"),
        (("image_digest",), "sha256:" + "f" * 64, "another image"),
        (("hardware", "device"), "cuda:0", "another device"),
        (("hardware", "device_name"), "NVIDIA H200", "another device"),
        (("hardware", "threads"), 2, "other threads"),
        (("hardware", "torch"), "2.13.0+cpu", "another torch"),
        (("hardware", "world_size"), 8, "another world size"),
    ],
)
def test_a_segment_that_rounded_otherwise_is_named(path: tuple[str, ...], value: Any, words: str) -> None:
    run = proven_run()
    run["history"] = [{"until": 100, **origin_of(changed(*path, to=value))}]
    repeatable = part(judge(run), "repeatable")
    assert not repeatable.holds
    assert repeatable.evidence == f"until step 100 it ran with {words}"


def test_a_segment_on_another_gpu_is_another_device_once() -> None:
    run = proven_run()
    run["hardware"] |= {"device": "cpu", "threads": 4}
    gpu = {"device": "cuda:0", "device_name": "NVIDIA H200", "threads": 8}
    run["history"] = [{"until": 100, **origin_of(run), **gpu}]
    evidence = part(judge(run), "repeatable").evidence
    assert evidence == "until step 100 it ran with another device and other threads"


def test_image_and_parent_are_needed_by_hash_once_they_are_named() -> None:
    run = changed("image_digest", to="latest")
    run["parent"] = {"checkpoint": "runs/b/checkpoints/step-00000100"}
    assert part(judge(run), "repeatable").evidence == "not on record: image, parent checkpoint"
    run["image_digest"] = "sha256:0c4d" + "0" * 60
    run["parent"]["manifest_sha256"] = "aaaa" + "0" * 60
    assert "image 0c4d…, parent aaaa…, seed 42" in part(judge(run), "repeatable").evidence


def test_a_proof_with_a_part_missing_is_no_proof() -> None:
    proof = judge()
    assert not Proof(proof.parts[:3]).proven
    assert not Proof(()).proven


def test_the_proof_is_saved_with_each_part() -> None:
    saved = judge(verdict=None).to_json()
    assert saved["proven"] is False
    assert [(p["name"], p["holds"]) for p in saved["parts"]] == [
        ("trained", True),
        ("network", True),
        ("stored", False),
        ("repeatable", True),
    ]
    assert isinstance(saved["time"], float)
