"""Calls scripts one after the other in a process of its own, and writes down what they answered.

    runner.py CALLS ANSWERS [UID]     CALLS: JSON, a list of [script, word, ...]

Surroundings are of a process: its locale, its streams, its user. With UID the calls are made twice: by
whoever started it, so that everything is imported that another user may not read, and then by that user.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

from tests.integration.planted.yard import script

from trainyard.command import handler


def main() -> None:
    calls, answers = json.loads(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2])
    if len(sys.argv) > 3:
        answers_of(calls)
        with answers.open("w") as file:  # opened while that is still allowed
            os.setgid(int(sys.argv[3]))
            os.setuid(int(sys.argv[3]))
            file.write(json.dumps(answers_of(calls)))
    else:
        answers.write_text(json.dumps(answers_of(calls)))


def answers_of(calls: list[list[str]]) -> list[int]:
    return [handler.exit_code_of(partial(answer_of, words)) for words in calls]


def answer_of(words: list[str]) -> int:
    return int(script(words[0]).main(words[1:]))


if __name__ == "__main__":
    main()
