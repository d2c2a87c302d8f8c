"""Real images: built by buildah, checked in a container, pushed to a real registry, read back by digest."""

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

MISSING = [name for name in ("buildah", "docker-registry", "oras") if shutil.which(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(os.getuid() != 0, reason="buildah's chroot isolation wants root"),
]
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real registry."""
    folder = tmp_path_factory.mktemp("registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
    storage = {"filesystem": {"rootdirectory": str(folder / "data")}}
    config = {"version": 0.1, "storage": storage, "http": {"addr": host}}
    (folder / "config.yml").write_text(json.dumps(config))
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        ["docker-registry", "serve", str(folder / "config.yml")], stderr=log, stdout=log
    )
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://{host}/v2/", timeout=5).close()
                break
            except OSError:
                time.sleep(0.05)
        yield host
    finally:
        process.terminate()
        process.wait(10)
        log.close()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings that separate buildah's images from this machine's, and that work in a container."""
    folder = tmp_path_factory.mktemp("storage")
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder / "root"}"\nrunroot = "{folder / "run"}"\n'
    )
    facts = {"CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"), "BUILDAH_ISOLATION": "chroot"}
    line, there = ["buildah", "from", "--name", "probe", "scratch"], {**os.environ, **facts}
    probe = subprocess.run(line, env=there, capture_output=True, text=True, timeout=60)
    if probe.returncode:
        pytest.skip(f"buildah cannot work here: {probe.stderr.strip()[-200:]}")
    return facts


