#!/usr/bin/env python3
"""Measure what a save costs training: each `checkpointing.mode` against `torch.distributed.checkpoint.save`.

One model of 100 million parameters (1.2 GB of state) trains in this process with the shipped step and saver.
It alternates between plain steps and steps with a save. The save is either `dcp.save` of the same state
before the steps, or a shipped save in the background, until it is complete (hashed, fsynced, with its
manifest) and the previous one is removed. The first two saves of a kind, which allocate memory and start
processes, do not count.

Blocked is the time that training waited between steps. Lost is blocked time, plus the extra time of the first
step (the one that copies) over a plain step, plus the extra time of each later step during the save (median
against median). A machine's speed changes more by other programs than by a save, so plain steps must be close
by: for `async_process`, SIGSTOP pauses the save in every second step, which then counts as plain. For the
other kinds, the plain steps are those before and after.

Reads:      nothing
Writes:     temporary checkpoints; with --json the figures on stdout
Exit codes: 0 one of the modes meets the goals, 1 none does
Example:    benchmarks/checkpoint_stall.py --rounds 5
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

BLOCKED_GOAL, LOST_GOAL = 0.01, 0.25
WARM_UP = 2
SHAPE = {"hidden_size": 768, "intermediate_size": 2048, "num_layers": 12, "num_attention_heads": 12}
SHAPE |= {"num_key_value_heads": 12, "vocab_size": 9728}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="counted saves of each kind, in turns")
    parser.add_argument("--steps", type=int, default=6, help="steps after each save, at least")
    parser.add_argument("--tokens", type=int, default=256, help="tokens a step")
    parser.add_argument("--threads", type=int, help="of training; default: one a core")
    parser.add_argument("--modes", nargs="+", default=["async", "async_process"])
    parser.add_argument("--folder", type=Path, help="where to write; default: the system's temporary folder")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    warnings.simplefilter("ignore")
    kinds = ["dcp.save", *args.modes]
    rounds: dict[str, list[Round]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder, Bench(args, Path(folder)) as bench:
        for number in range(WARM_UP + args.rounds):
            before = bench.plain()
            for kind in kinds:
                blocked, steps, between = bench.saving(kind)
                after = bench.plain()
                if number >= WARM_UP:
                    rounds[kind].append(Round(blocked, steps, between or before + after))
                before = after
    peer = statistics.median(each.blocked for each in rounds["dcp.save"])
    result = {kind: summary(rounds[kind], peer) for kind in kinds}
    print(json.dumps(result) if args.json else "\n".join(f"{kind:14} {row}" for kind, row in result.items()))
    ratios = [(result[mode]["blocked_ratio"], result[mode]["lost_ratio"]) for mode in args.modes]
    return 0 if any(b <= BLOCKED_GOAL and t <= LOST_GOAL for b, t in ratios) else 1


@dataclass(frozen=True)
class Round:
    """Steps with a save, in seconds."""

    blocked: float
    steps: Sequence[float]
    plain: Sequence[float]
    """Steps without."""

    @property
    def lost(self) -> float:
        plain = statistics.median(self.plain)
        longer = statistics.median(self.steps[1:]) - plain
        return self.blocked + self.steps[0] - plain + (len(self.steps) - 1) * longer


def summary(rounds: Sequence[Round], peer: float) -> dict[str, Any]:
    """Medians and spread of one kind; ratios are to `peer`, the median of what `dcp.save` blocks."""
    blocked, lost = [each.blocked for each in rounds], [each.lost for each in rounds]
    return {
        "blocked_seconds": round(statistics.median(blocked), 4),
        "blocked_spread": [round(min(blocked), 4), round(max(blocked), 4)],
        "steps": [len(each.steps) for each in rounds],
        "plain_step_seconds": [round(statistics.median(each.plain), 3) for each in rounds],
        "lost_seconds": [round(each.lost, 3) for each in rounds],
        "blocked_ratio": round(statistics.median(blocked) / peer, 4),
        "lost_ratio": round(statistics.median(lost) / peer, 3),
    }


class Bench:
    """One model in training, and a saver of each mode."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        from trainyard.config.schema import Config

        self._args, self._folder = args, folder
        self.config = Config.model_validate(
            {
                "model": {"name": "stall", "device": "cpu", "dtype": "bfloat16", "architecture": SHAPE},
                "training": {"batch_size": 1, "max_steps": 10**6},
                "compute": {"threads": args.threads},
                "data": {"sequence_length": args.tokens},
                "checkpointing": {"keep_last": 1},
            }
        )
        self._parts = self._build()
        self._savers: dict[str, Any] = {}
        self._saved: set[str] = set()
        """The modes that have a checkpoint, which the next one has removed."""

    def __enter__(self) -> "Bench":
        from trainyard.training.saving import Saver
        from trainyard.training.step import TrainStep

        for mode in self._args.modes:
            parts = self._build_for(mode)
            self._savers[mode] = Saver(parts).__enter__()
        self._steps = {mode: TrainStep(self._parts, saver) for mode, saver in self._savers.items()}
        self._any_step = next(iter(self._steps.values()))
        return self

    def __exit__(self, *failure: Any) -> None:
        for saver in self._savers.values():
            saver.__exit__(*failure)

    def plain(self) -> list[float]:
        """Seconds of steps with nothing behind them."""
        return [self._seconds_of(self._any_step.run) for _ in range(self._args.steps)]

    def saving(self, kind: str) -> tuple[float, list[float], list[float]]:
        """Save, and train until that is done: seconds that training waited, and those of each step.

        Last those of the steps during which the process that writes was stopped.
        """
        if kind == "dcp.save":
            return *self._dcp_save(), []
        saver, step, heard = self._savers[kind], self._steps[kind], self._parts.listener
        done = (len(heard.waited) + 1, heard.removed + (kind in self._saved))
        self._saved.add(kind)
        steps: list[float] = []
        stopped: list[float] = []
        saver.save()
        while (len(heard.waited), heard.removed) != done or len(steps) < self._args.steps:
            steps.append(self._seconds_of(step.run))
            saver.poll()
            if kind == "async_process":
                with stopped_children():
                    stopped.append(self._seconds_of(step.run))
                saver.poll()
        saver.finish()
        return heard.waited[-1], steps, stopped

    def _dcp_save(self) -> tuple[float, list[float]]:
        import torch.distributed.checkpoint as dcp

        target = self._folder / "peer"
        save = partial(dcp.save, checkpoint_id=target, no_dist=True)
        blocked = self._seconds_of(lambda: save(self._parts.state.tensors()))
        steps = self.plain()
        shutil.rmtree(target)
        return blocked, steps

    @staticmethod
    def _seconds_of(work: Callable[[], Any]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def _build(self) -> Any:
        from trainyard.run.directory import RunDirectory
        from trainyard.training.hardware import prepare_device
        from trainyard.training.length import RunLength
        from trainyard.training.optimizer import build_optimizer
        from trainyard.training.parallel import put_on_devices
        from trainyard.training.parts import Parts
        from trainyard.training.profiling import StepProfile
        from trainyard.training.state import TrainingState
        from trainyard.training.stop import StopRequest
        from trainyard.training.watchdog import Watchdog
        from trainyard.training.world import ALONE

        device = prepare_device(self.config)
        parallel = put_on_devices(self.config, ALONE, device)
        state = TrainingState(parallel.model, build_optimizer(parallel.model, self.config.training))
        length = RunLength(10**6, 10**6, 1.0, 1, self._args.tokens)
        directory = RunDirectory(self._folder / "run")
        directory.create()
        listener, stop = Heard(), StopRequest()
        common: dict[str, Any] = {"run_id": "stall", "fits": {}, "trackers": (), "validation": None}
        common |= {"gpu_facts": dict, "world": ALONE, "device": device, "listener": listener, "stop": stop}
        batches = Batches(self._args.tokens)
        watchdog = Watchdog(self.config.monitoring)
        profile = StepProfile(range(0), directory.logs, 0)
        return Parts(
            config=self.config,
            directory=directory,
            length=length,
            state=state,
            parallel=parallel,
            batches=batches,
            watchdog=watchdog,
            profile=profile,
            peak_tokens_per_second=None,
            **common,
        )

    def _build_for(self, mode: str) -> Any:
        """The same parts with `checkpointing.mode` set, and a run directory of their own."""
        from dataclasses import replace

        from trainyard.run.directory import RunDirectory

        directory = RunDirectory(self._folder / mode)
        directory.create()
        config = self.config.model_copy(
            update={"checkpointing": self.config.checkpointing.model_copy(update={"mode": mode})}
        )
        return replace(self._parts, config=config, directory=directory)


@contextmanager
def stopped_children() -> Iterator[None]:
    """Nothing but this process works meanwhile."""
    children = [
        int(number)
        for file in Path("/proc/self/task").glob("*/children")
        for number in file.read_text().split()
    ]
    for number in children:
        os.kill(number, signal.SIGSTOP)
    yield
    for number in children:
        os.kill(number, signal.SIGCONT)


class Heard:
    """Keeps how long training waited for each save."""

    def __init__(self) -> None:
        self.waited: list[float] = []
        self.removed = 0

    def on_row(self, row: dict[str, Any]) -> None: ...

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        if event == "checkpoint_saved":
            self.waited.append(fields["seconds"])
        self.removed += event == "checkpoint_removed"


class Batches:
    """Random tokens."""

    steps_per_epoch = 10**6

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def batch(self, step: int) -> np.ndarray:
        size = (1, self._tokens + 1)
        return np.random.default_rng(step).integers(0, SHAPE["vocab_size"], size).astype(np.int64)

    def position(self, step: int) -> None:
        """The step says it all."""


if __name__ == "__main__":
    sys.exit(main())
