"""Completion in a real bash: commands, options and choices, after each command that there is.

shtab writes the scripts of zsh and fish from the same parser; its own tests run them.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.scripts.command_lines.options import options_of

from trainyard.commands import GROUPS, module_name, run_command
from trainyard.commands.completion import SHELLS

BASH = shutil.which("bash") or ""
ASK = """
while IFS= read -r line; do
    read -r -a COMP_WORDS <<< "$line"
    case $line in *' ') COMP_WORDS+=('') ;; esac
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    _shtab_trainyard
    echo "${COMPREPLY[*]}"
done
"""


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> str:
    assert run_command(["completion", "bash"]) == 0
    return capsys.readouterr().out


def complete(script: str, folder: Path, *lines: str) -> list[list[str]]:
    """Return the words that bash offers at the end of each line."""
    words = [BASH, "--norc", "-c", f"{script}\n{ASK}"]
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(words, input=text, capture_output=True, text=True, cwd=folder, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.skipif(not BASH, reason="bash is not installed")
def test_bash_completes_commands_options_and_choices(script: str, tmp_path: Path) -> None:
    (tmp_path / "here.yaml").touch()
    found = complete(script, tmp_path, *LINES)
    assert {line: sorted(words) for line, words in zip(LINES, found, strict=True)} == LINES


@pytest.mark.skipif(not BASH, reason="bash is not installed")
def test_every_option_of_every_command_is_offered(script: str, tmp_path: Path) -> None:
    names = [name for group in GROUPS.values() for name in group]
    lines = {
        name: f"trainyard {name}{' list' if name == 'cluster' else ''} --" for name in names if name != "job"
    }
    found = complete(script, tmp_path, *lines.values())
    for name, offered in zip(lines, found, strict=True):
        flags = {option.flag for option in options_of(module_name(name)) if option.flag.startswith("--")}
        assert flags - set(offered) == set(), name


LINES = {
    "trainyard im": ["image"],
    "trainyard image ": ["build", "check", "lint", "push"],
    "trainyard image bu": ["build"],
    "trainyard image build --le": ["--level"],
    "trainyard image build --context . --level ": ["full", "quick", "standard"],
    "trainyard cluster ca": ["capacity"],
    "trainyard cluster check --kind tr": ["trainjob"],
    "trainyard job status llama --wa": ["--wait"],
    "trainyard run --set a=b --conf": ["--config"],
    "trainyard job deploy --config ": ["here.yaml"],  # a file
    "trainyard skills install --for c": ["claude", "codex", "copilot", "cursor"],
}
"""Line -> the words that shells offer at its end, in a folder with one file."""


def test_every_shell_gets_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SHELLS:
        assert run_command(["completion", shell]) == 0
        assert "trainyard" in capsys.readouterr().out
