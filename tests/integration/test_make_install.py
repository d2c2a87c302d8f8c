"""`make install` as an ordinary user meets it: somebody else's interpreter, and environments left broken.

make, pip, venv and uv are the real ones. The lock is a small one, whose wheels lie in a folder, so that
nothing is fetched. Where the tests run as root, make runs as another user, who does not own the interpreter.
"""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
OTHER = 65534 if os.getuid() == 0 else None
"""The user that make runs as; None is the one who runs the tests."""
NEEDED = ("Makefile", "pyproject.toml", "README.md", "LICENSE", "requirements-uv.in", "scripts")
FITS = "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that everyone may read, with wheels of two installed packages and of the pinned uv."""
    uv = Path(os.environ.get("UV") or REPOSITORY_ROOT / ".uv" / "bin" / "uv")
    if not uv.is_file():
        pytest.skip("needs the pinned uv: make install provides it")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for package in ("iniconfig", "setuptools"):
            files = metadata.distribution(package).files or ()
            content = {
                str(file): Path(str(file.locate())).read_bytes()
                for file in files
                if file.suffix != ".pyc" and ".." not in file.parts and file.name != "RECORD"
            }
            write_wheel(Path(folder), package, metadata.version(package), content)
        version = (REPOSITORY_ROOT / "requirements-uv.in").read_text().strip().partition("==")[2]
        write_wheel(Path(folder), "uv", version, {f"uv-{version}.data/scripts/uv": uv.read_bytes()})
        shutil.copy(uv, folder)
        yield Path(folder)


def write_wheel(folder: Path, name: str, version: str, content: dict[str, bytes]) -> None:
    info = f"{name}-{version}.dist-info"
    facts = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    content.setdefault(f"{info}/METADATA", facts.encode())
    form = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content[f"{info}/WHEEL"] = form.encode()
    rows = []
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, data in content.items():
            member = zipfile.ZipInfo(path)
            member.external_attr = (0o100755 if "/scripts/" in path else 0o100644) << 16
            archive.writestr(member, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{len(data)}")
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")


def lock_of(wheels: Path, *names: str) -> str:
    lines = []
    for wheel in sorted(wheels.glob("*.whl")):
        name, version, *_ = wheel.name.split("-")
        if name in names:
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            lines.append(f"{name}=={version} --hash=sha256:{digest}\n")
    return "".join(lines)


class Yard:
    """A clone that belongs to the user, with a home and programs of its own."""

    def __init__(self, folder: Path, wheels: Path, programs: Path) -> None:
        self.folder = folder
        self.root = folder / "Mein Yard ü"
        self.programs = folder / "bin"
        self.variables = {
            "HOME": str(folder / "home"), "PATH": f"{self.programs}:{programs}", "LANG": "C.UTF-8",
            "UV_OFFLINE": "1", "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheels),
            "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels),
        }  # fmt: skip

    def run(self, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(word) for word in words], cwd=self.root, env=self.variables, text=True, timeout=240,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            user=OTHER, group=OTHER, extra_groups=None if OTHER is None else [],
        )  # fmt: skip

    def install(self, *words: str) -> str:
        """Output of a `make install` that succeeds and leaves an environment that works."""
        done = self.run("make", "--no-print-directory", "install", *words)
        assert done.returncode == 0, done.stdout
        where = "import iniconfig, trainyard; print(trainyard.__file__)"
        used = self.run(self.root / ".venv/bin/python", "-I", "-c", where)
        assert used.stdout.strip() == f"{self.root}/src/trainyard/__init__.py"
        return done.stdout

    def refuse(self, *words: str) -> str:
        """Output of a `make install` that fails."""
        done = self.run("make", "--no-print-directory", "install", *words)
        assert done.returncode == 2, done.stdout
        return done.stdout

    def provide_uv(self) -> None:
        """Provide uv as an earlier make left it."""
        (self.root / ".uv/bin").mkdir(parents=True)
        (self.root / ".uv/bin/uv").symlink_to(Path(self.variables["UV_FIND_LINKS"]) / "uv")
        self.give(self.root / ".uv")

    def give(self, path: Path) -> None:
        """Let the user own `path` and all below it."""
        for each in (path, *path.rglob("*")):
            os.chown(each, OTHER if OTHER else -1, -1, follow_symlinks=False)

    def replace_python(self, *, knows: str = "", without: tuple[str, ...] = (), version: str = "") -> None:
        """Put another python3 on the PATH: without some modules, or of another version."""
        (self.programs / "python3").unlink(missing_ok=True)
        changes = "".join(f"sys.modules[{name!r}] = None\n" for name in without)
        if version:
            numbers = tuple(int(part) for part in version.split("."))
            changes += f"sys.version_info = (*{numbers}, 'final', 0)\n"
            changes += f"import platform; platform.python_version = lambda: {version!r}\n"
        modules = "|".join((*without, "no-module"))
        text = f"""#!/bin/sh
case "$1 $2" in
-c*) exec {knows} -c "import sys
{changes}
$2" ;;
-I*) exit 1 ;; # what uv asks: it shall not see through this
"-m venv") case ensurepip in {modules}) exit 1 ;; esac ;;
"-m pip") case pip in {modules}) exit 1 ;; esac ;;
esac
exec {knows} "$@"
"""
        (self.programs / "python3").write_text(text)
        (self.programs / "python3").chmod(0o755)


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """A folder of the system's programs, without Pythons and package installers."""
    with tempfile.TemporaryDirectory() as text:
        Path(text).chmod(0o755)
        for folder in (Path(name) for name in ("/usr/local/bin", "/usr/bin", "/bin")):
            for program in folder.iterdir() if folder.is_dir() else ():
                link = Path(text) / program.name
                if not re.match(r"python|pip|uv|conda|pyenv", program.name) and not link.exists():
                    link.unlink(missing_ok=True)
                    link.symlink_to(program)
        yield Path(text)


