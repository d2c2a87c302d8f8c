"""Train with Lightning again and again; each time SIGTERM comes at another moment, on one rank.

Beside this file are copies of the callback and of `trainyard`. Writes, for each training, where it stopped.
"""

import json
import logging
import os
import random
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from lightning_callback import TrainyardCallback
from pytorch_lightning.callbacks import ModelCheckpoint

import trainyard

assert trainyard.__file__ == str(Path(__file__).with_name("trainyard.py"))
STEPS = 12
HOOKS = [
    "on_sanity_check_start",
    "on_train_start",
    "on_train_batch_start",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_validation_end",
    "on_save_checkpoint",
]


class Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        loss = self.layer(batch).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self.layer(batch).square().mean(), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 1e-2)


class Signaller(lightning.Callback):  # type: ignore[misc]
    """Sends SIGTERM to this process, once, from a hook."""

    def __init__(self, hook: str, step: int, group: bool) -> None:
        self._step, self._group = step, group
        self._is_at_start = hook == "on_sanity_check_start"
        self.sent_at: int | None = None
        setattr(self, hook, self._send)

    def _send(self, trainer: Any, *_: Any, **__: Any) -> None:
        is_training = self._is_at_start or not trainer.sanity_checking
        if self.sent_at is None and trainer.global_step >= self._step and is_training:
            self.sent_at = trainer.global_step
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
    lightning.seed_everything(0)
    timer = threading.Timer(seconds or 0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    if seconds is not None:
        timer.start()
        # SIGTERM may come before the callback handles it, or after the end.
        signal.signal(signal.SIGTERM, lambda *_: None)
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=world,
        strategy="ddp" if world > 1 else "auto",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        accumulate_grad_batches=2,
        callbacks=[
            TrainyardCallback(),
            *([signaller] if signaller else []),
            ModelCheckpoint(folder / "out", every_n_train_steps=4, save_top_k=-1),
        ],
    )
    rows: Any = torch.randn(8 * world, 4)
    exit_code: Any = None
    try:
        trainer.fit(
            Module(),
            torch.utils.data.DataLoader(rows, 1, num_workers=workers),
            torch.utils.data.DataLoader(rows, 1),
        )
    except SystemExit as error:
        exit_code = error.code
    if seconds is not None:
        # On a fast machine training ends first; the signal belongs to no later training.
        timer.cancel()
        timer.join()
    if world > 1:
        torch.distributed.barrier()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return {
        "rank": rank,
        "step": trainer.global_step,
        "exit_code": exit_code,
        "gloo_threads": count_gloo_threads(),
        "sent_at": signaller.sent_at if signaller else None,
    }


def count_gloo_threads() -> int:
    """Return the number of threads of this process that serve a gloo group."""
    names = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    return names.count("pt_gloo_runloop")


def main() -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    folder, rank = Path(sys.argv[1]), int(os.environ.get("RANK", "0"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    generator = random.Random(36)
    rounds: list[tuple[str, str, int, int, bool, float | None]] = []
    for index, hook in enumerate(HOOKS if world > 1 else []):
        step = 0 if hook in HOOKS[:2] else generator.randrange(1, STEPS - 4)
        rounds.append((hook, hook, step, index % world, False, None))
    if world > 1:
        rounds += [("time", "", 0, 0, False, generator.random() / 2)]
    else:  # the group of the launcher would be that of its agent
        rounds += [("group", "on_train_batch_start", 2, 0, True, None)]
        rounds += [("group-save", "on_save_checkpoint", 3, 0, True, None)]
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
