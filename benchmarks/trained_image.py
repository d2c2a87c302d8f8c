"""Build the training image, and prove a run of `make train`'s steps in a pod of it.

    Debian (mmdebstrap) --buildah--> docker/fsdp's image --registry--> a real node --pod--> a proven run

It takes half an hour and more, 45 GB of disk, the package archives and the kit in $TRAINYARD_CONTROL_PLANE:
it runs only if TRAINYARD_BUILD_IMAGE names a folder. The Debian and buildah's images in it are used again.

    TRAINYARD_BUILD_IMAGE=/big/disk python -m pytest benchmarks/trained_image.py
"""

import importlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.control_plane import kit

ROOT = Path(__file__).resolve().parents[2]
FOLDER = os.environ.get("TRAINYARD_BUILD_IMAGE", "")
PROGRAMS = ("buildah", "docker-registry", "skopeo", "mmdebstrap", "openssl", "make")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
FREE_GB = 45
USER = 10001
IMAGE = "trainyard"
SETTINGS = (
    "training.max_steps=20 training.batch_size=4 training.validation_steps=10 training.validation_batches=2 "
    "checkpointing.save_steps=5 data.sequence_length=64 compute.threads=1"
)
AUTHORITIES = Path("/usr/local/share/ca-certificates")
"""Certificates of this machine's network, such as of a company's proxy that packages come through."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not FOLDER, reason="takes half an hour and 45 GB: set TRAINYARD_BUILD_IMAGE to a folder"
    ),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(os.getuid() != 0, reason="buildah's chroot isolation and real nodes want root"),
]
Json = dict[str, Any]


@dataclass(frozen=True)
class Registry:
    """A real registry, with two ports for the same images."""

    folder: Path
    plain: str
    """HOST:PORT without TLS, for this machine."""
    port: int
    """The port with TLS, as `registry.default.svc`, for pods."""
    authority: str
    """The certificate that pods trust."""

    @property
    def name(self) -> str:
        return f"registry.default.svc:{self.port}"


def run(*command: str, seconds: float = 60, **more: Any) -> str:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, **more
    )
    assert done.returncode == 0, f"{command[:4]}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def say(what: str, begun: float, **figures: object) -> None:
    """Print time and figures, for the report (pytest -s)."""
    shown = ", ".join(f"{name} {value}" for name, value in figures.items())
    print(f"\n  {what:<12} {time.monotonic() - begun:.0f} s {shown}")


@pytest.fixture(scope="module")
def work() -> Path:
    folder = Path(FOLDER).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free / 1e9
    if free < FREE_GB and not (folder / "storage").exists():
        pytest.skip(f"{folder} has {free:.0f} GB free, and the build wants {FREE_GB}")
    for name in ("registry", "scratch"):
        (folder / name).mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def registry(work: Path) -> Iterator[Registry]:
    ports = free_ports(work / "ports")
    keys = work / "keys"
    shutil.rmtree(keys, ignore_errors=True)
    keys.mkdir()
    name = "registry.default.svc"
    run(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
        *("-addext", f"subjectAltName=DNS:{name}", "-keyout", str(keys / "key"), "-out", str(keys / "crt")),
    )
    tls = {"certificate": str(keys / "crt"), "key": str(keys / "key")}
    with ExitStack() as stack:
        for port, more in ((ports[0], {}), (ports[1], {"tls": tls})):
            stack.enter_context(serving(work, port, more))
        yield Registry(work / "registry", f"127.0.0.1:{ports[0]}", ports[1], (keys / "crt").read_text())


def free_ports(memory: Path) -> list[int]:
    """Two ports, the same in every run if they are free: the name of the base image contains one."""
    known = json.loads(memory.read_text()) if memory.is_file() else [0, 0]
    ports = []
    with ExitStack() as stack:
        for port in known:
            free = stack.enter_context(socket.socket())
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", port))
            ports.append(free.getsockname()[1])
    memory.write_text(json.dumps(ports))
    return ports


@contextmanager
def serving(work: Path, port: int, more: Json) -> Iterator[None]:
    config = work / f"registry-{'tls' if more else 'plain'}.json"
    storage = {"filesystem": {"rootdirectory": str(work / "registry")}, "delete": {"enabled": True}}
    served = {"version": 0.1, "storage": storage, "http": {"addr": f"127.0.0.1:{port}", **more}}
    config.write_text(json.dumps(served))
    with config.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            for _ in range(200):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture(scope="module")
def storage(work: Path, registry: Registry) -> dict[str, str]:
    """Settings that keep buildah's images in the folder and let it pull from the registry without TLS."""
    (work / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{work}/storage/root"\nrunroot = "{work}/storage/run"\n'
    )
    (work / "registries.conf").write_text(f'[[registry]]\nlocation = "{registry.plain}"\ninsecure = true\n')
    return {
        **os.environ,
        "CONTAINERS_STORAGE_CONF": str(work / "storage.conf"),
        "CONTAINERS_REGISTRIES_CONF": str(work / "registries.conf"),
        "BUILDAH_ISOLATION": "chroot",
        "TMPDIR": str(work / "scratch"),
    }


