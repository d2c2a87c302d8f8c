"""The locks: they fit their inputs on every platform, and they agree."""

import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from itertools import product
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.cases import each_case
from write_locks import LOCKS, fits_inputs, with_input_digest

from trainyard.machine.package_lock import Pin, read_pins

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "write_locks.py"
NAMES = ("uv", "training", "core", "development")
ALL = (*NAMES, "megatron", "verl")
"""The last two are for images: Linux, and Python 3.12 or newer."""
PLATFORMS = {
    "linux x86-64": {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
    "linux arm64": {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64"},
    "macOS arm64": {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
}
PYTHONS = ("3.11", "3.12", "3.13")
EXTRAS = {lock.name: lock.extras for lock in LOCKS if lock.extras}
EVERYWHERE = list(product(PLATFORMS, PYTHONS))


def environment(platform: str, python: str) -> dict[str, str]:
    """The marker variables of one platform and Python."""
    return {
        **PLATFORMS[platform],
        "os_name": "posix",
        "python_version": python,
        "python_full_version": f"{python}.5",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }


@cache
def pins(name: str) -> tuple[Pin, ...]:
    return read_pins((ROOT / f"requirements-{name}.txt").read_text())


def pinned(name: str, where: dict[str, str]) -> dict[str, str]:
    """Package -> version in one environment; two versions of one package there would be a broken lock."""
    counted = [(pin.name, pin.version) for pin in pins(name) if pin.applies(where)]
    assert len(counted) == len(dict(counted))
    return dict(counted)


def wanted(name: str) -> list[Requirement]:
    lines = [
        line.split("#")[0].strip() for line in (ROOT / f"requirements-{name}.in").read_text().splitlines()
    ]
    if name in EXTRAS:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        lines += project["dependencies"]
        lines += [each for extra in EXTRAS[name] for each in project["optional-dependencies"][extra]]
    return [Requirement(line) for line in lines if line and not line.startswith("-")]


def needs(requirements: list[Requirement], where: dict[str, str]) -> Iterator[Requirement]:
    """Return the packages that the requirements need in one environment, as installed packages declare."""
    waiting, seen = list(requirements), set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        yield requirement
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            waiting += [r for r in declared(name) if counts(r, {**where, "extra": extra})]


@cache
def declared(name: str) -> tuple[Requirement, ...]:
    try:
        return tuple(Requirement(line) for line in metadata.requires(name) or ())
    except metadata.PackageNotFoundError:  # a package of another platform
        return ()


def counts(requirement: Requirement, where: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(dict(where))


@each_case("name", NAMES)
@each_case(("platform", "python"), EVERYWHERE)
def test_every_needed_package_has_a_fitting_pin(name: str, platform: str, python: str) -> None:
    where = environment(platform, python)
    have = pinned(name, where)
    direct = [r for r in wanted(name) if counts(r, where)]
    assert direct
    for requirement in needs(direct, where):
        version = have.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} has no pin on {platform}, Python {python}"
        assert requirement.specifier.contains(version, prereleases=True), (
            f"{requirement} is pinned to {version}"
        )


@each_case("name", ALL)
def test_every_pin_has_hashes(name: str) -> None:
    text = (ROOT / f"requirements-{name}.txt").read_text()
    assert pins(name)
    assert len(re.findall(r"(?m)^\S+==.*\\\n    --hash=sha256:[0-9a-f]{64}\b", text)) == len(pins(name))


@each_case(("platform", "python"), EVERYWHERE)
def test_the_development_lock_agrees_with_the_training_lock(platform: str, python: str) -> None:
    training = pinned("training", environment(platform, python))
    development = pinned("development", environment(platform, python))
    shared = training.keys() & development.keys()
    assert shared
    assert {name: development[name] for name in shared} == {name: training[name] for name in shared}


def test_the_lock_of_megatron_can_be_installed_beside_the_training_lock() -> None:
    where = environment("linux x86-64", "3.12")
    training, megatron = pinned("training", where), pinned("megatron", where)
    shared = training.keys() & megatron.keys()
    assert "torch" in shared and "transformer-engine" in megatron.keys() - shared
    assert {name: megatron[name] for name in shared} == {name: training[name] for name in shared}


def test_the_training_lock_holds_torch_with_its_cuda_libraries_on_linux_only() -> None:
    linux = pinned("training", environment("linux x86-64", "3.11"))
    macos = pinned("training", environment("macOS arm64", "3.11"))
    assert linux["torch"] == macos["torch"] == "2.15.0"
    assert "nvidia-nccl-cu13" in linux
    assert not any(name.startswith("nvidia-") for name in macos)


def test_the_locks_fit_their_inputs() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("changed", "stale"),
    [
        ("training", ["training", "core", "development", "megatron"]),
        ("core", ["core"]),
        ("development", ["development"]),
        ("uv", ["uv"]),
        ("verl", ["verl"]),
    ],
)
def test_a_changed_input_is_noticed(changed: str, stale: list[str], tmp_path: Path) -> None:
    for name in ALL:
        shutil.copy(ROOT / f"requirements-{name}.in", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for lock in LOCKS:
        lock.path(tmp_path).write_text(with_input_digest("", lock.inputs(tmp_path)))
    check = [sys.executable, str(SCRIPT), "--check", "--root", str(tmp_path)]
    assert subprocess.run(check, capture_output=True, timeout=240).returncode == 0
    with (tmp_path / f"requirements-{changed}.in").open("a") as file:
        file.write("one-more\n")
    done = subprocess.run(check, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert re.findall(r"requirements-(\w+)\.txt", done.stderr) == stale
    assert "make lock" in done.stderr


def test_a_changed_dependency_of_the_package_is_noticed_and_its_tools_are_not(tmp_path: Path) -> None:
    for path in (*ROOT.glob("requirements-*"), ROOT / "pyproject.toml"):
        shutil.copy(path, tmp_path)
    check = [sys.executable, str(SCRIPT), "--check", "--root", str(tmp_path)]
    text = (tmp_path / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(text.replace("line-length = 110", "line-length = 100"))
    assert subprocess.run(check, capture_output=True, timeout=240).returncode == 0
    (tmp_path / "pyproject.toml").write_text(text.replace('"slack-sdk"', '"slack-sdk>3"'))
    done = subprocess.run(check, capture_output=True, text=True, timeout=240)
    assert re.findall(r"requirements-(\w+)\.txt", done.stderr) == [
        "training",
        "core",
        "development",
        "megatron",
    ]


def test_the_core_is_the_training_lock_without_torch() -> None:
    for platform, python in EVERYWHERE:
        where = environment(platform, python)
        core, training = pinned("core", where), pinned("training", where)
        assert core.items() <= training.items()
        assert not {"torch", "transformers", "tensorboard"} & core.keys()


def test_the_digest_is_replaced_not_piled_up() -> None:
    once = with_input_digest("a==1\n", b"x")
    assert with_input_digest(once, b"y").count("input-sha256") == 1
    assert fits_inputs(with_input_digest(once, b"y"), b"y")
    assert not fits_inputs(once, b"y")
    assert not fits_inputs("a==1\n", b"x")


def test_resolving_covers_every_platform_and_writes_hashes(capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module("write_locks")
    assert module.main(["--dry-run", "--uv", "uv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.findall(r"requirements-(\w+)\.in", line) for line in lines] == [[name] for name in ALL]
    for line in lines:
        python = "3.12" if "megatron" in line or "verl" in line else "3.11"
        assert f"--universal --python-version {python} --generate-hashes" in line


FAKE_UV = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
'''
import json, pathlib, re, sys
words = sys.argv[1:]
if words == ["--version"]:
    print("uv {version}")
elif words[:2] == ["pip", "compile"]:
    assert "--upgrade" in words
    lock = pathlib.Path(words[words.index("--output-file") + 1])
    text = re.sub(r"^boto3==\\S+", "boto3==99.0.0", lock.read_text(), flags=re.M)
    lock.write_text(re.sub(r"^anyio==[^#]*(    #.*\\n)*", "newcomer==1.0\\n", text, count=1, flags=re.M))
elif words[0] == "audit" and "uv.py" in words[2]:
    sys.exit("no route to osv.dev")
else:
    found = re.findall(r'"(boto3)==([^ ";]+)', pathlib.Path(words[2]).read_text())
    known = [
        dict(dependency=dict(name=n, version=v), display_id="GHSA-1", link="https://osv.dev/1", summary="bad",
             fix_versions=["100.0"])
        for n, v in found
    ]
    print(json.dumps(dict(vulnerabilities=known)))
    sys.exit(1 if known else 0)
"""


def test_the_report_says_what_changes_and_what_is_vulnerable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("write_locks")
    for path in [*ROOT.glob("requirements-*"), ROOT / "pyproject.toml"]:
        shutil.copy(path, tmp_path)
    version = (ROOT / "requirements-uv.in").read_text().strip().partition("==")[2]
    fake = tmp_path / "fake-uv"
    fake.write_text(FAKE_UV.replace("{python}", sys.executable).replace("{version}", version))
    fake.chmod(0o755)
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    words = ["--uv", str(fake), "--root", str(tmp_path), "--upgrade", "--report", str(tmp_path / "notes.md")]
    assert module.main(words) == 0
    notes = (tmp_path / "notes.md").read_text()
    boto3 = next(
        pin.version for pin in read_pins((ROOT / "requirements-core.txt").read_text()) if pin.name == "boto3"
    )
    assert re.search(rf"^- boto3 {boto3} → 99.0.0, a new major version \(training, core.*\)$", notes, re.M)
    assert re.search(r"^- newcomer 1.0 is new \(", notes, re.M)
    assert re.search(r"^- anyio \S+ is no longer needed \(", notes, re.M)
    assert "boto3 99.0.0: [GHSA-1](https://osv.dev/1) bad; fixed in 100.0 (training, core" in notes
    assert "requirements-uv.txt could not be audited: no route to osv.dev (uv)" in notes
    assert "true" in (tmp_path / "output").read_text()
    assert module.main(["--check", "--root", str(tmp_path)]) == 0


def test_another_uv_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "uv"
    other.write_text("#!/bin/sh\necho 'uv 0.0.1'\n")
    other.chmod(0o755)
    done = subprocess.run(
        [sys.executable, SCRIPT, "--uv", other], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 2
    assert "version 0.0.1, pinned is" in done.stderr
