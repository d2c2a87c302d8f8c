"""Jobs that other people wrote: how they are read, what is added, and how their commands are wrapped."""

import json
from copy import deepcopy
from typing import Any

import pytest
from tests.unit.jobs.manifests import manifests
from tests.unit.jobs.plans import config

from trainyard.errors import ConfigError
from trainyard.gateways.ray_nodes import parse_job_files
from trainyard.jobs.job_kind import Manifests, Observed
from trainyard.jobs.job_manifest import JobManifest, find_job, read_objects
from trainyard.jobs.job_object import PLAN
from trainyard.jobs.job_spec import JobSpec, SecretVariable, spec_from_json
from trainyard.jobs.kinds import find_kind
from trainyard.jobs.manifest_proof import TOOLS, JobWrapper
from trainyard.jobs.resubmission import make_resubmission
from trainyard.jobs.state.reading import Phase
from trainyard.jobs.state.state_machine import judge_job
from trainyard.plan.environment.located_yaml import all_mappings
from trainyard.report.jobs.job_actions import state_markdown
from trainyard.report.jobs.job_text import status_lines

Json = dict[str, Any]
ENTRY_POINT = ("python", "train.py")


def read(kind: str, objects: list[Json] | None = None) -> tuple[JobManifest, JobSpec]:
    written = find_job(objects or manifests()[kind])
    own = ENTRY_POINT if kind == "raycluster" else ()
    return written, written.spec(JobSpec(namespace="team"), written.pods(lambda _: None), own)


def test_a_job_of_each_kind_is_read_as_what_it_asks_for() -> None:
    for kind in manifests():
        written, spec = read(kind)
        resources = spec.resources
        assert (written.kind.name, spec.kind, spec.nodes) == (kind, kind, 2)
        assert (resources.gpus, resources.efa, resources.cpu_millis) == (8, 32, 8000), kind
        assert (resources.memory_mib, spec.image) == (65536, "registry.invalid/theirs:1")
        assert (spec.instance_type, spec.node_selector) == ("p5.48xlarge", {"pool": "train"})
        assert (spec.tolerations, spec.service_account) == (("pool",), "trainer")
        assert (spec.priority_class, spec.queue) == ("high", "research")
        assert (spec.claim, spec.mount_path) == ("fsx-claim", "/fsx"), "the command writes there"
        assert spec.secrets == (SecretVariable("HF_TOKEN", "hub", "token"),)
        assert spec.environment == {"NCCL_DEBUG": "INFO"}, "others may be secrets"
        assert spec_from_json(spec.to_json()).manifest == written.digest


def without_ours(sent: Json) -> Json:
    found = deepcopy(sent)
    metadata = found["metadata"]
    assert metadata.pop("namespace") == "team"
    for notes in (metadata["labels"], metadata["annotations"]):
        for key in [key for key in notes if key.startswith("trainyard.dev/")]:
            notes.pop(key)
    return found


def test_only_labels_and_the_record_are_added() -> None:
    for kind, objects in manifests().items():
        written, spec = read(kind)
        sent = written.add_record(spec)
        *others, job = objects
        if kind == "raycluster":
            assert sent.shared == (job,), "the cluster is applied unchanged, and a RayJob runs on it"
            assert sent.job["spec"]["clusterSelector"] == {"ray.io/cluster": "theirs"}
            assert (sent.job["metadata"]["name"], sent.job["spec"]["entrypoint"]) == (
                "theirs-job",
                "python train.py",
            )
            continue
        assert without_ours(sent.job) == job
        assert sent.shared == tuple(others) and not sent.parts
        assert sent.job["metadata"]["labels"]["trainyard.dev/job"] == "theirs"
        assert json.loads(sent.job["metadata"]["annotations"]["trainyard.dev/plan"])["nodes"] == 2
        assert "trainyard.dev" not in written.kind.pod_selector(sent.job), "its pods have labels of their own"


def wrap(kind: str, image: str = "", objects: list[Json] | None = None) -> Manifests:
    written, spec = read(kind, objects)

    def config_for(command: Any) -> Any:
        return config("recipe=command", f"program.command={json.dumps(command)}")

    sent, plan = JobWrapper(written, spec, config_for, image).wrap()
    assert plan.program.keeps_run
    return sent.add_record(plan)


