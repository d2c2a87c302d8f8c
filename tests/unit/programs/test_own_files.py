"""Which files are a run's own, which it reads, and which second run at once is refused."""

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.cases import each_case

from trainyard.errors import ConfigError
from trainyard.programs import own_files
from trainyard.programs.own_files import OwnFiles, Places, claim_of_places, last_claim, places_of

RUN, OTHER = "/w/runs/a", "/w/runs/b"
AUTO, OUTPUT = Places(RUN, (), "/w/"), Places(RUN, (f"{RUN}/output/",))


def never(_: Path) -> bool:
    return False


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "trainyard" / "places"


@each_case(
    ("mine", "theirs", "shared"),
    [
        (AUTO, Places(OTHER, (), "/w/"), True),
        (AUTO, Places(OTHER, (), "/w/sub/"), True),
        (AUTO, Places(OTHER, (), "/v/"), False),
        (AUTO, Places(OTHER, ("/w/out/b/",)), True),
        (AUTO, Places(OTHER, (f"{OTHER}/output/",)), False),
        (AUTO, Places(OTHER, ("/scratch/b/",)), False),
        (OUTPUT, Places(OTHER, (f"{OTHER}/output/",)), False),
        (OUTPUT, Places(OTHER, (f"{RUN}/output/",)), True),
        (Places(RUN, ("/w/out/a_",)), Places(OTHER, ("/w/out/b_",)), False),
        (Places(RUN, ("/w/out/",)), Places(OTHER, ("/w/out/b_",)), True),
        (Places(RUN, ("/w/out/run1/",)), Places(OTHER, ("/w/out/run10/",)), False),
    ],
)
def test_places_are_shared_where_both_may_hold_one_file(mine: Places, theirs: Places, shared: bool) -> None:
    assert (mine.shared_with(theirs) is not None, theirs.shared_with(mine) is not None) == (shared, shared)


@each_case(
    ("command", "checkpoints", "metrics", "found"),
    [
        (["train"], "auto", "auto", AUTO),
        (["train"], "out/*.pt", "auto", Places(RUN, ("/w/out/",), "/w/")),
        (["train"], "out/a_*.pt", "m.csv", Places(RUN, ("/w/m.csv/", "/w/out/a_"))),
        (["train"], "{run_dir}/output/*.pt", "{run_dir}/output", OUTPUT),
        (["train"], "*.pt", "/v/m.csv", Places(RUN, ("/v/m.csv/", "/w/"))),
        (["--out={run_dir}/x"], "auto", "auto", Places(RUN)),
        (["sh", "-c", "t $TRAINYARD_OUTPUT"], "auto", "auto", Places(RUN)),
        (["--out={run_dir}"], "o/*", "auto", Places(RUN, ("/w/o/",))),
    ],
)
def test_the_settings_and_the_command_say_where_files_are(
    command: Sequence[str], checkpoints: str, metrics: str, found: Places
) -> None:
    settings = {"checkpoints": checkpoints, "metrics": metrics}
    assert places_of(Path("/w"), Path(RUN), command, **settings) == found


def places(run: Path, searched: Path | None = None, *named: Path) -> Places:
    return Places(str(run), tuple(f"{each}/" for each in named), f"{searched}/" if searched else None)


def test_a_second_run_is_refused_while_the_first_lives_and_only_in_its_places(tmp_path: Path) -> None:
    first, second = places(tmp_path / "a", tmp_path), places(tmp_path / "b", tmp_path)
    with claim_of_places(first, is_training=never):
        used = rf"in use by run {tmp_path}/a \(process {os.getpid()}"
        with pytest.raises(ConfigError, match=used) as refused:
            claim_of_places(second, is_training=never).__enter__()
        assert "{run_dir}/output" in str(refused.value)
        with claim_of_places(places(tmp_path / "b", None, tmp_path / "b"), is_training=never):
            pass
        with claim_of_places(first, is_training=never):
            pass  # the same process holds the places for its later steps
        with claim_of_places(second, is_training=never):
            pass  # the training of the first is over; it is being stored
    with claim_of_places(second, is_training=never):
        pass


