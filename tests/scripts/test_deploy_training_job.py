"""A job as people send it: what a dry run shows, what is refused, and no call of a service without need."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.scripts.conftest import Call, Done
from tests.unit.gateways.kubernetes.memory_cluster import write_kubeconfig
from tests.unit.jobs.plans import config, plan

from trainyard.commands.job_deploy import lock_warnings

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
IMAGE = "registry.invalid/train@sha256:" + "a" * 64
Deploy = Callable[..., Done]


@pytest.fixture
def deploy(called: Call) -> Deploy:
    def run(*options: str) -> Done:
        given = ("--config", CONFIGS / "smoke.yaml", "--set", "compute.strategy=ddp", "--image-uri", IMAGE)
        return called("job deploy", *given, *options)

    return run


def test_a_dry_run_prints_what_would_be_applied_and_asks_nobody(deploy: Deploy) -> None:
    done = deploy("--num-nodes", "128", "--instance-type", "p5.48xlarge", "--volume", "fsx", "--dry-run")
    assert done.returncode == 0, done.stderr
    files, job = yaml.safe_load_all(done.stdout)
    assert (files["kind"], job["kind"]) == ("ConfigMap", "PyTorchJob")
    assert job["metadata"]["name"] == "smoke-llama"
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 127
    config = yaml.safe_load(files["data"]["config.yaml"])
    assert config["data"]["prepared_directory"] == "/checkpoints/prepared"
    annotations = job["metadata"]["annotations"]
    assert len(annotations["trainyard.dev/commit"]) == 40
    assert json.loads(annotations["trainyard.dev/plan"])["nodes"] == 128


def test_a_program_without_a_lock_is_named_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()  # no folder above is searched
    given = ("recipe=command", "program.command=[python, train.py]")
    planned = plan(*given)
    assert lock_warnings(config(*given), planned) == [], "the code is not in this folder"
    (tmp_path / "train.py").touch()
    (warning,) = lock_warnings(config(*given), planned)
    assert warning.startswith("program.lock: not set") and "repeatable" in warning
    assert lock_warnings(config(*given, "program.lock=pins.txt"), planned) == []
    assert lock_warnings(config("compute.strategy=ddp"), plan("compute.strategy=ddp")) == []
    (tmp_path / "uv.lock").write_text('[[package]]\nname = "numpy"\nversion = "2.4.0"\n')
    assert lock_warnings(config(*given), planned) == []


def test_the_plan_and_the_objects_are_json_on_request(deploy: Deploy) -> None:
    done = deploy("--instance-type", "g6e.xlarge", "--kind", "trainjob", "--dry-run", "--json")
    data = json.loads(done.stdout)
    assert data["plan"]["kind"] == "trainjob"
    assert [body["kind"] for body in data["objects"]] == ["ConfigMap", "TrainingRuntime", "TrainJob"]
    assert "no volume" in done.stderr


def documented_examples() -> list[str]:
    """The examples that can run unchanged: those of a dry run, and the one of --help as a dry run."""
    found = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = re.sub(r" \\\n +", " ", path.read_text(encoding="utf-8"))
        lines = re.findall(r"trainyard job deploy --config [^`|\n]+", text)
        found += [line for line in lines if "--dry-run" in line and "…" not in line]
        found += [f"{line} --dry-run" for line in lines if path.name == "scripts.md"]
    return found


def test_examples_of_every_document_are_found() -> None:
    assert len(documented_examples()) >= 4, documented_examples()


def written_file(name: str, folder: Path) -> str:
    """Write the block of YAML that a page shows below the file's name; return its path."""
    pages = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]
    shown = rf"(?:`{name}`[^`]{{1,60}}\n\n```yaml|cat {name}\n```\n\n```console)\n(.*?)```"
    (text,) = [m[1] for page in pages for m in re.finditer(shown, page, re.S)]
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize("example", documented_examples())
def test_every_example_of_a_dry_run_works_as_it_is_written(
    example: str, called: Call, tmp_path: Path
) -> None:
    config = str(CONFIGS / "training_configuration.yaml")
    words = [word.replace("configs/", f"{CONFIGS}/") for word in shlex.split(example)[3:]]
    filled = {"FILE": config, "CLAIM": "fsx-claim", "URI": IMAGE, "IMAGE": IMAGE}
    filled |= {word: written_file(word, tmp_path) for word in words if re.fullmatch(r"\w+\.yaml", word)}
    done = called("job deploy", *(filled.get(word, word) for word in words))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("apiVersion: ")


def test_a_recipe_of_another_program_takes_the_place_of_the_trainer(deploy: Deploy) -> None:
    needs = ("--set", "model.path=Qwen/Qwen2.5-0.5B-Instruct", "--set", "training.epochs=null")
    files = ("data.train_path=/gsm8k/train.parquet", "data.validation_path=/gsm8k/test.parquet")
    data = [word for file in files for word in ("--set", file)]
    sizes = ("--set", "training.batch_size=8")
    length = ("--set", "data.sequence_length=1536")  # a question, and an answer of 1,024 tokens
    own = ("--recipe", "verl", "--program-set", "actor_rollout_ref.rollout.gpu_memory_utilization=0.6")
    place = ("--instance-type", "p5.48xlarge", "--volume", "fsx", "--dry-run")
    done = deploy(*own, *needs, *data, *sizes, *length, *place)
    assert done.returncode == 0, done.stderr
    made, job = yaml.safe_load_all(done.stdout)
    assert (made["kind"], job["kind"]) == ("ConfigMap", "RayJob")
    settings = yaml.safe_load(made["data"]["config.yaml"])["program"]["settings"]
    assert settings == "actor_rollout_ref.rollout.gpu_memory_utilization=0.6"
    assert deploy("--program-set", "a=1", *place).returncode == 2
    unknown = deploy("--recipe", "verl2", *place)
    assert unknown.returncode == 2
    assert "recipe=verl2: expected one of pretrain, command, deepspeed" in unknown.stderr


def test_all_problems_are_named_and_nothing_is_sent(deploy: Deploy) -> None:
    done = deploy("--instance-type", "p5.48xlage", "--job-name", "A", "--num-nodes", "2", "--dry-run")
    assert done.returncode == 2
    assert done.stdout == ""
    for words in ("--job-name 'A'", "did you mean p5.48xlarge?", "2 nodes need a volume", "3 errors"):
        assert words in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--cluster", "c", "--kubeconfig", "f"), "names a cluster by itself"),
        (("--env", "A"), "is not NAME=VALUE"),
        (("--kubeconfig", "missing.yaml"), "no such kubeconfig"),
        (("--gpu-per-node", "-1"), "--gpu-per-node"),
        (("--kind", "mpijob"), "--kind"),
        (("--accept", "nosuch", "--instance-type", "g6e.xlarge", "--dry-run"), "'nosuch' is not a check"),
        (("--ray-cluster", "a", "--instance-type", "g6e.xlarge", "--dry-run"), "runs on no RayCluster"),
    ],
)
def test_wrong_usage_is_exit_code_2(options: tuple[str, ...], words: str, deploy: Deploy) -> None:
    done = deploy(*options)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_cluster_that_is_not_there_is_exit_code_4(deploy: Deploy, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    write_kubeconfig(path, "http://127.0.0.1:1")
    done = deploy("--kubeconfig", str(path), "--instance-type", "p5.48xlarge")
    assert done.returncode == 4
    assert "could not be reached" in done.stderr