@pytest.fixture(scope="module")
def base(work: Path, storage: dict[str, str], registry: Registry) -> str:
    """Push a Debian made by Debian's own tools to the registry; return its name with its digest."""
    begun, archive = time.monotonic(), work / "base.tar"
    if not archive.is_file():
        suite = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.M)
        assert suite is not None, "this is not a Debian"
        new = archive.with_suffix(".new.tar")
        tool = ["mmdebstrap", "--variant=minbase", "--include=ca-certificates", suite[1], str(new)]
        run(*tool, "http://deb.debian.org/debian", seconds=900)
        new.rename(archive)
    name = f"{registry.plain}/debian:local"
    container = run("buildah", "from", "scratch", env=storage).strip()
    run("buildah", "add", container, str(archive), "/", env=storage, seconds=300)
    run("buildah", "copy", container, str(AUTHORITIES), str(AUTHORITIES), env=storage)
    run("buildah", "run", container, "--", "update-ca-certificates", env=storage)
    bundle = "/etc/ssl/certs/ca-certificates.crt"
    run("buildah", "config", "--cmd=bash", f"--env=SSL_CERT_FILE={bundle}", container, env=storage)
    run("buildah", "config", f"--env=PIP_CERT={bundle}", container, env=storage)
    run("buildah", "commit", "--timestamp=0", container, name, env=storage, seconds=300)
    run("buildah", "rm", container, env=storage)
    run("buildah", "push", f"--digestfile={work}/base.digest", name, env=storage, seconds=300)
    say("base", begun, MB=archive.stat().st_size // 10**6)
    return f"{name}@{(work / 'base.digest').read_text().strip()}"


@pytest.fixture(scope="module")
def clone(work: Path) -> Path:
    """A clean clone of the files that git does not ignore: an image of a changed tree has no commit."""
    folder = work / "clone"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    listed = run("git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(lambda name: name and (ROOT / name).is_file(), listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    git = ("git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org")
    then = {f"GIT_{who}_DATE": "2026-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")}
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "Clone")):
        run(*git, *words, env={**os.environ, **then})  # the same commit for the same content
    return folder


@pytest.fixture(scope="module")
def digest(clone: Path, base: str, storage: dict[str, str], registry: Registry) -> str:
    """The digest of the image, built, checked and pushed by the scripts as people call them."""

    def script(name: str, *words: str, seconds: float) -> str:
        line = [sys.executable, "-m", "trainyard", *name.split("_"), *words, "--json"]
        environment = {**storage, "PYTHONPATH": str(clone / "src")}
        return run(*line, cwd=clone, env=environment, seconds=seconds)

    here = ("--builder", "local", "--program", "buildah")
    begun = time.monotonic()
    wanted = ("--dockerfile", "docker/fsdp/Dockerfile", "--image", IMAGE)
    arguments = ("--build-arg", f"BASE_IMAGE={base}", "--build-arg", "EFA_INSTALLER_VERSION=")
    built = json.loads(script("image_build", *here, *wanted, *arguments, seconds=7200))
    say("build", begun, built=built["built"])
    begun = time.monotonic()
    again = json.loads(script("image_build", *here, *wanted, *arguments, seconds=300))
    assert (again["built"], again["image"]) == (False, built["image"])
    say("build again", begun)
    begun = time.monotonic()
    checked = json.loads(
        script("image_check", *here, "--image", built["image"], "--level", "full", seconds=1800)
    )
    assert checked["ok"], [one for one in checked["checks"] if not one["ok"]]
    say("check", begun, **{one["check"]: one["says"] for one in checked["checks"]})
    begun = time.monotonic()
    push = ("--program", "buildah", "--image", built["image"], "--repository", IMAGE)
    pushed = json.loads(script("image_push", *push, "--registry", registry.plain, seconds=3600))
    say("push", begun, digest=pushed["digest"])
    return str(pushed["digest"])


