"""Completion in a real bash: commands, options and choices, after each command that there is."""

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.scripts.command_lines.options import options_of

from trainyard.commands import COMMANDS, print_completion, run_command

BASH = shutil.which("bash") or ""
ASK = """
while IFS= read -r line; do
    read -r -a COMP_WORDS <<< "$line"
    case $line in *' ') COMP_WORDS+=('') ;; esac
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    _trainyard
    echo "${COMPREPLY[*]}"
done
"""


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> str:
    assert run_command(["completion", "bash"]) == 0
    return capsys.readouterr().out


def complete(script: str, folder: Path, *lines: str) -> list[list[str]]:
    """What bash offers at the end of each line."""
    (folder / "trainyard.bash").write_text(script)
    words = [BASH, "--norc", "-c", f"source trainyard.bash\n{ASK}"]
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(words, input=text, capture_output=True, text=True, cwd=folder, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.skipif(not BASH, reason="bash is not installed")
def test_bash_completes_commands_options_and_choices(script: str, tmp_path: Path) -> None:
    found = complete(
        script,
        tmp_path,
        "trainyard im",
        "trainyard image ",
        "trainyard image bu",
        "trainyard image build --le",
        "trainyard image build --context . --level ",
        "trainyard cluster ca",
        "trainyard cluster check --kind tr",
        "trainyard job status llama --fol",
        "trainyard job deploy --config ",  # a file: the shell's own
        "trainyard skills install --for c",
        "trainyard nothing ",
    )
    assert found == [
        ["image"],
        ["lint", "build", "check", "push"],
        ["build"],
        ["--level"],
        ["quick", "standard", "full"],
        ["capacity"],
        ["trainjob"],
        ["--follow"],
        [],
        ["claude", "codex", "copilot", "cursor"],
        [],
    ]


@pytest.mark.skipif(not BASH, reason="bash is not installed")
def test_every_option_of_every_command_is_offered(script: str, tmp_path: Path) -> None:
    found = complete(script, tmp_path, *(f"trainyard {name} --" for name in COMMANDS))
    for name, offered in zip(COMMANDS, found, strict=True):
        module = COMMANDS[name].split()[0]
        flags = {option.flag for option in options_of(module) if option.flag.startswith("--")}
        assert flags - set(offered) == set(), name


def test_fish_and_zsh_get_the_same_words(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["completion", "zsh"]) == 0
    assert capsys.readouterr().out == f"autoload -U +X bashcompinit && bashcompinit\n{script}"
    assert run_command(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    build = "-n '__fish_seen_subcommand_from image; and __fish_seen_subcommand_from build'"
    assert f"complete -c trainyard {build} -l level -xa 'quick standard full'" in lines
    assert f"complete -c trainyard {build} -l dockerfile" in lines
    options = sum(
        word.startswith("--") for words in print_completion.known_words().values() for word in words
    )
    assert sum(" -l " in line for line in lines) == options
