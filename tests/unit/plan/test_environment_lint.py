"""Variables of NCCL, EFA and torch: each rule where it holds and where it does not; files of every form."""

import itertools
import json
from typing import Any

import pytest
import yaml
from tests.cases import each_case

from trainyard.commands.lint_environment import read_file
from trainyard.errors import ConfigError
from trainyard.plan.environment.environment_lint import lint
from trainyard.plan.environment.located_yaml import locate_objects
from trainyard.plan.environment.settings_reading import nodes_of
from trainyard.plan.environment.variable_rules import (
    RENAMED,
    VariableScope,
    judge_variable,
    network_environment,
)
from trainyard.plan.finding import Finding, Severity
from trainyard.plan.instances import CATALOGUE, instance_called

E, W = Severity.ERROR, Severity.WARNING
NOWHERE = VariableScope()


def place(name: str, nodes: int | None = 4, **known: Any) -> VariableScope:
    instance = instance_called(name)
    assert instance is not None
    found = {"efa": instance.efa, "gpus": instance.gpus, **known}
    return VariableScope(instance=instance, nodes=nodes, **found)


RDMA, PLAIN_EFA, NO_EFA = place("p5.48xlarge"), place("g5.8xlarge"), place("g5.xlarge")
BY_TCP = place("p5.48xlarge", efa=0, network="tcp")
JUDGED: list[tuple[str, str, VariableScope, Severity | None]] = [
    ("FI_EFA_USE_DEVICE_RDMA", "1", RDMA, None),
    ("FI_EFA_USE_DEVICE_RDMA", "1", PLAIN_EFA, E),
    ("FI_EFA_USE_DEVICE_RDMA", "1", NO_EFA, W),
    ("FI_EFA_USE_DEVICE_RDMA", "1", NOWHERE, W),
    ("FI_EFA_USE_DEVICE_RDMA", "0", RDMA, E),
    ("FI_EFA_USE_DEVICE_RDMA", "0", PLAIN_EFA, None),
    ("FI_EFA_USE_DEVICE_RDMA", "0", NOWHERE, W),
    ("FI_EFA_USE_DEVICE_RDMA", "1", VariableScope(efa=16), None),
    ("FI_EFA_USE_DEVICE_RDMA", "1", VariableScope(efa=4, gpus=8), W),
    ("NCCL_DEBUG", "${NCCL_DEBUG:-INFO}", RDMA, None),
    ("FI_PROVIDER", "${FI_PROVIDER:-tcp}", RDMA, E),
    ("FI_PROVIDER", "$(PROVIDER)", RDMA, None),
    ("NCCL_PROTO", "simple", RDMA, W),
    ("NCCL_PROTO", "simple", PLAIN_EFA, None),
    ("NCCL_PROTO", "LL", PLAIN_EFA, W),
    ("NCCL_ALGO", "Ring", NOWHERE, W),
    ("FI_PROVIDER", "efa", RDMA, None),
    ("FI_PROVIDER", "efa", NO_EFA, W),
    ("FI_PROVIDER", "tcp", RDMA, E),
    ("FI_PROVIDER", "tcp", NOWHERE, W),
    ("NCCL_NET", "AWS Libfabric", RDMA, None),
    ("NCCL_NET", "AWS Libfabric", NO_EFA, E),
    ("NCCL_NET", "AWS Libfabric", place("p5.48xlarge", nodes=1), E),
    ("NCCL_NET", "AWS Libfabric", BY_TCP, E),
    ("NCCL_NET", "ofi", RDMA, None),
    ("NCCL_NET", "Libfabric", RDMA, W),
    ("NCCL_NET", "Socket", RDMA, E),
    ("NCCL_NET", "Socket", NO_EFA, None),
    ("NCCL_NET", "socket", BY_TCP, None),
    ("NCCL_NET", "IB", RDMA, E),
    ("NCCL_SOCKET_IFNAME", "eth0", NOWHERE, W),
    ("NCCL_SOCKET_IFNAME", "eth0", VariableScope(host_network=True), E),
    ("NCCL_SOCKET_IFNAME", "^lo,docker", NOWHERE, None),
    ("NCCL_SOCKET_IFNAME", "^lo,docker,eth", NOWHERE, E),
    ("NCCL_SOCKET_IFNAME", "^lo,docker,eth", VariableScope(host_network=True), None),
    ("NCCL_DEBUG", "INFO", RDMA, None),
    ("NCCL_DEBUG", "WARN", RDMA, W),
    ("NCCL_DEBUG", "WARN", place("p5.48xlarge", nodes=1), None),
    ("NCCL_DEBUG", "DEBUG", RDMA, W),
    ("NCCL_NVLS_ENABLE", "0", RDMA, W),
    ("NCCL_IB_DISABLE", "1", RDMA, None),
    ("NCCL_TIMEOUT", "1800", NOWHERE, W),
    ("FI_EFA_MTU_SIZE", "8192", RDMA, E),
    ("RDMAV_FORK_SAFE", "1", RDMA, W),
    ("FI_EFA_FORK_SAFE", "1", RDMA, None),
    ("NCCL_P2P_DISABLE", "1", NOWHERE, W),
    ("NCCL_P2P_DISABLE", "0", NOWHERE, None),
    ("CUDA_LAUNCH_BLOCKING", "1", NOWHERE, W),
    ("LD_LIBRARY_PATH", "/usr/lib", RDMA, W),
    ("LD_LIBRARY_PATH", "/usr/lib:$LD_LIBRARY_PATH", RDMA, None),
    ("LD_LIBRARY_PATH", "/opt/amazon/efa/lib:/opt/amazon/ofi-nccl/lib", RDMA, None),
    ("LD_LIBRARY_PATH", "/usr/lib", NO_EFA, None),
    ("MY_OWN", "", NOWHERE, None),
]


