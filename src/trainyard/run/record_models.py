"""The records of a run directory as pydantic models: `run.json`, events and rows of metrics.

`tools/write_config_schema.py` publishes their JSON Schemas in `docs/schemas/`. Unknown keys are accepted,
because a later version may write them. A million rows are not validated one by one: `proof` and the reports
judge them where they use them.
"""

from functools import cache
from pathlib import PurePosixPath
from typing import Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, TypeAdapter, ValidationError

_SCHEMA = 1
_WORDS = {
    "missing": "is missing",
    "int_type": "is not a whole number",
    "float_type": "is not a number",
    "bool_type": "is not true or false",
    "string_type": "is not a text",
    "string_too_short": "is empty",
    "model_type": "is not an object",
    "dict_type": "is not an object",
    "dataclass_type": "is not an object",
    "list_type": "is not a list",
    "tuple_type": "is not a list",
    "string_pattern_mismatch": "is not a digest: 64 hex digits in lower case",
}
"""Messages for pydantic's types of errors, in the terms of JSON."""
Kind = TypeVar("Kind")


def _require_known(schema: int) -> int:
    if schema != _SCHEMA:
        raise ValueError(f"this version reads {_SCHEMA}, not {schema}")
    return schema


def _path_inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or path == PurePosixPath():
        raise ValueError(f"{name!r:.80} is not a file of the folder")
    return str(path)


Whole = Annotated[int, Strict()]
Count = Annotated[int, Strict(), Field(ge=0, lt=1 << 63)]
Number = Annotated[float, Strict()]
Truth = Annotated[bool, Strict()]
Text = Annotated[str, Strict()]
Name = Annotated[str, Strict(), Field(min_length=1)]
RelativePath = Annotated[str, Strict(), AfterValidator(_path_inside)]
Digest = Annotated[str, Strict(), Field(pattern="^[0-9a-f]{64}$")]
# For dataclasses that code also creates; a field may have another name in the file.
OF_A_FILE = ConfigDict(populate_by_name=True, use_attribute_docstrings=True)
SchemaNumber = Annotated[int, Strict(), AfterValidator(_require_known), Field(json_schema_extra={"const": 1})]


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def validate_record(kind: type[Kind], value: object, *, context: object = None) -> Kind:
    """Return `value` as a record of this kind. Raises ValueError that names the first wrong field."""
    try:
        return cast(Kind, _adapter(cast(Any, kind)).validate_python(value, context=context))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place, words = ".".join(map(str, first["loc"])), _WORDS.get(first["type"])
        message = f"{place}: {first['msg']}" if place else first["msg"]
        raise ValueError(
            f"{place or 'the record'} {words}" if words else message.replace("Value error, ", "", 1)
        ) from None


class Section(BaseModel):
    """An object in a record."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True, defer_build=True)


class Git(Section):
    """The code."""

    commit: Text | None = None
    branch: Text | None = None
    dirty: Truth | None = None
    diff_sha256: Text | None = None
    """SHA-256 of the diff of a dirty tree."""
    files: dict[str, Any] = {}
    """SHA-256 by name of files that git does not track and that the program may read."""


class Data(Section):
    """The prepared data."""

    name: Text | None = None
    fingerprint: Text | None = None
    train_tokens: Whole | None = None
    validation_tokens: Whole | None = None


class Hardware(Section):
    """The machines and what they ran."""

    device: Text | None = None
    device_name: Text | None = None
    world_size: Whole | None = None
    local_world_size: Whole | None = None
    threads: Whole | None = None
    peak_flops: Number | None = None


class Parent(Section):
    """The checkpoint that the run started from."""

    checkpoint: Text | None = None
    manifest_sha256: Text | None = None


class Job(Section):
    """The object of Kubernetes in whose pods the run was started."""

    kind: Text | None = None
    namespace: Text | None = None
    name: Text | None = None
    uid: Text | None = None


class Plan(Section):
    """The planned steps."""

    steps: Whole | None = None
    steps_per_epoch: Whole | None = None
    epochs: Number | None = None
    parameters: Number | None = None
    flops_per_token: Number | None = None


class StateDigests(Section):
    """Digests of the final tensors: two runs have the same result exactly when these are equal."""

    model: Text | None = None
    optimizer: Text | None = None


class SavedCheckpoint(Section):
    """The run's last checkpoint."""

    step: Whole | None = None
    manifest_sha256: Text | None = None


class ProgramException(Section):
    """An exception that ended a program, as it was observed or as the last output shows it."""

    type: Text | None = None
    message: Text | None = None
    place: Text | None = None
    """FILE:LINE."""
    cause: Text | None = None
    """`TYPE: MESSAGE` of the exception that caused it."""
    code: Text | None = None
    """The errno of the cause, or what a service answered: `[Errno 28]`, `HTTP 503`."""
    rank: Whole | None = None
    """The rank of the process, if several trained."""


class Observed(Section):
    """Facts that the observer reported from inside a program (`recipe: command` and presets)."""

    processes: list[Any] = []
    """The processes that trained: pid, rank, script and optimizer steps."""
    world: dict[str, Any] = {}
    """Size and backend of the processes that trained together."""
    machine: dict[str, Any] = {}
    """Host, torch, CUDA, GPUs, driver, threads, seed and whether algorithms are deterministic."""
    packages: dict[str, Any] = {}
    """The version of each installed package that the training imported."""
    unobserved: list[Any] = []
    """Why Pythons of the program were not observed, a reason each."""


