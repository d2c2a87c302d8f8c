"""The reading of make's arguments: SET is split into words, and misspelt variables are reported.

The words are compared with those that a shell and Python's shlex make of the same text.
"""

import itertools
import re
import shlex
import string
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
AWK = ["awk", "-f"]


def split(text: str) -> subprocess.CompletedProcess[str]:
    line = [*AWK, str(ROOT / "scripts" / "split_settings.awk")]
    return subprocess.run(line, input=text + "\n", capture_output=True, text=True, timeout=60)


def words_of(text: str) -> list[str]:
    """The settings as the recipe's shell hands them to a script."""
    done = split(text)
    assert done.returncode == 0, done.stderr
    shell = f"for word in {done.stdout.strip()}; do printf '%s\\0' \"$word\"; done"
    out = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=60, check=True).stdout
    words = out.split("\0")[:-1]
    assert words[::2] == ["--set"] * (len(words) // 2)
    return words[1::2]


PIECES = ("a", "b=1", " ", "  ", "'", '"', "\\", "ü")
TEXTS = ["".join(pieces) for pieces in itertools.product(PIECES, repeat=3)]


def test_quotes_and_backslashes_split_as_in_python() -> None:
    for text in TEXTS:
        try:
            expected = shlex.split(text)
        except ValueError:
            if not text.endswith("\\"):  # a last backslash stands for itself, as in a shell
                assert split(text).returncode == 2, text
            continue
        assert words_of(text) == expected, text


@pytest.mark.parametrize("letter", [*sorted(set(string.punctuation) - set("'\"\\")), "é", "日", "\u00a0"])
def test_every_other_character_is_one_like_others(letter: str) -> None:
    text = f"a.b={letter}1 {letter} 'c={letter} {letter}' \"d={letter}\""
    assert words_of(text) == [f"a.b={letter}1", letter, f"c={letter} {letter}", f"d={letter}"]


@pytest.mark.parametrize("letter", ["\\", '"', "$", "`"])
def test_a_backslash_in_double_quotes_does_what_it_does_in_a_shell(letter: str) -> None:
    assert words_of(f'"a=\\{letter}x" "b=\\y"') == [f"a={letter}x", "b=\\y"]


@pytest.mark.parametrize("space", ["\n", "\t", "\r\n", " \n "])
def test_any_white_space_parts_words(space: str) -> None:
    assert words_of(f"{space}a=1{space}b=2{space}") == ["a=1", "b=2"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name=it's 5", "the ' before s 5 is not closed"),
        ('name="my model', 'the " before my model is not closed'),
        ("a='x\ny'", "a=x… holds a line break"),
    ],
)
def test_what_cannot_be_split_is_said(text: str, said: str) -> None:
    done = split(text)
    assert done.returncode == 2
    assert done.stderr.startswith(f"SET: {said}" if "before" in said else f"SET: the value {said}")
    assert done.stdout == ""


@cache
def known() -> str:
    match = re.search(r"^VARIABLES := (.*)$", (ROOT / "Makefile").read_text(), flags=re.M)
    assert match is not None
    return match[1]


def explain(*names: str, inner: str = "") -> subprocess.CompletedProcess[str]:
    line = [*AWK[:1], "-v", f"known={known()}", "-v", f"inner={inner}", "-f"]
    line.append(str(ROOT / "scripts" / "explain_variables.awk"))
    return subprocess.run(line, input=" ".join(names), capture_output=True, text=True, timeout=60)


def slips(name: str) -> Iterator[str]:
    """The name with one letter missing, doubled or changed, two swapped, and in other letters."""
    for place in range(len(name)):
        before, letter, after = name[:place], name[place], name[place + 1 :]
        yield from (before + after, before + letter + letter + after, before + "X" + after)
        if after:
            yield before + after[0] + letter + after[1:]
    yield from (name.lower(), name.title())


@pytest.mark.parametrize("inner", ["", "1"])
@pytest.mark.parametrize("name", known().split())
def test_every_slip_is_refused_with_the_name_that_was_meant(name: str, inner: str) -> None:
    wrong = sorted({slip for slip in slips(name) if len(slip) > 2} - set(known().split()))
    done = explain(*wrong, inner=inner)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert [line.split()[0] for line in lines] == wrong
    meant = [re.findall(r"did you mean (\w+)\?", line) for line in lines]
    assert [one for one in meant if one != [name]] == []


OTHERS = (
    "V MAKEFLAGS CXX CXXFLAGS CI NO_COLOR https_proxy NO_PROXY CUDA_VISIBLE_DEVICES NCCL_DEBUG UV_CACHE_DIR "
    "PIP_INDEX_URL PYTHONPATH AWS_PROFILE WANDB_MODE TRAINYARD_RUN_ID"
)


@pytest.mark.parametrize("name", OTHERS.split())
def test_what_other_programs_read_passes(name: str) -> None:
    assert explain(name).returncode == 0


def test_a_setting_that_stands_outside_of_set_is_pointed_to_its_place() -> None:
    done = explain("training.max_steps")
    assert done.returncode == 2
    assert 'SET="training.max_steps=…"' in done.stderr


def test_a_name_that_nothing_knows_is_refused_but_for_an_outer_make() -> None:
    done = explain("BATCHES")
    assert done.returncode == 2
    assert "BATCHES=… make" in done.stderr
    assert explain("BATCHES", inner="1").returncode == 0


def test_the_help_describes_every_variable_and_fits_80_columns() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    described = re.findall(r"^([A-Z_]+) ", done.stdout.partition("Variables")[2], flags=re.M)
    assert sorted(described) == sorted(known().split())
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []
