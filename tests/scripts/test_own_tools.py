"""What this repository needs for itself: generated files, pictures, its installation, and its release."""

import importlib
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from draw_pictures import screen_lines, terminal_svg
from tests import warm_start
from tests.cases import each_case
from tests.git_repository import git
from tests.scripts.conftest import ROOT, Call

from trainyard.command import handler
from trainyard.commands import COMMANDS, GROUPS, INTERNAL
from trainyard.config.key_lookup import leaf_keys
from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.failure_logs.failure_explanation import table

TOOLS = ("write_config_schema", "write_failure_reference", "write_script_reference")


def tool(name: str) -> Any:
    return importlib.import_module(name)


def run(name: str, *words: str) -> int:
    return handler.exit_code_of(lambda: int(tool(name).main(words)))


def page_of(name: str) -> str:
    text: str = tool(name).generated()[tool(name).REFERENCE]
    return text


def test_the_files_of_this_checkout_are_current() -> None:
    assert {name: run(name, "--check") for name in TOOLS} == dict.fromkeys(TOOLS, 0)


def test_it_writes_what_check_then_accepts_until_somebody_edits_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, root = "write_failure_reference", ("--root", str(tmp_path))
    assert run(name, *root, "--check") == 1
    assert (run(name, *root, "--dry-run"), list(tmp_path.iterdir())) == (0, [])
    assert (run(name, *root), run(name, *root, "--check")) == (0, 0)
    (tmp_path / tool(name).REFERENCE).write_text("edited by hand\n")
    capsys.readouterr()
    assert run(name, *root, "--check") == 1
    command = f"Run {shlex.quote(sys.executable)} tools/{name}.py"
    assert f"Not current: docs/runbooks/failures.md. {command}" in capsys.readouterr().err


def test_every_key_of_the_configuration_has_its_default_its_values_and_its_meaning() -> None:
    items = re.findall(r"^- (`[^`]+`.*(?:\n  .*)*)", page_of("write_config_schema"), flags=re.M)
    rows = {re.split("[`=]", item)[1]: " ".join(item.split()) for item in items}
    assert tuple(rows) == leaf_keys()
    for key, start in (
        ("training.max_steps", "`training.max_steps=null`, int>0: "),
        ("training.min_learning_rate_ratio", "`training.min_learning_rate_ratio=0.1`, number≥0,≤1: "),
        ("compute.strategy", '`compute.strategy="single"`, `single|ddp|fsdp|hsdp`: '),
        ("compute.deterministic", "`compute.deterministic=true`: "),
        ("model.name", "`model.name`\\*, text: "),
    ):
        assert rows[key].startswith(start)


def test_every_class_of_failures_is_explained() -> None:
    known = {row["class"] for row in (*table()["rows"], *table()["exceptions"])}
    meanings = set(tool("write_failure_reference").MEANINGS)
    assert known <= meanings <= {str(klass) for klass in FailureClass}
    page = page_of("write_failure_reference")
    assert not [klass for klass in known if f"| `{klass}` |" not in page]


def test_every_command_is_listed_once_in_the_order_of_the_groups() -> None:
    listed, _, rest = page_of("write_script_reference").partition("## Internal commands")
    names = re.findall(r"^- `trainyard (.+?)`: \S", listed, flags=re.M)
    assert names == [name for group in GROUPS.values() for name in group]
    internal, _, files = rest.partition("## Files")
    found = [" ".join(name.split()) for name in re.findall(r"`trainyard\s([^`]+)`", internal)]
    assert found == [name for name in COMMANDS if name in INTERNAL]
    scripts = re.findall(r"`(\w+)\.py` \(", " ".join(files.split()))
    assert scripts == sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
needs_browser = pytest.mark.skipif(
    not any(map(shutil.which, BROWSERS)), reason="Chromium is not installed (apt-get install chromium)"
)


def draw(*words: str, path: str | None = None) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, str(ROOT / "tools" / "draw_pictures.py"), *words]
    environment = {**os.environ, "PATH": path or os.environ["PATH"]}
    return warm_start.run(line, timeout=240, env=environment)


