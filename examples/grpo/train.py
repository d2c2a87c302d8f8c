"""Train a language model on arithmetic by rewards that are verified: TRL's GRPOTrainer.

    ((3+4)-(2*3))=    depth 2, the answer is 1

Every part of an expression has a value from 0 to 9, so guessing is right one time in ten. --depth is how deep
expressions are nested. Any model of transformers for causal language modeling can be trained:
--model Qwen/Qwen3-0.6B, or a folder. Without --model, it is a tiny model with random weights, which takes
less than a minute on a CPU.
"""

import argparse
import random
import re
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import Fuse
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    set_seed,
)
from trl import GRPOConfig, GRPOTrainer

try:  # needs Trainyard, or a copy of both files (README.md)
    from trainyard.programs.integrations.transformers_callback import TrainyardCallback
except ImportError:  # it trains without Trainyard, too
    TrainyardCallback = None

OPERATORS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
DIGITS = range(10)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a model of the Hugging Face Hub, or a folder")
    parser.add_argument("--depth", type=int, default=1, help="how deep expressions are nested")
    parser.add_argument("--questions", type=int, default=2048)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--max_steps", type=int, default=60)
    parser.add_argument("--save_steps", type=int, default=20)
    parser.add_argument("--learning_rate", type=float, default=2e-3, help="for a pretrained model: 1e-6")
    parser.add_argument("--per_device_train_batch_size", type=int, default=128, help="answers at a time")
    parser.add_argument("--num_generations", type=int, default=16, help="answers to each question")
    parser.add_argument("--max_completion_length", type=int, default=4)
    parser.add_argument("--warm_start_steps", type=int, default=10, help="for the tiny model only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume_from_checkpoint")
    return parser.parse_args()


def expression(value: int, depth: int, generator: random.Random) -> str:
    """Return an expression with this value; one of its two parts has exactly `depth` - 1."""
    if depth == 0:
        return str(value)
    sign = generator.choice(list(OPERATORS))
    pairs = [(a, b) for a in DIGITS for b in DIGITS if OPERATORS[sign](a, b) == value]
    left, right = generator.choice(pairs)
    depths = [depth - 1, generator.randrange(depth)]
    generator.shuffle(depths)
    return f"({expression(left, depths[0], generator)}{sign}{expression(right, depths[1], generator)})"


def questions(count: int, depth: int, seed: int) -> list[tuple[str, int]]:
    """Return questions with their answers; the same ones for the same arguments."""
    generator = random.Random(f"arithmetic:{seed}:{depth}")
    values = [generator.choice(DIGITS) for _ in range(count)]
    return [(f"{expression(value, depth, generator)}=", value) for value in values]


def reward(completions: list[Any], answer: list[int], **_: Any) -> list[float]:
    """Return 1 for the right number; for a wrong one 0.1, and up to 0.4 more the nearer it is; else 0."""
    texts = [each if isinstance(each, str) else each[-1]["content"] for each in completions]
    return [reward_of(text.strip(), right) for text, right in zip(texts, answer, strict=True)]


def reward_of(text: str, right: int) -> float:
    if not re.fullmatch("[0-9]{1,3}", text):
        return 0.0
    distance = abs(int(text) - right)
    return 1.0 if distance == 0 else 0.1 + 0.4 * max(0.0, 1 - distance / len(DIGITS))


def tiny_model() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a model with random weights and a tokenizer of characters."""
    names = ["<pad>", "<eos>", *"0123456789+-*()="]
    characters = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, "<pad>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    characters.decoder = Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>")
    config = LlamaConfig(
        vocab_size=len(names),
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config), tokenizer


def start_warm(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, options: argparse.Namespace
) -> None:
    """Train on solved questions: a model with random weights is right too seldom to learn from rewards."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(options.warm_start_steps):
        solved = questions(128, options.depth, options.seed + 1 + step)
        texts = [f"{question}{answer}{tokenizer.eos_token}" for question, answer in solved]
        batch = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt")
        labels = batch["input_ids"].clone()
        labels[:, :-2] = -100  # only the answer and the end are learned
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    options = parse_args()
    set_seed(options.seed)
    if options.model:
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype="auto")
        tokenizer = AutoTokenizer.from_pretrained(options.model)
    else:
        model, tokenizer = tiny_model()
        if not options.resume_from_checkpoint:
            start_warm(model, tokenizer, options)
    rows = [
        {"prompt": as_prompt(question, tokenizer), "answer": answer}
        for question, answer in questions(options.questions, options.depth, options.seed)
    ]
    callback = TrainyardCallback() if TrainyardCallback else None
    trainer = GRPOTrainer(
        model,
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=options.output_dir,
            max_steps=options.max_steps,
            learning_rate=options.learning_rate,
            per_device_train_batch_size=options.per_device_train_batch_size,
            num_generations=options.num_generations,
            max_completion_length=options.max_completion_length,
            bf16=torch.cuda.is_available(),
            use_cpu=not torch.cuda.is_available(),
            logging_steps=1,
            logging_nan_inf_filter=False,  # else a loss that is NaN is logged as 0
            save_steps=options.save_steps,
            save_total_limit=2,
            report_to="none",
            seed=options.seed,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[callback] if callback else [],
    )
    trainer.train(resume_from_checkpoint=options.resume_from_checkpoint)
    if callback:
        callback.exit_if_stopped()
    trainer.save_model(f"{options.output_dir}/final")


def as_prompt(question: str, tokenizer: PreTrainedTokenizerBase) -> Any:
    if tokenizer.chat_template is None:
        return question
    return [{"role": "user", "content": f"Compute {question} Answer with the number only."}]


if __name__ == "__main__":
    main()
