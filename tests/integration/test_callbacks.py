"""The trainers of others with our callbacks: SIGTERM at any moment, on any rank, saves one agreed step."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start

import trainyard
from trainyard.programs import integrations
from trainyard.programs.checkpoints.program_checkpoints import UnitFinder, newest_first
from trainyard.programs.program_events import (
    LoggedFigures,
    ProgramEvents,
    TrainingSpan,
    WrittenCheckpoint,
)

STEPS = 12
PROGRAMS = Path(__file__).parent / "callback_programs"
# A warm process has imported the package; the programs shall find the one module beside them.
FORGET = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "trainyard"]:
    del sys.modules[name]
"""
# The figures of each row.
FIGURES = {
    "lightning": {"learning_rate", "epoch", "train_loss"},
    "transformers": {"learning_rate", "grad_norm", "epoch"},
}


def run_program(name: str, folder: Path, *, world: int) -> list[dict[str, Any]]:
    """Run a program with copies of what it needs; return the results of each rank, by training."""
    callback = Path(integrations.__path__[0]) / f"{name}_callback.py"
    for path in (PROGRAMS / "stopping.py", PROGRAMS / f"stop_{name}.py", callback):
        shutil.copy(path, folder)
    shutil.copy(str(trainyard.__file__), folder / "trainyard.py")
    (folder / "sitecustomize.py").write_text(FORGET)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    with warm_start.TrainerPopen(
        [sys.executable, *launcher[: 4 * (world > 1)], str(folder / f"stop_{name}.py"), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        output = process.communicate(timeout=1200)[0]
    assert process.returncode == 0, output[-6000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world)]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "least"), [(1, 2), (2, 5)])
@pytest.mark.parametrize("name", FIGURES)
def test_sigterm_in_any_hook_saves_a_step_that_all_ranks_agree_on(
    name: str, world: int, least: int, tmp_path: Path
) -> None:
    """One process gets it with its workers that load data; of two, one gets it."""
    ranks = run_program(name, tmp_path, world=world)
    stops = 0
    for rank in ranks:  # the group to vote in is destroyed with each training, also its threads
        assert len({training["gloo_threads"] for training in rank.values()}) == 1
    for training in ranks[0]:
        (step,) = {rank[training]["step"] for rank in ranks}
        (exit_code,) = {rank[training]["exit_code"] for rank in ranks}
        sent = [rank[training]["sent_at"] for rank in ranks if rank[training]["sent_at"] is not None]
        if sent and sent[0] < STEPS - 1:
            assert exit_code == 75 and step - sent[0] <= 1, training
        assert exit_code == (75 if step < STEPS else None), training
        stops += exit_code == 75
        newest = require_true_events(name, tmp_path / training, step=step)
        if name == "transformers":
            states = [f"rng_state_{rank}.pth" for rank in range(world)] if world > 1 else ["rng_state.pth"]
            needed = {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json", *states}
            assert needed <= newest.files.keys(), training
            found = newest_first(UnitFinder().named(newest.path.parent, "checkpoint-*")).newest
            assert found is not None and not found.found.is_weights_alone
        else:
            assert zipfile.is_zipfile(newest.path)
    assert stops >= least


def require_true_events(name: str, folder: Path, *, step: int) -> WrittenCheckpoint:
    """Compare the events with what was trained and saved; return the last save."""
    reader = ProgramEvents(folder / "events.jsonl")
    events = reader.poll()
    begin, end = events[0], events[-1]
    assert isinstance(begin, TrainingSpan) and isinstance(end, TrainingSpan)
    assert reader.bad_lines == 0
    assert (begin.step, begin.steps, begin.has_ended) == (0, STEPS, False)
    assert (end.step, end.steps, end.has_ended) == (step, STEPS, True)
    rows = [row for event in events if isinstance(event, LoggedFigures) and "loss" in (row := event.row())]
    assert [row["step"] for row in rows] == list(range(1, step + 1))
    assert all(FIGURES[name] <= row.keys() for row in rows)
    assert all(abs(row["loss"] - row.get("train_loss", row["loss"])) < 1e-6 for row in rows)
    saved = [event for event in events if isinstance(event, WrittenCheckpoint)]
    assert [each.step for each in saved] == [at for at in range(1, step + 1) if at % 4 == 0 or at == step]
    last = saved[-1]
    assert last.path.parent == folder / "out" and last.path.name.startswith(("checkpoint-", "epoch="))
    for file, facts in last.files.items():
        found = (last.path / file if last.path.is_dir() else last.path).stat()
        assert facts == (found.st_size, found.st_mtime_ns)
    return last