@pytest.fixture(scope="module")
def cluster(work: Path, registry: Registry, digest: str) -> Iterator[Any]:
    """A cluster with one real node that has the image by the registry's name and digest."""
    sys.path.insert(0, str(kit() / "node"))
    module = importlib.import_module("real_node")
    try:
        module.require()
    except module.Unavailable as error:
        pytest.skip(str(error))
    begun, archive = time.monotonic(), work / "image.tar"
    archive.unlink(missing_ok=True)
    source = f"docker://{registry.plain}/{IMAGE}@{digest}"
    run("skopeo", "copy", "--src-tls-verify=false", source, f"oci-archive:{archive}", seconds=1800)
    say("archive", begun, MB=archive.stat().st_size // 10**6)
    published = {"registry": registry.port}
    with module.RealCluster(work / "cluster", real_nodes=1, publish=published) as plane:
        begun = time.monotonic()
        (node,) = plane.nodes.values()
        ctr = [str(module.binaries.folder() / "ctr"), "--namespace=k8s.io", "images", "import", "--digests"]
        run(*node.inside(*ctr, f"--base-name={registry.name}/{IMAGE}", str(archive)), seconds=3600)
        archive.unlink()
        say("load", begun)
        yield plane


def pod(name: str, image: str, script: str, folder: Path) -> Json:
    """A pod as the restricted Pod Security Standard wants it, with a read-only root file system."""
    mounts: Json = {
        "/tmp": {"emptyDir": {}},
        "/opt/trainyard/runs": {"hostPath": {"path": str(folder / "runs")}},
        "/opt/trainyard/data": {"emptyDir": {}},
        "/store": {"hostPath": {"path": str(folder / "store")}},
        "/etc/registry": {"configMap": {"name": "registry"}},
    }
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "pytorch",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["bash", "-c", script],
        "env": [
            {"name": "TRAINYARD_IMAGE_DIGEST", "value": image},
            {"name": "SSL_CERT_FILE", "value": "/etc/registry/ca.crt"},
            {"name": "HOME", "value": "/tmp"},
            {"name": "NO_COLOR", "value": "1"},
        ],
        "securityContext": security | {"readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": f"v{i}", "mountPath": path} for i, path in enumerate(mounts)],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumes": [{"name": f"v{i}", **source} for i, source in enumerate(mounts.values())],
        },
    }


def make_train(settings: str) -> str:
    """The very lines that `make train` runs, for a shell in the image."""
    words = ["VENV=.venv", "CONFIG=configs/smoke.yaml", "RUN_DIR=runs/pod", "STORE=file:///store"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    line = ["make", "-n", "-o", ".venv/training.stamp", "train", *words, f"SET={settings}"]
    printed = run(*line, cwd=ROOT, env=environment)
    *install, pipeline = re.split(r"(?<!\\)\n", printed.strip())
    assert all("install_environment.sh" in line for line in install), printed
    assert "-m trainyard run " in pipeline
    return f"set -e\nexport SET={shlex.quote(settings)}\n{pipeline}"


def ended(plane: Any, name: str, seconds: float = 600) -> tuple[int, str]:
    """Wait for the end of a pod; return its exit code and log."""
    end = time.monotonic() + seconds
    while True:
        status = plane.request("GET", f"/api/v1/namespaces/default/pods/{name}")["status"]
        states = [one["state"] for one in status.get("containerStatuses") or ()]
        if states and "terminated" in states[0]:
            return states[0]["terminated"]["exitCode"], str(plane.kubectl("logs", name))
        assert time.monotonic() < end, json.dumps(status, indent=2)
        time.sleep(0.5)


def test_make_trains_steps_prove_a_run_in_the_image_that_was_built(
    cluster: Any, work: Path, registry: Registry, digest: str
) -> None:
    for name in ("runs", "store"):
        shutil.rmtree(work / name, ignore_errors=True)
        (work / name).mkdir()
        os.chown(work / name, USER, USER)
    content = {"metadata": {"name": "registry"}, "data": {"ca.crt": registry.authority}}
    cluster.request("POST", "/api/v1/namespaces/default/configmaps", content)
    image, pods = f"{registry.name}/{IMAGE}@{digest}", "/api/v1/namespaces/default/pods"

    begun = time.monotonic()
    cluster.request("POST", pods, pod("train", image, make_train(SETTINGS), work))
    code, log = ended(cluster, "train")
    print(log)
    assert code == 0, log
    say("make train", begun)
    record = json.loads((work / "runs/pod/run.json").read_text())
    commit = run("git", "-C", str(work / "clone"), "rev-parse", "HEAD").strip()
    assert record["git"] == {"commit": commit, "dirty": False}
    assert (record["image_digest"], record["image_name"]) == (digest, f"{registry.name}/{IMAGE}")
    proof = json.loads((work / "runs/pod/report/proof.json").read_text())
    assert proof["proven"] is True
    assert f"{registry.name} holds the image under that digest" in json.dumps(proof)

    # Without the image in the registry, the run is no longer proven.
    manifest = f"http://{registry.plain}/v2/{IMAGE}/manifests/{digest}"
    urllib.request.urlopen(urllib.request.Request(manifest, method="DELETE"), timeout=20).close()
    prove = ".venv/bin/trainyard prove --run-dir runs/pod --store file:///store --run-number auto"
    cluster.request("POST", pods, pod("prove", image, prove, work))
    code, log = ended(cluster, "prove")
    assert code == 1, log
    assert "holds no image" in log
