"""Find every problem of a job that can be known before it is sent, not only the first one.

The job is linted as it would be sent, with the variables that its program gets. The findings about devices,
the image and a secret in the command are left out, because the plan judges these itself.

Fields of `cluster.pod.template` that the plan sets itself are problems too: a fragment that changed them
would contradict what preflight, price and proof are based on.
"""

import re
from collections.abc import Iterator
from posixpath import normpath

from trainyard.cluster.pod_fragment import MAIN
from trainyard.config.pod_schema import list_fields
from trainyard.config.schema import Config
from trainyard.config.secret_filter import find_secrets, restore_secrets
from trainyard.config.secret_forms import secret_kind
from trainyard.errors import ConfigError
from trainyard.jobs.job_object import LABEL
from trainyard.jobs.job_spec import FILES_DIRECTORY, SCRATCH, JobSpec
from trainyard.jobs.kinds import KINDS
from trainyard.jobs.pod_template import HYPERPOD, INSTANCE_TYPE, SHARED_MEMORY
from trainyard.jobs.recipes import TRAINER
from trainyard.plan.environment.environment_lint import lint_objects
from trainyard.plan.environment.job_manifest_rules import PLAIN_SECRET
from trainyard.plan.environment.variable_rules import VariableScope
from trainyard.plan.finding import Finding, Severity
from trainyard.plan.instances import EFA, GPU, NodeRoom, find_instance, instance_called

_OPERATORS = re.compile(
    r"PET_.*|MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|JOB_COMPLETION_INDEX"
)
_COUNTS = re.compile(r"NNODES|NPROC_PER_NODE|NODE_RANK")
"""Set by an operator with an agent and read by our launcher; elsewhere a user's own command may have them."""
_OURS = re.compile(r"TRAINYARD_(POD|NODE|RUN_ID|NETWORK|IMAGE_DIGEST|FILES)")
_JUDGED_BY_THE_PLAN = (GPU, EFA, "image")
_WITH_COMMAND = ("command", "args", "entrypoint", "trainyard.dev/plan")
_OF_NODES = [
    (f"{re.escape(key)}$", "from --instance-type and the nodes") for key in (INSTANCE_TYPE, *HYPERPOD)
]
# Keys of labels, and where the plan has their values from.
_OF_JOBS = [
    (r"trainyard\.dev/|app\.kubernetes\.io/managed-by$", "by which it finds the job's objects"),
    (r"kueue\.x-k8s\.io/queue-name$", "from --queue (cluster.queue)"),
]
_OWN_CONTAINERS = "pytorch|node|ray-head|ray-worker|ray-job-submitter"
_MAIN = rf"spec\.containers\[{MAIN}\]\."
_ANY = r"spec\.(containers|initContainers)\[[^]]+\]\."
_OWNED = (
    (_MAIN + "(command|args)", "set by program.command, or the words after --"),
    (_MAIN + "image", "set by --image-uri (cluster.image)"),
    (_MAIN + "workingDir", "set by cluster.pod.directory"),
    (_MAIN + r"resources\.\w+\.(cpu|memory)", "set by cluster.pod.cpu and cluster.pod.memory"),
    (_ANY + r"resources\.\w+\.nvidia\.com/.*", "set by --gpu-per-node"),
    (_ANY + r"resources\.\w+\.(vpc\.amazonaws\.com/efa|hugepages-.*)", "set by compute.network"),
    (rf"spec\.containers\[({_OWN_CONTAINERS})\]", f"the container that trains is called {MAIN} here"),
    (r"spec\.volumes\[shared-memory\]", "set by cluster.pod.shared_memory"),
    (r"spec\.volumes\[checkpoints\]", "set by cluster.volume.claim"),
    (r"spec\.volumes\[(scratch|files|hugepages)\]", "a volume of the plan has this name"),
    (r"spec\.terminationGracePeriodSeconds", "set by cluster.pod.grace_seconds"),
    (r"spec\.restartPolicy", "set by cluster.pod.restarts"),
    (
        r"spec\.(hostname|subdomain|setHostnameAsFQDN|resources|nodeName)",
        "set by the operator or the scheduler",
    ),
)
"""Fields of `cluster.pod.template`, and why they are refused there."""


