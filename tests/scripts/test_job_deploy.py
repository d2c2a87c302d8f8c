"""Jobs and manifests as people send them: a dry run, refusals, no call without need, and the next command."""

import argparse
import io
import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.scripts.conftest import ROOT, Call, Done, load_script, require_success
from tests.unit.gateways.kubernetes.memory_cluster import write_kubeconfig
from tests.unit.jobs.manifests import manifests
from tests.unit.jobs.plans import config, plan

from trainyard.cluster.checks import CHECKS
from trainyard.cluster.fix import plan_fix
from trainyard.cluster.snapshot import MissingData, Snapshot
from trainyard.cluster.verdict import Verdict, facts_of, verdict_record
from trainyard.command.cluster_options import cluster_target, job_values
from trainyard.commands.job_deploy import lock_warnings
from trainyard.config.cluster import ClusterConfig
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.kinds import KINDS
from trainyard.jobs.state.job_state import JobFailure, JobState, PodCounts, State, Waiting
from trainyard.plan.finding import Finding
from trainyard.report.jobs.job_actions import state_markdown
from trainyard.report.jobs.job_text import status_lines
from trainyard.watch.failure_classes import FailureClass

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
    done = require_success(called("job deploy", *(filled.get(word, word) for word in words)))
    assert done.stdout.startswith("apiVersion: ")


def test_a_recipe_of_another_program_takes_the_place_of_the_trainer(deploy: Deploy) -> None:
    needs = ("--set", "model.path=Qwen/Qwen2.5-0.5B-Instruct", "--set", "training.epochs=null")
    files = ("data.train_path=/gsm8k/train.parquet", "data.validation_path=/gsm8k/test.parquet")
    data = [word for file in files for word in ("--set", file)]
    sizes = ("--set", "training.batch_size=8")
    length = ("--set", "data.sequence_length=1536")  # a question, and an answer of 1,024 tokens
    own = ("--recipe", "verl", "--program-set", "actor_rollout_ref.rollout.gpu_memory_utilization=0.6")
    place = ("--instance-type", "p5.48xlarge", "--volume", "fsx", "--dry-run")
    done = require_success(deploy(*own, *needs, *data, *sizes, *length, *place))
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


STORED = "recipe: command\nartifacts: {store: 's3://ml-runs/train'}\nprogram: {command: [x], steps: 9}\n"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump_all(manifests()["pytorchjob"]))
    return file


def test_a_dry_run_shows_the_additions_and_what_is_sent_unchanged(called: Call, theirs: Path) -> None:
    done = require_success(called("job deploy", "--manifest", theirs, "--dry-run", "--namespace", "team"))
    changed = [line[1:].strip() for line in done.stdout.splitlines() if line[:1] in "+-" and line[1:2] == " "]
    assert all(line.startswith(("trainyard.dev/", "namespace: team")) for line in changed[1:]), changed
    assert "-  " not in done.stdout and done.stdout.endswith("# applied unchanged before it: Service etcd\n")
    assert "cleanPodPolicy: it is not set" in done.stderr, "it is linted"
    theirs.write_text(yaml.safe_dump_all(manifests()["trainjob"]))
    done = called("job deploy", "--manifest", theirs, "--dry-run")
    assert "WANDB_API_KEY: a secret in plain text" in done.stderr, "so is the runtime beside it"


def test_what_cannot_train_is_refused_unless_it_is_accepted(called: Call, theirs: Path) -> None:
    theirs.write_text(theirs.read_text().replace("nvidia.com/gpu: 8", "nvidia.com/gpu: 9", 1))
    for more, code in (((), 2), (("--accept", "lint"), 0)):
        done = called("job deploy", "--manifest", theirs, "--dry-run", *more)
        assert done.returncode == code and "such a pod is refused" in done.stderr


