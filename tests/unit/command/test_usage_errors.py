"""Wrong usage: the error first, with the name that was meant, and a short usage last."""

import sys

import pytest

from trainyard.command.parser import script_parser
from trainyard.commands import explain_unknown, run_command
from trainyard.commands.run import settings
from trainyard.errors import ConfigError


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes", "3"], "unexpected argument '--nodes'; did you mean '--num-nodes'?"),
        (["--config", "a", "--num-node=s", "3"], "argument --num-nodes: invalid int value: 's'"),
        (["--confg", "a"], "unexpected argument '--confg'; did you mean '--config'?"),
        (["a.yaml"], "unexpected argument 'a.yaml'; did you mean '--config a.yaml'?"),
        (["--config", "a", "--quite-other"], "unexpected argument '--quite-other'"),
        ([], "the following arguments are required: --config"),
    ],
)
def test_the_error_is_first_and_names_what_was_meant(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert capsys.readouterr().out.count("Train a model:") == 2


def test_blanks_around_the_sign_of_a_setting_are_named() -> None:
    with pytest.raises(ConfigError, match="is not KEY=VALUE, without spaces"):
        settings("training.max_steps = 200")