def containers_of(value: Any) -> list[Json]:
    return [each for each in all_mappings(value) if "trainyard" in (each.get("command") or [])]


def test_the_command_is_wrapped_in_every_pod_that_trains() -> None:
    for kind in ("pytorchjob", "hyperpod", "trainjob", "job"):
        (container,) = containers_of(wrap(kind).job["spec"])
        command, environment = container["command"], container["env"]
        assert command[:5] == ["python", "-P", "-m", "trainyard", "pod"] and "args" not in container
        assert command[command.index("--run-dir") + 1] == "/fsx/team/theirs"
        assert environment[-1]["name"] == "TRAINYARD_FILES", "Kubernetes fills in $(NAME) of those before it"
        ((path, text),) = parse_job_files(environment[-1]["value"]).items()
        assert command[command.index("--config") + 1] == path
        for word in ("torchrun", "--nproc_per_node=8", "train.py", "--checkpoint_dir=/fsx/out"):
            assert word in text


def test_the_entry_point_of_a_ray_job_is_wrapped_with_its_environment_kept() -> None:
    objects = manifests()["rayjob"]
    objects[0]["spec"]["runtimeEnvYAML"] = "pip: [torch]\nenv_vars: {THEIRS: '1'}\n"
    spec = wrap("rayjob", objects=objects).job["spec"]
    assert spec["entrypoint"].startswith(
        "python -P -m trainyard pod --config /tmp/trainyard-theirs/config.yaml"
    )
    environment = json.loads(spec["runtimeEnvYAML"])
    assert environment["pip"] == ["torch"] and environment["env_vars"]["THEIRS"] == "1"
    assert "python" in parse_job_files(environment["env_vars"]["TRAINYARD_FILES"]).popitem()[1]


def test_an_init_container_copies_trainyard_where_the_image_lacks_it() -> None:
    pod = wrap("job", "registry.invalid/tools:1").job["spec"]["template"]["spec"]
    (copy,) = pod["initContainers"]
    assert (copy["image"], copy["command"][:3]) == ("registry.invalid/tools:1", ["cp", "-a", f"{TOOLS}/."])
    assert pod["containers"][0]["command"][0] == f"{TOOLS}/bin/python"
    assert {"name": "trainyard", "mountPath": TOOLS, "readOnly": True} in pod["containers"][0]["volumeMounts"]
    with pytest.raises(ConfigError, match="use --prove alone"):
        wrap("trainjob", "registry.invalid/tools:1")


def test_a_container_without_a_command_is_refused_with_the_line_to_add() -> None:
    objects = manifests()["job"]
    del objects[0]["spec"]["template"]["spec"]["containers"][0]["command"]
    with pytest.raises(ConfigError, match=r"Add a line such as command: \[python, train.py\]"):
        wrap("job", objects=objects)


JOB = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: %s}\nspec: {template: {spec: {containers: [{}]}}}\n"