@each_case(("name", "value", "where", "severity"), JUDGED)
def test_a_variable_is_judged_by_its_place(
    name: str, value: str, where: VariableScope, severity: Severity | None
) -> None:
    found = judge_variable(name, value, where)
    assert (found.severity if found else None) == severity
    if found:
        assert found.evidence
        assert found.fix


def test_renamed_variables_are_told_with_their_new_name() -> None:
    for name, new in RENAMED.items():
        found = judge_variable(name, "1", NOWHERE)
        assert found is not None and new in found.fix


def test_what_a_job_is_given_is_right_where_it_is() -> None:
    """The lint finds nothing in what we set: both use the same facts, in different code."""
    for instance, nodes in itertools.product(CATALOGUE, (1, 2, 128)):
        case = (instance.name, nodes)
        where = place(instance.name, nodes)
        given = network_environment(where)
        assert bool(given) == (nodes > 1), case
        for name, value in given.items():
            found = judge_variable(name, value, where)
            assert found is None, (case, name, value, found)
        if nodes > 1:
            assert given["NCCL_DEBUG"] == "INFO", case
            assert (given["NCCL_NET"] == "Socket") == (instance.efa == 0), case
        assert not [name for name in given if name.startswith("FI_")], case


def test_processors_and_tcp_need_little() -> None:
    assert network_environment(place("p5.48xlarge", gpus=0)) == {}
    assert network_environment(place("p5.48xlarge", network="tcp"))["NCCL_NET"] == "Socket"


MANIFEST = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  runPolicy: {cleanPodPolicy: Running}
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template: &pod
        spec:
          nodeSelector: {node.kubernetes.io/instance-type: ml.p5.48xlarge}
          containers:
            - name: pytorch
              image: a/b:1
              volumeMounts: [{name: shm, mountPath: /dev/shm}]
              env:
                - {name: NCCL_DEBUG, value: INFO}
                - {name: NCCL_NET, value: AWS Libfabric}
                - {name: WANDB_API_KEY, valueFrom: {secretKeyRef: {name: w, key: k}}}
              resources: {limits: {nvidia.com/gpu: 8, vpc.amazonaws.com/efa: 32}}
    Worker: {replicas: 3, template: *pod}