def find_plan_problems(
    config: Config, requested: JobSpec, plan: JobSpec, room: NodeRoom | None
) -> Iterator[str]:
    kind = KINDS[plan.kind]
    yield from find_name_problems(plan, longest=kind.longest_name)
    yield from _room_problems(config, requested, plan, room)
    yield from find_storage_problems(config, plan)
    yield from _network_problems(plan, room)
    yield from _variable_problems(requested, plan)
    yield from _secret_problems(config, requested, plan)
    yield from find_template_problems(requested, plan)
    yield from kind.find_problems(plan)
    if plan.ray_cluster and not kind.submitted_as:
        yield (
            f"--ray-cluster {plan.ray_cluster}: a job of --kind {plan.kind} runs on no RayCluster that is "
            "there; use --kind raycluster, or omit it"
        )
    if kind.agent and plan.program.keeps_run and not config.cluster.pod.hyperpodrun:
        yield (
            f"--kind {plan.kind}: its operator needs {kind.agent} in the image, and those of docker/ do not "
            "have it. Add it to yours (pip install hyperpod-elastic-agent) and set "
            "cluster.pod.hyperpodrun=true, or use --kind pytorchjob"
        )


def _variable_problems(requested: JobSpec, plan: JobSpec) -> Iterator[str]:
    """Yield the variables that a user must not set: operators set them, or they break a run."""
    refused = []
    for name, value in requested.environment.items():
        if reason := _setter_of(name, plan):
            refused.append(name)
            yield f"--env {name}: {reason}"
        elif secret_kind(name, value):
            refused.append(name)
            yield (
                f"--env {name}: everybody who may see the job could read it. Put it into a Kubernetes Secret "
                "and name that with --secret"
            )
    for finding in job_findings(plan):
        if finding.severity is Severity.ERROR and finding.subject not in refused:
            flag = "--env " if finding.subject in requested.environment else ""
            yield f"{flag}{finding.subject}: {finding.evidence}; {finding.fix}"


def _secret_problems(config: Config, requested: JobSpec, plan: JobSpec) -> Iterator[str]:
    """Yield the secrets of the command and the configuration, which the pod has to get from a Secret."""
    fix = "Put it into a Kubernetes Secret, and name that with --secret"
    for secret in find_secrets({"-- COMMAND": list(requested.program.command)}):
        yield f"{secret.place}: everybody who may see the job could read it. {fix}"
    settings = {
        "program.settings": config.program.settings,
        "cluster.pod.template": config.cluster.pod.template,
    }
    try:  # the pod takes all others from the variables of the Secret
        restore_secrets(settings if plan.secret_environment else config.to_plain(), {})
    except ConfigError as error:
        yield f"{error} {fix}"


def _setter_of(name: str, plan: JobSpec) -> str:
    """Return why the user must not set a variable: who sets it; empty if the user may."""
    counted = bool(KINDS[plan.kind].agent) or plan.program.keeps_run
    if _OPERATORS.fullmatch(name) or (counted and _COUNTS.fullmatch(name)):
        return "set by the operator of the job"
    if _OURS.fullmatch(name):
        return "set by the plan of the job"
    return "set by --hf-token-secret" if any(name == token.name for token in plan.secrets) else ""


