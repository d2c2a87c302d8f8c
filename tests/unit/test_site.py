"""The site of docs/, keys given twice in JSON, tools/propose_changes.sh and `benchmarks/gpu.py`."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.cases import each_case

from trainyard.commands.evaluate import run_command
from trainyard.errors import TrainyardError
from trainyard.programs.metrics.log_reader import LogReader
from trainyard.programs.metrics.metric_files import MetricFiles
from trainyard.programs.program_events import parse_event
from trainyard.report.facts.history import newest_rows, read_history
from trainyard.run.identity import parse_run
from trainyard.run.records import read_rows
from trainyard.run.untrusted_files import parse_json_object

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://example.com/owner/repository"
ASSET = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?(https?:[^\"' >]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"SITE_REPOSITORY": REPOSITORY, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.process
def test_every_page_is_there_and_loads_nothing_from_other_servers(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert pages <= built.keys()
    assert {str(name): found for name, text in built.items() if (found := ASSET.findall(text))} == {}


@pytest.mark.process
def test_links_out_of_the_documents_lead_to_the_repository(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert f'href="{REPOSITORY}/blob/main/CONTRIBUTING.md"' in text
    assert 'href="quick_start.html"' in text
    assert "OWNER/REPOSITORY/blob" not in text


@each_case("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.name)
def test_code_in_a_list_does_not_end_the_list(path: Path) -> None:
    """The site's Markdown wants four spaces where GitHub takes three; with fewer the numbers start again."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [number for number, line in enumerate(lines, 1) if re.match(r" {1,3}```", line)] == []