class Outcome(Section):
    """The end of a run."""

    status: Text | None = None
    """succeeded, failed or stopped."""
    exit_code: Whole | None = None
    reason: Text | None = None
    steps: Whole | None = None
    sources: dict[str, Any] = {}
    """Where the steps and each figure of a program come from: declared, observed, structured or printed."""
    unit: Text | None = None
    """`epochs` if they are the steps, because nothing else was counted."""
    optimizer_steps: Whole | None = None
    """Steps of optimizers, or rounds or batches of a library, that were observed inside a program."""
    exception: ProgramException | None = None
    """The exception that ended a program; its exit code may be 0."""
    first_loss: Number | None = None
    final_loss: Number | None = None
    validation_loss: Number | None = None
    bits_per_byte: Number | None = None
    first_reward: Number | None = None
    final_reward: Number | None = None
    seconds: Number | None = None
    tokens: Number | None = None
    finished: Number | None = None
    """Unix seconds."""
    grace_seconds_needed: Number | None = None
    seconds_since_signal: Number | None = None
    sample: Text | None = None
    checkpoint: SavedCheckpoint = SavedCheckpoint()
    state_sha256: StateDigests = StateDigests()


class RunRecord(Section):
    """`run.json`: identity and provenance, written first; the outcome is added last."""

    run_id: Name
    key: Text | None = None
    """32 hex digits that no other run has, made at its first start."""
    attempt: Whole | None = None
    """Which start of the run wrote this, counted from 1."""
    stored_as: dict[str, Any] = {}
    """The number of the run in each store, by the store's address."""
    created: Number | None = None
    """Unix seconds."""
    version: Text | None = None
    config_file: Text | None = None
    config_sha256: Text | None = None
    lock_sha256: Text | None = None
    other_versions: list[Any] = []
    """Packages that a program imported with another version than its lock pins: `torch 2.15.0, not 2.9.0`."""
    image_digest: Text | None = None
    image_name: Text | None = None
    owner: Text | None = None
    """Whose run a job trained: NAMESPACE/CREATOR/COMMAND, the last one as a digest."""
    job: Job = Job()
    seed: Whole | None = None
    git: Git = Git()
    data: Data = Data()
    hardware: Hardware = Hardware()
    ci: dict[str, Any] = {}
    """Facts of the workflow run."""
    parent: Parent = Parent()
    plan: Plan = Plan()
    model: dict[str, Any] = {}
    """The weights that it started from."""
    observed: Observed = Observed()
    history: list[Any] = []
    """The origin of each earlier segment, with its last step as `until`."""
    outcome: Outcome = Outcome()


class Event(Section):
    """A line of `events.jsonl`."""

    event: Name
    """started, resumed, validated, checkpoint_saved, checkpoint_failed, preempted, interrupted, …"""
    time: Number
    """Unix seconds."""
    step: Count | None = None
    status: Text | None = None
    reason: Text | None = None
    manifest_sha256: Digest | None = None
    """SHA-256 of the manifest of the checkpoint that was saved or resumed from."""
    val_loss: Number | None = None
    """Validation loss of the weights that the run started from (event `validated`)."""
    val_bits_per_byte: Number | None = None


class MetricRow(Section):
    """A line of `metrics.jsonl`: one logged step. Unknown values are absent, never 0."""

    step: Count
    time: Number
    """Unix seconds."""
    loss: Number | Text | None = None
    """A string if the loss is not finite, which JSON cannot express. Other programs have rows without it."""
    epoch: Number | None = None
    val_loss: Number | Text | None = None
    val_bits_per_byte: Number | None = None
    learning_rate: Number | None = None
    grad_norm: Number | Text | None = None
    skipped: Truth | None = None
    """True if Trainyard's trainer did not apply the update (`training.skip_bad_steps`)."""
    reward: Number | None = None
    reward_std: Number | None = None
    accuracy: Number | None = None
    kl: Number | None = None
    entropy: Number | None = None
    completion_length: Number | None = None
    """Tokens, on average."""
    tokens: Number | None = None
    samples: Number | None = None
    tokens_per_second: Number | None = None
    tokens_per_second_per_gpu: Number | None = None
    """Tokens per second of one GPU, from a program that prints only that."""
    samples_per_second: Number | None = None
    step_seconds: Number | None = None
    data_seconds: Number | None = None
    forward_seconds: Number | None = None
    backward_seconds: Number | None = None
    optimizer_seconds: Number | None = None
    checkpoint_seconds: Number | None = None
    """Time for which a save blocked training."""
    mfu: Number | None = None
    """Share of the peak FLOP/s, 0 to 1."""
    memory_peak_bytes: Number | None = None
    """Peak main memory of the process, if there is no GPU."""
    gpu_memory_bytes: Number | None = None
    gpu_memory_peak_bytes: Number | None = None
    gpu_memory_total_bytes: Number | None = None
    gpu_utilization_percent: Number | None = None
    gpu_temperature_celsius: Number | None = None
    nan_steps: Whole | None = None
    """Steps since the last row whose loss was not finite."""
