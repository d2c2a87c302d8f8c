"""Train with transformers' Trainer again and again; each time SIGTERM comes at another moment, on one rank.

Beside this file are copies of the callback and of `trainyard`. Prints, for each training, where it stopped.
"""

import json
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers_callback import TrainyardCallback

import trainyard

assert trainyard.__file__ == str(Path(__file__).with_name("trainyard.py"))
STEPS, SAVE_STEPS = 12, 4
HOOKS = [
    "on_train_begin",
    "on_step_begin",
    "on_substep_end",
    "on_optimizer_step",
    "on_step_end",
    "on_save",
    "on_evaluate",
]


class Signaller(TrainerCallback):  # type: ignore[misc]
    """Sends SIGTERM to this process, once, from a hook."""

    def __init__(self, hook: str, step: int, group: bool) -> None:
        self._step, self._group = step, group
        self.sent_at: int | None = None
        setattr(self, hook, self._send)

    def _send(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.sent_at is None and state.global_step >= self._step:
            self.sent_at = state.global_step
            if self._group:
                os.killpg(os.getpgrp(), signal.SIGTERM)
            else:
                os.kill(os.getpid(), signal.SIGTERM)


def train(
    folder: Path, *, signaller: Signaller | None, workers: int, seconds: float | None
) -> dict[str, Any]:
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    os.environ["TRAINYARD_EVENTS"] = str(folder / "events.jsonl")
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 16, (8 * world, 4))]
    arguments = TrainingArguments(
        str(folder / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        logging_steps=1,
        save_steps=SAVE_STEPS,
        save_total_limit=2,
        eval_strategy="steps",
        eval_steps=3,
        use_cpu=True,
        dataloader_num_workers=workers,
        report_to="none",
        disable_tqdm=True,
    )
    callback = TrainyardCallback()
    callbacks = [callback, signaller] if signaller else [callback]
    trainer = Trainer(
        LlamaForCausalLM(config),
        arguments,
        train_dataset=rows,
        eval_dataset=rows[:world],
        callbacks=callbacks,
    )
    timer = threading.Timer(seconds or 0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    if seconds is not None:
        timer.start()
        # SIGTERM may come before the callback handles it, or after the end.
        signal.signal(signal.SIGTERM, lambda *_: None)
    trainer.train()
    if world > 1:
        torch.distributed.barrier()
    if seconds is not None:  # a fast machine is done before the signal
        timer.cancel()
        timer.join()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    newest = folder / "out" / f"checkpoint-{trainer.state.global_step}"
    return {
        "rank": rank,
        "step": trainer.state.global_step,
        "stopped": callback.stopped,
        "gloo_threads": count_gloo_threads(),
        "sent_at": signaller.sent_at if signaller else None,
        "files": sorted(path.name for path in newest.iterdir()) if newest.exists() else [],
    }


def count_gloo_threads() -> int:
    """Return the number of threads of this process that serve a gloo group."""
    names = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    return names.count("pt_gloo_runloop")


def main() -> None:
    transformers.logging.set_verbosity_error()
    folder, rank = Path(sys.argv[1]), int(os.environ.get("RANK", "0"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    generator = random.Random(36)
    rounds: list[tuple[str, str, int, int, bool, float | None]] = []
    for index, hook in enumerate(HOOKS if world > 1 else []):
        step = 0 if hook in ("on_train_begin", "on_epoch_begin") else generator.randrange(1, STEPS - 2)
        rounds.append((hook, hook, step, index % world, False, None))
    if world > 1:
        rounds += [("time", "", 0, 0, False, generator.random())]
    else:  # the group of the launcher would be that of its agent
        rounds += [("group", "on_step_begin", 2, 0, True, None), ("group-save", "on_save", 3, 0, True, None)]
    found = {}
    for name, hook, step, signalled, group, seconds in rounds:
        mine = signalled == rank
        signaller = Signaller(hook, step, group) if hook and mine else None
        found[name] = train(
            folder / name, signaller=signaller, workers=2 * group, seconds=seconds if mine else None
        )
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
