"""Which run a start is: its identity, the table of situations, and the state that a segment passes on."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.errors import ConfigError, TrainyardError
from trainyard.run.identity import (
    begin_identity,
    choose_run_id,
    ci_facts,
    history_of,
    identity_in,
    image_facts,
    keep_identity,
    new_run_id,
    read_origin,
    read_run,
    write_identity,
    write_outcome,
)
from trainyard.run.segment import Segment, first_segment, read_segment
from trainyard.run.situation import Answer, Inputs, Recorded, Situation, decide, differences


def test_the_environment_or_a_directory_with_the_name_of_an_id_decides_the_identity() -> None:
    fresh = new_run_id()
    assert choose_run_id(Path("runs") / fresh, {}) == fresh
    assert choose_run_id(Path("runs") / fresh, {"TRAINYARD_RUN_ID": "gh-7"}) == "gh-7"
    assert choose_run_id(Path("/a/run"), {}) not in ("run", choose_run_id(Path("/b/run"), {}))
    assert new_run_id() != new_run_id() or new_run_id() != new_run_id()


def test_several_processes_that_would_each_choose_a_run_are_refused() -> None:
    with pytest.raises(ConfigError, match="--run-dir"):
        choose_run_id(None, {"LOCAL_RANK": "1"})
    assert choose_run_id(Path("/a/run"), {"LOCAL_RANK": "1"})
    assert choose_run_id(None, {"LOCAL_RANK": "1", "TRAINYARD_RUN_ID": "gh-7"}) == "gh-7"


@pytest.mark.parametrize("given", ["gh-7", "a", "Run_1.2-b", "-x", "9" * 128])
def test_a_name_that_a_folder_can_have_is_an_identity(given: str) -> None:
    assert choose_run_id(None, {"TRAINYARD_RUN_ID": given}) == given


@each_case(
    "given", ["../../etc", "a/b", ".", "..", ".hidden", "a b", "a\n", "ä", "a\\b", "9" * 129, " ", "a\x1b[2J"]
)
def test_an_identity_that_is_no_folder_name_is_refused_by_its_variable(given: str) -> None:
    with pytest.raises(ConfigError, match="TRAINYARD_RUN_ID") as refused:
        choose_run_id(None, {"TRAINYARD_RUN_ID": given})
    assert str(refused.value).isprintable()


def test_a_run_keeps_its_key_and_each_start_is_its_next_attempt(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_identity(path, "r1", {})
    first = identity_in(tmp_path)
    assert first is not None
    assert (len(first.key), first.attempt) == (32, 1)
    write_identity(path, "r1", {})
    assert identity_in(tmp_path) == replace(first, attempt=2)
    assert begin_identity(tmp_path, "r1") == replace(first, attempt=3)
    (tmp_path / "other").mkdir()
    write_identity(tmp_path / "other" / "run.json", "r1", {})
    assert read_run(tmp_path / "other" / "run.json")["key"] != first.key


def test_a_start_that_claimed_its_number_and_was_killed_keeps_its_key(tmp_path: Path) -> None:
    begun = begin_identity(tmp_path, "r1")
    keep_identity(tmp_path, replace(begun, stored_as={"file:///s": 7}))
    again = begin_identity(tmp_path, "another name")
    assert (again.run_id, again.key, again.attempt) == ("r1", begun.key, 2)
    keep_identity(tmp_path, again)
    write_identity(tmp_path / "run.json", "r1", {})
    run = read_run(tmp_path / "run.json")
    assert (run["key"], run["attempt"], run["stored_as"]) == (begun.key, 2, {"file:///s": 7})
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_record_that_was_fetched_in_place_of_the_own_one_decides(tmp_path: Path) -> None:
    keep_identity(tmp_path, begin_identity(tmp_path, "r1"))
    (tmp_path / "run.json").write_text(json.dumps({"run_id": "r2", "key": "f" * 32, "attempt": 4}))
    found = identity_in(tmp_path)
    assert found is not None
    assert (found.run_id, found.key, found.attempt) == ("r2", "f" * 32, 4)


def test_unknown_facts_are_absent(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_identity(path, "r1", {"git": {}, "image_digest": None, "seed": 0, "lock_sha256": "aa"})
    run = read_run(path)
    assert {"git", "image_digest"} & run.keys() == set()
    assert (run["run_id"], run["seed"], run["lock_sha256"]) == ("r1", 0, "aa")


def test_an_outcome_is_added_last_and_taken_out_again(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_identity(path, "r1", {"seed": 1})
    write_outcome(path, {"status": "stopped"})
    assert list(read_run(path))[-1] == "outcome"
    write_outcome(path, None)
    assert "outcome" not in read_run(path)
    assert read_run(path)["seed"] == 1


@pytest.mark.parametrize("content", [None, b"", b'{"run_id": "x"', b"[]", b"{}", b"\xff"])
def test_what_is_no_run_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "run.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TrainyardError, match=r"run\.json"):
        read_run(path)


def test_a_directory_without_the_record_is_no_run_and_that_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "run.json", tmp_path / "file" / "run.json"):
        with pytest.raises(ConfigError, match=f"{path.parent}.* is not a run directory"):
            read_run(path)


def test_ci_facts_are_those_of_github_and_absent_elsewhere() -> None:
    variables = {"GITHUB_RUN_ID": "7", "GITHUB_SHA": "abc", "GITHUB_REF": ""}
    assert ci_facts(variables) == {}
    assert ci_facts({**variables, "GITHUB_ACTIONS": "true"}) == {"run_id": "7", "sha": "abc"}


def segment(until: int, commit: str) -> dict[str, object]:
    return {"until": until, "commit": commit, "config_sha256": "c"}


def run_of(commit: str, *history: dict[str, object]) -> dict[str, object]:
    return {"git": {"commit": commit, "dirty": False}, "config_sha256": "c", "history": list(history)}


@pytest.mark.parametrize(
    ("run", "until", "expected"),
    [
        (run_of("a"), 0, []),
        (run_of("a"), 5, [segment(5, "a")]),
        (run_of("a", segment(5, "a")), 9, [segment(9, "a")]),
        (run_of("b", segment(5, "a")), 9, [segment(5, "a"), segment(9, "b")]),
        (run_of("b", segment(5, "a")), 4, [segment(4, "a")]),
        (run_of("b", segment(5, "a")), 5, [segment(5, "a")]),
        (
            run_of("a", segment(5, "a"), segment(9, "b")),
            12,
            [segment(5, "a"), segment(9, "b"), segment(12, "a")],
        ),
    ],
)
def test_history_says_which_code_made_which_steps(
    run: dict[str, object], until: int, expected: list[dict[str, object]]
) -> None:
    assert history_of(run, until=until) == expected


DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", {}),
        (DIGEST, {"image_digest": DIGEST}),
        (f"host:5000/a/b@{DIGEST}", {"image_digest": DIGEST, "image_name": "host:5000/a/b"}),
        (f"a:1@{DIGEST}", {"image_digest": DIGEST, "image_name": "a:1"}),
    ],
)
def test_the_image_is_on_record_by_its_digest(given: str, expected: dict[str, str]) -> None:
    assert image_facts({"TRAINYARD_IMAGE_DIGEST": given}) == expected
    assert image_facts({}) == {}


@each_case(
    "given", ["latest", "a:1", "sha256:abc", "a" * 64, DIGEST.upper(), f"{DIGEST}0", f"{DIGEST}@a", "x" * 500]
)
def test_what_is_no_digest_is_refused_before_training(given: str) -> None:
    with pytest.raises(ConfigError, match="TRAINYARD_IMAGE_DIGEST") as caught:
        image_facts({"TRAINYARD_IMAGE_DIGEST": given})
    assert len(str(caught.value)) < 400


HARDWARE = {"device": "cpu", "threads": 2, "torch": "2.13.0", "world_size": 1}


@pytest.mark.parametrize(
    "other",
    [
        {"image_digest": "sha256:1"},
        {"hardware": {**HARDWARE, "world_size": 2}},
        {"hardware": {**HARDWARE, "device": "cuda:0", "device_name": "NVIDIA H200"}},
    ],
)
def test_the_same_code_on_something_else_is_another_segment(other: dict[str, object]) -> None:
    before = {**run_of("a"), "hardware": HARDWARE}
    after = {**before, **other, "history": history_of(before, until=5)}
    assert [entry["until"] for entry in history_of(after, until=9)] == [5, 9]
    back = {**before, "history": history_of(after, until=9)}
    assert [entry["until"] for entry in history_of(back, until=12)] == [5, 9, 12]


def test_a_segment_is_recorded_flat_and_without_what_says_nothing_about_the_numbers() -> None:
    run = {**run_of("a"), "hardware": {**HARDWARE, "platform": "Linux", "driver": "580"}, "created": 7.0}
    assert history_of(run, until=5) == [{"until": 5, "commit": "a", "config_sha256": "c", **HARDWARE}]


def test_a_record_with_a_torn_section_has_an_origin_without_it() -> None:
    assert read_origin({"git": None, "hardware": "lost", "lock_sha256": "l"}) == {"lock_sha256": "l"}


# Who starts -> whether the folder or the id is named by it, and on a machine that has nothing of the run:
# whether the store may have the id, and whether this start is known to be of that run.
STARTS = {
    "a new folder each time, a first attempt of the action": (False, False, False),
    "a second attempt of the action": (False, True, True),
    "--run-dir, a first segment, a new build, a trial of a sweep": (True, False, False),
    "TRAINYARD_RUN_ID": (True, True, False),
    "--resume and the number, a next segment, a build with RUN_ID, a pod that returns": (True, True, True),
}
AFTER = {
    "success": Recorded("r", "k", "succeeded", 0),
    "success without a recorded exit code": Recorded("r", "k", "succeeded"),
    "failure": Recorded("r", "k", "failed", 1),
    "stop": Recorded("r", "k", "stopped", 75),
    "kill": Recorded("r", "k"),
}
SAME = Inputs(
    "python a.py", "c1", {"training.max_steps": 50, "program.command": ["a"]}, "a" * 40, "clean", "l", "d"
)
CHANGES: dict[str, tuple[Inputs, str]] = {
    "commit": (replace(SAME, commit="b" * 40), "commit: aaaaaaaaaaaa, now bbbbbbbbbbbb"),
    "tree": (replace(SAME, tree="e" * 64), "working tree: clean, now changed (eeeeeeeeeeee)"),
    "lock": (replace(SAME, lock="m"), "lock: l, now m"),
    "no lock": (replace(SAME, lock=None), "lock: l, now none"),
    "data": (replace(SAME, data="f"), "data: d, now f"),
    "command": (
        replace(SAME, command="python b.py", command_sha256="c2"),
        "command: python a.py, now python b.py",
    ),
    "configuration": (
        replace(SAME, configuration={"training.max_steps": 60}),
        "training.max_steps: 50, now 60",
    ),
}


def expected_here(after: str, change: str | None, *, is_fixed: bool) -> Answer:
    """The table on the same machine, where the record of the run is."""
    if change is not None:
        return Answer.REFUSE if after == "success" and is_fixed else Answer.BESIDE
    return Answer.DONE if after == "success" else Answer.CONTINUE


def test_every_situation_has_its_answer() -> None:
    wrong = []
    for (start, (is_fixed, in_store, may_adopt)), after, change in product(
        STARTS.items(), AFTER, (None, *CHANGES)
    ):
        now = SAME if change is None else CHANGES[change][0]
        found = differences(SAME, now)
        here = Situation(AFTER[after], found, "k", is_fixed=is_fixed, may_adopt=may_adopt)
        if decide(here) is not expected_here(after, change, is_fixed=is_fixed):
            wrong.append((start, "same machine", after, change, decide(here)))
        fresh = Situation(stored_key="k" if in_store else None, is_fixed=is_fixed, may_adopt=may_adopt)
        expected = Answer.START if not in_store else Answer.ADOPT if may_adopt else Answer.REFUSE
        if decide(fresh) is not expected:
            wrong.append((start, "fresh machine", after, change, decide(fresh)))
        # The folder was copied, or made anew, and the store's run of this id is another one.
        strange = Situation(AFTER[after], (), "another", is_fixed=is_fixed, may_adopt=may_adopt)
        if decide(strange) is not Answer.REFUSE:
            wrong.append((start, "another key in the store", after, change, decide(strange)))
    assert not wrong


def test_each_difference_is_named_with_both_values_and_equal_inputs_have_none() -> None:
    assert differences(SAME, SAME) == ()
    assert {name: differences(SAME, now) for name, (now, _) in CHANGES.items()} == {
        name: (said,) for name, (_, said) in CHANGES.items()
    }


COMMIT = "0123456789abcdef0123456789abcdef01234567"
FIRST = Segment("4711", 1, 812, COMMIT)


def test_a_lineage_begins_with_the_workflow_run_that_trains_first() -> None:
    variables = {"GITHUB_RUN_ID": "4711", "GITHUB_RUN_NUMBER": "812", "GITHUB_SHA": COMMIT}
    assert first_segment(variables) == FIRST
    assert FIRST.run_id == "gh-4711"


def test_the_next_segment_is_of_the_same_run_at_the_same_commit() -> None:
    following = FIRST.next(step=2340)
    assert following == Segment("4711", 2, 812, COMMIT, step=2340)
    assert following.run_id == FIRST.run_id


def test_what_is_handed_on_is_read_back() -> None:
    following = FIRST.next(step=7)
    assert read_segment(following.to_text()) == following


@each_case(
    ("change", "named"),
    [
        ({"lineage": "../../etc"}, "lineage"),
        ({"lineage": 4711}, "lineage"),
        ({"commit": "main"}, "commit"),
        ({"commit": COMMIT[:7]}, "commit"),
        ({"number": 0}, "number"),
        ({"number": True}, "number"),
        ({"run_number": "812"}, "run_number"),
        ({"step": -1}, "step"),
        ({"outages": 1.5}, "outages"),
        ({"name": "a b"}, "name"),
        ({"more": 1}, "is not the text that a segment passes to the next"),
    ],
)
def test_anything_else_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    text = json.dumps(json.loads(FIRST.to_text()) | change)
    with pytest.raises(ConfigError, match=named) as caught:
        read_segment(text)
    assert "Leave it empty" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "nonsense", "null"])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="continues"):
        read_segment(text)


def test_outside_of_a_workflow_run_there_is_no_segment() -> None:
    with pytest.raises(ConfigError, match="GITHUB_RUN_NUMBER is not set"):
        first_segment({"GITHUB_RUN_ID": "1", "GITHUB_SHA": COMMIT})
    with pytest.raises(ConfigError, match="run_number"):
        first_segment({"GITHUB_RUN_ID": "1", "GITHUB_RUN_NUMBER": "x", "GITHUB_SHA": COMMIT})
