"""Find every problem of a job that can be known before it is sent, not only the first one.

Names are judged by the rules that the keys of the YAML have: the API server accepts some wrong names in a
job and refuses only the pods that are made from it, so such a job would wait without end. Preflight checks
whether the objects of these names exist. The job is also linted as it would be sent, with every variable that
reaches its processes; the findings about devices and the image are left out, because the plan judges these
itself, with the facts of the cluster's nodes.
"""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from posixpath import normpath

from trainyard.config.cluster import DNS_NAME, LONGEST_DNS_NAME
from trainyard.config.schema import Config
from trainyard.config.secret_filter import find_secrets, restore_secrets
from trainyard.config.secret_forms import secret_kind
from trainyard.errors import ConfigError
from trainyard.jobs.job_object import LABEL, quote_name
from trainyard.jobs.job_spec import FILES_DIRECTORY, SCRATCH, JobSpec
from trainyard.jobs.kinds import KINDS
from trainyard.jobs.pod_template import HYPERPOD, INSTANCE_TYPE
from trainyard.jobs.recipes import trainyard_trainer
from trainyard.jobs.recipes.wrapped_program import PROGRAM_FILE
from trainyard.jobs.template_problems import find_template_problems
from trainyard.plan.environment.environment_lint import lint_objects
from trainyard.plan.environment.settings_reading import Setting, SettingGroup
from trainyard.plan.environment.surroundings import VariableScope
from trainyard.plan.finding import Finding, Severity
from trainyard.plan.instances import EFA, GPU, NodeRoom, find_instance, instance_called

_OPERATORS = re.compile(
    r"PET_.*|MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|JOB_COMPLETION_INDEX"
)
_COUNTS = re.compile(r"NNODES|NPROC_PER_NODE|NODE_RANK")
"""Set by an operator with an agent and read by our launcher; elsewhere a user's own command may have them."""
_OURS = re.compile(r"TRAINYARD_(POD|NODE|RUN_ID|NETWORK|IMAGE_DIGEST|FILES)")
_MOST_NODES = 100_000
"""The largest number that fits the names of its pods."""
_TREES = (FILES_DIRECTORY, "/dev", "/proc", "/sys")
"""A volume cannot be below them either: the files of a job are read-only, the others are the kernel's."""
_TAKEN = (SCRATCH, "/", "/bin", "/etc", "/lib", "/run", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/var")
_PRESET = "the program"
_JUDGED_BY_THE_PLAN = (GPU, EFA, "image")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SHELLS = ("sh", "bash", "dash", "zsh")
_SEPARATORS = re.compile(r"[;&|()]+")
_BEFORE_VARIABLES = ("env", "export", "exec", "time")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_DNS_NAME = re.compile(DNS_NAME)
_DNS_RULE = (
    "a name has lower-case letters, digits, dashes and dots, and begins and ends with a letter or digit"
)
_LONGEST_LABEL = 63
_SECRET_KEY = re.compile(r"(?!\.\.|\.$)[-._A-Za-z0-9]+")
_KEY_RULE = "a key of a Secret has letters, digits and -_."
_QUALIFIED = r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_NODE_KEY = re.compile(rf"(?:(?=[^/]{{1,{LONGEST_DNS_NAME}}}/){DNS_NAME[1:-1]}/)?{_QUALIFIED}")
"""The key of a label or a taint of nodes, with an optional prefix `example.com/`."""
_TAINT_RULE = (
    "the key of a taint has letters, digits and -_., at most 63, and may have a prefix such as example.com/"
)
_LABEL_RULE = "not a label, such as sagemaker.amazonaws.com/instance-group-name: workers"
_OF_NODES = [
    (f"{re.escape(key)}$", "from --instance-type and the nodes") for key in (INSTANCE_TYPE, *HYPERPOD)
]
# Keys of labels, and where the plan has their values from.
_OF_JOBS = [
    (r"trainyard\.dev/|app\.kubernetes\.io/managed-by$", "by which it finds the job's objects"),
    (r"kueue\.x-k8s\.io/queue-name$", "from --queue (cluster.queue)"),
]
_LABEL_VALUE = re.compile(rf"({_QUALIFIED})?")
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]+)?/)?{_PART}(?:/{_PART})*"
    r"(?::\w[\w.-]{0,127})?(?:@[A-Za-z][\w.+-]*:[0-9a-fA-F]{32,128})?",
    re.ASCII,
)
"""The grammar of references (github.com/distribution/reference)."""
_IMAGE_RULE = "not the name of an image, such as registry.example.com/team/train:1 or …/train@sha256:…"
_LONGEST_IMAGE, _LONGEST_KEY = 512, 2 * LONGEST_DNS_NAME


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
    yield from find_template_problems(plan, requested.environment, _setter_of)
    yield from kind.find_problems(plan)
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
    yield from _device_problems(config, requested, plan, room)
    yield from _size_problems(config, plan)
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


