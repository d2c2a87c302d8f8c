"""Plans that Kubernetes refuses, or whose pods could not start or would waste what they reserve, by rule.

Each rule is tried with generated wrong values, and with right values near them.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.jobs.plans import EACH_SHAPE, config, containers, instance_for, objects, plan, request
from tests.unit.jobs.recipe_orders import GIVEN, recipe_plan

from trainyard.commands.lint_environment import read_file
from trainyard.config.yaml_reader import dump_documents
from trainyard.errors import ConfigError
from trainyard.jobs.job_planning import plan_job, warnings_of
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.kinds import KINDS
from trainyard.jobs.plan_problems import job_findings
from trainyard.plan.environment.environment_lint import lint
from trainyard.plan.environment.variable_rules import VariableScope
from trainyard.plan.finding import Severity
from trainyard.plan.instances import NodeRoom, room_of_type

OWN = ("python", "work.py")


def problems(*overrides: str, **changes: Any) -> list[str]:
    settings = overrides if any("strategy" in o for o in overrides) else ("compute.strategy=ddp", *overrides)
    try:
        plan_job(config(*settings), request(**changes))
    except ConfigError as error:
        return str(error).split("\n")[:-1]
    return []


OURS = ("POD", "NODE", "RUN_ID", "NETWORK", "IMAGE_DIGEST", "FILES")
OPERATORS = ("PET_NNODES", "PET_ANYTHING", "MASTER_ADDR", "RANK", "WORLD_SIZE", "JOB_COMPLETION_INDEX")
COUNTS = ("NNODES", "NPROC_PER_NODE", "NODE_RANK")


@pytest.mark.slow
@each_case("kind", KINDS)
@each_case("command", [(), OWN], ids=["trainer", "own"])
def test_variables_that_others_set_are_refused(kind: str, command: tuple[str, ...]) -> None:
    place: dict[str, Any] = {
        "kind": kind,
        "command": command,
        "instance_type": instance_for(kind, "p5.48xlarge"),
    }
    reserved = [*(f"TRAINYARD_{name}" for name in OURS), *OPERATORS]
    allowed = ["TRAINYARD_STORE", "TRAINYARD_USD_PER_HOUR", "MY_RANK", "LOG", "HF_HOME", "TRAINYARD_POD_NAME"]
    own_counts = bool(command) and kind != "hyperpod"
    (allowed if own_counts else reserved).extend(COUNTS)
    for name, value in itertools.product(reserved, ("", "1", "x")):
        (line,) = problems(environment={name: value}, **place)
        assert line.startswith(f"--env {name}: set by ")
    for name in allowed:
        assert problems(environment={name: "1"}, **place) == []


@pytest.mark.parametrize("value", ["", "x"])
def test_the_variable_of_the_token_is_set_once(value: str) -> None:
    (line,) = problems(token_secret="hub", environment={"HF_TOKEN": value})
    assert line == "--env HF_TOKEN: set by --hf-token-secret"
    made = plan(nodes=2, token_secret="hub", environment={"HF_HOME": "/scratch"})
    for container in (one for body in objects(made) for one in containers(body)):
        names = [entry["name"] for entry in container["env"]]
        assert len(names) == len(set(names))


def test_a_secret_reaches_a_job_only_by_a_secret_of_the_namespace() -> None:
    token, password = "hf_" + "aB3" * 12, "correct-7-horse"
    (line,) = problems(command=(*OWN, "--hf-token", token))
    assert line.startswith("-- COMMAND: --hf-token: everybody who may see the job could read it.")
    given = f"program.environment={{MY_API_KEY: {password}}}"
    (line,) = problems(given)
    assert line.startswith("program.environment: MY_API_KEY (or set MY_API_KEY)") and "--secret" in line
    assert password not in json.dumps(
        objects(plan("compute.strategy=ddp", given, secret_environment="study"))
    )
    variable = f"{{name: main, env: [{{name: DB_PASSWORD, value: {password}}}]}}"
    (line,) = problems(f"cluster.pod.template={{spec: {{containers: [{variable}]}}}}")
    assert "DB_PASSWORD: a secret in plain text" in line


SIZED = ("cluster.pod.cpu=8", "cluster.pod.memory=64Gi")


EFA = [known.name for known in EACH_SHAPE if known.efa]
NO_EFA = [known.name for known in EACH_SHAPE if not known.efa]
NO_TYPE: dict[str, Any] = {"instance_type": "", "nodes": 2}


@pytest.mark.slow
@each_case("command", [(), OWN], ids=["trainer", "own"])
@each_case("name", EFA)
def test_pods_without_efa_are_refused_unless_tcp_is_asked_for(name: str, command: tuple[str, ...]) -> None:
    whole = room_of_type(name)
    assert whole is not None
    place: dict[str, Any] = {"instance_type": name, "nodes": 4, "command": command}
    lacking: dict[str, Any] = {**place, "room": replace(whole, efa=0)}
    for network in ("auto", "efa"):
        (line,) = problems(f"compute.network={network}", **lacking)
        assert line.startswith(f"compute.network: {network}, but not every node")
        assert "compute.network=tcp" in line
        assert problems(f"compute.network={network}", **place) == []
    assert problems("compute.network=tcp", **lacking) == []
    for alone in ({"nodes": 1}, {"gpus_per_node": 0}):
        assert problems("compute.network=auto", **{**lacking, **alone}) == []


def test_no_more_gpus_are_requested_than_the_type_has_whatever_the_nodes_offer() -> None:
    """A plugin may count shares of GPUs as GPUs."""
    for known in EACH_SHAPE:
        room = room_of_type(known.name)
        assert room is not None
        for offered, asked in ((1, known.gpus + 1), (2, known.gpus + 1), (2, None)):
            seen = replace(room, gpus=offered * known.gpus)
            (line,) = problems(instance_type=known.name, nodes=2, room=seen, gpus_per_node=asked)
            assert line.startswith("--gpu-per-node: ")
            assert f"more than {known.name} has for a pod, {known.gpus}" in line


def test_auto_is_tcp_where_the_type_has_no_efa_or_is_not_known() -> None:
    for name in NO_EFA:
        assert problems(instance_type=name, nodes=4) == []
        (line,) = problems("compute.network=efa", instance_type=name, nodes=4)
        assert f"{name} has no EFA interface" in line
    mixed = replace(NodeRoom(8, 180_000, 1_900_000, 0), instance_type="")
    for label in ("", "x9.metal"):
        place = {**NO_TYPE, "room": replace(mixed, instance_type=label)}
        assert problems(**place) == []
        (line,) = problems("compute.network=efa", **place)
        assert "has no EFA interface" in line


@pytest.mark.parametrize("command", [(), OWN], ids=["trainer", "own"])
def test_efa_is_not_taken_for_granted_where_no_type_is_named(command: tuple[str, ...]) -> None:
    wanted = {**NO_TYPE, "gpus_per_node": 8, "command": command}
    (line,) = problems(*SIZED, "compute.network=efa", **wanted)
    assert line.startswith("compute.network: efa, but it is not known whether the nodes have EFA")
    for network in ("auto", "tcp"):
        assert problems(*SIZED, f"compute.network={network}", **wanted) == []
    assert problems(*SIZED, "compute.network=efa", **{**wanted, "nodes": 1}) == []


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:0"])
def test_nobody_trains_without_gpus_by_mistake(device: str) -> None:
    (line,) = problems(*SIZED, f"model.device={device}", instance_type="")
    assert line.startswith(
        "it is not known how many GPUs a pod may have: name --instance-type or a cluster (--context, also "
        "for --dry-run), or set --gpu-per-node"
    )
    (line,) = problems(f"model.device={device}", instance_type="")
    assert line.startswith("it is not known how much processor and memory and how many GPUs a pod may have")
    assert problems(*SIZED, f"model.device={device}", instance_type="", gpus_per_node=1) == []
    assert problems(*SIZED, f"model.device={device}", instance_type="", command=OWN) == []


@pytest.mark.parametrize("recipe", GIVEN)
def test_other_trainers_need_a_number_of_gpus_too(recipe: str) -> None:
    with pytest.raises(ConfigError, match="it is not known how many GPUs"):
        recipe_plan(recipe, *SIZED, instance_type="")


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:3"])
def test_our_trainer_needs_a_gpu_where_it_is_told_to_use_one(device: str) -> None:
    cpus = NodeRoom(0, 8000, 32_000, 0)
    for place in ({"gpus_per_node": 0}, {"room": cpus, "instance_type": ""}):
        (line,) = problems(f"model.device={device}", **place)
        assert line.startswith(f"model.device: {device}, but the pods get no GPU")
        assert problems(f"model.device={device}", command=OWN, **place) == []
        for other in ("cpu", "auto"):
            assert problems(f"model.device={other}", **place) == []
    (line,) = problems(f"model.device={device}", instance_type="p5.48xlage")
    assert "did you mean p5.48xlarge?" in line, "its consequences are not told"


@pytest.mark.slow
@each_case("gpus", [1, 2, 8])
@each_case("processes", [1, 2, 3, 8, 9, 16])
@each_case("device", ["auto", "cuda:0", "cpu"])
def test_our_trainer_has_a_gpu_for_each_process(gpus: int, processes: int, device: str) -> None:
    asked = f"model.device={device}"
    sizes: dict[str, Any] = {"gpus_per_node": gpus, "processes_per_node": processes}
    if processes > gpus and device != "cpu":
        (line,) = problems(asked, **sizes)
        assert line.startswith(f"--nproc-per-node {processes}: each process needs a GPU of its own")
    else:
        warned = " ".join(warnings_of(plan("compute.strategy=ddp", asked, **sizes)))
        assert (f"{gpus} GPUs per pod, and {processes} of them used" in warned) is (processes < gpus)
    assert problems(asked, command=OWN, **sizes) == []
    assert warnings_of(plan(asked, "compute.strategy=ddp", command=OWN, **sizes)) == []
    assert problems(asked, gpus_per_node=0, processes_per_node=processes) == [] or device == "cuda:0"


TORCHRUN = (
    ("torchrun", "train.py"),
    ("/opt/venv/bin/torchrun", "--nproc-per-node", "8", "train.py"),
    ("python", "-m", "torch.distributed.run", "train.py"),
    ("/usr/bin/python3.12", "-u", "-m", "torch.distributed.launch", "train.py"),
)
OTHERS = (
    ("python", "train.py", "-m", "torch.distributed.run"),
    ("python", "-m", "work", "torchrun"),
    ("hyperpodrun", "--nnodes=2", "--nproc-per-node=8", "torchrun.py"),
    ("python", "-m", "trainyard", "step", "ray", "--num-nodes", "2", "--", "torchrun", "train.py"),
    ("accelerate", "launch", "train.py"),
    ("python",),
    ("torchrunner",),
)


@each_case("kind", KINDS)
@each_case("command", TORCHRUN, ids=[" ".join(words) for words in TORCHRUN])
def test_torchrun_is_refused_where_it_would_not_find_its_place(kind: str, command: tuple[str, ...]) -> None:
    place: dict[str, Any] = {"kind": kind, "instance_type": instance_for(kind, "p5.48xlarge")}
    for nodes in (1, 2, 16):
        lines = problems(command=command, nodes=nodes, **place)
        wrong = kind == "hyperpod" or (kind.startswith("ray") and nodes > 1)
        assert [line.partition(":")[0] for line in lines] == ["-- torchrun"] * wrong
        assert all("hyperpodrun --nnodes" in line for line in lines if kind == "hyperpod")


@pytest.mark.parametrize("kind", KINDS)
def test_other_commands_are_left_to_the_user(kind: str) -> None:
    place: dict[str, Any] = {"kind": kind, "instance_type": instance_for(kind, "p5.48xlarge")}
    for command in OTHERS:
        for nodes in (1, 2):
            assert problems(command=command, nodes=nodes, **place) == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_without_the_agent_of_the_operator_is_refused(kind: str) -> None:
    """The operator of HyperPod starts workers through hyperpodrun; each program that we start needs it."""
    place: dict[str, Any] = {"kind": kind, "instance_type": instance_for(kind, "p5.48xlarge"), "nodes": 2}
    lines = problems("cluster.pod.hyperpodrun=false", **place)
    assert [line for line in lines if "cluster.pod.hyperpodrun=true" in line] == lines
    assert len(lines) == (kind == "hyperpod")
    assert problems("cluster.pod.hyperpodrun=false", command=OWN, **place) == []


@each_case("kind", KINDS)
def test_a_wrong_name_of_the_job_and_a_missing_image_are_refused(kind: str) -> None:
    """All other names are refused by the API server, in the dry run of the preflight."""
    place: dict[str, Any] = {"kind": kind, "instance_type": instance_for(kind, "p5.48xlarge")}
    longest = KINDS[kind].longest_name
    for name in ("", "A", "-a", "a-", "a.b", "1a", "é", "a\n", "a" * (longest + 1)):
        line, *_ = problems(name=name, **place)  # Ray refuses such words of the command too
        assert line.startswith("--job-name ") and len(line) < 250, line
    for name in ("a", "gh-4711-1", "a" * longest):
        assert problems(name=name, **place) == []
    assert problems(image="", **place) == ["no image: name it with --image-uri, or set cluster.image"]


def test_labels_that_the_plan_sets_are_refused() -> None:
    for given, words in (
        ("cluster.pod.node_selector={node.kubernetes.io/instance-type: p5}", "from --instance-type"),
        ("cluster.pod.node_selector={sagemaker.amazonaws.com/compute-type: x}", "from --instance-type"),
        ("cluster.labels={trainyard.dev/job: x}", "finds the job's objects"),
        ("cluster.labels={kueue.x-k8s.io/queue-name: x}", "from --queue"),
        ("cluster.annotations={trainyard.dev/plan: x}", "finds the job's objects"),
        ("cluster.pod.template={metadata: {labels: {trainyard.dev/job: x}}}", "finds the job's objects"),
    ):
        (line,) = problems(given)
        assert line.startswith(given.partition("=")[0]) and words in line, line
    assert problems("cluster.pod.node_selector={team.org/a: b-1}", "cluster.labels={team: a}") == []


# The linter's findings are known when a job is planned, however a variable gets into the job.


def test_both_names_of_the_allocator_are_reported() -> None:
    both = {"PYTORCH_ALLOC_CONF": "a:b", "PYTORCH_CUDA_ALLOC_CONF": "a:b"}
    (found,) = job_findings(plan(environment=both))
    assert found.severity is Severity.WARNING
    assert "both names are set" in found.evidence


def unchanged_plans() -> Iterator[JobSpec]:
    for kind, nodes, network in itertools.product(KINDS, (1, 2), ("auto", "tcp")):
        for instance in ("p5.48xlarge", "g6.xlarge"):
            place = {"kind": kind, "nodes": nodes, "instance_type": instance_for(kind, instance)}
            for command in ((), ("python", "work.py")):
                yield plan("compute.strategy=ddp", f"compute.network={network}", **place, command=command)
    for recipe, nodes in itertools.product(GIVEN, (1, 2)):
        yield recipe_plan(recipe, nodes=nodes)


def test_a_job_without_variables_of_its_own_is_told_nothing() -> None:
    for there in unchanged_plans():
        found = [each for each in job_findings(there) if each.severity is not Severity.INFO]
        assert found == [], (there.kind, there.program.name, there.nodes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_reports_what_the_linter_reports_of_its_printed_manifest(kind: str) -> None:
    given = {"NCCL_P2P_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth0", "CUDA_LAUNCH_BLOCKING": "1", "PORT": "80"}
    for nodes, instance in itertools.product((1, 2), ("p5.48xlarge", "g6.xlarge")):
        place = {"kind": kind, "nodes": nodes, "instance_type": instance_for(kind, instance)}
        there = plan(**place, environment=given)
        text = dump_documents(objects(there))
        printed = lint([read_file("job.yaml", text, VariableScope())])
        told = {(found.subject, found.severity, found.evidence) for found in job_findings(there)}
        assert told == {(found.subject, found.severity, found.evidence) for found in printed}
