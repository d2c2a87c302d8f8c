"""transformers' own Trainer with the callback: SIGTERM at any moment, on any rank, saves one agreed step."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainyard
from trainyard.programs.checkpoints.program_checkpoints import UnitFinder, newest_first
from trainyard.programs.integrations import transformers_callback
from trainyard.programs.program_events import (
    LoggedFigures,
    ProgramEvents,
    TrainingSpan,
    WrittenCheckpoint,
)

STEPS = 12
PROGRAM = Path(__file__).parent / "callback_programs" / "stop_transformers.py"


def run_program(folder: Path, *, world: int) -> list[dict[str, Any]]:
    """Run the program with copies of what it needs; return the results of each rank, by training."""
    shutil.copy(PROGRAM, folder / "program.py")
    shutil.copy(str(transformers_callback.__file__), folder)
    shutil.copy(str(trainyard.__file__), folder / "trainyard.py")
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"] if world > 1 else []
    )
    done = subprocess.run(
        [sys.executable, *launcher, str(folder / "program.py"), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world)]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "least"), [(1, 2), (2, 6)])
def test_sigterm_in_any_hook_saves_a_step_that_all_ranks_agree_on(
    tmp_path: Path, world: int, least: int
) -> None:
    """One process gets it with its workers that load data; of two, one gets it."""
    ranks = run_program(tmp_path, world=world)
    stops = 0
    for rank in ranks:  # the group to vote in is destroyed with each training, also its threads
        assert len({training["gloo_threads"] for training in rank.values()}) == 1
    for name in ranks[0]:
        (step,) = {rank[name]["step"] for rank in ranks}
        (stopped,) = {rank[name]["stopped"] for rank in ranks}
        sent = [rank[name]["sent_at"] for rank in ranks if rank[name]["sent_at"] is not None]
        if sent and sent[0] < STEPS - 1:
            assert stopped and step - sent[0] <= 1, name
        assert stopped == (step < STEPS), name
        stops += stopped
        generators = [f"rng_state_{rank}.pth" for rank in range(world)] if world > 1 else ["rng_state.pth"]
        expected = {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json", *generators}
        assert expected <= set(ranks[0][name]["files"]), name
        require_true_events(tmp_path / name, step=step, files=expected)
    assert stops >= least
    out = tmp_path / "on_step_begin" / "out" if world > 1 else tmp_path / "group" / "out"
    newest = newest_first(UnitFinder().named(out, "checkpoint-*")).newest
    assert newest is not None and not newest.found.is_weights_alone


def require_true_events(folder: Path, *, step: int, files: set[str]) -> None:
    reader = ProgramEvents(folder / "events.jsonl")
    events = reader.poll()
    begin, end = events[0], events[-1]
    assert isinstance(begin, TrainingSpan)
    assert isinstance(end, TrainingSpan)
    assert reader.bad_lines == 0
    assert (begin.step, begin.steps, begin.has_ended) == (0, STEPS, False)
    assert (end.step, end.steps, end.has_ended) == (step, STEPS, True)
    rows = [event.row() for event in events if isinstance(event, LoggedFigures)]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, step + 1))
    assert all({"learning_rate", "grad_norm", "epoch"} <= row.keys() for row in rows if "loss" in row)
    saved = [event for event in events if isinstance(event, WrittenCheckpoint)]
    due = [at for at in range(1, step + 1) if at % 4 == 0 or at == step]
    assert [checkpoint.step for checkpoint in saved] == due
    newest = folder / "out" / f"checkpoint-{step}"
    assert saved[-1].path == newest
    assert files <= saved[-1].files.keys()
    for name, facts in saved[-1].files.items():
        assert facts == ((newest / name).stat().st_size, (newest / name).stat().st_mtime_ns)