@pytest.fixture
def yard(wheels: Path, programs: Path) -> Iterator[Yard]:
    """A fresh clone; its PATH holds no Python yet."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        folder.chmod(0o755)
        yard = Yard(folder, wheels, programs)
        yard.programs.mkdir()
        (folder / "home").mkdir()
        yard.root.mkdir()
        for name in NEEDED:
            source, ignore = REPOSITORY_ROOT / name, shutil.ignore_patterns("__pycache__", "*.egg-info")
            if source.is_dir():
                shutil.copytree(source, yard.root / name, ignore=ignore)
            else:
                shutil.copy(source, yard.root / name)
        package = yard.root / "src" / "trainyard"  # of which only the place is asked
        package.mkdir(parents=True)
        shutil.copy(REPOSITORY_ROOT / "src" / "trainyard" / "__init__.py", package)
        (yard.root / "requirements-uv.txt").write_text(lock_of(wheels, "uv"))
        (yard.root / "requirements-training.txt").write_text(lock_of(wheels, "iniconfig", "setuptools"))
        yard.give(yard.root)
        yard.give(folder / "home")
        yield yard


@pytest.fixture
def python(yard: Yard) -> str:
    """A Python that fits and belongs to somebody else; it is the python3 of the yard."""
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        path = shutil.which(name, path="/usr/bin:/usr/local/bin:/bin")
        if (
            path
            and Path(path).resolve().stat().st_uid != (OTHER or os.getuid())
            and yard.run(path, "-c", FITS).returncode == 0
        ):
            (yard.programs / "python3").symlink_to(path)
            return path
    pytest.skip("needs a Python 3.11 to 3.13 of the system, which the user of the tests does not own")


def test_a_user_who_does_not_own_the_interpreter_installs_and_leaves_it_alone(
    yard: Yard, python: str
) -> None:
    real = Path(python).resolve()
    before = real.stat()
    text = yard.install()
    assert re.search(r"^\d\d:\d\d:\d\d INFO  install: uv \S+, which installs everything else$", text, re.M)
    packages = r"INFO  install: the packages of the lock, some 5 GB on Linux the first time$"
    assert re.search(packages, text, re.M)
    assert text.endswith("INFO  install: done: .venv\n")
    assert len(text.splitlines()) == 3
    link = yard.root / ".venv" / "bin" / "python"
    assert link.resolve() == real
    after = real.stat()
    assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)
    assert yard.install() == "", "nothing is to be done, so nothing is said"
    # With the umlaut in the folder.
    for variables in ({}, {"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}):
        line = ["env", *(f"{name}={value}" for name, value in variables.items()), str(link)]
        found = yard.run(*line, "-c", "import os, trainyard; print(os.fsencode(trainyard.__file__))")
        expected = repr(os.fsencode(yard.root / "src/trainyard/__init__.py"))
        assert found.stdout.strip() == expected, found.stderr
    (site,) = (yard.root / ".venv/lib").glob("python3.*/site-packages")
    metadata_of = site / "debugger-1.0.dist-info" / "METADATA"
    metadata_of.parent.mkdir()
    metadata_of.write_text("Metadata-Version: 2.1\nName: debugger\nVersion: 1.0\n")
    assert yard.install() == "", "what people add stays"
    (yard.root / ".venv/training.stamp").unlink()  # as if it was stopped while it installed packages
    assert "the packages of the lock" in yard.install()


def the_interpreter_is_gone(yard: Yard) -> None:
    for name in ("python", "python3"):
        (yard.root / ".venv/bin" / name).unlink(missing_ok=True)
    (yard.root / ".venv/bin/python").symlink_to("/nowhere/python")


def python_made_it(yard: Yard) -> None:
    shutil.rmtree(yard.root / ".venv")
    yard.run("python3", "-m", "venv", "--without-pip", ".venv")


def the_clone_is_a_copy(yard: Yard) -> None:
    yard.root = shutil.copytree(yard.root, yard.folder / "copy", symlinks=True)


def a_package_was_removed(yard: Yard) -> None:
    (found,) = (yard.root / ".venv").rglob("iniconfig-*.dist-info")
    shutil.rmtree(found)


def the_lock_changed_but_its_time_did_not(yard: Yard) -> None:
    path = yard.root / "requirements-training.txt"
    path.write_text(path.read_text() + "# another one\n")
    os.utime(path, (0, 0))


BROKEN = {
    the_interpreter_is_gone: "is made again",
    python_made_it: "is made again",
    the_clone_is_a_copy: "is made again",
    a_package_was_removed: "the packages of the lock",
    the_lock_changed_but_its_time_did_not: "the packages of the lock",
}


def test_a_broken_environment_is_repaired_by_the_same_command(yard: Yard, python: str) -> None:
    """One fault after the other in one yard, as each repair leaves an environment that works."""
    yard.provide_uv()
    yard.install()
    for break_it, message in BROKEN.items():
        break_it(yard)
        yard.give(yard.root)
        assert message in yard.install(), break_it
        assert yard.install() == "", break_it


@pytest.mark.parametrize("content", ["mine.txt", "conda-meta/history"])
def test_a_folder_of_somebody_else_is_not_touched(yard: Yard, python: str, content: str) -> None:
    yard.provide_uv()
    path = yard.root / "mine" / content
    path.parent.mkdir(parents=True)
    path.touch()
    yard.give(yard.root / "mine")
    assert "VENV=mine holds something that Trainyard did not make" in yard.refuse("VENV=mine")
    assert path.exists()


def test_a_package_of_another_hash_and_one_without_are_refused(yard: Yard, python: str) -> None:
    yard.provide_uv()
    lock = yard.root / "requirements-training.txt"
    text = lock.read_text()
    for pattern, other in ((r"sha256:\w{8}", "sha256:00000000"), (r" --hash=\S+", "")):
        lock.write_text(re.sub(pattern, other, text))
        yard.give(yard.root)
        assert "hash" in yard.refuse().lower()
        assert not list((yard.root / ".venv").rglob("iniconfig-*.dist-info"))


def test_the_core_is_installed_alone_and_never_removes_what_trains(yard: Yard, python: str) -> None:
    lock = lock_of(Path(yard.variables["UV_FIND_LINKS"]), "setuptools")
    (yard.root / "requirements-core.txt").write_text(lock)
    has_training = (yard.root / ".venv/bin/python", "-I", "-c", "import iniconfig")

    def make_core() -> None:
        done = yard.run("make", "--no-print-directory", "install-core")
        assert done.returncode == 0, done.stdout

    make_core()
    assert yard.run(*has_training).returncode != 0
    yard.install()
    with (yard.root / "pyproject.toml").open("a") as file:
        file.write("# changed, so that everything is installed again\n")
    make_core()
    assert yard.run(*has_training).returncode == 0


def test_uv_comes_by_pip_where_the_system_lacks_ensurepip_and_else_by_another_uv(
    yard: Yard, python: str
) -> None:
    yard.replace_python(knows=python, without=("ensurepip", "pip"))
    assert "On Debian and Ubuntu: sudo apt install python3-venv." in yard.refuse()
    if not yard.run(python, "-m", "pip", "--version").returncode:
        yard.replace_python(knows=python, without=("ensurepip",))
        assert "install: done: .venv" in yard.install()
        shutil.rmtree(yard.root / ".venv")
        (yard.root / ".uv/bin/uv").write_text("half")  # a uv that is broken is none
        yard.replace_python(knows=python, without=("ensurepip", "pip"))
    (yard.programs / "uv").symlink_to(Path(yard.variables["UV_FIND_LINKS"]) / "uv")
    text = yard.install()
    assert "install: uv " in text and "install: done: .venv" in text
    assert yard.install() == ""


def test_without_any_python_and_uv_the_answer_names_both(yard: Yard) -> None:
    text = yard.refuse()
    assert "no Python here has venv or pip" in text
    assert "install Python 3.11, 3.12 or 3.13, or uv" in text


def test_where_none_fits_uv_downloads_one_and_a_refusal_says_what_to_do(yard: Yard, python: str) -> None:
    """The download needs a network; the test shows only that uv is called for it."""
    yard.provide_uv()
    yard.replace_python(knows=python, version="3.14.0")
    text = yard.refuse()
    assert "uv is set to offline mode" in text
    assert "Trainyard needs Python 3.11, 3.12 or 3.13" in text
    assert "make PYTHON=/path/to/python3.11" in text


def test_a_python_that_was_asked_for_is_taken_or_refused(yard: Yard, python: str) -> None:
    yard.provide_uv()
    yard.replace_python(knows=python, version="3.9.2")
    for name in ("python3", "python9"):
        assert f"PYTHON={name} is not a Python 3.11, 3.12 or 3.13" in yard.refuse(f"PYTHON={name}")
    yard.install(f"PYTHON={python}")
    assert yard.install() == "", "the environment stays where no Python is named"


def test_the_pythons_of_the_makefile_are_those_that_the_lock_is_resolved_for() -> None:
    from trainyard.machine.preflight import SUPPORTED_PYTHON

    text = (REPOSITORY_ROOT / "scripts" / "install_environment.sh").read_text()
    assert "{} <= sys.version_info[:2] <= {}".format(*SUPPORTED_PYTHON) in text