"""


def findings(text: str, name: str = "job.yaml", where: VariableScope = NOWHERE) -> list[Finding]:
    return lint([read_file(name, text, where)])


def test_a_manifest_that_is_right_has_no_findings() -> None:
    assert findings(MANIFEST) == []
    assert findings(MANIFEST.replace("a/b:1", "a/${NAME}")) == [], "the variable may have the tag"


def test_a_template_of_one_pod_may_have_its_node_rank() -> None:
    ranked = MANIFEST.replace("image: a/b:1", 'image: a/b:1\n              args: ["--node_rank=1"]')
    assert findings(ranked.replace("replicas: 3", "replicas: 1")) == []


CHANGES: list[tuple[str, str, Severity, str, str]] = [
    ("name: pytorch\n", "name: megatron\n", E, "containers", "no container is called pytorch"),
    ("efa: 32", "efa: 4", W, "vpc.amazonaws.com/efa", "4 of the 32"),
    ("efa: 32", "efa: 64", E, "vpc.amazonaws.com/efa", "the pod never starts"),
    ("gpu: 8", "gpu: 16", E, "nvidia.com/gpu", "the pod never starts"),
    ("resources: {limits", "resources: {requests: {nvidia.com/gpu: 4}, limits", E, "nvidia.com/gpu", "is 4"),
    ("{name: NCCL_DEBUG, value: INFO}", "{name: A, value: b}", W, "NCCL_DEBUG", "not set"),
    ("{name: NCCL_NET, value: AWS Libfabric}", "{name: A, value: b}", W, "NCCL_NET", "without an error"),
    ("value: AWS Libfabric", "value: Socket", E, "NCCL_NET", "trains over TCP"),
    ("{cleanPodPolicy: Running}", "{}", W, "cleanPodPolicy", "keep their GPUs"),
    ("a/b:1", "a/b:latest", W, "image", "can move"),
    ("mountPath: /dev/shm", "mountPath: /data", W, "/dev/shm", "64 MiB"),
    ("image: a/b:1", 'image: a/b:1\n              args: ["--node_rank=1"]', E, "args", "same rank"),
    ("{name: NCCL_DEBUG, value: INFO}", "{name: RANK, value: '0'}", W, "RANK", "the operator of PyTorchJobs"),
    (
        "containers:",
        "volumes: [{name: c, hostPath: {path: /mnt/k8s-disks/0/checkpoints}}]\n          containers:",
        *(W, "volume c", "a disk of one node"),
    ),
    ("replicas: 3", "replicas: 0", E, "Worker replicas", "no pods"),
    ("replicas: 1", "replicas: 2", E, "Master replicas", "one pod"),
    ("replicas: 1", "restartPolicy: Never", W, "Master replicas", "does not say so"),
    (
        "image: a/b:1",
        f"image: a/b:1\n              args: [--token, hf_{'aB3' * 12}]",
        E,
        "args",
        "in plain text",
    ),
    (
        "containers:",
        "volumes: [{name: ib, hostPath: {path: /dev/infiniband}}]\n          containers:",
        *(W, "volume ib", "covers the EFA devices"),
    ),
    (
        "containers:",
        "initContainers: [{name: get, env: [{name: HF_TOKEN, value: hf_abcdef}]}]\n          containers:",
        *(E, "HF_TOKEN", "in plain text"),
    ),
    *(
        ("image: a/b:1", f"image: a/b:1\n              args: [{words}]", W, "args", "is on no volume")
        for words in ('"--checkpoint_dir=./checkpoints"', "--save, /checkpoints/x", '"--output_dir /shm/out"')
    ),
]
KEPT = (
    'args: ["--checkpoint_dir=/data/checkpoints"]',
    'args: ["--resume_from_checkpoint=/elsewhere", "--save_steps=4", "--checkpoint_freq 50"]',
    'args: ["--save", "s3://bucket/x"]',
    'args: ["--output_dir=out/."]',
    'workingDir: /data/run\n              args: ["--save_dir", ./checkpoints]',
    'args: ["--checkpoint_dir=./checkpoints"]',
)


def test_checkpoints_on_a_volume_are_not_found() -> None:
    """A relative folder is below the working directory of the image, which may be on the volume."""
    for words in KEPT:
        text = MANIFEST.replace("image: a/b:1", f"image: a/b:1\n              {words}")
        text = text.replace("[{name: shm", "[{name: fsx, mountPath: /data}, {name: shm")
        assert [f for f in findings(text) if "on no volume" in f.evidence] == [], words
    lost = text.replace("containers:", "volumes: [{name: fsx, ephemeral: {}}]\n          containers:")
    assert any("on no volume" in f.evidence for f in findings(lost)), "it ends with its pod"


def test_variables_of_efa_without_a_request_have_one_remedy() -> None:
    """The manifest is told to request EFA, so no variable of EFA is to be removed as if there were none."""
    text = MANIFEST.replace("ml.p5.48xlarge", "g5.8xlarge").replace(
        "{nvidia.com/gpu: 8, vpc.amazonaws.com/efa: 32}", "{nvidia.com/gpu: 1}"
    )
    told = findings(text.replace("NCCL_NET, value: AWS Libfabric", "FI_PROVIDER, value: efa"))
    assert [f.fix for f in told if f.subject == "vpc.amazonaws.com/efa"] == ["request 1"]
    assert not [f for f in told if "no EFA" in f.evidence], told


@each_case(("old", "new", "severity", "subject", "words"), CHANGES)
def test_each_fault_in_a_manifest_is_found_with_its_line(
    old: str, new: str, severity: Severity, subject: str, words: str
) -> None:
    assert old in MANIFEST
    text = MANIFEST.replace(old, new, 1)
    found = [f for f in findings(text) if subject in f.subject and words in f.evidence]
    assert found
    assert found[0].severity is severity
    assert 1 <= found[0].line <= len(text.splitlines())
    assert "PyTorchJob train" in found[0].area


def test_workers_alone_need_an_address() -> None:
    """The operator gives one for a Master or elasticPolicy only (training-operator 1.9, `envvar.go`)."""
    alone = MANIFEST.replace("Master:", "Lead:").replace(
        "a/b:1", "a/b:1\n              args: [torchrun, a.py]"
    )
    elastic = alone.replace("  runPolicy", "  elasticPolicy: {rdzvBackend: c10d}\n  runPolicy")
    given = (("a.py", "--rdzv-endpoint=a"), ("a.py", "--nnodes=1"), ("NCCL_DEBUG", "PET_RDZV_ENDPOINT"))
    others = [alone.replace(*each) for each in (*given, ("torchrun", "torchrunx"))]
    for text in (alone, elastic, *others):
        assert any("gets no address" in f.evidence for f in findings(text)) == (text is alone), text


def test_variables_and_memory_that_an_operator_gives_are_not_missed() -> None:
    """mpirun starts processes with variables of its own, and KubeRay mounts a /dev/shm."""
    bare = MANIFEST.replace("NCCL_DEBUG", "A").replace("mountPath: /dev/shm", "mountPath: /data")
    for kind, missed in (("RayCluster", {"NCCL_DEBUG"}), ("MPIJob", {"/dev/shm"})):
        found = {finding.subject for finding in findings(bare.replace("PyTorchJob", kind))}
        assert found & {"NCCL_DEBUG", "/dev/shm"} == missed, kind


def test_the_pods_that_train_are_counted() -> None:
    gpu, cpu = ({"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": n}}}]}} for n in (8, 0))
    for spec, nodes in (
        ({"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 3, "template": gpu}}}]}, 6),
        ({"head": {"template": cpu}, "workers": [{"replicas": 1, "template": gpu}]}, 1),
        ({"workers": [{"replicas": 2, "numOfHosts": 4, "template": gpu}]}, 8),
        ({"completions": 4, "template": gpu}, 1),
        ({"parallelism": 2, "template": {**cpu, "metadata": {"labels": {"parallelism": 9}}}}, 2),
    ):
        assert nodes_of(locate_objects([{"kind": "Job", "spec": spec}])[0]) == nodes, spec


def test_secrets_in_plain_text_are_found_and_never_repeated() -> None:
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "PASSWORD"):
        (found,) = findings(f"{name}=hf_abcdef\n", ".env")
        assert found.severity is E
        assert "hf_abcdef" not in str(found)
    for line in (
        "HF_TOKEN=",
        "HF_TOKEN=$TOKEN",
        "HF_TOKEN=<HF_token>",
        "HF_TOKEN=PLACEHOLDER_HF_TOKEN",
        "TOKENIZERS_PARALLELISM=false",
        "HF_TOKEN_PATH=/a",
    ):
        assert findings(line, ".env") == []
    for value in ("$uper9", "MyPlaceholder2024", "<S3cr3t!>"):
        assert [f.severity for f in findings(f"PASSWORD={value}\n", ".env")] == [E], value
    for value in ("$HF_TOKEN", "${HF_TOKEN:-}", "$uper9"):
        assert [f.severity for f in findings(f"FROM a\nENV HF_TOKEN={value}\n", "Dockerfile")] == [E]
    assert findings("FROM a\nENV HF_TOKEN=/run/secrets/hf\n", "Dockerfile") == []


@pytest.mark.parametrize(
    "line",
    [
        "RUN echo $((1<<SHIFT))",
        "RUN echo '<<EOF'",
        "{{- if .GPU }}",
        "{{ a\n b }}",
        "RUN {{ a }} {# b #}",
        "#",
    ],
)
def test_what_stands_before_it_hides_no_variable_of_a_dockerfile(line: str) -> None:
    found = findings(f"FROM {{{{ base }}}}\n{line}\nENV NCCL_PROTO simple\n", "Dockerfile.j2")
    assert [(f.subject, f.value, f.line) for f in found] == [("NCCL_PROTO", "simple", 3 + line.count("\n"))]


def test_a_manifest_says_where_it_runs_and_the_caller_the_rest() -> None:
    unset = MANIFEST.replace(
        "nodeSelector: {node.kubernetes.io/instance-type: ml.p5.48xlarge}", "dnsPolicy: None"
    )
    bad = unset.replace("NCCL_DEBUG, value: INFO", "FI_EFA_USE_DEVICE_RDMA, value: '1'")
    (found, *_) = [f for f in findings(bad, where=place("g5.8xlarge", None)) if f.subject.startswith("FI_")]
    assert found.severity is E
    kept = MANIFEST.replace("NCCL_DEBUG, value: INFO", "FI_EFA_USE_DEVICE_RDMA, value: '1'")
    assert not [f for f in findings(kept, where=place("g5.8xlarge", None)) if f.subject.startswith("FI_")]


def test_lists_and_configmaps_are_looked_into() -> None:
    body = {"kind": "ConfigMap", "metadata": {"name": "env"}, "data": {"NCCL_TIMEOUT": "1"}}
    (found,) = findings(yaml.safe_dump({"kind": "List", "items": [body]}))
    assert (found.subject, found.area) == ("NCCL_TIMEOUT", "ConfigMap env")


def test_what_is_no_manifest_is_refused_with_its_name_and_what_has_no_variables_has_no_findings() -> None:
    python = "a: !!python/object/apply:os.system [ls]\nb: ["
    for text in ("a: [", "{{ if .x }}\na: 1", "a: &a [*a]", "- " * 300 + "x", python):
        with pytest.raises(ConfigError, match=r"job\.yaml"):
            findings(text)
    for text in ("", "# nothing", "kind: 1\nspec: [1]", "kind: Service", "kind: List\nitems: []"):
        assert findings(text) == []


NAMES = ("job.yaml", "job.json", "gpu.dockerfile", "train.env", "run.sh")
JOB = """
kind: Pod
spec:
  containers:
    - command: [sh, -c, "export A=1"]
      env: [{name: NCCL_PROTO, value: simple}]
      args:
        - |
          export NCCL_ALGO=Ring
