"""Wrong usage: each type of a command line over hostile values; the error first, a short usage last."""

import argparse
import math
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from trainyard.command import arguments
from trainyard.command.handler import exit_code_of
from trainyard.command.parser import UsageExit, script_parser
from trainyard.commands import explain_unknown, run, run_command, store_verify
from trainyard.commands.run import settings
from trainyard.errors import ConfigError, ExitCode


def error_of(words: list[str], capsys: pytest.CaptureFixture[str], *, positional: bool = False) -> list[str]:
    parser = script_parser("doc", reads_config=not positional)
    parser.prog = "trainyard job deploy"
    parser.add_argument("--num-nodes", type=int)
    parser.add_argument("--kind", choices=("pytorchjob", "rayjob"))
    if positional:
        parser.add_argument("name", metavar="RUN")
    with pytest.raises(SystemExit) as end:
        parser.parse_args(words)
    assert end.value.code == 2
    return capsys.readouterr().err.splitlines()


def test_the_error_is_first_and_names_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["--nodes", "3"], "unexpected argument '--nodes'; did you mean '--num-nodes'?"),
        (["--config", "a", "--num-node=s", "3"], "argument --num-nodes: invalid int value: 's'"),
        (["--confg", "a"], "unexpected argument '--confg'; did you mean '--config'?"),
        (["a.yaml"], "unexpected argument 'a.yaml'; did you mean '--config a.yaml'?"),
        (["--config", "a", "--quite-other"], "unexpected argument '--quite-other'"),
        ([], "the following arguments are required: --config"),
    ):
        first, usage = error_of(words, capsys)
        assert first == f"trainyard job deploy: error: {message}"
        assert usage == "usage: trainyard job deploy --config FILE … (--help lists all)"


def test_a_flag_for_a_positional_and_a_wrong_choice(capsys: pytest.CaptureFixture[str]) -> None:
    first, usage = error_of(["--run-dir", "runs/1"], capsys, positional=True)
    assert first.endswith("unexpected argument '--run-dir'; RUN takes no flag")
    assert usage == "usage: trainyard job deploy RUN … (--help lists all)"
    first, _ = error_of(["r", "--kind", "pytorchjb"], capsys, positional=True)
    assert first.endswith("did you mean 'pytorchjob'?")


def test_a_misspelt_command_of_a_group_is_named() -> None:
    assert "Did you mean trainyard config check?" in explain_unknown(["config", "chekc"])
    assert "Did you mean" not in explain_unknown(["config"])


def test_the_help_of_one_command_has_its_own_usage_and_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    some = ("--all-namespaces", "--wait", "--tail", "--to")
    for words, options in (
        ("job status", ["--wait"]),
        ("job ls", ["--all-namespaces"]),
        ("job", ["--all-namespaces", "--wait", "--tail"]),
        ("job checkpoints copy", ["--to"]),
    ):
        with pytest.raises(SystemExit):
            run_command([*words.split(), "--help"])
        text = capsys.readouterr().out
        assert text.startswith(f"usage: trainyard {words} [-h]")
        assert [option for option in some if f"  {option}" in text] == options


def test_the_help_of_a_group_and_that_of_help_list_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["config", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "config show" in shown and "config check" in shown and "store ls" not in shown
    assert (run_command(["help", "help"]), run_command(["--help", "-h"])) == (0, 0)
    assert capsys.readouterr().out.count("Set up and train:") == 2


def test_the_list_of_commands_is_short_and_as_wide_as_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (60, 80, 140):
        monkeypatch.setenv("COLUMNS", str(columns))
        run_command(["help"])
        lines = capsys.readouterr().out.splitlines()[1:]
        assert len([line for line in lines if line and line[0] != " "]) == 4
        assert len([line for line in lines if line[:2] == "  " and line[2:3].strip()]) <= 30
        assert min(columns - 20, 100) < max(map(len, lines)) < columns


def test_the_program_begins_at_the_first_word_that_is_no_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").write_text("{}")
    program = ["python", "train.py", "a.b=1", "--json", "--set", "x"]
    for words, settings_, command, run_dir in (
        (["--json", *program], [], program, None),
        (["--json", "--", *program], [], program, None),
        (["--json", "a.b=1", "--set", "c.d=2", *program], ["a.b=1", "c.d=2"], program, None),
        (["a.b=1", "--run-dir", "new", "sh", "--", "-x"], ["a.b=1"], ["sh", "--", "-x"], Path("new")),
        (["A=1", "sh"], [], ["A=1", "sh"], None),
        (["--config", "c.yaml"], [], [], None),
        (["old"], [], [], Path("old")),
        (["--", "old", "x"], [], ["old", "x"], None),
    ):
        args = run.parse_args(words)
        assert (args.set, args.command, args.run_dir) == (settings_, command, run_dir), words


def test_the_option_of_a_program_asks_for_no_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for own, has_output in (((), False), (("--json",), True)):
        words = ["run", *own, "--store", "nowhere", "python", "train.py", "--json"]
        monkeypatch.setattr(sys, "argv", ["trainyard", *words])
        assert exit_code_of(partial(run_command, words)) == ExitCode.USAGE
        assert bool(capsys.readouterr().out) is has_output


def test_a_run_is_a_position_or_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "its-id").mkdir(parents=True)
    for words, place in (("its-id", "runs/its-id"), ("./its-id", "its-id"), ("none", "none")):
        assert import_module("trainyard.commands.explain").parse_args([words]).run_dir == Path(place), words
    more = {"export": ["--to", "x"], "notify": ["started"]}
    for name in ("prove", "evaluate", "explain", "watch", "doctor", "store_sync", "store_verify", *more):
        parse = import_module(f"trainyard.commands.{name}").parse_args
        for run_ in (["r"], ["--run-dir", "r"]):
            assert parse([*more.get(name, ()), *run_]).run_dir == Path("r"), name
        with pytest.raises(UsageExit):
            parse([*more.get(name, ()), "r", "--run-dir", "r"])
    verify = store_verify.parse_args(["7", "--store", "file:///s"])
    assert (verify.run_number, verify.run_dir) == ("7", None)


