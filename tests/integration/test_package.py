"""The package: installed without extras, and the functions that documents 000, 002 and 004 name."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from tests.integration.conftest import Endpoint
from tests.integration.planted.yard import Yard, make_all, plain
from tests.integration.scripted_aws import ACCOUNT, REGION, Script, ScriptedAws
from tests.unit.cluster.generated import Cluster, plain_eks
from tests.unit.cluster.recorded import Misbehaviour, Recorded, serving

from trainyard import functions
from trainyard.errors import CheckFailedError, ConfigError, TrainyardError
from trainyard.functions import (
    build_docker_image,
    calculate_file_hash,
    create_manifest,
    deploy_training_job,
    manage_eks_cluster,
    push_to_ecr,
    sync_to_s3,
    upload_manifest,
    verify_s3_upload,
)

ROOT = Path(__file__).resolve().parents[2]
CONFIG = str(ROOT / "configs" / "smoke.yaml")


TEMPLATE = "infrastructure/cloudformation.yaml"
SHIPPED = (
    *("buildspec.yml", "Makefile", "requirements-core.txt", "requirements-uv.txt", TEMPLATE),
    *("scripts/install_environment.sh", "docker/probe/container_probe.py"),
)


def closure_of(requirements: list[str]) -> list[metadata.Distribution]:
    """What an installer adds for requirements, without the extras that they do not name."""
    found, left = dict[str, metadata.Distribution](), [Requirement(each) for each in requirements]
    while left:
        wanted = left.pop()
        package = metadata.distribution(wanted.name)
        for extra in ("", *wanted.extras):
            if f"{wanted.name}[{extra}]" not in found:
                found[f"{wanted.name}[{extra}]"] = package
                needs = map(Requirement, package.requires or ())
                left += [each for each in needs if not each.marker or each.marker.evaluate({"extra": extra})]
    return [*found.values()]


@pytest.fixture(scope="module")
def trainyard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment that has only the core: this checkout as a wheel, and linked packages."""
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
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for found in closure_of(wanted):
        tops = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        for top in tops:
            if not (packages / top).exists():
                (packages / top).symlink_to(found.locate_file(top))  # type: ignore[arg-type]
    build = "import sys, setuptools.build_meta as b; print(b.build_wheel(sys.argv[1]))"
    line = [sys.executable, "-c", build, str(folder)]
    done = subprocess.run(line, cwd=source, capture_output=True, text=True, check=True)
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


def test_a_program_is_trained_by_what_an_installer_adds(trainyard: Path) -> None:
    save = "import os, pathlib; pathlib.Path(os.environ['TRAINYARD_OUTPUT'], 'a.json').write_text('{}')"
    done = call(trainyard, "run", "--run-dir", "program", "--", sys.executable, "-c", save)
    assert done.returncode == 1 and "not installed" not in done.stderr, done.stderr
    outcome = json.loads((trainyard.parent / "program" / "run.json").read_text())["outcome"]
    assert outcome["program_exit_code"] == 0


def test_a_command_that_trains_names_the_missing_extra(trainyard: Path, yard: Yard) -> None:
    done = call(trainyard, "train", "--config", CONFIG, "--run-dir", trainyard.parent / "run")
    assert done.returncode == 2
    python = shlex.quote(str(trainyard.parent / "python"))
    command = f"{python} -m pip install 'trainyard-ci[train]==0.1.0'"
    assert done.stderr == f"torch is not installed. Add the extra `train`: {command}\n"
    assert "Traceback" not in done.stderr


Options = dict[str, Any]
IMAGE = "registry.invalid/train@sha256:" + "a" * 64
CONFLICT = """\
FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime
RUN pip install torch==2.6.0 torchvision==0.20.0
USER 1
"""


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """No call leaves a signal handler in the calling process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.fixture
def aws(moto: Endpoint, stand_ins: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedAws]:
    """AWS, and a machine with stand-ins for buildah, docker and oras."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "GITHUB_"))]:
        monkeypatch.delenv(name)
    with ScriptedAws(moto.url).serving() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / f"llama-training-{time.time_ns()}"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY a.txt /\nUSER 1\n")
    (folder / "a.txt").write_text("hello")
    monkeypatch.chdir(folder)
    return folder