"""
CONTENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "manifest": (JOB, ("NCCL_PROTO",)),
    "manifest after a comment": (f"# a job\n---\n{JOB}", ("NCCL_PROTO",)),
    "JSON": (json.dumps(yaml.safe_load(JOB)), ("NCCL_PROTO",)),
    "Dockerfile": ("# syntax=x\nARG A=b\nFROM $A AS c\nENV NCCL_PROTO=simple", ("NCCL_PROTO",)),
    "Dockerfile in small letters": ("from a as b\nenv NCCL_PROTO=simple", ("NCCL_PROTO",)),
    "Dockerfile template": ("FROM {{ base }}\nENV NCCL_PROTO=simple", ("NCCL_PROTO",)),
    "lines": ("# a\nNCCL_PROTO=simple\n\nexport NCCL_ALGO=Ring", ("NCCL_PROTO", "NCCL_ALGO")),
    "script": ("#!/bin/bash\n#SBATCH -N 2\nset -e\nexport NCCL_PROTO=simple\nsrun a: b", ("NCCL_PROTO",)),
    "sourced": ("module load cuda\nexport NCCL_PROTO=simple", ("NCCL_PROTO",)),
    "nothing": ("\n# only a comment\n", ()),
}
NOT_UNDERSTOOD = {
    "lines and something else": "NCCL_PROTO=simple\nnonsense",
    "words": "NCCL_PROTO simple",
    "a list": "- 1",
    "a document of something else": "services: {a: {environment: {NCCL_PROTO: simple}}}",
    "values of a chart": "env: [{name: NCCL_PROTO, value: simple}]",
    "containers of something else": "containers: [1, x]",
    "a table": "name,value\nNCCL_PROTO,simple",
    "a program": "from a import b\nimport os",
    "a template": "{{ if .x }}\nkind: Pod",
}


def test_the_content_of_a_file_decides_how_it_is_read() -> None:
    """Each content × each name; what is not understood is refused by its name, never without findings."""
    wrong = []
    for name in NAMES:
        for content, (text, expected) in CONTENTS.items():
            read = read_file(name, text, NOWHERE)
            found = tuple(setting.name for group in read.groups for setting in group.settings)
            wrong += [] if found == expected else [f"{content} in {name}: {found}"]
        for content, text in NOT_UNDERSTOOD.items():
            try:
                read_file(name, text, NOWHERE)
                wrong.append(f"{content} in {name} was taken for something")
            except ConfigError as error:
                wrong += [] if name in str(error) else [str(error)]
    assert not wrong, "\n".join(wrong)
