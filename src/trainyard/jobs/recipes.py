"""Choose the program of a job's pods: the trainer, any program, a preset, or a command after `--`.

All but the last run `trainyard pod`, with the configuration in a file: it stores and proves the run, and
starts the program directly, or by torchrun if there are several processes. The image needs the packages of
the program and, beside them, Trainyard's core (`pip install git+https://github.com/OWNER/REPOSITORY`). The
command of a preset (`programs/presets/`) is rendered where it runs, in pods too; a job whose program could
not run is refused before it is sent.

A user's own command runs unchanged in every pod, and no run directory is kept for it; on Ray it is the driver
and runs once. `torchrun train.py` reads its place in the run from the variables of PyTorchJobs and TrainJobs,
so a fixed `--node_rank` is never needed there. HyperPod's operator sets others, which its own `hyperpodrun`
reads.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from trainyard.config.load import dump_yaml
from trainyard.config.mesh import require_processes
from trainyard.config.registries import COMMAND
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.jobs.job_spec import FILES_DIRECTORY, JobSpec, Program
from trainyard.jobs.kinds import KINDS
from trainyard.plan.cost import RentedMachines
from trainyard.plan.device import gpu_of
from trainyard.plan.instances import InstanceType, instance_called
from trainyard.plan.minimum_memory import MEGATRON, SHARDED, least_bytes
from trainyard.plan.parallel_degrees import Degrees, degree_problems, degrees_of, unused_degrees
from trainyard.plan.training_plan import plan_training
from trainyard.programs.presets.preset import (
    Preset,
    PresetRun,
    load_preset,
    own_settings,
    render_preset,
    settings_problems,
)
from trainyard.programs.program import Program as RunProgram
from trainyard.programs.program import program_of, program_with
from trainyard.run.launch_environment import nccl_log
from trainyard.run.run_settings import setting

# The names of the programs in a job's record.
TRAINER, ANY_PROGRAM, OWN_COMMAND = "trainyard", "program", "command"
_CONFIG_FILE = "config.yaml"
# The time between a program's last save and the end of its pod, and the least time for the save.
_MARGIN_SECONDS, _LEAST_SAVE_SECONDS = 15, 15
_GIB = 2**30
_MEMORY = {
    "megatron": (MEGATRON, "raise compute.tensor_parallel or compute.pipeline_parallel, or take more GPUs"),
    "sharded": (SHARDED, "take more GPUs"),
}
_DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
_STARTED = re.compile(r"(\S*/)?(torchrun|python[\d.]*( -\w+)* -m torch\.distributed\.(run|launch))( |$)")
_PLACED = re.compile(r"--(nnodes|rdzv|master|node[-_]rank|standalone)\b.*|--(rdzv|master)[-_].*")
"""torchrun's options that name the nodes and where they meet."""


def job_program(config: Config, plan: JobSpec) -> Program:
    """Return the program that the pods run; `plan` has the user's own command as its program, if any."""
    pod, on_ray = config.cluster.pod, KINDS[plan.kind].on_ray
    if own := plan.program.command:
        return Program(OWN_COMMAND, own, once=on_ray, directory=pod.directory or "", python=pod.python)
    if not config.is_program:
        return pod_program(TRAINER, config, plan)
    # On Ray, torchrun is started on every node, and any other program on the head alone.
    by_torchrun = config.recipe != COMMAND and load_preset(config.recipe).launcher == "torchrun"
    return pod_program(ANY_PROGRAM, config, plan, once=on_ray and not by_torchrun)


def pod_program(name: str, config: Config, plan: JobSpec, *, once: bool = False) -> Program:
    """Return the program of pods that run `trainyard pod`; with `once` one pod runs it for all nodes."""
    pod, is_for_all = config.cluster.pod, once and plan.nodes > 1
    command = (
        # -P: a module of the program, such as its `datasets.py`, must not replace one that Trainyard imports.
        *(pod.python, "-P", "-m", "trainyard", "pod"),
        *("--config", f"{FILES_DIRECTORY}/{_CONFIG_FILE}"),
        *("--run-dir", plan.run_directory),
        *("--nproc-per-node", str(plan.processes_per_node)),
        *(("--num-nodes", str(plan.nodes)) if is_for_all else ()),
        *("--grace", f"{max(_LEAST_SAVE_SECONDS, pod.grace_seconds - _MARGIN_SECONDS)}s"),
    )
    return Program(
        name,
        command,
        once=once,
        directory=pod.directory or "",
        python=pod.python,
        files={_CONFIG_FILE: dump_yaml(config)},
        nccl_log=nccl_log(PurePosixPath(plan.run_directory, "logs"), 0) if is_for_all else "",
    )


