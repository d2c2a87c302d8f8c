#!/usr/bin/env python3
"""Count the modules that a command enters, as a reader who follows it must.

A module is entered when one of its functions runs after the command was imported; a module that is only
imported is not. Modules of `gateways/` are listed with > and not counted: a reader stops there.

Reads:   what the command reads; name one that changes nothing
Writes:  the modules in the order in which they are entered, and their number, on stderr
Exit codes: that of the command; 1 if it enters more than --most modules
Example: benchmarks/walk.py --most 25 job deploy --dry-run --config configs/smoke.yaml --image-uri a:1
"""

import argparse
import importlib
import sys
import threading
from pathlib import Path
from types import FrameType

import trainyard
from trainyard.command.handler import exit_code_of
from trainyard.commands import COMMANDS, module_name

ROOT = Path(trainyard.__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--most", type=int, default=25)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    name = next(name for n in (2, 1) if (name := " ".join(args.words[:n])) in COMMANDS)
    command = importlib.import_module(f"trainyard.commands.{module_name(name)}")
    entered: dict[str, None] = {}

    def note(frame: FrameType, event: str, _argument: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(ROOT)) and frame.f_code.co_name != "<module>":
            entered.setdefault(str(Path(path).relative_to(ROOT)))

    reached: dict[str, int] = {}

    def notice(event: str, _arguments: object) -> None:
        if event in ("subprocess.Popen", "socket.connect"):
            reached.setdefault(event, len([path for path in entered if not path.startswith("gateways/")]))

    sys.addaudithook(notice)
    words = args.words[len(name.split()) :]
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        code = exit_code_of(lambda: int(command.main(words)))
    finally:
        sys.setprofile(None)
    rooms = [path for path in entered if not path.startswith("gateways/")]
    for path in entered:
        sys.stderr.write(f"{'  ' if path in rooms else '> '}{path}\n")
    sys.stderr.write(f"{name}: {len(rooms)} modules; {reached}\n")
    return code or int(len(rooms) > args.most)


if __name__ == "__main__":
    sys.exit(main())
