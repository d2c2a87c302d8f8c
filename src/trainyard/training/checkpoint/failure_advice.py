"""Choose the advice and settings for a failed training run, which go into its message and its record.

There is one rule per class of failure. For failures caused by the configuration (values that are not finite,
memory) the rule suggests other settings; for all others it names the fix and suggests the same command.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from trainyard.config.schema import Config
from trainyard.errors import TrainingFailedError, TrainyardError
from trainyard.run.checkpoint_retention import complete_steps
from trainyard.run.directory import RunDirectory
from trainyard.run.failure import Failure, FailureKind, command_after
from trainyard.run.records import read_rows
from trainyard.run.suggested_commands import made_by

Error = TypeVar("Error", bound=TrainyardError)
_HIGHEST_RATE = 1e-3  # the highest learning rate that is suggested, a usual peak rate of small models
_DIVIDED_BY = 10
# Parts of the messages of torch's allocator for main memory, which raises RuntimeError.
_CPU_SIGNS = ("DefaultCPUAllocator", "not enough memory", "Cannot allocate memory")


def build_error(kind: type[Error], what: str, failure: Failure, directory: RunDirectory) -> Error:
    """Return the error: `what` happened, what to do, and the command that resumes or starts again."""
    command = command_after(failure, directory.path, command_line=made_by())
    error = kind(f"{what}\n{failure.fix or 'Once that is fixed'}: {command}")
    error.failure = failure
    return error


def not_finite_failure(step: int, config: Config, directory: RunDirectory) -> Failure:
    """The failure of a loss, gradient or weight in `step` that is not finite."""
    # A tenth of the rate, but at most the highest suggested one, with one significant digit.
    rate = float(f"{min(config.training.learning_rate / _DIVIDED_BY, _HIGHEST_RATE):.0e}")
    changes: dict[str, Any] = {"training.learning_rate": rate}
    if config.training.max_grad_norm is None:
        changes["training.max_grad_norm"] = 1.0
        fix = "Lower training.learning_rate and clip the gradients, or inspect that batch"
    else:
        fix = "Lower training.learning_rate or training.max_grad_norm, or inspect that batch"
    losses = [row["loss"] for row in read_rows(directory.metrics_file) if isinstance(row.get("loss"), float)]
    # If the loss had grown already, the weights of the newest checkpoint may be bad too.
    has_grown = len(losses) > 1 and losses[-1] > losses[0]
    newest = None if has_grown else max(complete_steps(directory), default=None)
    return Failure(FailureKind.NOT_FINITE, step, fix, changes, newest)


def out_of_memory_failure(
    kind: FailureKind, step: int | None, config: Config, directory: RunDirectory
) -> Failure:
    """Suggest smaller forward passes with the same global batch.

    If a forward pass has one sequence already, suggest recomputing activations, then shorter sequences.
    """
    training, newest = config.training, max(complete_steps(directory), default=None)
    if (size := training.batch_size) > 1:
        factor = next(number for number in range(2, size + 1) if size % number == 0)
        changes: Mapping[str, Any] = {
            "training.batch_size": size // factor,
            "training.gradient_accumulation_steps": training.gradient_accumulation_steps * factor,
        }
        fix = "Train on fewer sequences at once, and accumulate more; the numbers stay the same"
        return Failure(kind, step, fix, changes, newest)
    if config.compute.activation_checkpointing != "full":
        fix = "Recompute the activations in the backward pass instead of keeping them"
        changes = {"compute.activation_checkpointing": "full"}
        return Failure(kind, step, fix, changes, newest)
    # Another sequence length changes the sequences, so no checkpoint fits.
    changes = {"data.sequence_length": max(1, config.data.sequence_length // 2)}
    return Failure(kind, step, "Train on shorter sequences", changes)


@contextmanager
def explain_memory_errors(
    config: Config, directory: RunDirectory, *, step: Callable[[], int] | None = None
) -> Iterator[None]:
    """Convert an out-of-memory error to one with advice.

    `step` returns the step that the body trains; None when it trains none, such as for a model that is too
    large.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        kind = memory_kind(error)
        if kind is None:
            raise
        number, memory = step() if step else None, "GPU" if kind is FailureKind.GPU_MEMORY else "main"
        words = (
            f"out of {memory} memory with {config.training.batch_size} x {config.data.sequence_length:,} "
            "tokens per forward pass"
        )
        what = words if number is None else f"Step {number}: {words}."
        failure = out_of_memory_failure(kind, number, config, directory)
        raise build_error(
            TrainingFailedError, f"{what} ({_cause_line(error)})", failure, directory
        ) from error


def memory_kind(error: BaseException) -> FailureKind | None:
    """The kind of memory that ran out; None when `error` is something else."""
    if isinstance(error, torch.OutOfMemoryError):
        return FailureKind.GPU_MEMORY
    if isinstance(error, MemoryError):
        return FailureKind.HOST_MEMORY
    signs = isinstance(error, RuntimeError) and any(sign in str(error) for sign in _CPU_SIGNS)
    return FailureKind.HOST_MEMORY if signs else None


def _cause_line(error: BaseException) -> str:
    """The allocator's message in one line; for main memory, the size of the failed allocation."""
    if requested := re.search(r"tried to allocate (\d{1,18}) bytes", str(error)):
        return f"{int(requested[1]) / 1e9:.1f} GB more were requested"
    return (str(error).strip() or type(error).__name__).splitlines()[0]
