"""Lightning's Trainer with the callback; `stopping` calls it."""

import logging
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from lightning_callback import TrainyardCallback
from pytorch_lightning.callbacks import ModelCheckpoint
from stopping import STEPS, WORKERS, WORLD, Sender, play

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


def signaller(sender: Sender) -> Any:
    def send(trainer: Any, *_: Any, **__: Any) -> None:
        if sender.hook == HOOKS[0] or not trainer.sanity_checking:
            sender.send(trainer.global_step)

    made = lightning.Callback()
    setattr(made, sender.hook, send)
    return made


def train(folder: Path, sender: Sender | None) -> dict[str, Any]:
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=WORLD,
        strategy="ddp" if WORLD > 1 else "auto",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        accumulate_grad_batches=2,
        callbacks=[
            TrainyardCallback(),
            *([signaller(sender)] if sender else []),
            ModelCheckpoint(folder / "out", every_n_train_steps=4, save_top_k=-1),
        ],
    )
    rows: Any = torch.randn(8 * WORLD, 4)
    exit_code: Any = None
    try:
        trainer.fit(
            Module(),
            torch.utils.data.DataLoader(rows, 1, num_workers=WORKERS),
            torch.utils.data.DataLoader(rows, 1),
        )
    except SystemExit as error:
        exit_code = error.code
    return {"step": trainer.global_step, "exit_code": exit_code}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    play(train, HOOKS, early=HOOKS[:2], alone=("on_train_batch_start", "on_save_checkpoint"))
