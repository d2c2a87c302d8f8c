"""Single checks by rule: scopes of quotas, refusals of a pod, claims of one node, zones, fixes of fix."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cluster.faults import amounts as amount_of
from tests.unit.cluster.faults import both, each_gpu_node, level, no_namespace, quota, with_storage, without
from tests.unit.cluster.generated import (
    CLUSTERS,
    DAEMONS,
    DEPLOYMENTS,
    EFA,
    GPU,
    NAMESPACE,
    NODES,
    QUOTAS,
    changed,
    plain_eks,
    put,
)
from tests.unit.cluster.judging import demand_of, findings_of, look_at, verdict_of
from tests.unit.cluster.recorded import Misbehaviour, Recorded, serving

from trainyard.cluster.checks import device_plugin
from trainyard.cluster.checks import efa as efa_check
from trainyard.cluster.cluster_query import ClusterQuery
from trainyard.cluster.job_preflight import room_for
from trainyard.cluster.verdict import Readiness, verdict_record
from trainyard.config.cluster import ClusterConfig, ClusterPodConfig
from trainyard.jobs.job_spec import token_variable

PLAN = ("--num-nodes", "4", "--instance-type", "p5.48xlarge")
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def errors(recorded: Recorded, *options: str) -> dict[str, str]:
    """Check -> evidence of its error."""
    found = findings_of(recorded.kubeconfig(), *(options or PLAN))
    return {entry["check"]: entry["evidence"] for entry in found if entry["severity"] == "error"}


def test_a_quota_counts_unless_it_has_scopes(recorded: Recorded) -> None:
    """What a quota with scopes counts is judged by the dry run of a pod."""
    gold = {"scopeName": "PriorityClass", "operator": "In", "values": ["gold"]}
    quota({f"requests.{GPU}": "8"})(recorded.state, plain_eks())
    for spec, counts in (
        ({}, True),
        ({"scopes": ["NotBestEffort"]}, False),
        ({"scopeSelector": {"matchExpressions": [gold]}}, False),
    ):
        body = recorded.state[QUOTAS]["team"]
        body["spec"] = {"hard": body["spec"]["hard"], **spec}
        assert ("quota" in errors(recorded)) == counts, spec


REFUSED = 'pods "trainyard-preflight" is forbidden: '


@pytest.mark.parametrize(
    ("status", "message", "told"),
    [
        (
            403,
            "exceeded quota: q, requested: requests.cpu=1, used: requests.cpu=9, limited: requests.cpu=9",
            True,
        ),
        (403, "exceeded quota: q, requested: limits.memory=1Gi, used: limits.memory=0, limited: ...", True),
        (403, "failed quota: q: must specify requests.ephemeral-storage for: trainer", True),
        (403, "maximum memory usage per Container is 256Mi, but limit is 1Gi", True),
        (403, 'violates PodSecurity "restricted:latest": runAsNonRoot != true', True),
        (400, 'admission webhook "k" denied the request: label team not found', True),
        (403, 'error looking up service account team/default: serviceaccount "default" not found', True),
        (403, "no PriorityClass with name gold was found", True),
        (403, 'User "u" cannot create resource "pods" in API group "" in the namespace "team"', False),
    ],
)
def test_a_refused_pod_is_never_kept_quiet(status: int, message: str, told: bool, recorded: Recorded) -> None:
    """Whatever words the refusal uses: no other check finds its cause here."""
    answer = {"message": REFUSED + message}
    recorded.misbehaviours.append(Misbehaviour(PODS, status, body=answer, method="POST"))
    found = errors(recorded)
    assert ("pod-security" in found) == told
    assert not told or message[:200] in found["pod-security"]


def test_a_level_is_a_warning_only_where_no_pod_could_be_tried(recorded: Recorded) -> None:
    options = ("--num-nodes", "1", *PLAN[2:])
    level("restricted")(recorded.state, plain_eks())
    judged = [each for each in findings_of(recorded.kubeconfig(), *options) if each["severity"] != "ok"]
    assert judged == []
    answer = {"message": REFUSED + 'User "u" cannot create resource "pods" in the namespace "team"'}
    recorded.misbehaviours.append(Misbehaviour(PODS, 403, body=answer, method="POST"))
    (found,) = [each for each in findings_of(recorded.kubeconfig(), *options) if each["severity"] != "ok"]
    assert (found["check"], found["severity"]) == ("pod-security", "warning")
    assert "IPC_LOCK" in found["evidence"]


def test_a_refusal_that_another_check_explains_is_told_once(recorded: Recorded) -> None:
    quota({f"requests.{GPU}": "8"})(recorded.state, plain_eks())
    message = f"exceeded quota: team, requested: requests.{GPU}=8, used: requests.{GPU}=8, limited: 8"
    recorded.misbehaviours.append(Misbehaviour(PODS, 403, body={"message": REFUSED + message}, method="POST"))
    assert set(errors(recorded)) == {"quota"}


@pytest.mark.parametrize("given", ["hf", "hf:key"])
def test_both_secrets_are_looked_for(given: str, recorded: Recorded) -> None:
    def found() -> dict[str, str]:
        return errors_of_job(recorded, secrets=token_variable(given), secret_environment="store")

    secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    assert [text.split()[-1] for text in found()["namespace"].splitlines()] == ["store", "hf"]
    put(recorded.state, secrets, {"metadata": {"name": "store"}})
    assert "no secret hf" in found()["namespace"]
    put(recorded.state, secrets, {"metadata": {"name": "hf"}})
    assert found() == {}


def test_the_service_account_of_the_pods_must_exist(recorded: Recorded) -> None:
    settings = ClusterConfig(pod=ClusterPodConfig(service_account="runner"))
    assert f"{NAMESPACE}/runner" in errors_of_job(recorded, settings)["pod-security"]
    put(recorded.state, f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "runner"}})
    assert errors_of_job(recorded, settings) == {}


def errors_of_job(recorded: Recorded, settings: ClusterConfig | None = None, **given: Any) -> dict[str, str]:
    """The errors for a job that `trainyard job deploy` plans, by check."""
    look = look_at(recorded.kubeconfig(), *PLAN)
    job = demand_of(PLAN, settings, namespace=NAMESPACE, **given)
    verdict = ClusterQuery(look.api, job, look.kinds).judge(lambda **_: None)
    told: dict[str, str] = {}
    for entry in verdict_record(verdict)["findings"]:
        if entry["severity"] == "error":
            told[entry["check"]] = f"{told.get(entry['check'], '')}\n{entry['evidence']}".strip()
    return told


MODES = ("ReadWriteOnce", "ReadWriteOncePod", "ReadOnlyMany", "ReadWriteMany")


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("mode", MODES)
def test_access_modes_and_number_of_nodes(mode: str, nodes: int, recorded: Recorded) -> None:
    with_storage(modes=(mode,))(recorded.state, plain_eks())
    found = errors(recorded, "--num-nodes", str(nodes), "--volume", "checkpoints")
    usable = mode == "ReadWriteMany" or (nodes == 1 and mode.startswith("ReadWriteOnce"))
    assert (found == {}) == usable, found


def efa(amount: str | None) -> Callable[[dict[str, Any]], None]:
    return amount_of(EFA, amount)


@pytest.mark.parametrize(
    ("model", "amount", "grave"), [("p5.48xlarge", "32", True), ("g5.12xlarge", None, False)]
)
def test_zones_part_a_gang_where_it_uses_efa(
    model: str, amount: str | None, grave: bool, recorded: Recorded
) -> None:
    for number in range(4):
        body = recorded.state[NODES][f"gpu-{number}"]
        efa(amount)(body)
        amount_of(GPU, "8" if grave else "4")(body)
        labels = {"node.kubernetes.io/instance-type": model, "topology.kubernetes.io/zone": f"z{number % 2}"}
        body["metadata"]["labels"] |= labels
    found = findings_of(recorded.kubeconfig(), "--num-nodes", "4", "--instance-type", model)
    (said,) = [entry for entry in found if entry["check"] == "placement"]
    assert (said["severity"], "2 in z0, 2 in z1" in said["evidence"]) == (
        "error" if grave else "warning",
        True,
    )


def test_a_job_without_gpus_needs_no_plugin(recorded: Recorded) -> None:
    plant = both(each_gpu_node(amount_of(GPU, None)), without(DAEMONS, "nvidia"))
    plant(recorded.state, plain_eks())
    for gpus, is_needed in (("8", True), ("0", False)):
        words = ("--num-nodes", "4", "--gpu-per-node", gpus)
        found = {entry["check"] for entry in findings_of(recorded.kubeconfig(), *words)}
        assert ("device-plugin" in found) == is_needed, found


@pytest.mark.parametrize(("model", "left"), [("p5.48xlarge", 6), ("own.type", 4)])
def test_a_node_is_used_by_a_job_that_wants_no_more_gpus_than_it_has(
    model: str, left: int, recorded: Recorded
) -> None:
    for number in range(4):
        body = recorded.state[NODES][f"gpu-{number}"]
        amount_of(GPU, str(left))(body)
        body["metadata"]["labels"]["node.kubernetes.io/instance-type"] = model
    for wanted in (left - 1, left, left + 1):
        words = ("--num-nodes", "4", "--instance-type", model, "--gpu-per-node", str(wanted))
        found = findings_of(recorded.kubeconfig(), *words)
        told = any(f"{left} of 8 GPUs" in e["evidence"] or f"has {left} GPUs" in e["evidence"] for e in found)
        assert told == (wanted > left), (wanted, found)


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        ("aaaa", ""),
        ("aabb", "2 in a, 2 in b"),
        ("aaa-", ""),  # the last one may be in any zone
        ("aab-", "2 in a, 1 in b, 1 in an unknown zone"),
        ("----", ""),
    ],
)
def test_zones_are_told_apart_by_the_label_that_pods_require(
    names: str, wrong: str, recorded: Recorded
) -> None:
    for number in range(4):
        labels = recorded.state[NODES][f"gpu-{number}"]["metadata"]["labels"]
        labels.pop("topology.kubernetes.io/zone", None)
        labels["topology.k8s.aws/zone-id"] = "usw2-az1"  # the affinity of the pods does not see it
        if names[number] != "-":
            labels["topology.kubernetes.io/zone"] = names[number]
    assert wrong in errors(recorded).get("placement", "")
    assert bool(wrong) == ("placement" in errors(recorded))


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_plugin_is_advised_only_where_nothing_else_offers_the_devices(name: str, tmp_path: Path) -> None:
    """A device plugin next to a built-in one, or next to a DRA driver, gives devices away twice."""
    cluster = CLUSTERS[name]()
    devices = both(each_gpu_node(amount_of(GPU, None)), each_gpu_node(efa(None)))
    bare = both(devices, without(DAEMONS, "device-plugin"))
    with serving(changed(cluster, bare), tmp_path) as recorded:
        plan = ("--num-nodes", "4", "--instance-type", cluster.instance_type, *cluster.options)
        verdict = verdict_of(recorded.kubeconfig(), *plan)
    advised = {finding.fix for finding in verdict.findings}
    has_own_gpus = name in ("bottlerocket", "auto-mode", "dra")
    assert (device_plugin.INSTALL in advised) == (not has_own_gpus), advised
    # EFA is checked only on nodes that are fit, and a node without GPUs is not.
    assert efa_check.INSTALL not in advised


def test_what_is_not_judged_is_not_checked_and_never_red(tmp_path: Path) -> None:
    """Karpenter, devices of Dynamic Resource Allocation: each check that would need them, and no error."""
    pool, wrong = {"karpenter.sh": ("v1",)}, []
    for cluster, groups, options, checks in (
        (plain_eks(), pool, ("--num-nodes", "4", "--instance-type", "p5en.48xlarge"), {"gpu"}),
        (plain_eks(), pool, ("--num-nodes", "40", "--instance-type", "p5.48xlarge"), {"capacity"}),
        (CLUSTERS["dra"](), {}, PLAN, {"gpu", "device-plugin", "efa", "capacity"}),
        (CLUSTERS["dra"](), {}, ("--num-nodes", "40", "--gpu-per-node", "4"), {"gpu", "capacity"}),
    ):
        with serving(cluster.state, tmp_path) as recorded:
            recorded.groups |= groups
            verdict = verdict_of(recorded.kubeconfig(), *options)
        skipped = {f.subject for f in verdict.findings if f.evidence.startswith("not checked")}
        if not checks <= skipped or verdict.state is not Readiness.READY:
            wrong.append((cluster.name, options, verdict.state, skipped))
    assert wrong == []


def test_a_job_on_nodes_whose_gpus_are_not_counted_asks_for_those_of_their_type(tmp_path: Path) -> None:
    cluster = CLUSTERS["dra"]()
    with serving(cluster.state, tmp_path) as recorded:
        facts = verdict_of(recorded.kubeconfig(), *PLAN).facts
    room = room_for(facts.snapshot, facts.job)
    assert room is not None
    assert room.gpus == 8


def serve_trainjobs(recorded: Recorded) -> None:
    """Kubeflow Trainer runs outside the cluster: it has no Deployment, and its webhook answers."""
    recorded.groups |= {"trainer.kubeflow.org": ("v1alpha1",), "jobset.x-k8s.io": ("v1alpha2",)}
    recorded.resources |= {"trainer.kubeflow.org/v1alpha1": ("trainjobs",)}
    recorded.resources |= {"jobset.x-k8s.io/v1alpha2": ("jobsets",)}
    rule = {"apiGroups": ["trainer.kubeflow.org"], "operations": ["CREATE"], "resources": ["trainjobs"]}
    hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    put(recorded.state, hooks, {"metadata": {"name": "trainer"}, "webhooks": [{"rules": [rule]}]})
    runtimes = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes"
    put(recorded.state, runtimes, {"metadata": {"name": "torch-distributed"}})


def test_an_operator_outside_is_not_missing_with_the_namespace(recorded: Recorded) -> None:
    """Its webhook answers a dry run in the namespace, which is missing here."""
    serve_trainjobs(recorded)
    no_namespace(recorded.state, plain_eks())
    assert list(errors(recorded, *PLAN, "--kind", "trainjob")) == ["namespace"]
    without(DEPLOYMENTS, "training-operator")(recorded.state, plain_eks())
    found = errors(recorded, *PLAN, "--kind", "pytorchjob")
    assert list(found) == ["namespace"]


def test_an_operator_in_the_cluster_needs_its_jobset_there_too(recorded: Recorded) -> None:
    """An answer of its webhook proves the controller of TrainJobs, but not that of JobSets."""
    serve_trainjobs(recorded)
    assert errors(recorded, *PLAN, "--kind", "trainjob") == {}  # both run outside
    deployments = recorded.state["/apis/apps/v1/namespaces/kubeflow/deployments"]
    body = dict(deployments["training-operator"])
    body["metadata"] = body["metadata"] | {"name": "kubeflow-trainer-controller-manager"}
    put(recorded.state, "/apis/apps/v1/namespaces/kubeflow/deployments", body)
    found = errors(recorded, *PLAN, "--kind", "trainjob")
    assert "JobSet controller: no Deployment" in found["operator"]
    no_namespace(recorded.state, plain_eks())
    found = errors(recorded, *PLAN, "--kind", "trainjob")
    assert "JobSet controller: no Deployment" in found["operator"], "the webhook would not be asked"


def test_what_keeps_a_manifest_out_is_said_by_its_own_fields(recorded: Recorded) -> None:
    query = look_at(recorded.kubeconfig(), *PLAN, "--queue", "research", "--volume", "lost")
    query.job = replace(query.job, manifest="a" * 64, node_selector={"pool": "train"})
    found = {each["check"]: each for each in verdict_record(query.judge(lambda **_: None))["checks"]}
    gpu, storage = found["gpu"], found["storage"]
    assert (
        "has the labels pool=train; there are: " in gpu["evidence"] and "none offers" not in gpu["evidence"]
    )
    assert gpu["fix"].startswith("remove them from the node selector, or add")
    assert (storage["severity"], storage["fix"]) == ("error", "create the claim yourself")
    assert "leave the label kueue.x-k8s.io/queue-name out" in found["queue"]["fix"]
