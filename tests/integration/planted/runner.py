"""Call scripts one after the other in a process of their own, and write down their exit codes.

    runner.py CALLS ANSWERS [UID]     CALLS: JSON, a list of [script, word, ...]

A process has its own locale, streams and user. With UID the calls are made twice: by whoever starts this,
so that everything is imported that the other user may not read, and then by the other user.
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
