"""Every option of every script, taken from the argument parsers, and what kind of value it takes."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from tests.integration.planted.yard import ROOT, script

from trainyard.command.parser import SHOW_PARSER, ParserFound

SCRIPTS = tuple(sorted(path.stem for path in (ROOT / "src/trainyard/commands").glob("[!_]*.py")))


class Kind(Enum):
    """The kind of a value; each kind has its own wrong values."""

    SWITCH = auto()
    CHOICE = auto()
    NUMBER = auto()
    DURATION = auto()
    PATH = auto()
    ADDRESS = auto()
    SETTING = auto()
    TEXT = auto()


@dataclass(frozen=True)
class Option:
    """One option or positional of one script."""

    script: str
    action: argparse.Action

    @property
    def name(self) -> str:
        return self.action.dest

    @property
    def flag(self) -> str:
        """`--run-dir`, or the name that the help gives to a positional."""
        return self.action.option_strings[-1] if self.action.option_strings else ""

    @property
    def shown(self) -> str:
        return self.flag or str(self.action.metavar or self.action.dest)

    @property
    def kind(self) -> Kind:
        if self.action.nargs == 0:
            return Kind.SWITCH
        if self.action.choices:
            return Kind.CHOICE
        metavar = str(self.action.metavar or "")
        for kind, sample, types in (
            (Kind.PATH, "sample", Path),
            (Kind.DURATION, "7s", float),
            (Kind.NUMBER, "1", int | float | range),
        ):
            if isinstance(self._read(sample), types):
                return kind
        by_name = {"URL": Kind.ADDRESS, "KEY=VALUE": Kind.SETTING, "NAME=VALUE": Kind.SETTING}
        return Kind.NUMBER if metavar[:2] in ("N", "N|") else by_name.get(metavar, Kind.TEXT)

    def _read(self, sample: str) -> object:
        if not callable(self.action.type):
            return sample
        try:
            return self.action.type(sample)
        except (ValueError, argparse.ArgumentTypeError):
            return None


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser that `trainyard.commands.NAME` makes."""
    try:
        script(name).parse_args([SHOW_PARSER])
    except ParserFound as found:
        return found.parser
    raise AssertionError(f"{name}: parse_args has made no parser")


def options_of(name: str) -> Iterator[Option]:
    for action in parser_of(name)._actions:
        if action.help != argparse.SUPPRESS:
            yield Option(name, action)