def test_an_image_is_built_here_under_its_name_and_version(aws: ScriptedAws, project: Path) -> None:
    local: Options = {"builder": "local", "program": "buildah"}
    built = build_docker_image(image_name="llama3-8b", image_tag="v1.0.0", **local)
    assert (built["exit_code"], built["built"]) == (0, True)
    images = json.loads((project.parent / "buildah-images.json").read_text())
    assert {built["image"], "llama3-8b:latest", "llama3-8b:1.0.0"} <= set(images)
    assert build_docker_image(dry_run=True, **local)["builds"][0]["image"].startswith(project.name)
    build_docker_image(image_name="llama3-8b", image_tag="llama32-1b-v1", **local)
    images = json.loads((project.parent / "buildah-images.json").read_text())
    assert "llama3-8b:llama32-1b-v1" in images
    with pytest.raises(ConfigError, match="the tag git-1: tags that begin with git- are reserved"):
        build_docker_image(image_tag="git-1", **local)


def test_a_conflict_is_fixed_before_the_build(aws: ScriptedAws, project: Path) -> None:
    (project / "Dockerfile").write_text(CONFLICT)
    build_docker_image(auto_fix=True, dry_run=True)
    assert (project / "Dockerfile").read_text() == CONFLICT
    build_docker_image(auto_fix=True, builder="local", program="buildah")
    assert "torchvision==0.21.0" in (project / "Dockerfile").read_text()


def test_an_image_is_built_in_aws_without_docker(aws: ScriptedAws, project: Path) -> None:
    plan = build_docker_image(dry_run=True)["builds"][0]
    s3, ecr = aws.client("s3", "us-east-1"), aws.client("ecr")
    s3.create_bucket(Bucket=project.name)
    ecr.create_repository(repositoryName=project.name)
    kind = "application/vnd.oci.image.manifest.v1+json"
    manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, "layers": []})
    put = ecr.put_image(repositoryName=project.name, imageManifest=manifest, imageTag="early")
    digest = put["image"]["imageId"]["imageDigest"]

    def at_end() -> None:
        ecr.put_image(repositoryName=project.name, imageManifest=manifest, imageTag=plan["tag"])

    aws.scripts = [Script(exported={"IMAGE_DIGEST": digest}, at_end=at_end)]
    built = build_docker_image(image_tag="v1.0.0", max_attempts=3, source_bucket=project.name, every="0.02s")
    assert built["image"] == f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/{project.name}@{digest}"
    assert aws.builds[0].variables["VERSION"] == "v1.0.0"
    aws.scripts = [Script(status="FAULT", fails_in="PROVISIONING"), Script(exported={})]
    with pytest.raises(TrainyardError, match="PROVISIONING"):
        build_docker_image(max_attempts=1, source_bucket=project.name, every="0.02s", rebuild=True)
    assert len(aws.builds) == 2


def test_a_local_image_is_pushed_and_read_back(aws: ScriptedAws, project: Path) -> None:
    aws.client("ecr").create_repository(repositoryName=project.name)
    (project.parent / "docker-images.json").write_text(json.dumps({f"{project.name}:latest": {}}))
    given: Options = {"program": "docker", "version": "1.2.3"}
    pushed = push_to_ecr(repository=project.name, region=REGION, **given)
    assert aws.tags(project.name)["1.2.3"] == pushed["digest"]
    assert pushed["image"].endswith(f"/{project.name}@{pushed['digest']}")
    with pytest.raises(TrainyardError, match="nothing-here"):
        push_to_ecr(repository=project.name, image="nothing-here:1", region=REGION, **given)


@pytest.fixture
def eks(tmp_path: Path) -> Iterator[tuple[Recorded, Cluster, str]]:
    found = plain_eks()
    with serving(found.state, tmp_path) as recorded:
        yield recorded, found, str(recorded.kubeconfig())


def test_a_cluster_is_checked_measured_and_fixed(eks: tuple[Recorded, Cluster, str]) -> None:
    recorded, _, kubeconfig = eks
    plan: Options = {"kubeconfig": kubeconfig, "instance_type": "p5.48xlarge", "volume": "checkpoints"}
    verdict = manage_eks_cluster(validate_components=True, **plan)
    assert (verdict["ready"], verdict["exit_code"]) == (True, 0), verdict["findings"]
    refused = manage_eks_cluster(num_nodes=1000, auto_fix=True, **plan)
    assert (refused["ready"], refused["exit_code"]) == (False, 1)
    assert "capacity" in {finding["check"] for finding in refused["findings"]}
    assert refused["steps"] and recorded.created == []
    assert manage_eks_cluster(validate_components=False, **plan)["fits"] == "now"