def _device_problems(
    config: Config, requested: JobSpec, plan: JobSpec, room: NodeRoom | None
) -> Iterator[str]:
    """Yield a GPU that our trainer needs and its pods lack; other programs do not read `model.device`."""
    device, counted = config.model.device, room is not None or requested.gpus_per_node is not None
    ours = plan.program.name == trainyard_trainer.NAME
    if ours and counted and device.startswith("cuda") and not plan.resources.gpus:
        yield (
            f"model.device: {device}, but the pods get no GPU; name --gpu-per-node, or set model.device=cpu"
        )


def _size_problems(config: Config, plan: JobSpec) -> Iterator[str]:
    """Yield sizes that contradict each other, or that Kubernetes would read as another size."""
    pod, resources = config.cluster.pod, plan.resources
    if plan.nodes > _MOST_NODES:
        yield f"--num-nodes {plan.nodes:,}: at most {_MOST_NODES:,}"
    for key, size, mib in (
        ("memory", pod.memory, resources.memory_mib),
        ("shared_memory", pod.shared_memory, resources.shared_memory_mib),
    ):
        if size and not mib:
            yield f"cluster.pod.{key}: {size} is less than 1 MiB (1Mi)"
    if pod.shared_memory and resources.shared_memory_mib > resources.memory_mib > 0:
        yield (
            f"cluster.pod.shared_memory: {pod.shared_memory} is more than the memory of the pod, "
            f"{resources.memory_mib:,} MiB, of which /dev/shm is a part"
        )


def find_storage_problems(config: Config, plan: JobSpec) -> Iterator[str]:
    """Yield why the run of the plan would be lost with its pods."""
    apart = (
        plan.several_nodes and plan.program.name == trainyard_trainer.NAME and not config.checkpointing.shared
    )
    if apart:
        yield from _problems_apart(config, plan)
    elif plan.several_nodes and not plan.claim and plan.program.keeps_run:
        own = "name its claim with --volume, or set cluster.volume.claim"
        do = "mount its claim in the manifest" if plan.manifest else own
        yield f"{plan.nodes} nodes need a volume that all of them share for checkpoints: {do}"
    if plan.claim:
        yield from _mount_problems(config)
    store = config.artifacts.store or ""
    if store.startswith("file:") and not (plan.claim and store.startswith(f"file://{plan.mount_path}/")):
        yield f"artifacts.store: {store} is a folder of the pod and lost with it; use s3://, or the volume"


def _mount_problems(config: Config) -> Iterator[str]:
    """Yield folders that the volume must not hide, because the image or the pod has other files there."""
    path = config.cluster.volume.mount_path
    if not path:
        return
    flag = f"cluster.volume.mount_path (--checkpoint-path): {path[:80]!r}"
    folder = PurePosixPath("/", normpath(path).lstrip("/"))
    if not path.startswith("/"):
        yield f"{flag} does not begin with /"
    elif str(folder) in _TAKEN or any(folder.is_relative_to(tree) for tree in _TREES):
        yield f"{flag} has another purpose in a pod; use another folder, such as /checkpoints"


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
    """Yield EFA that was requested or that the type has, if the pods would not get it, or would get more."""
    if plan.network == "tcp" or not plan.several_nodes:
        return
    known, wants_efa = instance_called(plan.instance_type), plan.network == "efa"
    if plan.resources.efa:
        if known is not None and room is not None and room.efa > known.efa:
            yield (
                f"compute.network: the nodes offer {room.efa} EFA interfaces, and {plan.instance_type} has "
                f"{known.efa}: their device plugin counts too many; correct it, or use "
                "compute.network=tcp"
            )
    elif not plan.resources.gpus:
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
    beside = (
        SettingGroup(_PRESET, tuple(_program_settings(plan)), place),
        SettingGroup("the command", tuple(command_settings(plan.program.command)), place),
    )
    found = lint_objects("the job", KINDS[plan.kind].render(plan).all, place, beside)
    return [finding for finding in found if finding.subject not in _JUDGED_BY_THE_PLAN]


