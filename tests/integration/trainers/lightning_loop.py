"""Train a small linear model on random numbers by Lightning's Trainer, with its checkpoints and CSV log."""

import argparse
import sys
import time
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", default="out")
parser.add_argument("--max_steps", type=int, default=8)
parser.add_argument("--save_steps", type=int, default=4)
parser.add_argument("--resume_from_checkpoint")
parser.add_argument("--stop_at", type=int, help="end with 75 after this save, once")
parser.add_argument("--pause", type=float, default=0.0, help="seconds before each step")
given = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)


class Small(LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: Any, _: int) -> Any:
        # From about 9 to almost 0: it has learned, whenever it is killed and resumed.
        loss = (self.layer(batch[0]) - 3).square().mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4)


class Stop(Callback):  # type: ignore[misc]
    """Gives a test time to end the program, or ends it."""

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        time.sleep(given.pause)
        if trainer.global_step == given.stop_at and not given.resume_from_checkpoint:
            sys.exit(75)


save = ModelCheckpoint(
    dirpath=given.output_dir,
    filename="checkpoint-{step}",
    auto_insert_metric_name=False,
    every_n_train_steps=given.save_steps,
    save_top_k=-1,
)
trainer = Trainer(
    max_steps=given.max_steps,
    callbacks=[save, Stop()],
    logger=CSVLogger(".", flush_logs_every_n_steps=1),
    log_every_n_steps=1,
    accelerator="cpu",
    enable_progress_bar=False,
)
trainer.fit(Small(), ckpt_path=given.resume_from_checkpoint)