def program_problems(config: Config, plan: JobSpec) -> Iterator[str]:
    """Yield the reasons why the pods cannot run the program; `plan` is that of `job_program`."""
    if plan.program.command:
        yield from _command_problems(plan)
    elif not config.is_program:
        yield from _trainer_problems(config, plan)
    elif config.recipe != COMMAND:
        yield from _preset_job_problems(config, plan)
    else:
        yield from _ray_problems(config, plan)
        if not config.checkpointing.shared:
            yield (
                "checkpointing.shared: false is for the trainer of this repository; leave it out with this "
                "recipe"
            )


def _ray_problems(config: Config, plan: JobSpec) -> Iterator[str]:
    """Yield why a program that uses one node cannot run on several nodes of Ray."""
    if KINDS[plan.kind].on_ray and plan.nodes > 1:
        yield (
            f"recipe {config.recipe}: on Ray it runs once, on the head, so {plan.nodes - 1} of "
            f"{plan.nodes} nodes would do nothing; use --kind pytorchjob or trainjob"
        )


def _command_problems(plan: JobSpec) -> Iterator[str]:
    command, kind = plan.program.command, KINDS[plan.kind]
    if not _STARTED.match(" ".join(command)):
        return
    if kind.on_ray and plan.nodes > 1:
        yield (
            f"-- torchrun: on Ray a command runs once, on the head, so {plan.nodes - 1} of {plan.nodes} "
            "nodes would do nothing; use --kind pytorchjob or trainjob, or a command that starts tasks on "
            "all of them"
        )
    elif kind.agent and not any(map(_PLACED.fullmatch, command)):
        yield (
            f"-- torchrun: it does not read the variables of {kind.api.installs}, so each pod would "
            f"train alone; use -- {kind.agent} --nnodes={plan.nodes} "
            f"--nproc-per-node={plan.processes_per_node}"
        )


def _trainer_problems(config: Config, plan: JobSpec) -> Iterator[str]:
    """Yield problems of the processes, world size, mesh and memory."""
    instance = instance_called(plan.instance_type)
    if 0 < plan.resources.gpus < plan.processes_per_node and config.model.device != "cpu":
        yield (
            f"--nproc-per-node {plan.processes_per_node}: each process needs a GPU of its own, and a pod has "
            f"{plan.resources.gpus}; leave it out for one per GPU"
        )
    try:
        require_processes(config, plan.nodes * plan.processes_per_node)
    except ConfigError as error:
        yield str(error).removesuffix(" Nothing was started.")
        return
    if instance is None or not plan.resources.gpus:
        return
    fitted = plan_training(
        config, gpu_of(instance), rented=RentedMachines(instance, plan.nodes, plan.processes_per_node)
    )
    if not fitted.fits:
        needs, has = fitted.peak.parts.total / _GIB, fitted.device.usable_bytes / _GIB
        change = f"; it fits with {' '.join(fitted.advice[0].overrides)}" if fitted.advice else ""
        yield (
            f"{config.model.name} does not fit: a GPU needs {needs:.1f} GiB, {instance.gpu} has {has:.1f} GiB"
            f"{change} (trainyard plan shows more)"
        )


def _preset_job_problems(config: Config, plan: JobSpec) -> Iterator[str]:
    preset, run, kind = load_preset(config.recipe), run_in_pods(config, plan), KINDS[plan.kind]
    processes, gpus = plan.processes_per_node, plan.resources.gpus
    if preset.launcher == "auto":
        yield from _ray_problems(config, plan)
    if preset.launcher == "ray" and not kind.on_ray and plan.nodes > 1:
        yield (f"--kind {kind.name}: {preset.name} runs on Ray; use --kind rayjob or raycluster")
    if preset.launcher == "torchrun" and gpus and processes != gpus:
        yield (f"--nproc-per-node {processes}: this recipe starts one process per GPU, and a node has {gpus}")
    yield from preset_problems(preset, config, run)
    for key, what in preset.paths.items():
        path = setting(config.to_plain(), key)
        if path is not None and not PurePosixPath(path).is_absolute():
            yield (
                f"{key}: {path} is not absolute; name {what}, as a place in the pods such as "
                f"{plan.run_directory}/{path}"
            )
    instance = instance_called(plan.instance_type)
    if instance is not None and gpus and (division := preset.memory(config)) is not None:
        yield from _memory_problems(config, run.degrees, division, instance)