def test_blanks_around_the_sign_of_a_setting_are_named() -> None:
    with pytest.raises(ConfigError, match="is not KEY=VALUE, without spaces"):
        settings("training.max_steps = 200")


def test_a_program_that_does_not_exist_is_wrong_usage_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exit_code_of(partial(run.main, ["pyhton", "x.py"])) is ExitCode.USAGE
    assert [*tmp_path.iterdir()] == []


NUMBERS: dict[Callable[[str], float], tuple[float, float]] = {
    arguments.natural_number: (0, 10**18 - 1),
    arguments.positive: (1, 10**18 - 1),
    arguments.processes: (1, 1024),
    arguments.share: (5e-324, 1),
    arguments.pause: (0, 86400),
    arguments.duration: (5e-324, 36500 * 86400),
}
"""Type -> the least and the greatest value that it may return."""
NEVER = ("", "inf", "nan", "1e400", "-1", "+1", "१२", "0x10", "1_000", " 7", "9" * 5000)
"""Wrong as a number of any kind."""
every_number = each_case("read", NUMBERS, ids=lambda read: read.__name__)


def refusal(read: Callable[[str], object], value: str) -> str:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        read(value)
    return str(refused.value)


@every_number
@each_case("value", NEVER, ids=lambda value: repr(value[:10]))
def test_what_is_no_plain_number_is_refused_in_short_words(read: Callable[[str], float], value: str) -> None:
    for text in (value, f"{value}s"):
        said = refusal(read, text)
        assert arguments.quote(text) in said
        assert len(said) < 250


@given(st.text(alphabet="0123456789.eE+-_ infa٣smhd", max_size=40))
def test_a_number_is_within_its_bounds_or_refused(value: str) -> None:
    for read, (least, most) in NUMBERS.items():
        try:
            found = read(value)
        except argparse.ArgumentTypeError:
            continue
        assert least <= found <= most, (read, value)
        assert math.isfinite(found)


@each_case(
    ("read", "text", "value"),
    [
        (arguments.natural_number, "0", 0),
        (arguments.positive, "9" * 18, 10**18 - 1),
        (arguments.share, ".4", 0.4),
        (arguments.pause, "0", 0),
        (arguments.duration, "8h", 28800),
        (arguments.duration, "25m", 1500),
        (arguments.duration, "90s", 90),
        (arguments.duration, "30d", 2592000),
    ],
)
def test_a_number_is_what_it_says(read: Callable[[str], float], text: str, value: float) -> None:
    assert read(text) == value


@each_case("text", ["8", "h", "8w", "8H", "0s", "1e3s", "8 hours", "36501d"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    assert "is not a duration such as 8h, 25m or 90s" in refusal(arguments.duration, text)


def test_a_step_is_told_from_a_name_and_from_newest() -> None:
    for text, number in (("7", 7), ("newest", None), ("9" * 5000, None), ("٣", None)):
        assert arguments.step(text) == number
    assert (arguments.step_or_newest("12"), arguments.step_or_newest("newest")) == (12, None)
    assert "neither a step nor newest" in refusal(arguments.step_or_newest, "latest")


def test_an_empty_path_is_refused() -> None:
    assert arguments.path("../x") == Path("../x")
    assert "the path is empty; write . for the working directory" in refusal(arguments.path, "")


def test_a_text_is_utf_8() -> None:
    assert arguments.text("naïve 🙂") == "naïve 🙂"
    assert "is not UTF-8" in refusal(arguments.text, "caf\udce9")


def test_the_name_of_an_object_is_what_kubernetes_permits() -> None:
    for name in ("llama", "llama-2", "team.llama-2", "7b", "a" * 253):
        assert arguments.object_name(name) == arguments.object_name_if_given(name) == name
    assert arguments.object_name_if_given("") == "", "an option that was not given"
    for name in ("", ".", "..", "a/b", "../a", "-a", "a-", "a..b", "A", "a_b", "a b", "a\n", "é", "a" * 254):
        assert "is not the name of an object" in refusal(arguments.object_name, name)
