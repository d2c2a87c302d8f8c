"""A run whose machines share no folder: each stores its part, and the main one lists what the store holds."""

import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from tests.unit.artifacts.conftest import KEY, MakeRun

from trainyard.artifacts.record.run_numbers import claim_run
from trainyard.artifacts.restore.restore import checkpoint_at_hand
from trainyard.artifacts.restore.resume_source import ResumeRequest, fetch_resume_source
from trainyard.artifacts.store.layout import checkpoint_prefix
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload import sync
from trainyard.artifacts.upload.node_parts import follow_node, is_further_machine, sync_node
from trainyard.artifacts.upload.run_following import Ending, Patience, RunningRun, follow_run, wait_for_run
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.errors import VerificationError, WaitTimeoutError
from trainyard.run.atomic_files import write_json_atomically
from trainyard.run.checkpoint_manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    describe_files,
    write_manifest,
)
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run, write_outcome
from trainyard.run.node_folder import NodeFolder, end_node, read_node, write_node

Machines = tuple[RunDirectory, RunDirectory]
RUN = "run-main"
OTHERS = "__1_0.distcp"


def add_checkpoint(main: RunDirectory, other: RunDirectory, step: int) -> None:
    """Add a checkpoint as a save leaves it: the same manifest on both machines, each with its own files."""
    path, part = main.checkpoint(step), other.checkpoint(step)
    path.mkdir(parents=True)
    part.mkdir(parents=True)
    for name in ("__0_0.distcp", OTHERS, ".metadata", "trainer_state.json"):
        (path / name).write_bytes(os.urandom(1000))
    write_manifest(path, CheckpointManifest(step, RUN, time.time(), describe_files(path)))
    shutil.move(path / OTHERS, part / OTHERS)
    shutil.copy(path / MANIFEST_NAME, part / MANIFEST_NAME)


@pytest.fixture
def machines(make_run: MakeRun, tmp_path: Path) -> Machines:
    """The folders of the main machine and of another machine, with the checkpoints of two steps."""
    main, other = make_run("main", steps=()), RunDirectory(tmp_path / "other" / "main")
    other.create()
    main.metrics_file.write_text("")
    for number, directory in enumerate((main, other)):
        directory.config_file.write_text("checkpointing:\n  shared: false\n")
        write_node(directory, NodeFolder(RUN, number, 2))
    for step in (100, 200):
        add_checkpoint(main, other, step)
    return main, other


