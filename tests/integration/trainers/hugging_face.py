"""Train a tiny random Llama on random tokens by transformers' Trainer, or by TRL's SFTTrainer."""

import argparse
import sys
import time

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

parser = argparse.ArgumentParser()
parser.add_argument("--trl", action="store_true")
parser.add_argument("--output_dir", default="out")
parser.add_argument("--max_steps", type=int, default=8)
parser.add_argument("--logging_steps", type=int, default=1)
parser.add_argument("--save_steps", type=int, default=4)
parser.add_argument("--eval_steps", type=int)
parser.add_argument("--learning_rate", type=float, default=1e-3)
parser.add_argument("--report_to", default="none")
parser.add_argument("--disable_tqdm", action="store_true")
parser.add_argument("--poison", action="store_true", help="start with a weight that is NaN")
parser.add_argument("--resume_from_checkpoint")
parser.add_argument("--stop_at", type=int, help="end with 75 after this save, once")
parser.add_argument("--pause", type=float, default=0.0, help="seconds before each step")
given = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
)
if given.poison:
    with torch.no_grad():
        model.lm_head.weight[0, 0] = float("nan")
options = {
    "output_dir": given.output_dir,
    "max_steps": given.max_steps,
    "logging_steps": given.logging_steps,
    "save_steps": given.save_steps,
    "eval_strategy": "steps" if given.eval_steps else "no",
    "eval_steps": given.eval_steps,
    "learning_rate": given.learning_rate,
    "report_to": given.report_to,
    "disable_tqdm": given.disable_tqdm,
    "per_device_train_batch_size": 2,
    "use_cpu": True,
}
if given.trl:
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = {f"w{number}": number for number in range(62)} | {"<pad>": 62, "<eos>": 63}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    rows = [{"text": " ".join(f"w{(7 * row + word) % 62}" for word in range(16))} for row in range(32)]
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(**options, max_length=24, bf16=False),
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[:8]),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
        ),
    )
else:
    tokens = [torch.randint(0, 64, (16,)) for _ in range(32)]
    examples = [{"input_ids": each, "labels": each} for each in tokens]
    trainer = Trainer(model, TrainingArguments(**options), train_dataset=examples, eval_dataset=examples[:8])


class Stop(TrainerCallback):  # type: ignore[misc]
    """Gives a test time to end the program, or ends it."""

    def on_step_begin(self, *_: object, **__: object) -> None:
        time.sleep(given.pause)

    def on_save(self, _args: object, state: TrainerState, *_: object, **__: object) -> None:
        if state.global_step == given.stop_at and not given.resume_from_checkpoint:
            sys.exit(75)


trainer.add_callback(Stop())
trainer.train(resume_from_checkpoint=given.resume_from_checkpoint)
