"""Write trainyard.yaml, the configuration with which a program of yours can be proven.

It states the command, the lock of its packages and the files that it reads. The command is the one after --,
or else that of a run, with what the run's own configuration set. What nobody can know is asked for at a
terminal, and left as a comment elsewhere.

Reads:      the folder of the program; a run directory; an answer at a terminal
Writes:     the file, unless --dry-run prints it; a file that exists stays
Exit codes: 0 written; 2 wrong usage, no command is known, or the file exists, whose missing lines are named
Example:    trainyard init program --data "data/*.txt" -- python train.py
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard.command import arguments, output
from trainyard.command.parser import add_flag, add_option, add_run, script_parser
from trainyard.config.schema import ProgramConfig
from trainyard.errors import ConfigError, ExitCode
from trainyard.programs.inputs import find_data, find_lock
from trainyard.run.atomic_files import write_bytes_atomically
from trainyard.run.identity import newest_run
from trainyard.run.run_settings import read_settings, setting
from trainyard.run.suggested_commands import trainyard_command

# Key -> what a comment says of it.
_MEANING = {
    "lock": "the file that pins its packages",
    "data": "the files that it reads; [] if it reads none",
}
_EXAMPLE = {"lock": "requirements.txt", "data": ["data/*"]}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, dry_run="print the file, write nothing")
    run = "the run whose command is taken; default: the newest one in runs"
    add_run(parser, text=run)
    reads = parser.add_mutually_exclusive_group()
    data = "files that it reads, such as data/*.txt; may be repeated"
    add_option(reads, "--data", "PATTERN", data, action="append")
    add_flag(reads, "--no-data", "it reads no files")
    place = "default: trainyard.yaml"
    add_option(parser, "--output", "FILE", place, type=arguments.path, default=Path("trainyard.yaml"))
    parser.usage = f"{parser.prog} [options] [-- COMMAND ...]"
    words = list(sys.argv[1:] if argv is None else argv)
    at = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:at])
    args.command = words[at + 1 :]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    program = {"command": args.command} if args.command else program_of_run(args.run_dir)
    directory = Path(program.get("directory", ".")).expanduser()
    if "lock" not in program and (lock := find_lock(directory.absolute())) is not None:
        program["lock"] = os.path.relpath(lock, directory)
    data = [] if args.no_data else args.data if args.data is not None else program.get("data")
    if (data := ask_for_data() if data is None else data) is not None:
        find_data(directory, data)
        program["data"] = data
    lines = program_lines(program)
    text = "\n".join(["recipe: command", "program:", *lines.values(), ""])
    if args.dry_run:
        output.print_text(text.rstrip("\n"))
        return ExitCode.DONE
    if args.output.exists():
        raise ConfigError(describe_existing(args.output, lines))
    write_bytes_atomically(args.output, text.encode())
    output.announce("written", f"{args.output}; commit it", "ok")
    unknown = " and ".join(name for name in _MEANING if name not in program)
    start = start_command(args.output)
    next_step = (
        f"write {unknown} into {args.output}, in place of the comment; then: {start}" if unknown else start
    )
    output.announce("next", next_step, copied=not unknown)
    return ExitCode.DONE


def start_command(file: Path) -> str:
    return trainyard_command(f"run --config {file}")


def program_of_run(run_dir: Path | None) -> dict[str, Any]:
    """Return what the configuration of a run states of its program. Raises ConfigError without a run."""
    if run_dir is None and not any(Path("runs").glob("*/run.json")):
        raise ConfigError("Name the program: trainyard init program -- python train.py")
    file = (run_dir or newest_run(Path("runs"))) / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"There is no {file}. Name the program: trainyard init program -- python train.py")
    settings = read_settings(file.read_bytes())
    stated = setting(settings, "program") or {}
    if settings.get("recipe") != "command" or not stated.get("command"):
        raise ConfigError(f"{file}: is of recipe {settings.get('recipe')}, which has a configuration")
    usual = ProgramConfig().model_dump(mode="json")
    return {name: value for name, value in stated.items() if value not in (None, usual.get(name))}


def ask_for_data() -> list[str] | None:
    """Return the patterns that a person at a terminal answers; None where nobody can be asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    sys.stderr.write("Which files does it read, such as data/*.txt? Empty if none: ")
    sys.stderr.flush()
    return sys.stdin.readline().split()


def program_lines(program: Mapping[str, Any]) -> dict[str, str]:
    """Return the line of each key of section program; JSON is YAML."""
    names = dict.fromkeys(["command", *_MEANING, *program])
    lines = {}
    for name in names:
        value = json.dumps(program.get(name, _EXAMPLE.get(name)), ensure_ascii=False)
        meaning = f"  # {_MEANING[name]}" if name in _MEANING else ""
        lines[name] = f"  {'' if name in program else '# '}{name}: {value}{meaning}"
    return lines


def describe_existing(file: Path, lines: Mapping[str, str]) -> str:
    stated = setting(read_settings(file.read_bytes()), "program") or {}
    lacks = [line for name, line in lines.items() if stated.get(name) is None]
    if not lacks:
        return f"{file} exists, and its section program has these keys. Start it: {start_command(file)}"
    listed = "\n".join(lacks)
    then = f"Then: {start_command(file)}"
    return f"{file} exists, and stays as it is. Add to its section program:\n{listed}\n{then}"