def test_only_the_main_machine_lists_and_only_what_is_stored(
    machines: Machines, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, other = machines
    monkeypatch.setattr(sync, "OTHERS_SECONDS", 0.0)
    assert (is_further_machine(main), is_further_machine(other)) == (False, True)
    alone = sync_run(store, main, 1)
    assert [line.partition(":")[0] for line in alone.problems] == [
        "checkpoint-200 was not uploaded",
        "checkpoint-100 was not uploaded",
    ]
    assert "trainyard store sync there" in alone.problems[0]
    assert store.describe(checkpoint_prefix(1, 200) + MANIFEST_NAME) is None

    part = sync_node(store, other, 1)
    assert (part.problems, part.sent, part.objects, part.manifest_key) == ((), 2, 2, "")
    assert store.describe(checkpoint_prefix(1, 200) + OTHERS) is not None
    assert sync_node(store, other, None).sent == 0
    both = sync_run(store, main, 1)
    assert both.problems == ()
    verified = verify_run(store, 1, depth=Depth.FULL, run_directory=main)
    assert verified.problems == ()
    assert "2 files of checkpoints are on other machines" in verified.compared
    with checkpoint_at_hand(main.checkpoint(200), store, 1, 200) as whole:
        assert (whole / OTHERS).read_bytes() == (other.checkpoint(200) / OTHERS).read_bytes()
    assert sync_run(store, main, 1).sent == 0


@pytest.mark.parametrize("content", [b"", b"x" * 1000])
def test_other_bytes_of_another_machine_are_not_listed(
    machines: Machines,
    store: Store,
    folder: Path,
    content: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main, other = machines
    monkeypatch.setattr(sync, "OTHERS_SECONDS", 0.0)
    claim_run(store, run_id=RUN, key=KEY, wanted=1)
    sync_node(store, other, 1)
    (stored,) = folder.rglob(f"checkpoint-200/{OTHERS}")
    stored.chmod(0o600)
    stored.write_bytes(content)
    assert [line.partition(":")[0] for line in sync_run(store, main, 1).problems] == [
        "checkpoint-200 was not uploaded"
    ]


def test_a_part_that_is_damaged_here_is_not_sent(machines: Machines, store: Store) -> None:
    _, other = machines
    (other.checkpoint(200) / OTHERS).write_bytes(b"y" * 1000)
    claim_run(store, run_id=RUN, key=KEY, wanted=1)
    part = sync_node(store, other, 1)
    assert (part.sent, len(part.problems)) == (1, 1)
    assert store.describe(checkpoint_prefix(1, 200) + OTHERS) is None


def test_without_a_number_a_further_machine_waits_for_the_main_one(machines: Machines, store: Store) -> None:
    with pytest.raises(VerificationError, match="the main machine claims it"):
        sync_node(store, machines[1], None)


def test_the_main_machine_stores_a_checkpoint_once_the_others_have(
    machines: Machines, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    main, other = machines
    running = RunningRun(store, main, 1)
    claim_run(store, run_id=RUN, key=KEY, wanted=1)
    assert (running.store_newest(), running.waits) == (None, True)
    sync_node(store, other, 1)
    for step in (200, 100):
        report = running.store_newest()
        assert report is not None
        assert report.problems == ()
        assert store.describe(checkpoint_prefix(1, step) + MANIFEST_NAME) is not None
    assert (running.store_newest(), running.waits) == (None, False)
    assert "cut short" not in caplog.text, "parts of others that are not listed yet are not leftovers"


@pytest.mark.slow
def test_both_follow_a_run_to_its_end(machines: Machines, folder: Path, store: Store) -> None:
    main, other = machines
    patience = Patience(poll_seconds=0.05)
    found = {}

    def followed(name: str) -> None:
        own = open_store(folder.as_uri())
        if name == "other":
            found[name] = follow_node(own, other, 1, stop=threading.Event(), patience=patience)
        else:
            found[name] = follow_run(own, main, 1, stop=threading.Event(), patience=patience)

    threads = [threading.Thread(target=followed, args=(name,)) for name in ("main", "other")]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    add_checkpoint(main, other, 300)
    end_node(other)
    write_outcome(main.run_file, {"status": "succeeded"})
    for thread in threads:
        thread.join(60)
    assert (found["main"].ending, found["other"].ending) == (Ending.OUTCOME, Ending.OUTCOME)
    assert found["main"].problems == found["other"].problems == ()
    assert found["other"].checkpoints == 3
    assert found["other"].summary() == "3 checkpoints stored while it was trained; the run is over"
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=main).problems == ()


def test_which_machine_it_is_must_be_known_before_a_run_is_followed(
    machines: Machines,
) -> None:
    main, _ = machines
    (main.path / "node.json").unlink()
    with pytest.raises(WaitTimeoutError):
        wait_for_run(main, Patience(silence_seconds=0, poll_seconds=0.01), threading.Event())


def test_a_run_of_one_machine_is_followed_without_the_mark_of_a_machine(
    machines: Machines,
) -> None:
    main, _ = machines
    (main.path / "node.json").unlink()
    run = read_run(main.run_file)
    write_json_atomically(main.run_file, {**run, "hardware": {"world_size": 8, "local_world_size": 8}})
    wait_for_run(main, Patience(silence_seconds=0, poll_seconds=0.01), threading.Event())


def test_fetching_hides_parts_that_are_newer_than_what_is_whole(
    machines: Machines, store: Store, folder: Path, tmp_path: Path
) -> None:
    main, other = machines
    claim_run(store, run_id=RUN, key=KEY, wanted=1)
    sync_node(store, other, 1)
    assert sync_run(store, main, 1).problems == ()
    fresh = RunDirectory(tmp_path / "fresh" / RUN)
    wanted = ResumeRequest(fresh, RUN, "auto", folder.as_uri(), 1, segment=1, may_fetch=True)
    assert fetch_resume_source(wanted, open_store).resume == "auto"
    assert (fresh.checkpoint(200) / OTHERS).is_file()
    assert read_node(fresh) is None
    add_checkpoint(fresh, RunDirectory(tmp_path / "elsewhere"), 300)
    assert "step 200" in fetch_resume_source(wanted, open_store).reason
    assert fresh.checkpoint_steps() == [200]
    assert (fresh.checkpoints / ".set-aside-step-00000300").is_dir()


@pytest.mark.slow
def test_a_machine_with_a_newer_part_waits_until_the_main_one_lists_it(
    machines: Machines, store: Store, folder: Path
) -> None:
    """Otherwise machines that start again at once would not agree on the checkpoint."""
    main, other = machines
    claim_run(store, run_id=RUN, key=KEY, wanted=7)
    sync_node(store, other, 7)
    wanted = ResumeRequest(
        other, RUN, "auto", folder.as_uri(), None, segment=1, may_fetch=True, wait_seconds=60.0
    )
    listing = threading.Timer(0.5, sync_run, (open_store(folder.as_uri()), main, 7))
    listing.start()
    try:
        assert "run 7" in fetch_resume_source(wanted, open_store).reason
    finally:
        listing.join()
    assert other.checkpoint_steps() == [200]
    assert (other.checkpoint(200) / "trainer_state.json").is_file()
    (aside,) = other.path.parent.glob(f"{other.path.name}.until-*")
    assert RunDirectory(aside).checkpoint_steps() == [], "parts of what is stored whole would fill the disk"


def test_a_part_that_nobody_lists_is_waited_for_only_so_long(
    machines: Machines, store: Store, folder: Path
) -> None:
    main, other = machines
    claim_run(store, run_id=RUN, key=KEY, wanted=7)
    sync_node(store, other, 7)
    assert sync_run(store, main, 7).problems == ()
    add_checkpoint(main, other, 300)
    wanted = ResumeRequest(
        other, RUN, "auto", folder.as_uri(), None, segment=1, may_fetch=True, wait_seconds=0.5
    )
    started = time.monotonic()
    assert fetch_resume_source(wanted, open_store).resume == "auto"
    assert time.monotonic() - started >= 0.5
    assert other.checkpoint_steps() == [200]
    (aside,) = other.path.parent.glob(f"{other.path.name}.until-*")
    assert RunDirectory(aside).checkpoint_steps() == [300], "the only copy of this part is kept"
