"""Completion in a real bash: commands, options and choices, after each command that there is."""

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from tests.scripts.command_lines.options import options_of

from trainyard.commands import GROUPS, module_name, run_command

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
    "trainyard job status llama --fol": ["--follow"],
    "trainyard run --set a=b --conf": ["--config"],
    "trainyard job deploy --config ": ["here.yaml"],  # a file
    "trainyard skills install --for c": ["claude", "codex", "copilot", "cursor"],
}
"""Line -> the words that shells offer at its end, in a folder with one file."""


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_completes_the_same_words_and_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_command(["completion", "fish"]) == 0
    script = tmp_path / "trainyard.fish"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "here.yaml").touch()
    for line, expected in LINES.items():
        words = ["fish", "--no-config", "-c", f"source {script}; complete -C $argv[1]", line]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path / "folder", timeout=60)
        assert done.stderr == "", line
        assert sorted(each.split("\t")[0] for each in done.stdout.splitlines()) == expected, line


def press_tab(shell: int, line: str, ends: str) -> str:
    """Type a line and a tab at a terminal; return what it shows until it shows `ends`."""
    os.write(shell, f"{line}\t".encode())
    shown, limit = "", time.monotonic() + 60
    while ends not in shown:
        assert time.monotonic() < limit, f"{line}: {shown!r} has no {ends!r}"
        if select.select([shell], [], [], 1)[0]:
            shown += os.read(shell, 65536).decode()
    os.write(shell, b"\x15\n")
    return shown


@pytest.mark.process
@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_completes_at_a_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_command(["completion", "zsh"]) == 0
    (tmp_path / "trainyard.zsh").write_text(capsys.readouterr().out)
    shell, inner = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "dumb", "LANG": "C.UTF-8"}
    words = ["zsh", "-f", "-i"]
    process = subprocess.Popen(
        words, stdin=inner, stdout=inner, stderr=inner, cwd=tmp_path, env=environment, start_new_session=True
    )
    os.close(inner)
    try:
        # compinit would ask about folders that others can write; a test's user need not own them.
        os.write(shell, b"autoload -Uz compinit && compinit -D -u; source ./trainyard.zsh\n")
        press_tab(shell, "trainyard im", "trainyard image ")
        press_tab(shell, "trainyard image build --le", "build --level ")
        press_tab(shell, "trainyard cluster check --kind tr", "--kind trainjob ")
        press_tab(shell, "trainyard completion z", "completion zsh ")
    finally:
        process.kill()
        process.wait()
        os.close(shell)