def file_of(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def rows_in(name: str, outer: str = "%s\n") -> Callable[[Path, str], object]:
    """Return a reader that takes a row from the program's file `name`."""

    def read(folder: Path, text: str) -> object:
        files = MetricFiles(folder)
        file_of(folder, name, outer % text)
        return files.poll(at_end=True)

    return read


READERS: dict[str, Callable[[Path, str], object]] = {
    "an evaluation": lambda _, text: run_command([sys.executable, "-c", f"print({text!r})"], "it", {}),
    "JSON lines of a program": rows_in("log.jsonl"),
    "the Hugging Face trainer's state": rows_in("trainer_state.json", '{"log_history": [%s]}'),
    "a printed row": lambda _, text: [row for row in LogReader().take(f"INFO {text}\n") if "loss" in row],
    "a logged row": lambda _, text: parse_event(f'{{"event":"row", {text[1:]}'.encode()),
    "metrics.jsonl": lambda folder, text: read_rows(file_of(folder, "m.jsonl", text + "\n")),
    "metrics.jsonl for health": lambda folder, text: newest_rows(file_of(folder, "h.jsonl", text + "\n")),
    "metrics.jsonl for curves": lambda folder, text: (
        read_history(file_of(folder, "c.jsonl", text + "\n")).size
    ),
    "run.json": lambda _, text: parse_run(text.encode(), "run.json"),
    "manifests and proofs": lambda _, text: parse_json_object(text, "report/proof.json"),
}
FIELDS = '"schema_version": 1, "run_id": "r", "step": 10, "loss": 0.1'
TWICE = {
    "at the end": f'{{{FIELDS}, "loss": 0.9}}',
    "at the start": f'{{"loss": 0.9, {FIELDS}}}',
    "the same value": f'{{{FIELDS}, "loss": 0.1}}',
    "written otherwise": f'{{{FIELDS}, "l\\u006fss": 0.9}}',
    "with a blank": f'{{{FIELDS}, "loss" : 0.9}}',
}


def test_a_figure_given_twice_counts_nowhere(tmp_path: Path) -> None:
    wrong = []
    for number, (reader, read) in enumerate(READERS.items()):
        for way, text in {"once": f"{{{FIELDS}}}", **TWICE}.items():
            folder = tmp_path / f"{number}-{way.replace(' ', '-')}"
            folder.mkdir()
            found: Any = None
            try:
                found = read(folder, text)
            except TrainyardError as error:
                found = () if way != "once" else str(error)
            if bool(found) is not (way == "once"):
                wrong.append(f"{reader}, {way}: {found!r}")
    assert not wrong, "\n".join(wrong)


def test_two_names_of_an_evaluated_figure_are_one_key(tmp_path: Path) -> None:
    for text, is_right in (
        (json.dumps({"a.b": 0.1, "a": {"b": 0.9}}), False),
        (json.dumps({"a.b": 0.1, "a": {"c": 0.9}}), True),
    ):
        try:
            found = run_command([sys.executable, "-c", f"print({text!r})"], "it", {})
        except TrainyardError as error:
            assert "a key twice" in str(error), text
            found = {}
        assert bool(found) is is_right, text


SCRIPT = Path(__file__).parents[2] / "tools" / "propose_changes.sh"
GH = """\
#!/bin/sh
echo "$@" >>"$CALLS"
case "$1 $2" in
  "pr list") echo "$THERE" ;;
  "pr create") [ -z "$REFUSES" ] || exit 1; echo https://github.example/o/r/pull/57 ;;
esac
"""


def git(folder: Path, *words: str) -> str:
    line = ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *words]
    return subprocess.run(line, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("there", "refuses", "code", "call"),
    [
        ("", "", 0, "pr create --head trainyard/locks --base main --title Move --body-file notes.md"),
        ("57", "", 0, "pr edit 57 --body-file notes.md"),
        ("", "yes", 4, "pr create --head trainyard/locks --base main --title Move --body-file notes.md"),
    ],
    ids=["new", "open", "refused"],
)
def test_the_newest_files_are_on_the_branch_of_one_pull_request(
    there: str, refuses: str, code: int, call: str, tmp_path: Path
) -> None:
    origin, work, bin_folder = tmp_path / "origin", tmp_path / "work", tmp_path / "bin"
    git(tmp_path, "init", "-q", "--bare", str(origin))
    git(tmp_path, "clone", "-q", str(origin), str(work))
    (work / "requirements-core.txt").write_text("a==1\n")
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "Begin")
    git(work, "push", "-q", "origin", "HEAD:trainyard/locks")  # an older proposal
    bin_folder.mkdir()
    (bin_folder / "gh").write_text(GH)
    (bin_folder / "gh").chmod(0o755)
    files = {name: tmp_path / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "CALLS")}
    environment = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}", "GITHUB_REF_NAME": "main"}
    environment |= {"THERE": there, "REFUSES": refuses} | {name: str(path) for name, path in files.items()}
    for version in ("2", "3"):
        (work / "requirements-core.txt").write_text(f"a=={version}\n")
        (work / "notes.md").write_text(f"### Version {version}\n")
        line = [str(SCRIPT), "trainyard/locks", "Move", "notes.md", "requirements-core.txt"]
        done = subprocess.run(line, cwd=work, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert call in files["CALLS"].read_text()
        assert git(origin, "show", "trainyard/locks:requirements-core.txt") == f"a=={version}"
        assert git(origin, "show", "-s", "--format=%s", "trainyard/locks") == "Move"
    assert git(origin, "ls-tree", "--name-only", "trainyard/locks") == "requirements-core.txt"
    if code:
        assert "Let Actions open pull requests" in done.stdout
    else:
        commit = git(origin, "rev-parse", "trainyard/locks")
        assert files["GITHUB_OUTPUT"].read_text().endswith(f"commit={commit}\npull_request=57\n")
        assert "workflow run ci.yml --ref trainyard/locks" in files["CALLS"].read_text()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_benchmark", ROOT / "benchmarks" / "gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_says_so_and_changes_nothing(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = gpu.DOCUMENT.read_text()
    assert gpu.main(["--write"]) == 2
    assert "no GPU here" in capsys.readouterr().err
    assert gpu.DOCUMENT.read_text() == before


def test_the_table_takes_its_place_in_the_document_and_can_be_written_again(gpu: ModuleType) -> None:
    rows = [
        gpu.Row("speed", "a peer", "1.2 | fast", "1.1", True),
        gpu.Row("memory", "", "failed: no", met=False),
    ]
    table = gpu.table_of(rows, "1 NVIDIA H200")
    assert "| speed | a peer | 1.2 / fast | 1.1 | met |" in table
    assert "| memory |  | failed: no |  | not met |" in table
    document = gpu.DOCUMENT.read_text()
    once = gpu.with_table(document, table)
    assert table in once
    assert once.startswith(document.partition(gpu.BEGIN)[0])
    assert once.endswith(document.partition(gpu.END)[2])
    assert gpu.with_table(once, table) == once
    with pytest.raises(SystemExit, match="marks"):
        gpu.with_table("nothing", table)
