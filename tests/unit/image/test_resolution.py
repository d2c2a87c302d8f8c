"""Pins that pip would refuse: commands of a Dockerfile against a folder of wheels with real metadata.

tests/fixtures/package_metadata.json has the requirements of 55 releases as PyPI has them, less packages that
are not in it. The wheels are made from it; nothing is read from the network.
"""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.commands import image_lint

METADATA: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "package_metadata.json").read_text()
)
CONFLICTS = Path(__file__).parents[2] / "fixtures" / "dockerfiles"
WHEELS = "https://download.pytorch.org/whl"

pytestmark = pytest.mark.skipif(not image_lint.find_uv(), reason="uv is not installed")


def write_index(folder: Path, releases: list[dict[str, Any]]) -> Path:
    """Write a folder of wheels that hold metadata only."""
    for one in releases:
        stem = f"{one['name'].replace('-', '_')}-{one['version']}"
        lines = ["Metadata-Version: 2.1", f"Name: {one['name']}", f"Version: {one['version']}"]
        lines += [f"Requires-Python: {one['requires_python']}"] if one["requires_python"] else []
        lines += [f"Requires-Dist: {text}" for text in one["requires"]]
        for tag in one["tags"]:
            with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w") as wheel:
                wheel.writestr(f"{stem}.dist-info/METADATA", "\n".join(lines) + "\n")
                wheel.writestr(f"{stem}.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
                wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return folder


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_index(tmp_path_factory.mktemp("index"), METADATA)


@pytest.fixture
def lint(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, dict[str, Any]]]:
    def run(text: str, *words: str, files: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        (tmp_path / "Dockerfile").write_text(text)
        for name, content in (files or {}).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        capsys.readouterr()
        place = ["--dockerfile", str(tmp_path / "Dockerfile"), "--index", str(index)]
        code = image_lint.main([*place, "--json", *words])
        return code, json.loads(capsys.readouterr().out)

    return run


def errors(result: dict[str, Any]) -> list[str]:
    return [one["rule"] for one in result["findings"] if one["severity"] == "error"]


def test_public_conflicts_are_red_by_their_rule_and_their_right_forms_green(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first line of each file names the public report."""
    more = json.loads((CONFLICTS / "metadata.json").read_text())
    index, wrong = write_index(tmp_path, [*METADATA, *more]), []
    for line in (CONFLICTS / "index.tsv").read_text().splitlines()[1:]:
        name, expected, instance, rule = line.split("\t")
        words = ["--dockerfile", str(CONFLICTS / f"{name}.Dockerfile"), "--index", str(index), "--json"]
        code = image_lint.main([*words, *(["--instance-type", instance] if instance != "-" else [])])
        result = json.loads(capsys.readouterr().out)
        if code != int(expected) or (rule != "-" and rule not in errors(result)):
            wrong.append((name, code, errors(result), result["not_checked"]))
    assert not wrong


def test_a_compat_folder_is_red_where_the_driver_is_newer(lint: Callable[..., Any]) -> None:
    text = (CONFLICTS / "p04_compat_first.Dockerfile").read_text()
    for driver, expected in (("550.54.14", 0), ("580.65.06", 1)):
        code, result = lint(text, "--driver", driver)
        assert (code, errors(result)) == (expected, ["library-path"] * expected)


SITUATIONS = {
    "a constraint against a pin": (
        "FROM python:3.11\nCOPY c.txt .\nRUN pip install -c c.txt vllm==0.8.5\n",
        {"c.txt": "torch==%s\n"},
        ("2.7.1", "2.6.0"),
    ),
    "the dependencies of a project": (
        "FROM python:3.11\nWORKDIR /app\nCOPY . .\nRUN pip install -e '.[serve]'\n",
        {
            "pyproject.toml": '[project]\nname = "x"\nversion = "1"\ndependencies = ["torch==2.6.0"]\n'
            '[project.optional-dependencies]\nserve = ["vllm==%s"]\n'
        },
        ("0.9.2", "0.8.5"),
    ),
    "a torch of another index": (
        f"FROM python:3.11\nRUN pip install torch==2.6.0 torchaudio==%s --index-url {WHEELS}/cu124\n",
        {},
        ("2.5.1", "2.6.0"),
    ),
    "arguments through stages": (
        "ARG PY=3.11\nFROM python:${PY} AS base\nARG TORCH=2.6.0\nARG VISION=%s\nFROM base\n"
        "ARG TORCH=2.6.0\nARG VISION=%s\nRUN pip install torch==${TORCH} torchvision==${VISION}\n",
        {},
        ("0.20.1", "0.21.0"),
    ),
    "a here-document": (
        "FROM python:3.11\nRUN <<EOF\nset -e\npip install torch==2.6.0 \\\n  torchvision==%s\nEOF\n",
        {},
        ("0.20.1", "0.21.0"),
    ),
    "conda's YAML": (
        "FROM python:3.11\nCOPY environment.yml .\nRUN conda env create -f environment.yml\n"
        "RUN pip install torch==2.6.0 torchvision==%s\n",
        {"environment.yml": "dependencies:\n- numpy=1.26.4\n- pip:\n  - accelerate==1.8.1\n"},
        ("0.20.1", "0.21.0"),
    ),
}
"""Shapes that no public Dockerfile has: file and context, with a value that breaks it and a right one."""


def with_value(text: str, value: str) -> str:
    return text % ((value,) * (text.count("%s"))) if "%" in text else text


@pytest.mark.parametrize("name", SITUATIONS)
def test_each_situation_is_red_and_its_control_green(name: str, lint: Callable[..., Any]) -> None:
    text, files, (wrong, right) = SITUATIONS[name]
    for value, expected in ((wrong, 1), (right, 0)):
        here = {file: with_value(content, value) for file, content in files.items()}
        code, result = lint(with_value(text, value), "--instance-type", "p5.48xlarge", files=here)
        assert (code, len(errors(result))) == (expected, expected), (value, result)


def test_the_fix_of_a_pair_resolves_again(lint: Callable[..., Any], tmp_path: Path) -> None:
    text = "FROM python:3.11\nRUN pip install torch==2.6.0 torchvision==0.19.1\nUSER 1000\n"
    code, result = lint(text, "--fix", "--dry-run")
    assert "torchvision==0.21.0" in result["difference"]
    assert (tmp_path / "Dockerfile").read_text() == text
    assert lint(text, "--fix")[0] == 0
    assert (tmp_path / "Dockerfile").read_text() == text.replace("0.19.1", "0.21.0")
    three = "FROM python:3.11\nRUN pip install torch==2.6.0 torchvision==0.19.1 torchaudio==2.5.1\n"
    code, result = lint(three, "--fix")
    assert (code, result["difference"]) == (1, ""), "no single pin is enough, so nothing is changed"


def test_a_fix_keeps_the_major_release_and_torchs_minor(lint: Callable[..., Any], tmp_path: Path) -> None:
    """Pairs that are not compatible, versions that do not exist, and bases with and without torch."""
    cases = {
        ("python:3.11", "torch==2.7.9"): "torch==2.7.1",
        ("python:3.11", "torch==2.3.1"): "",
        ("python:3.13", "torch==2.4.1"): "",
        ("python:3.11", "numpy==1.26.9"): "numpy==1.26.4",
        ("python:3.12", "torch==2.6.0 torchvision==0.21.7"): "torch==2.6.0 torchvision==0.21.0",
        ("python:3.11", "torch==2.6.0 vllm==0.9.2"): "torch==2.6.0 vllm==0.8.5",
        # That of torch 2.6 in the base, not the newest.
        ("pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel", "triton==3.0.9"): "triton==3.2.0",
    }
    wrong = []
    for (base, words), fixed in cases.items():
        _, result = lint(f"FROM {base}\nRUN pip install {words}\nUSER 1\n", "--fix")
        written = (tmp_path / "Dockerfile").read_text()
        if written.splitlines()[1] != f"RUN pip install {fixed or words}":
            wrong.append((base, words, written, result["difference"]))
    assert not wrong


def test_a_lock_with_hashes_is_only_read(lint: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_lint, "compile_requirements", lambda *_, **__: pytest.fail("uv was started"))
    pins = ("torch==2.6.0", "torchvision==0.21.0", "numpy==1.26.4 ; python_version < '3.12'")
    lock = "".join(f"{pin} \\\n    --hash=sha256:{'a' * 64}\n" for pin in pins)
    text = "FROM python:3.11\nCOPY lock.txt .\nRUN pip install -r lock.txt\nUSER 1\n"
    code, result = lint(text, files={"lock.txt": lock})
    assert (code, result["declared"]["torch"], result["not_checked"]) == (0, "2.6.0", [])


def test_a_later_command_that_replaces_torch_is_named(lint: Callable[..., Any]) -> None:
    code, result = lint(
        "FROM python:3.11\nRUN pip install torch==2.6.0\nRUN pip install vllm==0.9.2\nUSER 1000\n"
    )
    found = [one for one in result["findings"] if one["rule"] == "replaced"]
    assert (code, [one["line"] for one in found]) == (0, [3])
    assert result["declared"]["torch"].startswith("2.7"), "what is installed in the end counts"
    code, result = lint(
        "FROM python:3.11\nRUN pip install vllm==0.9.2\nRUN pip install torch==2.6.0\nUSER 1000\n"
    )
    assert errors(result) == ["resolution"], "vllm is left with a torch that it is not compiled for"


@pytest.mark.parametrize(
    "line",
    [
        "RUN pip install -i https://own.example/simple torch==2.6.0 torchvision==0.19.1",
        "ARG PIP_INDEX_URL\nRUN pip install torch==2.6.0 torchvision==0.19.1",
    ],
)
def test_an_index_that_is_not_known_is_not_checked(line: str, lint: Callable[..., Any]) -> None:
    code, result = lint(f"FROM python:3.11\n{line}\nUSER 1000\n")
    assert (code, errors(result)) == (0, [])
    assert ["not known here" in one for one in result["not_checked"]] == [True]


def test_without_an_index_nothing_is_resolved_and_the_last_line_is_not_all_clear(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(
        f"FROM python:3.11@sha256:{'a' * 64}\nRUN pip install torch==2.6.0 torchvision==0.19.1\nUSER 1\n"
    )
    assert image_lint.main(["--dockerfile", str(file), "--index", "none"]) == 0
    shown = capsys.readouterr().out
    assert "not checked   what pip would refuse" in shown
    assert shown.rstrip().endswith("no problem in what is stated")


@pytest.mark.parametrize("columns", ["60", "200"])
def test_a_package_without_a_wheel_or_an_index_leaves_the_rest_checked(
    columns: str, lint: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)  # at which uv wraps its messages
    words = "torch==2.6.0 not-on-any-index==1"
    code, result = lint(f"FROM python:3.11\nRUN pip install {words} torchvision==0.21.0\n")
    assert (code, errors(result)) == (0, [])
    assert ["no wheel of not-on-any-index" in one for one in result["not_checked"]] == [True]
    code, result = lint(f"FROM python:3.11\nRUN pip install {words} torchvision==0.19.1\n")
    assert (code, errors(result)) == (1, ["resolution"])