def change(state: Path, **values: object) -> None:
    (file,) = state.glob("*.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@each_case(
    ("values", "is_training", "held"),
    [
        ({"is_over": False}, True, True),
        ({"is_over": False}, False, False),
        ({"is_over": True}, True, False),
        ({"is_over": False, "machine": "another"}, True, False),
    ],
)
def test_a_command_that_was_killed_holds_its_places_while_its_program_lives(
    values: dict[str, object], is_training: bool, held: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with claim_of_places(places(tmp_path / "a", tmp_path), is_training=never):
        pass
    change(tmp_path / "trainyard" / "places", **values)
    second = claim_of_places(
        places(tmp_path / "b", tmp_path), is_training=lambda path: is_training and path.name == "a"
    )
    if held:
        with pytest.raises(ConfigError):
            second.__enter__()
    else:
        with second:
            pass


def old_copy(path: Path) -> None:
    (earlier := path.with_name("earlier")).write_text("x")
    os.utime(earlier, (1, 1))
    shutil.copy2(earlier, path)


def behind(path: Path) -> None:
    path.write_text("x")
    os.utime(path, (then := time.time() - 400, then))


WRITTEN: list[Callable[[Path], object]] = [Path.touch, old_copy, behind]


@each_case("write", WRITTEN)
def test_what_is_written_after_the_start_is_the_runs_whatever_its_time_says(
    write: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cp -p` keeps the time of a file, and a file server may be 400 s behind this machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    before = tmp_path / "before.pt"
    before.touch()
    time.sleep(0.02)  # a tick of the file system's clock
    with claim_of_places(places(tmp_path / "a", tmp_path), is_training=never) as own:
        write(tmp_path / "after.pt")
    assert own.has_written(tmp_path / "after.pt")
    assert not own.has_written(before)
    assert not own.has_written(tmp_path / "gone.pt")
    assert not list(tmp_path.glob(".trainyard-*")), "the marker is removed"


@pytest.mark.parametrize("other", [None, "the same place", "its own place"])
def test_a_run_that_resumes_finds_its_files_unless_another_run_used_the_place(
    other: str | None, tmp_path: Path
) -> None:
    run = tmp_path / "a"
    run.mkdir()
    with claim_of_places(places(run, tmp_path), is_training=never):
        (tmp_path / "ckpt.pt").touch()
        (run / "run.json").touch()
    time.sleep(0.02)
    if other is not None:
        searched = tmp_path if other == "the same place" else None
        with claim_of_places(places(tmp_path / "b", searched, tmp_path / "b"), is_training=never):
            pass
    with claim_of_places(places(run, tmp_path), is_training=never) as own:
        assert own.has_written(tmp_path / "ckpt.pt") is (other != "the same place")
    assert last_claim(run) == own


def test_a_run_directory_that_was_made_anew_has_no_files_of_before(tmp_path: Path) -> None:
    with claim_of_places(places(tmp_path / "a", tmp_path), is_training=never):
        (tmp_path / "ckpt.pt").touch()
    time.sleep(0.02)
    with claim_of_places(places(tmp_path / "a", tmp_path), is_training=never) as own:
        assert not own.has_written(tmp_path / "ckpt.pt")


def test_without_a_folder_for_claims_only_the_second_run_is_not_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(own_files, "_state_folder", lambda: None)
    with claim_of_places(places(tmp_path / "a", tmp_path), is_training=never) as own:
        (tmp_path / "ckpt.pt").touch()
        assert own.has_written(tmp_path / "ckpt.pt")
    assert "a second run at once" in caplog.text
    assert not last_claim(tmp_path / "a").has_written(tmp_path / "ckpt.pt")


def test_a_file_of_an_unknown_file_system_is_compared_with_this_machines_clock(tmp_path: Path) -> None:
    (tmp_path / "ckpt.pt").touch()
    assert OwnFiles({}, time.time_ns() - 10**9).has_written(tmp_path / "ckpt.pt")
    assert not OwnFiles({}, time.time_ns() + 10**9).has_written(tmp_path / "ckpt.pt")


def test_machines_of_one_home_keep_their_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods with one home have folders of their own at the same path."""
    here = places(tmp_path / "a", tmp_path)
    with claim_of_places(here, is_training=never):
        monkeypatch.setattr(own_files, "machine", lambda: "another")
        monkeypatch.setattr("socket.gethostname", lambda: "another")
        with (
            claim_of_places(here, is_training=never),
            claim_of_places(places(tmp_path / "c", tmp_path / "c"), is_training=never),
        ):
            pass
        monkeypatch.undo()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        with pytest.raises(ConfigError):
            claim_of_places(places(tmp_path / "b", tmp_path), is_training=never).__enter__()


def test_a_run_that_another_machine_started_owns_what_lies_in_its_directory(tmp_path: Path) -> None:
    """A pod that replaces another has no claim from before, and its file system may have another clock."""
    files = {place: tmp_path / place / "a.pt" for place in ("run/program", "elsewhere")}
    for file in files.values():
        file.parent.mkdir(parents=True)
        file.write_text("")
    later = time.time_ns() + 10**9
    for name, owned in ((str(tmp_path / "run"), True), ("", False)):
        own = OwnFiles({}, later, name)
        assert own.has_written(files["run/program"]) is owned
        assert not own.has_written(files["elsewhere"])
    places = places_of(tmp_path, tmp_path / "run", ("python",), checkpoints="auto", metrics="auto")
    for has_record in (False, True):
        if has_record:
            (tmp_path / "run/run.json").write_text("{}")
        with claim_of_places(places, is_training=lambda _: False) as own:
            assert bool(own.own_folder) is has_record
        for claim in (tmp_path / "state").rglob("*.json"):
            claim.unlink()
