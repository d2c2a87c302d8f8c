"""Run the program of a preset (`programs/presets/`): check its configuration, make its command.

The command is rendered where it runs, in pods too; a job whose program could not run is refused before it is
sent. What the command means is in the preset; the arithmetic of batches, degrees and memory is in `plan`.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from trainyard.config.registries import COMMAND
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.jobs.job_spec import JobSpec, Program
from trainyard.jobs.kinds import KINDS
from trainyard.jobs.recipes import any_program
from trainyard.plan.device import gpu_of
from trainyard.plan.instances import InstanceType, instance_called
from trainyard.plan.minimum_memory import MEGATRON, SHARDED, least_bytes
from trainyard.plan.parallel_degrees import Degrees, degree_problems, degrees_of, unused_degrees
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
from trainyard.run.run_settings import setting

_GIB = 2**30
_MEMORY = {
    "megatron": (MEGATRON, "raise compute.tensor_parallel or compute.pipeline_parallel, or take more GPUs"),
    "sharded": (SHARDED, "take more GPUs"),
}
_DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")


def problems(config: Config, plan: JobSpec) -> Iterator[str]:
    preset, run, kind = load_preset(config.recipe), run_in_pods(config, plan), KINDS[plan.kind]
    processes, gpus = plan.processes_per_node, plan.resources.gpus
    if preset.launcher == "auto":
        yield from any_program.ray_problems(config, plan)
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


def program(config: Config, plan: JobSpec) -> Program:
    # On Ray, torchrun is started on every node, and any other program on the head alone.
    once = KINDS[plan.kind].on_ray and load_preset(config.recipe).launcher != "torchrun"
    return any_program.pod_program(any_program.NAME, config, plan, once=once)


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
