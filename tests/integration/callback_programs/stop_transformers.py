"""transformers' Trainer with the callback; `stopping` calls it."""

from pathlib import Path
from typing import Any

import torch
import transformers
from stopping import STEPS, WORKERS, WORLD, Sender, play
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers_callback import TrainyardCallback

HOOKS = [
    "on_train_begin",
    "on_step_begin",
    "on_substep_end",
    "on_optimizer_step",
    "on_step_end",
    "on_save",
    "on_evaluate",
]


def signaller(sender: Sender) -> Any:
    def send(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        sender.send(state.global_step)

    made = TrainerCallback()
    setattr(made, sender.hook, send)
    return made


def train(folder: Path, sender: Sender | None) -> dict[str, Any]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 16, (8 * WORLD, 4))]
    arguments = TrainingArguments(
        str(folder / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        logging_steps=1,
        save_steps=4,
        save_total_limit=2,
        eval_strategy="steps",
        eval_steps=3,
        use_cpu=True,
        dataloader_num_workers=WORKERS,
        report_to="none",
        disable_tqdm=True,
    )
    callback, exit_code = TrainyardCallback(), None
    trainer = Trainer(
        LlamaForCausalLM(config),
        arguments,
        train_dataset=rows,
        eval_dataset=rows[:WORLD],
        callbacks=[callback, *([signaller(sender)] if sender else [])],
    )
    trainer.train()
    try:
        callback.exit_if_stopped()
    except SystemExit as error:
        exit_code = error.code
    return {"step": trainer.state.global_step, "exit_code": exit_code}


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    play(train, HOOKS, early=HOOKS[:1], alone=("on_step_begin", "on_save"))
