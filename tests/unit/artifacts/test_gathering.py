"""The records that GitHub keeps of a run: bounded in size, for people, and never a checkpoint."""

import os
from pathlib import Path

import pytest

from trainyard.artifacts import gathering
from trainyard.artifacts.gathering import LARGEST_FILE, LARGEST_LOG, LARGEST_LOGS, gather_records
from trainyard.errors import ConfigError
from trainyard.run.directory import RunDirectory

KEPT = (
    "run.json",
    "config.yaml",
    "metrics.jsonl",
    "events.jsonl",
    "report/index.html",
    "report/pictures/curve.svg",
    "logs/nccl-rank-0.log",
    "logs/hang-rank-3.txt",
    "logs/hang-nccl-rank-3",
    "logs/trace-10-12.json",
)
NOT_KEPT = (
    "checkpoints/step-00000500/manifest.json",
    "checkpoints/step-00000500/__0_0.distcp",
    "tensorboard/events.out.tfevents.1.host",
    "logs/wandb/offline-run-1/run-1.wandb",
    "slack.json",
    ".lock",
    "prepared/tokens.bin",
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run with one file of every kind."""
    directory = RunDirectory(tmp_path / "gh-1")
    for name in (*KEPT, *NOT_KEPT):
        path = directory.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    return directory


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def grown(path: Path, size: int) -> None:
    """Make a file larger by a hole, which takes no space on the disk."""
    os.truncate(path, size)


def test_records_and_reports_are_copied_and_nothing_else(run: RunDirectory, tmp_path: Path) -> None:
    gathered = gather_records(run, tmp_path / "kept")
    assert files(tmp_path / "kept") == set(gathered.names) == set(KEPT)
    assert (gathered.shortened, gathered.left_out) == ([], [])
    assert gathered.size == sum((run.path / name).stat().st_size for name in KEPT)
    for name in KEPT:
        assert (tmp_path / "kept" / name).read_bytes() == (run.path / name).read_bytes()


def test_it_stays_bounded_however_large_every_file_grows(run: RunDirectory, tmp_path: Path) -> None:
    for name in (*KEPT, *NOT_KEPT):
        grown(run.path / name, LARGEST_FILE + 1)
    gathered = gather_records(run, tmp_path / "kept")
    whole = {"run.json", "config.yaml", "report/index.html", "report/pictures/curve.svg"}
    assert set(gathered.left_out) == whole | {"logs/hang-nccl-rank-3", "logs/trace-10-12.json"}
    assert set(gathered.shortened) == set(gathered.names) == set(KEPT) - set(gathered.left_out)
    assert gathered.size <= 2 * LARGEST_FILE + LARGEST_LOGS


def test_of_many_rows_the_last_whole_ones_are_kept(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "LARGEST_FILE", 100)
    rows = [f'{{"step": {step}}}\n' for step in range(100)]
    run.metrics_file.write_text("".join(rows))
    assert gather_records(run, tmp_path / "kept").shortened == ["metrics.jsonl"]
    kept = (tmp_path / "kept" / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert kept == rows[-len(kept) :]
    assert 80 < sum(map(len, kept)) <= 100


def test_of_a_large_log_both_ends_are_kept(run: RunDirectory, tmp_path: Path) -> None:
    """The first error of the first rank may be in its beginning."""
    log = run.logs / "nccl-rank-0.log"
    log.write_bytes(b"first\n" + b"." * (2 * LARGEST_LOG) + b"\nlast\n")
    gather_records(run, tmp_path / "kept")
    kept = (tmp_path / "kept" / "logs" / "nccl-rank-0.log").read_bytes()
    assert kept.startswith(b"first\n") and kept.endswith(b"\nlast\n") and len(kept) <= LARGEST_LOG


def test_of_many_logs_the_smallest_are_kept(run: RunDirectory, tmp_path: Path) -> None:
    count = LARGEST_LOGS // LARGEST_LOG + 8
    for rank in range(count):
        grown_log = run.logs / f"nccl-rank-{100 + rank}.log"
        grown_log.touch()
        grown(grown_log, LARGEST_LOG)
    gathered = gather_records(run, tmp_path / "kept")
    logs = [path.stat().st_size for path in (tmp_path / "kept" / "logs").iterdir()]
    assert LARGEST_LOGS - LARGEST_LOG < sum(logs) <= LARGEST_LOGS
    assert {"logs/nccl-rank-0.log", "logs/trace-10-12.json"} <= set(gathered.names)
    assert all(name.startswith("logs/nccl-rank-1") for name in gathered.left_out)


def test_a_link_is_not_followed_out_of_the_run(run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    (run.logs / "link.txt").symlink_to(tmp_path / "secret")
    run.config_file.unlink()
    run.config_file.symlink_to(tmp_path / "secret")
    gather_records(run, tmp_path / "kept")
    assert files(tmp_path / "kept") == set(KEPT) - {"config.yaml"}


def test_a_run_that_left_nothing_gives_an_empty_folder(tmp_path: Path) -> None:
    gathered = gather_records(RunDirectory(tmp_path / "none"), tmp_path / "kept")
    assert (gathered.names, files(tmp_path / "kept")) == ([], set())


def test_a_folder_that_exists_is_not_mixed_with(run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        gather_records(run, tmp_path / "kept")
