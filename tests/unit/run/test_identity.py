import json
from dataclasses import replace
from pathlib import Path

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