@needs_browser
def test_a_command_and_its_report_become_pictures(tmp_path: Path) -> None:
    page = tmp_path / "runs" / "a run" / "report" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("<h1>proven</h1>")
    done = draw("--to", f"{tmp_path}/pictures", "--runs", f"{tmp_path}/runs", "echo", "trained and proven")
    assert done.returncode == 0, done.stderr
    svg = (tmp_path / "pictures" / "terminal.svg").read_text()
    assert "trained" in svg
    assert "$" in svg
    png = (tmp_path / "pictures" / "report.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert (int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (1200, 1080)


def test_the_screen_is_in_the_picture_as_it_was_at_the_end() -> None:
    redrawn = b"training 1/3\r\x1b[2Ktraining 2/3\r\x1b[2K  training   3 steps\r\nproven\r\n\r\n"
    assert [line.plain for line in screen_lines(redrawn, columns=40)] == ["  training   3 steps", "proven"]
    lines = [line.plain for line in screen_lines(b"x" * 45 + b"\r\n", columns=40)]
    assert lines == ["x" * 40, "x" * 5]
    svg = terminal_svg("<b> & 'quotes' ▕████▌   ▏\r\n".encode(), columns=40, title="t")
    texts = [node.text or "" for node in ElementTree.fromstring(svg).iter() if node.get("clip-path")]
    assert "".join(texts).replace("\xa0", " ").strip() == "<b> & 'quotes' ▕████▌   ▏"
    assert set(re.findall(r"\w+://[^\"')\s]+", svg)) == {"http://www.w3.org/2000/svg"}, "nothing is loaded"


# Which Python install_environment.sh takes. The Pythons are stand-ins: this Python with another version, with
# or without headers. uv is one that records which Python it is given. The script reads no name of a
# distribution, so each is a list of Pythons.
TOOL_CACHE = "tools/Python/{}/x64/bin/python3"
DOWNLOADED = "--managed-python --python 3.11"
DISTRIBUTIONS = {
    "Debian 11": ({"python3": "3.9"}, DOWNLOADED),
    "Debian 12": ({"python3": "3.11"}, "python3"),
    "Debian 13": ({"python3": "3.13"}, "python3"),
    "Ubuntu 22.04": ({"python3": "3.10"}, DOWNLOADED),
    "Ubuntu 24.04": ({"python3": "3.12"}, "python3"),
    "Ubuntu 26.04": ({"python3": "3.14"}, DOWNLOADED),
    "RHEL 8": ({"python3": "3.6"}, DOWNLOADED),
    "RHEL 8 with python3.11": ({"python3": "3.6", "python3.11": "3.11"}, "python3.11"),
    "Rocky 9": ({"python3": "3.9"}, DOWNLOADED),
    "Rocky 9 with python3.12": ({"python3": "3.9", "python3.12": "3.12"}, "python3.12"),
    "RHEL 10": ({"python3": "3.12"}, "python3"),
    "Fedora 43 with python3.13": ({"python3": "3.14", "python3.13": "3.13"}, "python3.13"),
    "Amazon Linux 2023": ({"python3": "3.9"}, DOWNLOADED),
    "CodeBuild's linux-5.0": ({"python3": "3.11"}, "python3"),
    "no Python at all": ({}, DOWNLOADED),
    "hosted": (
        {"python3": "3.12", TOOL_CACHE.format("3.11.9"): "3.11", TOOL_CACHE.format("3.14.1"): "3.14"},
        "tools",
    ),
}
"""Distribution -> its Pythons, and the one that is taken."""


def take(folder: Path, pythons: Mapping[str, str], *, headers: str = "", named: str = "") -> str:
    """Return the Python that uv is given on a machine with these; those in `headers` have C headers."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("sh", "sed", "cut", "date", "cat", "ls", "env"):
        (programs / name).symlink_to(shutil.which(name) or name)
    for name, version in pythons.items():
        path = folder / name if "/" in name else programs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        major, minor = version.split(".")
        include = folder / (name if name in headers.split() else "none")
        change = (
            f"import sys, sysconfig; sys.version_info = ({major}, {minor}, 0, 'final', 0); "
            f"sys._base_executable = {str(path)!r}; sysconfig.get_path = lambda *_: {str(include) + '.d'!r}"
        )
        path.write_text(f"""#!/bin/sh\nexec "{sys.executable}" -I -S -c "{change}\n$2"\n""")
        path.chmod(0o755)
        if name in headers.split():
            Path(f"{include}.d").mkdir(parents=True)
            Path(f"{include}.d", "Python.h").touch()
    uv = folder / "uv" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    pinned = (ROOT / "requirements-uv.in").read_text().partition("uv==")[2].split()[0]
    record = folder / "given"
    uv.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo uv {pinned}; exit; fi\necho "$@" > {record}\nexit 1\n'
    )
    uv.chmod(0o755)
    variables = {
        "PATH": str(programs), "UV_HOME": str(folder / "uv"), "VENV": str(folder / "venv"),
        "PYTHON": named or "python3", "PYTHON_NAMED": named, "RUNNER_TOOL_CACHE": str(folder / "tools"),
    }  # fmt: skip
    script = ["sh", "scripts/install_environment.sh", "core"]
    done = subprocess.run(script, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 4, done.stderr  # this uv makes no environment
    return record.read_text().partition("--force ")[2].removesuffix(f" {folder / 'venv'}\n")


@each_case("distribution", DISTRIBUTIONS)
def test_each_distribution_trains_with_what_it_has_or_uv_downloads_one(
    tmp_path: Path, distribution: str
) -> None:
    pythons, taken = DISTRIBUTIONS[distribution]
    path = tmp_path / (TOOL_CACHE.format("3.11.9") if taken == "tools" else f"bin/{taken}")
    expected = taken if taken == DOWNLOADED else f"--python {path}"
    assert take(tmp_path, pythons) == expected


@pytest.mark.parametrize("with_headers", ["", "python3", "python3.13", "python3 python3.13"])
def test_a_python_with_headers_comes_before_one_without(tmp_path: Path, with_headers: str) -> None:
    taken = "python3.13" if with_headers == "python3.13" else "python3"
    given = take(tmp_path, {"python3": "3.12", "python3.13": "3.13"}, headers=with_headers)
    assert given == f"--python {tmp_path / 'bin' / taken}"


def test_a_python_that_is_named_is_taken_with_or_without_headers(tmp_path: Path) -> None:
    given = take(tmp_path, {"python3": "3.12", "python3.13": "3.13"}, headers="python3", named="python3.13")
    assert given == f"--python {tmp_path / 'bin' / 'python3.13'}"


def test_the_action_installs_by_make_alone_on_every_system() -> None:
    text = (ROOT / ".github" / "actions" / "setup" / "action.yml").read_text()
    assert "uses:" not in text
    workflows = (path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    assert not any("setup-python" in each for each in itertools.chain([text], workflows))


GH = """#!/bin/sh
printf '%s\\n' "$*" >> "$GH_RECORD"
case "$*" in
  "release view"*) [ "$DRAFT" != none ] || { echo "release not found" >&2; exit 1; }; echo "$DRAFT" ;;
  "api repos/{owner}/{repo}/releases/latest"*) echo "$LATEST" ;;
  "api --method "*) case " $REFUSED " in *" $3 "*) exit 1 ;; esac ;;
esac
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository that can be released: committed on main, with a dated section in the changelog."""
    root = tmp_path / "repository"
    shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, root)
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0, 2026-11-21\n\n- everything\n")
    (root / "docs").mkdir()
    (root / "docs" / "page.md").write_text("# Page\n")
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "Begin")
    return root


