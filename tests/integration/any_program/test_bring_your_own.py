"""docs/bring_your_own.md, literally: its files make a repository, its commands run, its output is compared.

A file is a block below a paragraph that ends with its name; `sh` is run, `console` is what was printed.
"""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "bring_your_own.md"
BLOCK = re.compile(r"(?P<before>[^\n]*)\n\n```(?P<kind>\w+)\n(?P<text>.*?)^```$", flags=re.M | re.S)
INSTALL = "uv tool install git+https://github.com/OWNER/REPOSITORY\n"
VALUES = {"IMAGE": "example.com/training:1", "CLAIM": "checkpoints"}
WIDTH = 96


def shown(command: str, folder: Path) -> tuple[int, str]:
    """Run a command of the page on a terminal; return its exit code and what the terminal shows."""
    who = {f"GIT_{role}_{key}": "a@b.c" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    is_of_ci = re.compile("CI$|GITHUB_").match
    environment = {name: value for name, value in os.environ.items() if not is_of_ci(name)}
    environment |= {**who, "PATH": path, "COLUMNS": str(WIDTH), "TERM": "xterm", "OMP_NUM_THREADS": "1"}
    reader, terminal = pty.openpty()
    with subprocess.Popen(
        ["sh", "-e", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    ) as process:
        os.close(terminal)
        output = b""
        try:
            while piece := os.read(reader, 1 << 16):
                output += piece
        except OSError:  # the last process has closed the terminal
            pass
    os.close(reader)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode()).replace("\r", "\n")
    return process.returncode, text


def words_of(text: str) -> str:
    """The words of a text, without its line breaks and indentation."""
    return " ".join(text.split())


def blocks() -> list[tuple[str, str, str]]:
    """File name (or an empty text), kind and text of each block, in order."""
    found = []
    for match in BLOCK.finditer(PAGE.read_text()):
        name = re.search(r"`([\w./]+)`$", match["before"])
        found.append((name[1] if name else "", match["kind"], match["text"]))
    return found


@pytest.mark.slow
def test_the_page_leads_from_a_script_to_a_green_run(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / ".venv").symlink_to(sys.prefix)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    codes, output, files = [], "", []
    for name, kind, text in blocks():
        if kind == "sh" and text != INSTALL:
            for word, value in VALUES.items():
                text = re.sub(rf"\b{word}\b", value, text)
            code, output = shown(text, folder)
            codes.append(code)
        elif kind == "console":
            for line in re.split(r"\n(?= {2,4}\w)", text.rstrip("\n")):
                start, _, end = words_of(line).partition("…")
                assert start in words_of(output) and words_of(end) in words_of(output), output
        elif kind in ("python", "text", "yaml") and name:
            files.append(name)
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
    assert files == ["train.py", "data/pairs.txt", "requirements.txt", ".gitignore"]
    assert codes == [1, 0, 0, 0], output
    status = ["git", "status", "--porcelain"]
    assert subprocess.run(status, cwd=folder, capture_output=True, check=True).stdout == b""