def _room_problems(config: Config, requested: JobSpec, plan: JobSpec, room: NodeRoom | None) -> Iterator[str]:
    if requested.instance_type and room is None:
        try:
            find_instance(requested.instance_type)
        except ConfigError as error:
            yield f"--instance-type {error}"
    yield from _unknown_room(config, requested, plan, room)
    # Other programs do not read `model.device`.
    needs_gpu = plan.program.name == TRAINER and config.model.device.startswith("cuda")
    if needs_gpu and not plan.resources.gpus and (room is not None or requested.gpus_per_node is not None):
        yield (
            f"model.device: {config.model.device}, but the pods get no GPU; name --gpu-per-node, or set "
            "model.device=cpu"
        )
    if room is None:
        return
    have = room.instance_type or requested.instance_type or "the node"
    known = instance_called(have)
    gpus = min(room.gpus, known.gpus) if known else room.gpus  # a node may offer shares of GPUs as GPUs
    for what, wanted, there in (
        ("--gpu-per-node", plan.resources.gpus, gpus),
        ("cluster.pod.cpu", plan.resources.cpu_millis // 1000, room.cpu_millis // 1000),
        ("cluster.pod.memory", plan.resources.memory_mib, room.memory_mib),
    ):
        if wanted > there:
            unit = " MiB" if what.endswith("memory") else ""
            yield f"{what}: {wanted:,}{unit} is more than {have} has for a pod, {there:,}{unit}"


def _unknown_room(config: Config, requested: JobSpec, plan: JobSpec, room: NodeRoom | None) -> Iterator[str]:
    """Yield the sizes that nobody set. Only the user's own command may run without a GPU."""
    if room is not None or requested.instance_type:
        return
    pod, lacking, keys = config.cluster.pod, [], []
    if not (pod.cpu and pod.memory):
        lacking.append("how much processor and memory")
        keys.append("cluster.pod.cpu and cluster.pod.memory")
    trains = config.model.device != "cpu" and plan.program.keeps_run
    if trains and requested.gpus_per_node is None:
        lacking.append("how many GPUs")
        keys.append("--gpu-per-node (0 for none)")
    if lacking:
        yield (
            f"it is not known {' and '.join(lacking)} a pod may have: name --instance-type or a cluster "
            f"(--context, also for --dry-run), or set "
            f"{', and '.join(keys)}"
        )


def find_storage_problems(config: Config, plan: JobSpec) -> Iterator[str]:
    """Yield why the run of the plan would be lost with its pods."""
    apart = plan.nodes > 1 and plan.program.name == TRAINER and not config.checkpointing.shared
    if apart:
        yield from _problems_apart(config, plan)
    elif plan.nodes > 1 and not plan.claim and plan.program.keeps_run:
        own = "name its claim with --volume, or set cluster.volume.claim"
        do = "mount its claim in the manifest" if plan.manifest else own
        yield f"{plan.nodes} nodes need a volume that all of them share for checkpoints: {do}"
    if plan.claim and not plan.mount_path.startswith("/"):
        yield f"cluster.volume.mount_path (--checkpoint-path): {plan.mount_path[:80]!r} does not begin with /"
    store = config.artifacts.store or ""
    if store.startswith("file:") and not (plan.claim and store.startswith(f"file://{plan.mount_path}/")):
        yield f"artifacts.store: {store} is a folder of the pod and lost with it; use s3://, or the volume"


def _problems_apart(config: Config, plan: JobSpec) -> Iterator[str]:
    """Yield problems of nodes that each have a run directory on their own disk."""
    if not config.artifacts.store:
        yield (
            f"checkpointing.shared: false, so each of the {plan.nodes} pods keeps only its part of a "
            "checkpoint and loses it when the pod ends: set artifacts.store"
        )
    if plan.claim:
        yield (
            f"checkpointing.shared: false, but the claim {plan.claim} is one folder for all {plan.nodes} "
            "pods: omit --volume (cluster.volume.claim), or set checkpointing.shared to true"
        )


def _network_problems(plan: JobSpec, room: NodeRoom | None) -> Iterator[str]:
    """Yield EFA that was requested or that the type has, if the pods would not get it."""
    if plan.network == "tcp" or plan.nodes == 1:
        return
    known, wants_efa = instance_called(plan.instance_type), plan.network == "efa"
    if plan.resources.efa:
        return
    if not plan.resources.gpus:
        if wants_efa:
            yield "compute.network: efa joins GPUs, and --gpu-per-node is 0 or not known; use auto or tcp"
    elif known is not None and known.efa:
        yield (
            f"compute.network: {plan.network}, but not every node offers the EFA that {plan.instance_type} "
            "has, so the job would train over TCP; install the EFA device plugin on all of them, or accept "
            "that with compute.network=tcp"
        )
    elif wants_efa and (room is not None or known is not None):
        yield (
            f"compute.network: efa, but {plan.instance_type or 'a node'} has no EFA interface; use another "
            "instance type, or tcp"
        )
    elif wants_efa and not plan.instance_type:
        yield (
            "compute.network: efa, but it is not known whether the nodes have EFA; name "
            "--instance-type, or use tcp"
        )


def job_findings(plan: JobSpec) -> list[Finding]:
    """Return what the linter of the environment finds in the job, each finding once, the worst first."""
    place = variable_scope(plan)
    found = lint_objects("the job", KINDS[plan.kind].render(plan).all, place)
    return [
        each
        for each in found
        if each.subject not in _JUDGED_BY_THE_PLAN
        and not (each.subject in _WITH_COMMAND and each.evidence == PLAIN_SECRET.evidence)
    ]


def variable_scope(plan: JobSpec) -> VariableScope:
    """Return the known facts of the machines on which the job's variables take effect."""
    return VariableScope(
        instance=instance_called(plan.instance_type),
        nodes=plan.nodes,
        efa=plan.resources.efa,
        gpus=plan.resources.gpus,
        network=plan.network,
    )


def find_name_problems(plan: JobSpec, *, longest: int) -> Iterator[str]:
    """Yield a wrong name of the job, which has at most `longest` characters, and labels that the plan owns.

    The rules for all other names are those of the API server, which the preflight asks in a dry run.
    """
    if not plan.image:
        yield "no image: name it with --image-uri, or set cluster.image"
    if len(plan.name) > longest or not LABEL.fullmatch(plan.name):
        rule = f"the name of a {plan.kind} has lower-case letters, digits, dashes, begins with a letter"
        yield f"--job-name {plan.name[:80]!r}: {rule} (at most {longest} characters)"
    own = (plan.template.get("metadata") or {}).get("labels") or {}
    for place, labels, owned in (
        ("cluster.pod.node_selector", plan.node_selector, _OF_NODES),
        ("cluster.labels", plan.labels, _OF_JOBS),
        ("cluster.annotations", plan.annotations, _OF_JOBS),
        ("cluster.pod.template.metadata.labels", own, _OF_JOBS),
    ):
        for key in labels:
            if by := next((by for pattern, by in owned if re.match(pattern, key)), ""):
                yield f"{place}, {key}: the plan sets it, {by}"


def find_template_problems(requested: JobSpec, plan: JobSpec) -> Iterator[str]:
    """Yield the fields of `cluster.pod.template` that other keys set, and whose values the plan needs."""
    mounts = {
        **dict.fromkeys((SCRATCH, FILES_DIRECTORY, "/dev/hugepages"), "a mount of the plan is there"),
        SHARED_MEMORY: "set by cluster.pod.shared_memory",
    }
    if plan.mount_path:
        mounts[normpath(plan.mount_path)] = "set by cluster.volume.mount_path"
    for path, inner in list_fields(plan.template):
        main = path.removeprefix(f"spec.containers[{MAIN}].")
        name = main.removeprefix("env[").partition("]")[0]
        if by := next((by for pattern, by in _OWNED if re.fullmatch(pattern, path)), ""):
            reason = by
        elif inner == "VolumeMount" and main != path:
            reason = mounts.get(normpath(main.removeprefix("volumeMounts[").rpartition("]")[0]), "")
        elif inner == "EnvVar" and main != path and name.startswith("TRAINYARD_"):
            reason = "set by the plan of the job, or by --env"
        elif inner == "EnvVar" and main != path:
            reason = _setter_of(name, plan) or ("set by --env too" if name in requested.environment else "")
        else:
            reason = ""
        if reason:
            yield f"cluster.pod.template.{path}: {reason}; remove it here"