def variable_scope(plan: JobSpec) -> VariableScope:
    """Return the known facts of the machines on which the job's variables take effect."""
    return VariableScope(
        instance=instance_called(plan.instance_type),
        nodes=plan.nodes,
        efa=plan.resources.efa,
        gpus=plan.resources.gpus,
        network=plan.network,
    )


def _program_settings(plan: JobSpec) -> Iterator[Setting]:
    """The variables that a recipe sets for its program."""
    described = json.loads(plan.program.files.get(PROGRAM_FILE, "{}"))
    for name, value in described.get("environment", {}).items():
        yield Setting(name, value, 1)


def command_settings(words: Sequence[str]) -> Iterator[Setting]:
    """Yield the variables that a command sets by itself: with `env`, or in the text that it gives a shell."""
    yield from _shell_settings(shlex.join(words))
    if any(PurePosixPath(word).name in _SHELLS for word in words):
        texts = (after for word, after in pairwise(words) if re.fullmatch(r"-[a-z]*c", word))
        yield from _shell_settings(next(texts, ""))


def _shell_settings(text: str) -> Iterator[Setting]:
    """The assignments at the beginning of a shell's commands; loops and functions are not read."""
    reader = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    at_start = True
    try:
        for word in reader:
            if _SEPARATORS.fullmatch(word):
                at_start = True
            elif at_start and (found := _ASSIGNMENT.fullmatch(word)):
                yield Setting(found[1], found[2], 1)
            else:
                is_before = word.startswith("-") or PurePosixPath(word).name in _BEFORE_VARIABLES
                at_start = at_start and is_before
    except ValueError:  # an open quote: the shell refuses it too
        return


def find_name_problems(plan: JobSpec, *, longest: int) -> Iterator[str]:
    """Yield the problems; the job's own name may have at most `longest` characters."""
    of_jobs = f"the name of a {plan.kind} has lower-case letters, digits, dashes, begins with a letter"
    optional = (
        ("--queue", plan.queue, _LONGEST_LABEL),
        ("--priority-class", plan.priority_class, LONGEST_DNS_NAME),
        ("--volume", plan.claim, LONGEST_DNS_NAME),
        ("--secret", plan.secret_environment, LONGEST_DNS_NAME),
    )
    rules = [
        ("--job-name", plan.name, LABEL, of_jobs, longest),
        ("--namespace", plan.namespace, _NAMESPACE, "not a valid name of a namespace", _LONGEST_LABEL),
        *((flag, name, _DNS_NAME, _DNS_RULE, most) for flag, name, most in optional if name),
        *(("--tolerate", key, _NODE_KEY, _TAINT_RULE, _LONGEST_KEY) for key in plan.tolerations),
    ]
    if plan.image:
        rules.append(("--image-uri", plan.image, _IMAGE, _IMAGE_RULE, _LONGEST_IMAGE))
    else:
        yield "no image: name it with --image-uri, or set cluster.image"
    for each in plan.secrets:
        rules.append(("--hf-token-secret", each.secret, _DNS_NAME, _DNS_RULE, LONGEST_DNS_NAME))
        rules.append(("--hf-token-secret, key", each.key, _SECRET_KEY, _KEY_RULE, LONGEST_DNS_NAME))
    for flag, name, pattern, rule, most in rules:
        if len(name) > most or not pattern.fullmatch(name):
            yield f"{flag} {quote_name(name)}: {rule} (at most {most} characters)"
    own = (plan.template.get("metadata") or {}).get("labels") or {}
    for place, labels, owned in (
        ("cluster.pod.node_selector", plan.node_selector, _OF_NODES),
        ("cluster.labels", plan.labels, _OF_JOBS),
        ("cluster.annotations", dict.fromkeys(plan.annotations, ""), _OF_JOBS),
        ("cluster.pod.template.metadata.labels", own, _OF_JOBS),
    ):
        for key, value in labels.items():
            if by := next((by for pattern, by in owned if re.match(pattern, key)), ""):
                yield f"{place}, {key}: the plan sets it, {by}"
            elif not _NODE_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value or ""):
                yield f"{place}, {quote_name(key)}: {quote_name(value)}: {_LABEL_RULE}"