@pytest.fixture(scope="module")
def call(environment: dict[str, str]) -> Call:
    def run(script: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        line, there = (
            [sys.executable, "-m", "trainyard", *script.split("_"), *words],
            os.environ | environment,
        )
        return subprocess.run(line, cwd=cwd, env=there, capture_output=True, text=True, timeout=240)

    return run


def with_python(folder: Path) -> None:
    """Put a Python that runs in an otherwise empty image below `folder`, and one tiny package."""
    python = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = folder / str(python).lstrip("/") / "lib" / version
    left_out = ("test", "tests", "idlelib", "tkinter", "ensurepip", "site-packages", "__pycache__", "lib2to3")
    shutil.copytree(
        sysconfig.get_paths()["stdlib"],
        library,
        ignore=lambda _, names: [n for n in names if n in left_out or n.startswith("config-")],
    )
    binary = Path(os.path.realpath(sys.executable))
    target = folder / "usr" / "bin" / "python"
    target.parent.mkdir(parents=True)
    shutil.copy(binary, target)
    objects = [binary, *library.glob("lib-dynload/*.so")]
    listed = subprocess.run(["ldd", *map(str, objects)], capture_output=True, text=True, check=True).stdout
    for path in set(re.findall(r"^\t(?:\S+ => )?(/\S+) \(", listed, re.M)):
        (folder / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / path.lstrip("/"))
    package = library / "site-packages"
    (package / "tiny").mkdir(parents=True)
    (package / "tiny" / "__init__.py").write_text("")
    (package / "tiny-1.0.dist-info").mkdir()
    (package / "tiny-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    )
    (package / "tiny-1.0.dist-info" / "RECORD").write_text("tiny/__init__.py,,\n")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work") / "tiny trainer"
    (folder / "root").mkdir(parents=True)
    with_python(folder / "root")
    home = f"ENV PYTHONHOME={sys.base_prefix}"
    (folder / "Dockerfile").write_text(
        f'FROM scratch\nCOPY root /\n{home}\nUSER 1000\nENTRYPOINT ["/usr/bin/python"]\n'
    )
    (folder / "lock.txt").write_text(f"tiny==1.0 \\\n    --hash=sha256:{'a' * 64}\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (("init", "-q"), ("add", "-f", "."), ("commit", "-qm", "x"), ("tag", "v1.2.3")):
        subprocess.run([*git, *words], cwd=folder, check=True, timeout=60)
    return folder


def answers(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    return {one["check"]: one for one in json.loads(done.stdout)["checks"]}


def test_an_image_is_built_checked_pushed_and_read_back_by_its_digest(
    call: Call, project: Path, registry: str, tmp_path: Path
) -> None:
    linted = call("image_lint", "--dockerfile", "Dockerfile", "--index", "none", cwd=project)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    dry = call("image_build", "--builder", "local", "--program", "buildah", "--dry-run", cwd=project)
    assert dry.returncode == 0, dry.stderr
    built = call("image_build", "--builder", "local", "--program", "buildah", "--json", cwd=project)
    assert built.returncode == 0, built.stderr
    image = json.loads(built.stdout)["image"]
    assert image.startswith("tiny-trainer:content-")
    again = call("image_build", "--builder", "local", "--program", "buildah", "--json", cwd=project)
    assert json.loads(again.stdout)["built"] is False

    words = ["--builder", "local", "--program", "buildah", "--image", image, "--lock", "lock.txt", "--json"]
    quick = call("image_check", *words, "--level", "quick", cwd=project)
    assert quick.returncode == 1, "an image without torch is red"
    assert set(answers(quick)) == {"user", "entry-point", "size", "versions", "imports", "torch"}
    assert "torch is not in the image" in answers(quick)["torch"]["says"]
    assert answers(quick)["versions"]["says"] == "1 packages have the versions of the lock"

    full = call("image_check", *words, "--level", "full", cwd=project)
    assert full.returncode == 1
    failed = {name for name, one in answers(full).items() if not one["ok"]}
    of_torch = {"torch", "cuda", "nccl", "model-configuration", "collective", "forward-backward", "compile"}
    assert failed == of_torch

    push = ["--image", image, "--repository", "team/tiny", "--registry", registry, "--program", "buildah"]
    pushed = call("image_push", *push, "--tag", "mine", "--json", cwd=project)
    assert pushed.returncode == 0, pushed.stderr
    data = json.loads(pushed.stdout)
    url = f"http://{registry}/v2/team/tiny/manifests/"
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    for tag in ("mine", "1.2.3", image.partition(":")[2], data["digest"]):
        with urllib.request.urlopen(urllib.request.Request(url + tag, headers=accept), timeout=20) as answer:
            assert f"sha256:{hashlib.sha256(answer.read()).hexdigest()}" == data["digest"], tag
    repeated = call("image_push", *push, "--json", cwd=project)
    (place,) = json.loads(repeated.stdout)["places"]
    assert {one["action"] for one in place["tags"]} == {"kept"}


def test_a_secret_reaches_its_command_and_nothing_else(
    call: Call, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "secret project"
    shutil.copytree(project / "root", folder / "root", symlinks=True)
    show = "import hashlib; print('read', hashlib.sha256(open('/run/secrets/pip', 'rb').read()).hexdigest())"
    (folder / "Dockerfile").write_text(
        f"FROM scratch\nCOPY root /\nENV PYTHONHOME={sys.base_prefix}\n"
        f'RUN --mount=type=secret,id=pip ["/usr/bin/python", "-c", "{show}"]\nUSER 1000\n'
    )
    value = "s3cret-of-the-build"
    monkeypatch.setenv("PIP_SECRET", value)
    line = ("--builder", "local", "--program", "buildah", "--image-name", "secret", "--image-tag", "mine")
    built = call("image_build", *line, "--secret", "id=pip,env=PIP_SECRET", "--json", cwd=folder)
    assert built.returncode == 0, built.stderr
    assert f"read {hashlib.sha256(value.encode()).hexdigest()}" in built.stderr
    assert json.loads(built.stdout)["builds"][0]["tags"] == ["mine"]
    missing = call("image_build", *line, "--secret", "id=pip,env=NOT_SET", "--rebuild", cwd=folder)
    assert missing.returncode == 2
    assert "the variable NOT_SET is not set" in missing.stderr
    assert value not in built.stdout + built.stderr + missing.stderr


def test_what_is_wrong_in_an_image_is_named(
    call: Call, environment: dict[str, str], project: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "wrong"
    folder.mkdir()
    (folder / "notes").write_text("-----BEGIN " + "PRIVATE KEY-----\nMII\n")
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY made /home/a/made\n")
    (folder / "made").write_text("x")
    words = ["--builder", "local", "--program", "buildah"]
    refused = call("image_build", *words, cwd=folder)
    assert refused.returncode == 2
    assert "notes: a private key" in refused.stderr
    (folder / "notes").unlink()
    (folder / "made").write_text(
        "aws = " + "AKIA" + "ABCDEFGHIJKL2345"
    )  # as a download in RUN would leave it
    (folder / ".dockerignore").write_text("")
    builder = ["buildah", "bud", "-q", "-t", "wrong:1", "."]
    assert call("image_build", *words, cwd=folder).returncode == 2
    subprocess.run(
        builder, cwd=folder, env={**os.environ, **environment}, check=True, timeout=60, capture_output=True
    )
    check = ["--image", "wrong:1", "--lock", str(project / "lock.txt"), "--level", "standard", "--json"]
    done = call("image_check", *words, *check, cwd=folder)
    assert done.returncode == 1
    said = answers(done)
    assert "home/a/made (a key of AWS, layer" in said["secrets"]["says"]
    assert said["user"]["says"].startswith("no USER is set, so it runs as root") and said["user"]["warns"]
    assert not said["entry-point"]["ok"]
    assert "no answer" in said["imports"]["says"]