def program_here(
    config: Config, run_directory: Path, *, nodes: int = 1, processes: int | None = None
) -> RunProgram:
    """Return the program of a configuration on this machine; `program.directory` is relative to the current.

    Raises ConfigError with every problem, one per line, and for a recipe that is no program.
    """
    if not config.is_program:
        raise ConfigError(
            f"recipe: {config.recipe} trains with the trainer of this repository. Set recipe: command and "
            "program.command to run another program, or start trainyard train."
        )
    base = Path.cwd()
    if config.recipe == COMMAND:
        return program_of(config, base)
    preset, processes = load_preset(config.recipe), processes or config.program.processes
    run = _run(config, str(run_directory), nodes, processes)
    if problems := [*preset_problems(preset, config, run)]:
        raise ConfigError("\n".join([*problems, f"recipe: {preset.name} cannot run. Nothing was started."]))
    rendered = render_preset(preset, config, run)
    program = program_with(config, base, rendered.words)
    given = config.program
    return replace(
        program,
        files=rendered.files,
        data=rendered.data if given.data is None else given.data,
        environment={**rendered.environment, **given.environment},
        steps=given.steps or config.training.max_steps,
        checkpoints=f"{run.checkpoints}/{preset.checkpoints}"
        if given.checkpoints == "auto"
        else given.checkpoints,
        metrics=rendered.metrics if given.metrics == "auto" else given.metrics,
        resume=given.resume or preset.resume,
        torchrun=True if preset.launcher == "torchrun" else None if preset.launcher == "auto" else False,
    )


def preset_problems(preset: Preset, config: Config, run: PresetRun) -> Iterator[str]:
    """Yield why the program of a preset cannot train with this configuration, wherever it runs."""
    yield from _key_problems(preset, config)
    training = config.training
    if training.warmup_steps >= (training.max_steps or 0) > 0:
        yield (
            f"training.warmup_steps: {training.warmup_steps} is not below training.max_steps, "
            f"{training.max_steps}"
        )
    yield from degree_problems(config, run.degrees)
    yield from settings_problems(preset, config, run)
    yield from preset.problems(config, run)


def _memory_problems(
    config: Config, degrees: Degrees, division: str, instance: InstanceType
) -> Iterator[str]:
    """Yield a problem if the model alone, without the program's other data, does not fit."""
    state, fix = _MEMORY[division]
    needs, device = least_bytes(config, degrees, state), gpu_of(instance)
    if needs > device.usable_bytes:
        yield (
            f"{config.model.name} does not fit: a GPU needs at least {needs / _GIB:.1f} GiB, "
            f"{instance.gpu} has {device.usable_bytes / _GIB:.1f} GiB; {fix}"
        )


def _key_problems(preset: Preset, config: Config) -> Iterator[str]:
    """Yield the keys that are missing, and those that are set although the program has no use for them."""
    for key, what in preset.required.items():
        if setting(config.to_plain(), key) is None:
            yield f"{key}: not set; name {what}"
    unused = [name for name in _DEGREES if f"compute.{name}" not in preset.uses]
    yield from unused_degrees(config, preset.name, *unused)
    compute = config.compute
    for key, found, kept in (
        ("compute.cpu_offload", compute.cpu_offload, False),
        ("compute.gradient_compression", compute.gradient_compression, "none"),
        ("compute.replicas", compute.replicas, 1),
        ("data.hugging_face.dataset", config.data.hugging_face.dataset, None),
        ("checkpointing.shared", config.checkpointing.shared, True),
        ("training.epochs", config.training.epochs, None),
    ):
        if found != kept and key not in preset.uses:
            yield f"{key}: {found} is for the trainer of this repository; leave it out with this recipe"


def run_in_pods(config: Config, plan: JobSpec) -> PresetRun:
    """Return the run of a job, which its pods render the command for."""
    return _run(config, plan.run_directory, plan.nodes, plan.processes_per_node)


def _run(config: Config, directory: str, nodes: int, processes: int) -> PresetRun:
    degrees = degrees_of(config, nodes=nodes, per_node=processes)
    if load_preset(config.recipe).only_data_parallel:
        degrees = replace(degrees, tensor=1, pipeline=1, context=1)
    return PresetRun(directory, nodes, degrees, own_settings(config))
