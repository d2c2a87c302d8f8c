"""`pip install .` without extras: only the commands that train need torch, and they name it as missing.

The wheel is built from this checkout. Beside it, the environment holds the packages of requirements-core.txt
and no others, as links to those of the development environment.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from tests.integration.planted.yard import Yard, make_all, plain

ROOT = Path(__file__).resolve().parents[2]
CONFIG = str(ROOT / "configs" / "smoke.yaml")


TEMPLATE = "infrastructure/cloudformation.yaml"
SHIPPED = (
    *("buildspec.yml", "Makefile", "requirements-core.txt", "requirements-uv.txt", TEMPLATE),
    *("scripts/install_environment.sh", "docker/probe/container_probe.py"),
)


@pytest.fixture(scope="module")
def trainyard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment that has only the core."""
    folder = tmp_path_factory.mktemp("core package")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in SHIPPED:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "skills", source / "skills")
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    for pin in re.findall(r"^([\w.-]+)==", (ROOT / "requirements-core.txt").read_text(), re.MULTILINE):
        try:
            found = metadata.distribution(pin)
        except metadata.PackageNotFoundError:
            continue  # of another platform
        for top in {
            file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")
        }:
            if not (packages / top).exists():
                (packages / top).symlink_to(found.locate_file(top))  # type: ignore[arg-type]
    build = "import sys, setuptools.build_meta as b; print(b.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(folder)], cwd=source, capture_output=True, text=True, check=True
    )
    wheel = folder / done.stdout.strip().splitlines()[-1]
    shutil.unpack_archive(wheel, packages, "zip")
    (data,) = packages.glob("trainyard_ci-*.data/data")  # an installer puts it into the environment
    shutil.copytree(data, environment, dirs_exist_ok=True)
    entry = environment / "bin" / "trainyard"
    (declared,) = packages.glob("trainyard_ci-*.dist-info/entry_points.txt")
    assert "trainyard = trainyard.commands:main" in declared.read_text()
    entry.write_text("import sys\nfrom trainyard.commands import main\nsys.exit(main())\n")
    return entry


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Yard:
    return make_all(tmp_path_factory.mktemp("trained"), kinds=(plain,))["plain"]


SEVERAL = """
import json, sys
from trainyard.commands import main
for words in json.loads(sys.argv.pop()):
    sys.argv[1:] = words
    if code := main():
        sys.exit(f"{words} ended with {code}")
"""


def call(trainyard: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    line = [str(trainyard.parent / "python"), "-I", str(trainyard), *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, cwd=trainyard.parent, timeout=240)


def test_its_skills_are_installed_without_a_checkout(trainyard: Path, tmp_path: Path) -> None:
    done = call(trainyard, "skills", "install", "--to", tmp_path)
    assert done.returncode == 0, done.stderr
    installed = {path.relative_to(tmp_path) for path in tmp_path.glob("*/SKILL.md")}
    assert installed == {path.relative_to(ROOT / "skills") for path in (ROOT / "skills").glob("*/SKILL.md")}


def test_what_builds_need_is_installed_without_a_checkout(trainyard: Path) -> None:
    code = (
        "from trainyard.command.checkout import SHIPPED_FILES; from trainyard.commands import image_build\n"
        "from trainyard.gateways.images.context_files import tool_files\n"
        "print(*sorted(tool_files(SHIPPED_FILES, image_build.PACKAGE)), sep='\\n')"
    )
    line = [str(trainyard.parent / "python"), "-I", "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, cwd=trainyard.parent, timeout=240)
    sent = set(done.stdout.split())
    assert sent >= {*SHIPPED, "pyproject.toml", "src/trainyard/commands/image_build.py"} - {TEMPLATE}, (
        done.stderr
    )
    assert not [name for name in sent if name.startswith("skills/") or name.endswith(".pyc")]
    assert (trainyard.parents[1] / "share" / "trainyard" / TEMPLATE).is_file()


def test_help_lists_the_commands(trainyard: Path) -> None:
    done = call(trainyard, "--help")
    assert done.returncode == 0, done.stderr
    assert "sync, ls, verify, restore" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80
    done = call(trainyard, "cluster", "check", "--help")
    assert (done.returncode, "--kubeconfig" in done.stdout) == (0, True), done.stderr


def test_a_stored_run_is_read_without_torch(trainyard: Path, yard: Yard) -> None:
    where = ("--store", yard.store_folder.as_uri(), "--run-number", "1")
    restored = trainyard.parent.parent / "restored"
    lines = (
        ("store", "verify", *where),
        ("store", "ls", *where[:2]),
        ("store", "restore", *where, "--to", str(restored)),
        ("report", str(yard.run.path)),
        ("config", "check", CONFIG),
        ("plan", "--config", CONFIG),
    )
    (trainyard.parent / "several").write_text(SEVERAL)
    done = call(trainyard.parent / "several", json.dumps(lines))
    assert done.returncode == 0, done.stderr
    assert list(restored.rglob("*.distcp")) or list(restored.rglob("*.safetensors"))


def test_a_command_that_trains_names_the_missing_extra(trainyard: Path, yard: Yard) -> None:
    done = call(trainyard, "train", "--config", CONFIG, "--run-dir", trainyard.parent / "run")
    assert done.returncode == 2
    python = shlex.quote(str(trainyard.parent / "python"))
    command = f"{python} -m pip install 'trainyard-ci[train]==0.1.0'"
    assert done.stderr == f"torch is not installed. Add the extra `train`: {command}\n"
    assert "Traceback" not in done.stderr