def test_a_job_is_planned_without_a_cluster(project: Path) -> None:
    job: Options = {"config": CONFIG, "image_uri": IMAGE, "set": ["compute.strategy=ddp"], "dry_run": True}
    planned = deploy_training_job(
        job_name="llama32-1b-training", num_nodes=4, gpu_per_node=1, instance_type="ml.g5.8xlarge",
        volume="fsx", auto_retry=True, monitor=True, **job,
    )  # fmt: skip
    plan = planned["plan"]
    assert (plan["name"], plan["nodes"], plan["auto_retry"]) == ("llama32-1b-training", 4, 3)
    assert [body["kind"] for body in planned["objects"]] == ["ConfigMap", "PyTorchJob"]
    on_cpu = deploy_training_job(gpu_per_node=0, instance_type="ml.g5.8xlarge", **job)
    assert (on_cpu["plan"]["resources"]["gpus"], plan["resources"]["gpus"]) == (0, 1)
    with pytest.raises(ConfigError, match="hf_token_secret"):
        deploy_training_job(job_name="llama3-gated", hf_token="hf_x", **job)
    with pytest.raises(ConfigError, match="num_nodes: '0' is not a whole number above 0"):
        deploy_training_job(num_nodes=0, **job)
    with pytest.raises(ConfigError, match="node_count is no option"):
        deploy_training_job(node_count=2, **job)
    with pytest.raises(ConfigError, match="--cluster names a cluster by itself"):
        deploy_training_job(cluster_name="a", context="b", **job)


def test_a_job_is_sent_and_a_cluster_that_is_not_ready_is_refused(eks: tuple[Recorded, Cluster, str]) -> None:
    recorded, _, kubeconfig = eks
    for place, name, kind in (
        ("/api/v1", "configmaps", "ConfigMap"),
        ("/apis/kubeflow.org/v1", "pytorchjobs", "PyTorchJob"),
    ):
        served = {"resources": [{"name": name, "kind": kind}]}
        recorded.misbehaviours.append(Misbehaviour(place, status=200, body=served, whole=True))
    job: Options = {"config": CONFIG, "image_uri": IMAGE, "set": ["compute.strategy=ddp"]}
    job |= {"kubeconfig": kubeconfig, "instance_type": "p5.48xlarge", "volume": "checkpoints"}
    with pytest.raises(CheckFailedError, match="exit code 1"):
        deploy_training_job(job_name="llama", num_nodes=1000, **job)
    assert recorded.created == []
    sent = deploy_training_job(job_name="llama", **job)
    assert (sent["job"], sent["kind"], sent["exit_code"]) == ("llama", "pytorchjob", 0)
    assert {body["kind"] for body in recorded.created} == {"ConfigMap", "PyTorchJob"}


def test_a_checkpoint_is_stored_and_verified(
    seaweedfs: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs.url)
    bucket = seaweedfs.new_bucket()
    checkpoint, metrics = tmp_path / "latest.pt", tmp_path / "metrics.json"
    checkpoint.write_bytes(os.urandom(2000))
    metrics.write_text('{"step": 500, "loss": 1.08}')
    digest, key = calculate_file_hash(str(checkpoint)), "phase2/checkpoint-42.pt"
    assert sync_to_s3(str(checkpoint), bucket, key, {"run-number": "42", "git-sha": "abc"})
    assert seaweedfs.client.head_object(Bucket=bucket, Key=key)["Metadata"]["git-sha"] == "abc"
    assert verify_s3_upload(key, digest, bucket)
    assert not verify_s3_upload(key, "0" * 64, bucket)
    assert not verify_s3_upload("phase2/nothing.pt", digest, bucket)
    manifest = create_manifest(str(checkpoint), str(metrics), bucket, 42)
    assert digest in json.dumps(manifest)
    assert upload_manifest(manifest, bucket, 42)
    assert upload_manifest(manifest, bucket, 42)
    assert not upload_manifest({**manifest, "run_id": "another"}, bucket, 42)
    stored = seaweedfs.client.get_object(Bucket=bucket, Key="manifests/run-42-manifest.json")["Body"].read()
    assert json.loads(stored) == manifest
    assert not sync_to_s3(str(tmp_path / "missing.pt"), bucket, key)


def test_a_dashboard_reports_on_a_metrics_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 3, "loss": 2.5}\n{"step": 4, "loss": 2.25}\n')
    (tmp_path / "run.json").write_text("{}")
    dashboard = functions.TrainingDashboard(str(metrics))
    assert "Training Loss: 2.25" in dashboard.generate_text_report()
    assert "2.25" in json.dumps(dashboard.generate_json_report())
    dashboard.print_report()
    assert "Training Loss: 2.25" in capsys.readouterr().out
    dashboard.save_report(str(tmp_path / "report.json"))
    assert json.loads((tmp_path / "report.json").read_text()) == dashboard.generate_json_report()


def test_every_documented_name_is_there_and_nothing_heavy_is_imported() -> None:
    heavy = {"torch", "numpy", "rich", "boto3"}
    code = f"import sys, trainyard.functions; print({heavy} & set(sys.modules))"
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
    assert [name for name in functions.__all__ if not hasattr(functions, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        functions.nothing  # type: ignore[attr-defined] # noqa: B018
