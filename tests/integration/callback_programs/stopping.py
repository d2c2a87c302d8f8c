"""Train again and again; each time SIGTERM comes at another moment, on one rank: what both programs share.

Beside this file are copies of a program, its callback and `trainyard`. Writes, for each training, where it
stopped.
"""

import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

import trainyard

assert trainyard.__file__ == str(Path(__file__).with_name("trainyard.py"))
STEPS = 12
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
# Of one process the group gets the signal, with the workers that load data.
WORKERS = 2 if WORLD == 1 else 0


class Sender:
    """Sends SIGTERM to this process, once, in a hook at a step or later."""

    def __init__(self, hook: str, step: int) -> None:
        self.hook, self._step = hook, step
        self.sent_at: int | None = None

    def send(self, step: int) -> None:
        if self.sent_at is None and step >= self._step:
            self.sent_at = step
            os.kill(os.getpid() if WORLD > 1 else -os.getpgrp(), signal.SIGTERM)


@contextmanager
def signal_after(seconds: float | None) -> Iterator[None]:
    timer = threading.Timer(seconds or 0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    if seconds is not None:
        # SIGTERM may come before the callback handles it, or after the end.
        signal.signal(signal.SIGTERM, lambda *_: None)
        timer.start()
    yield
    if seconds is not None:  # a fast machine is done before the signal, which is of no later training
        timer.cancel()
        timer.join()
    if WORLD > 1:
        torch.distributed.barrier()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def count_gloo_threads() -> int:
    """Return the number of threads of this process that serve a gloo group."""
    count = 0
    for file in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it has just ended
            count += file.read_text().strip() == "pt_gloo_runloop"
    return count


def play(
    train: Callable[[Path, Sender | None], dict[str, Any]],
    hooks: Sequence[str],
    *,
    early: Collection[str],
    alone: tuple[str, str],
) -> None:
    """Call `train` for each hook, `early` ones before the first step, or for the two hooks of one process."""
    folder, generator, found = Path(sys.argv[1]), random.Random(36), {}
    rounds: list[tuple[str, str, int, int, float | None]] = [("time", "", 0, 0, generator.random() / 2)]
    for index, hook in enumerate(hooks):
        step = 0 if hook in early else generator.randrange(1, STEPS - 4)
        rounds.append((hook, hook, step, index % WORLD, None))
    if WORLD == 1:
        rounds = [("group", alone[0], 2, 0, None), ("group-save", alone[1], 3, 0, None)]
    for name, hook, step, signalled, seconds in rounds:
        os.environ["TRAINYARD_EVENTS"] = str(folder / name / "events.jsonl")
        (folder / name).mkdir(parents=True, exist_ok=True)
        sender = Sender(hook, step) if hook and signalled == RANK else None
        with signal_after(seconds if signalled == RANK else None):
            facts = train(folder / name, sender)
        sent_at = sender.sent_at if sender else None
        found[name] = {"gloo_threads": count_gloo_threads(), "sent_at": sent_at, **facts}
    (folder / f"rank-{RANK}.json").write_text(json.dumps(found))