def test_texts_are_read_as_objects() -> None:
    listed = '{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Service"}]}'
    texts = [("a.yaml", f"# Source: chart\n---\n{JOB % 'a'}---\n"), ("b.json", listed)]
    assert [body["kind"] for body in read_objects(texts, {})] == ["Job", "Service"]
    for written, wanted in (
        ("{a: 0640, b: 64, c: '0640', d: 0, e: 0.5}", {"a": 0o640, "b": 64, "c": "0640", "d": 0, "e": 0.5}),
        ("{x: &x {a: 1, b: 2}, y: {<<: *x, b: 3}}", {"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}}),
        (
            "{x: &x {<<: *x, a: 1}, y: {b: 2, <<: [*x, {c: 3}]}}",
            {"x": {"a": 1}, "y": {"a": 1, "b": 2, "c": 3}},
        ),
    ):
        (found,) = read_objects([("a.yaml", f"apiVersion: v1\nkind: ConfigMap\ndata: {written}\n")], {})
        assert found["data"] == wanted, "as kubectl reads it"
    for wrong in ("{<<: a}", "{<<: {a: 1}, b: 1, b: 2}"):
        with pytest.raises(ConfigError, match=r"merges mappings only|given twice"):
            read_objects([("a.yaml", f"apiVersion: v1\nkind: ConfigMap\ndata: {wrong}\n")], {})
    template = JOB % "${NAME}" + "# not read: $OTHER\n"
    (filled,) = read_objects([("job.yaml-template", template)], {"NAME": "n"})
    assert filled["metadata"]["name"] == "n"
    (kept,) = read_objects([("job.yaml", JOB % "$NAME")], {"NAME": "n"})
    assert kept["metadata"]["name"] == "$NAME", "only a template is filled in: a shell may mean its variables"


def test_what_is_no_job_is_refused_with_what_to_do() -> None:
    cases = (
        ([("a.yaml-template", JOB % "$NAME")], "", "not set: NAME.*envsubst"),
        ([("a.yaml", "a: 1")], "", "not an object of Kubernetes"),
        ([("a.yaml", "a: [")], "", "a.yaml:2: not valid YAML"),
        (
            [("a.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: s}")],
            "",
            r"Service s \(v1\). Known kinds of jobs: PyTorchJob \(kubeflow.org/v1\)",
        ),
        ([("a.yaml", (JOB % "a").replace("batch/v1", "batch.volcano.sh/v1alpha1"))], "", "Job a .batch.volc"),
        (
            [("a.yaml", JOB % "a" + "---\n" + JOB % "b")],
            "",
            r"Job a \(batch/v1\), Job b .*Choose one with --job-name; the other is not sent",
        ),
        (
            [("a.yaml", JOB % "a" + "---\napiVersion: v1\nkind: Secret\n")],
            "",
            "Secret without a name .*needs",
        ),
        ([("a.yaml", (JOB % "a").replace("name:", "generateName:"))], "", "no name; add one with --job-name"),
    )
    for texts, name, wanted in cases:
        with pytest.raises(ConfigError, match=wanted):
            find_job(read_objects(texts, {}), name)
    chosen = find_job(read_objects([("a.yaml", JOB % "a" + "---\n" + JOB % "b")], {}), "b")
    assert (chosen.job["metadata"]["name"], chosen.others) == ("b", ())
    bare = find_job(read_objects([("a.yaml", (JOB % "a").replace("metadata: {name: a}\n", ""))], {}), "n")
    unnamed = find_job(read_objects([("a.yaml", (JOB % "a").replace("name:", "generateName:"))], {}), "n")
    assert unnamed.job["metadata"] == bare.job["metadata"] == {"name": "n"}
    selects = manifests()["rayjob"]
    selects[0]["spec"] = {"entrypoint": "python train.py", "clusterSelector": {"ray.io/cluster": "c"}}
    with pytest.raises(ConfigError, match="send that of the RayCluster that it selects"):
        find_job(selects).pods(lambda _: None)
    unranked = manifests()["job"]
    del unranked[0]["spec"]["completionMode"]
    with pytest.raises(ConfigError, match="completionMode: Indexed"):
        find_job(unranked)
    open_count = manifests()["pytorchjob"]
    open_count[1]["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = "$NODES"
    with pytest.raises(ConfigError, match="envsubst < FILE"):
        find_job(open_count).pods(lambda _: None)
    for image in ("<YOUR_IMAGE>", "${REGISTRY}/a:1"):
        open_image = manifests()["job"]
        open_image[0]["spec"]["template"]["spec"]["containers"][0]["image"] = image
        with pytest.raises(ConfigError, match=r"is not the name of an image.*envsubst"):
            read("job", open_image)
    with pytest.raises(ConfigError, match="add the entry point"):
        cluster = find_job(manifests()["raycluster"])
        cluster.spec(JobSpec(), cluster.pods(lambda _: None))


def test_a_sidecar_before_the_container_with_the_gpus_does_not_train() -> None:
    objects = manifests()["job"]
    sidecar = {"name": "logs", "command": ["fluent-bit"]}
    objects[0]["spec"]["template"]["spec"]["containers"].insert(0, sidecar)
    _, spec = read("job", objects)
    assert (spec.gpus_per_node, spec.program.command[0]) == (8, "torchrun")
    assert [each["name"] for each in containers_of(wrap("job", objects=objects).job["spec"])] == ["main"]


def test_the_preflight_does_not_look_for_what_the_manifest_makes() -> None:
    names = {"ServiceAccount": "trainer", "PriorityClass": "high", "Secret": "hub"}
    made = [{"apiVersion": "v1", "kind": kind, "metadata": {"name": name}} for kind, name in names.items()]
    for others, wanted in (([], ("trainer", "high", ("hub",), 2)), (made, ("", "", (), 0))):
        written, spec = read("job", [*others, *manifests()["job"]])
        plan, template = written.without_own_objects(spec, written.pods(lambda _: None).template)
        left = {"serviceAccountName", "priorityClassName"} & set(template["spec"])
        assert (plan.service_account, plan.priority_class, plan.secret_names, len(left)) == wanted


def test_a_runtime_of_the_cluster_describes_the_pods_of_a_train_job() -> None:
    runtime, job = manifests()["trainjob"]
    written = find_job([job])
    unseen, seen = written.pods(lambda _: None), written.pods(lambda _: runtime)
    assert (unseen.count, unseen.is_complete, unseen.is_served) == (1, False, True)
    assert (seen.count, seen.is_complete, seen.container["image"]) == (2, True, "registry.invalid/theirs:1")
    assert not find_job([runtime, job]).pods(lambda _: None).is_served, "it is sent with the job"


def observe(status: Json, **spec: Any) -> Observed:
    job = manifests()["job"][0]
    return Observed(
        find_kind("job"), "team", "theirs", {**job, "spec": {**job["spec"], **spec}, "status": status}
    )


def ended(kind: str, reason: str = "") -> Json:
    return {"conditions": [{"type": kind, "status": "True", "reason": reason, "message": reason}]}


def test_the_status_of_an_indexed_job_is_read() -> None:
    cases = (
        (observe({}), Phase.NEW),
        (observe({"active": 2}), Phase.RUNNING),
        (observe({"ready": 0, "active": 0, "startTime": "2026-11-20T00:00:00Z"}), Phase.WAITING),
        (observe({"active": 0}, suspend=True), Phase.SUSPENDED),
        (observe(ended("Complete")), Phase.SUCCEEDED),
        (observe({**ended("Failed", "BackoffLimitExceeded"), "failed": 3}), Phase.FAILED),
        (observe(ended("Failed", "DeadlineExceeded")), Phase.FAILED),
    )
    for observed, phase in cases:
        reading = observed.kind.read_status(observed)
        assert (reading.phase, reading.wanted) == (phase, 2), reading
    readings = [observed.kind.read_status(observed) for observed, _ in cases]
    assert readings[5].restarts == 2, "the failure that ended it was not followed by a new pod"
    assert readings[6].failure_class is not None and readings[5].failure_class is None


def test_a_copy_of_an_indexed_job_has_no_marks_of_its_first_run_unless_its_pods_need_its_name() -> None:
    kind, job = find_kind("job"), manifests()["job"][0]
    job["spec"]["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}}
    job["spec"]["suspend"] = True
    labels = job["spec"]["template"]["metadata"]["labels"]
    labels |= {"batch.kubernetes.io/controller-uid": "u", "controller-uid": "u", "job-name": "theirs"}
    copy = make_resubmission(kind, job, [], name="theirs-2").job
    assert copy["spec"]["template"]["metadata"]["labels"] == {"app": "theirs"}
    assert not {"selector", "suspend"} & copy["spec"].keys()
    job["spec"]["template"]["spec"]["subdomain"] = "ring"
    with pytest.raises(ConfigError, match="deploy the manifest again"):
        make_resubmission(kind, job, [], name="theirs-2")


def test_the_status_says_that_nobody_asked_for_a_proof() -> None:
    written = find_job(manifests()["job"])
    plan = written.spec(JobSpec(namespace="team"), written.pods(lambda _: None))
    ran = {**written.add_record(plan).job, "status": ended("Complete")}
    state = judge_job(Observed(find_kind("job"), "team", "theirs", ran))
    assert (state.exit_code, state.record()["proof"]) == (0, "not requested")
    shown = "\n".join(status_lines(state.record(), width=200))
    assert "not requested (ran, not proven); job deploy --manifest FILE --prove" in shown
    assert "proof: not requested" in state_markdown(state.record())
    ours = {**wrap("job").job, "status": ended("Complete")}
    for raw in (ours, {**ran, "metadata": {**ran["metadata"], "annotations": {PLAN: "{"}}}):
        assert judge_job(Observed(find_kind("job"), "team", "theirs", raw)).record()["proof"] is None
