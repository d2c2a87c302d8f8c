"""Print loss, perplexity and bits per byte of a causal language model on text files, as one JSON object.

The model is a folder of transformers, or a checkpoint of Trainyard's own trainer, which is exported first.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder of transformers, or a checkpoint")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="files of text")
    parser.add_argument("--length", type=int, default=512, help="tokens of a sample")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = args.model if (args.model / "config.json").exists() else export(args.model, Path(folder))
        model = AutoModelForCausalLM.from_pretrained(source).eval()
        tokenizer = AutoTokenizer.from_pretrained(source)
    total, tokens, size = 0.0, 0, 0
    for path in args.text:
        text = path.read_text(encoding="utf-8", errors="replace")
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids[0]
        size += len(text.encode())
        for start in range(0, len(ids) - 1, args.length):
            sample = ids[start : start + args.length + 1][None]
            with torch.no_grad():
                loss = model(input_ids=sample, labels=sample).loss.item()
            total += loss * (sample.shape[1] - 1)
            tokens += sample.shape[1] - 1
    mean = total / tokens
    bits = total / math.log(2) / size
    print(json.dumps({"loss": mean, "perplexity": math.exp(mean), "bits_per_byte": bits, "tokens": tokens}))


def export(checkpoint: Path, folder: Path) -> Path:
    """Write a checkpoint of Trainyard's trainer, `RUN/checkpoints/step-N`, as a folder of transformers."""
    from trainyard.run.directory import RunDirectory, step_of
    from trainyard.training.export import plan_export, write_export

    directory = RunDirectory(checkpoint.absolute().parents[1])
    write_export(plan_export(directory, step_of(checkpoint.name)), folder / "model")
    return folder / "model"


if __name__ == "__main__":
    main()