def test_a_manifest_comes_from_stdin_a_folder_or_a_template(
    called: Call, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = theirs.read_text()
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    piped = called("job deploy", "--manifest", "-", "--dry-run", "--json")
    folder = theirs.parent / "all"
    folder.mkdir()
    (folder / "a.yaml-template").write_text(text.replace("replicas: 2", "replicas: $NODES"))
    filled = called("job deploy", "--manifest", folder, "--dry-run", "--json", NODES="2")
    for done in (piped, filled):
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["plan"]["nodes"] == 2
    (folder / "kustomization.yaml").touch()
    done = called("job deploy", "--manifest", folder, "--dry-run")
    assert done.returncode == 2 and f"kustomize build {folder} | trainyard job deploy" in done.stderr


def test_what_a_manifest_says_itself_is_no_option(called: Call, theirs: Path) -> None:
    cases = (
        (("--num-nodes", "4"), "--num-nodes is not used with --manifest"),
        (("--image-uri", "a"), "--image-uri is not used with --manifest"),
        (("--prove",), "--config is needed"),
        (("--", "python", "train.py"), "remove the command after --"),
    )
    for options, reason in cases:
        done = called("job deploy", "--manifest", theirs, "--dry-run", *options)
        assert done.returncode == 2 and reason in done.stderr, done.stderr
    alone = called("job deploy", "--dry-run")
    assert alone.returncode == 2 and "--config FILE is needed, or --manifest FILE" in alone.stderr
    misplaced = called("job deploy", "--config", theirs, "--prove", "--dry-run")
    assert misplaced.returncode == 2 and "--prove is for --manifest" in misplaced.stderr


def test_proving_wraps_the_command_and_says_where_trainyard_comes_from(called: Call, theirs: Path) -> None:
    settings = theirs.with_name("trainyard.yaml")
    settings.write_text(STORED)
    proven = ("--manifest", theirs, "--config", settings, "--accept", "learned", "--dry-run")
    done = require_success(called("job deploy", *proven, "--prove"))
    assert "Trainyard must be in the image registry.invalid/theirs:1" in done.stderr
    removed = {line.strip("- ") for line in done.stdout.splitlines() if line.startswith("-  ")}
    assert {"args:", "torchrun", "train.py"} <= removed
    copied = called("job deploy", *proven, "--prove-from", "registry.invalid/tools:1")
    assert "an init container copies Trainyard from registry.invalid/tools:1" in copied.stderr
    assert "+          initContainers:" in copied.stdout
    without = theirs.read_text().replace("claimName", "ignored").replace("persistentVolumeClaim", "emptyDir")
    theirs.write_text(without)
    lost = called("job deploy", *proven, "--prove")
    assert lost.returncode == 2 and "mount its claim in the manifest" in lost.stderr


# test_suggested_commands.py has every set of options.
OPTIONS = {
    "--kubeconfig": "team b.yaml",
    "--context": "arn:aws:eks:us-west-2:1:cluster/it's",
    "--region": "us-west-2",
    "--namespace": "team-a",
}
GIVEN = [word for pair in OPTIONS.items() for word in pair]


def told(command: str, *, namespace: str) -> None:
    """Assert that a command has the options as they were given, and a namespace."""
    found = shlex.split(command)
    given = {name: found[found.index(name) + 1] for name in OPTIONS if name in found}
    assert given == OPTIONS | {"--namespace": namespace}


@pytest.mark.parametrize("retries", ["0", "2"])
def test_what_follows_a_job_that_was_sent(retries: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy, there, nobody = load_script("job_deploy"), plan(), argparse.Namespace()
    monkeypatch.setattr(deploy, "find", lambda *_: None)
    monkeypatch.setattr(deploy, "submit", lambda *_, **__: None)
    announced: list[tuple[str, str]] = []
    monkeypatch.setattr(
        deploy.output, "announce", lambda phase, text, *_, **__: announced.append((phase, text))
    )
    args = deploy.parse_args(["--config", "c.yaml", "--auto-retry", retries, *GIVEN])
    there = replace(there, auto_retry=args.auto_retry)
    manifests = KINDS[there.kind].render(there)
    assert deploy.deploy(there, manifests, nobody, cluster_target(args), wait_seconds=None)[1] == 0
    (command,) = [text for phase, text in announced if phase == "follow"]
    assert shlex.split(command)[2] == ("status" if retries == "0" else "retry")
    told(command, namespace=there.namespace)


def states() -> Iterator[JobState]:
    """A job for each next command."""
    for which in State:
        for holds, waits in itertools.product((False, True), repeat=2):
            failures: list[JobFailure | None] = [None]
            if which is State.FAILED:
                failures = [JobFailure(each, ("because",)) for each in FailureClass]
            for failure, retry, next_job in itertools.product(failures, (0, 2), ("", "llama-2")):
                waiting = Waiting(FailureClass.QUOTA, "because") if waits else None
                more: dict[str, Any] = {"failure": failure, "waiting": waiting, "pods": PodCounts(4, 4)}
                more |= {"holds_resources": holds, "auto_retry": retry, "followed_by": next_job}
                yield JobState("llama", "team", "pytorchjob", which, "because", **more)


def test_what_to_do_about_a_job_in_every_state() -> None:
    args = load_script("job").parse_args(["status", "llama", *GIVEN])
    target, verbs = cluster_target(args), set()
    for state in states():
        record = state.record()
        last = status_lines(record, width=100, target=target)[-1]
        if not last.startswith("  next "):
            continue
        command = last.split(maxsplit=1)[1]
        verbs.add(shlex.split(command)[2])
        told(command, namespace="team")
        assert f"Next: `{command}`" in state_markdown(record, target)
    assert verbs == {"status", "logs", "events", "delete", "resubmit", "retry"}


def verdict_on(job: JobSpec, fix: str) -> Verdict:
    """A verdict in which every check has an error and a warning with this fix."""
    none: Any = MissingData("not looked at")
    fields = dict.fromkeys(Snapshot.__dataclass_fields__, none)
    fields |= {"nodes": (), "pods": (), "resources": {}}
    made = (Finding.error, Finding.warning)
    findings = tuple(make("bad", fix, check.name) for check in CHECKS for make in made)
    return Verdict(facts_of(Snapshot(**fields), job, tuple(KINDS.values())), findings)


@pytest.mark.parametrize("script", ["cluster", "job_deploy"])
def test_remedies_of_every_check_reach_the_cluster(script: str) -> None:
    words = ["--config", "c.yaml"] if script == "job_deploy" else ["check"]
    args = load_script(script).parse_args([*words, *GIVEN])
    job = JobSpec(**job_values(args)).with_settings(ClusterConfig())
    for fix in ("kubectl -n kube-system get pods", "trainyard cluster fix --apply"):
        verdict = verdict_on(job, fix)
        texts = [entry["fix"] for entry in verdict_record(verdict)["findings"]]
        texts += [step.command for step in plan_fix(verdict, ClusterConfig())]
        assert len(texts) >= 4 * len(CHECKS) - 4
        for text in texts:
            found = shlex.split(text)
            kept = ("--kubeconfig", "--context") if fix.startswith("kubectl") else tuple(OPTIONS)
            expected = {name: value for name, value in OPTIONS.items() if name in kept}
            assert {name: found[found.index(name) + 1] for name in OPTIONS if name in found} == expected