def test_a_tag_of_main_is_released_and_one_of_another_branch_is_not(
    called: Call, repository: Path, tmp_path: Path
) -> None:
    where = ("--root", repository, "--branch", "main", "--notes", "notes.md")
    outputs = tmp_path / "outputs"
    done = called("step check-release", "--tag", "v0.1.0", *where, GITHUB_OUTPUT=str(outputs))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "notes.md").read_text() == "- everything\n"
    assert "\n0.1.0\n" in outputs.read_text()
    assert "\nfalse\n" in outputs.read_text()
    git(repository, "checkout", "--quiet", "-b", "side")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "Not merged")
    done = called("step check-release", "--tag", "v0.1.0", *where)
    assert (done.returncode, "The commit is not on main: merge it first" in done.stderr) == (1, True)
    assert called("step check-release", "--tag", "0.1.0", *where).returncode == 2


def run_step(name: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step of the job of release.yml that publishes, with a stand-in for gh that records its calls."""
    (folder / "gh").write_text(GH)
    (folder / "gh").chmod(0o755)
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    step = next(step for step in jobs["publish"]["steps"] if step["name"] == name)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "GITHUB_REF_NAME": "v0.1.0", "ATTESTED": "success"}
    environment |= {"PRELIMINARY": "false", "GH_RECORD": str(folder / "record"), **variables}
    line = ["bash", "-e", "-o", "pipefail", "-c", step["run"]]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def test_the_newest_release_moves_the_tag_of_its_major_version(tmp_path: Path) -> None:
    base, where = "repos/{owner}/{repo}", {"MOVING": "v0", "GITHUB_SHA": "a" * 40}
    moves = [f"api --method PATCH {base}/git/refs/tags/v0 -f sha={'a' * 40} -F force=true --silent"]
    makes = [*moves, f"api --method POST {base}/git/refs -f ref=refs/tags/v0 -f sha={'a' * 40} --silent"]
    # The latest release, what GitHub refuses -> the calls that change something, the exit code.
    cases: tuple[tuple[str, str, list[str], int], ...] = (
        ("v0.1.0", "", moves, 0),
        ("v0.1.0", "PATCH", makes, 0),  # there is none yet
        ("v0.1.0", "PATCH POST", makes, 1),
        ("v0.2.0", "", [], 0),
    )
    for number, (latest, refused, calls, code) in enumerate(cases):
        (folder := tmp_path / str(number)).mkdir()
        variables = where | {"LATEST": latest, "REFUSED": refused}
        done = run_step("Move the tag of the major version", folder, **variables)
        asked = (folder / "record").read_text().splitlines()
        assert (done.returncode, [line for line in asked if "--method" in line]) == (code, calls)
        assert ("git push --force origin " in done.stdout) is bool(code)


def test_a_release_is_public_once_and_with_the_files_that_were_built(tmp_path: Path) -> None:
    """What GitHub has -> the calls of gh."""
    wrong: list[object] = []
    created = "release create v0.1.0 dist/a.whl dist/a.tar.gz dist/SHA256SUMS --verify-tag"
    created += " --title Trainyard 0.1.0 --notes-file notes.md --prerelease=false"
    calls = {"none": [created], "true": ["release delete v0.1.0 --yes", created], "false": []}
    for draft, expected in calls.items():
        for changed in (False, True):
            folder = tmp_path / f"{draft}-{changed}"
            (folder / "dist").mkdir(parents=True)
            for name in ("a.whl", "a.tar.gz"):
                (folder / "dist" / name).write_text(name)
            line = "sha256sum *.whl *.tar.gz > SHA256SUMS"
            subprocess.run(line, shell=True, cwd=folder / "dist", check=True, timeout=60)
            if changed:
                (folder / "dist" / "a.whl").write_text("other")
            (folder / "notes.md").write_text("- everything\n")
            attested = "failure" if draft == "none" else "success"
            done = run_step("Publish", folder, DRAFT=draft, ATTESTED=attested)
            record = folder / "record"
            lines = record.read_text().splitlines() if record.exists() else []
            asked = [line for line in lines if " view " not in line]
            if (done.returncode != 0, asked) != (changed, [] if changed else expected):
                wrong.append((draft, changed, done, asked))
            is_noted = "GitHub did not attest" in (folder / "notes.md").read_text()
            if is_noted != (draft == "none" and not changed):
                wrong.append((draft, changed, "notes"))
    assert wrong == [], "\n".join(map(repr, wrong))
