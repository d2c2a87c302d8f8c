"""Print the results of lm-eval tasks, such as those of a local folder, as one JSON object.

It needs `pip install "lm-eval[hf]"`; tasks of a folder need no network if their data are files. The model is
a folder of transformers, or a checkpoint of Trainyard's own trainer, which is exported first.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import lm_eval
import torch
from lm_eval.tasks import TaskManager
from perplexity import export
from transformers import AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder of transformers, or a checkpoint")
    parser.add_argument("--tasks", nargs="+", required=True, help="names of tasks")
    parser.add_argument("--include_path", type=Path, help="a folder of task files")
    parser.add_argument("--limit", type=int, help="samples of each task")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = args.model if (args.model / "config.json").exists() else export(args.model, Path(folder))
        found = lm_eval.simple_evaluate(
            model="hf",
            model_args={"pretrained": str(source), **prefix_of(source)},
            tasks=args.tasks,
            task_manager=TaskManager(include_path=str(args.include_path) if args.include_path else None),
            limit=args.limit,
            device="cuda" if torch.cuda.is_available() else "cpu",
        )
    print(json.dumps({task: named(figures) for task, figures in found["results"].items()}))


def prefix_of(model: Path) -> dict[str, int]:
    """Return the token before a text if the tokenizer, like that of a run on bytes, names none."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    eos = json.loads((model / "config.json").read_text()).get("eos_token_id")
    is_named = any(token is not None for token in (tokenizer.bos_token_id, tokenizer.eos_token_id))
    return {} if is_named or not isinstance(eos, int) else {"prefix_token_id": eos}


def named(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a task; `acc,none`, where no filter was used, is `acc`."""
    return {
        name.removesuffix(",none"): value
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


if __name__ == "__main__":
    main()
