#!/usr/bin/env python3
"""Count the modules that a command enters before a gateway first asks the outside world.

A module is entered when one of its functions runs after the command was imported; one that is only imported
is not. Modules of `gateways/` are listed with > and not counted: a reader stops there.

Reads:   what the command reads; name one that changes nothing
Writes:  the modules in the order in which they are entered, and two numbers, on stderr
Exit codes: 0 at most --most modules until the first gateway that reads or sends; 1 more
Example: benchmarks/walk.py job deploy --dry-run --config configs/smoke.yaml --kubeconfig FILE
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

ROOT = f"{Path(trainyard.__file__).parent}/"
ASKS = ("open", "os.listdir", "os.scandir", "subprocess.Popen", "socket.connect")


class Walk:
    """The modules that were entered, and how many there were when a gateway first asked."""

    def __init__(self) -> None:
        self.entered: dict[str, None] = {}
        self.at_gateway: int | None = None

    @property
    def rooms(self) -> list[str]:
        return [path for path in self.entered if not path.startswith("gateways/")]

    def enter(self, frame: FrameType, event: str, _argument: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(ROOT) and frame.f_code.co_name != "<module>":
            self.entered.setdefault(path.removeprefix(ROOT))

    def ask(self, event: str, _arguments: object) -> None:
        if event in ASKS and self.at_gateway is None and self.entered:
            frame: FrameType | None = sys._getframe(1)
            files = []
            while frame is not None:
                files.append(frame.f_code.co_filename)
                frame = frame.f_back
            is_import = any(file.startswith("<frozen importlib") for file in files)
            if not is_import and any(file.startswith(f"{ROOT}gateways/") for file in files):
                self.at_gateway = len(self.rooms)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--most", type=int, default=25)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    args = parser.parse_args()
    name = next(name for n in (2, 1) if (name := " ".join(args.words[:n])) in COMMANDS)
    command = importlib.import_module(f"trainyard.commands.{module_name(name)}")
    words, walk = args.words[len(name.split()) :], Walk()
    sys.addaudithook(walk.ask)
    threading.setprofile(walk.enter)
    sys.setprofile(walk.enter)
    try:
        code = exit_code_of(lambda: int(command.main(words)))
    finally:
        sys.setprofile(None)
    for path in walk.entered:
        sys.stderr.write(f"{'>' if path.startswith('gateways/') else ' '} {path}\n")
    count = len(walk.rooms) if walk.at_gateway is None else walk.at_gateway
    sys.stderr.write(
        f"{name}: {count} modules until a gateway asks, {len(walk.rooms)} in all, exit code {code}\n"
    )
    return int(count > args.most)


if __name__ == "__main__":
    sys.exit(main())
