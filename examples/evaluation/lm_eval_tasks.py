"""Print the results of lm-eval tasks, such as those of a local folder, as one JSON object.

It needs `pip install lm-eval`; tasks of a folder need no network if their data are files.
"""

import argparse
import json

import lm_eval
from lm_eval.tasks import TaskManager


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a folder of transformers")
    parser.add_argument("--tasks", nargs="+", required=True, help="names of tasks")
    parser.add_argument("--include_path", help="a folder of task files")
    parser.add_argument("--limit", type=int, help="samples of each task")
    args = parser.parse_args()
    found = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": args.model},
        tasks=args.tasks,
        task_manager=TaskManager(include_path=args.include_path),
        limit=args.limit,
    )
    print(json.dumps({task: dict(figures) for task, figures in found["results"].items()}, default=str))


if __name__ == "__main__":
    main()
