"""Compute the memory of a training step on one device, by part, at each moment that can be the peak.

    loss -> final norm's backward -> last block's backward -> ... -> first block's -> embedding's -> optimizer

Activations are freed and gradients appear at an even rate from block to block, so only the last and the first
block can be the peak. Only tensors are counted; the device's reserve (`device`) covers the memory of process,
driver and allocator.
"""

from dataclasses import dataclass, fields

from trainyard.config.parameters import count_parameters
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.plan import activations
from trainyard.plan.workload import Recomputation, TrainingWorkload, training_workload

_FLOAT = 4
LOSS_ROWS_BYTES = 1 << 21, 1 << 26
"""Bytes of float32 logits per chunk of the loss, on a CPU and on a GPU."""
_CUBLAS_WORKSPACE = 8 * 4096 * 1024
"""Bytes; `trainyard train` sets CUBLAS_WORKSPACE_CONFIG=:4096:8 for deterministic matrix products."""


@dataclass(frozen=True)
class MemoryParts:
    """Bytes by purpose."""

    weights: int
    """Float32 parameters, and the rotary tables."""
    moments: int
    """The optimizer's state, and PowerSGD's error feedback in float32."""
    gradients: int = 0
    """Float32 gradients; they appear as activations are freed."""
    copies: int = 0
    """Bfloat16 copies of weights that autocast keeps from the forward to the backward pass."""
    activations: int = 0
    """Activations that the blocks and the final norm keep for the backward pass."""
    logits: int = 0
    """Logits and their gradient."""
    workspace: int = 0
    """Temporary memory of single operations, and weights gathered from other devices."""
    staging: int = 0
    """On a CPU, the staged copy of the state, kept from the first save on."""

    @property
    def total(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))


@dataclass(frozen=True)
class MemoryPeak:
    """Memory at one point of the step."""

    name: str
    parts: MemoryParts


def memory_peaks_of(work: TrainingWorkload) -> tuple[MemoryPeak, ...]:
    """Return every moment that can be the peak, in the order of the step."""
    blocks = work.architecture.num_layers
    return (
        MemoryPeak("loss", _at_loss(work)),
        MemoryPeak("backward pass of the final norm", _at_final_norm(work)),
        MemoryPeak("backward pass of the last feed-forward", _at_feed_forward(work, left=blocks)),
        MemoryPeak("backward pass of the last attention", _at_attention(work, left=blocks)),
        MemoryPeak("backward pass of the first feed-forward", _at_feed_forward(work, left=1)),
        MemoryPeak("backward pass of the first attention", _at_attention(work, left=1)),
        MemoryPeak("end of the backward pass", _at_end(work)),
        MemoryPeak("optimizer step", _at_optimizer(work)),
    )


def highest_memory_peak(work: TrainingWorkload) -> MemoryPeak:
    """Return the moment of the peak."""
    return max(memory_peaks_of(work), key=lambda moment: moment.parts.total)


def _resident(work: TrainingWorkload) -> dict[str, int]:
    """Memory that is held at every moment: weights, optimizer state, staged copy."""
    shape, parts = work.architecture, work.layout.parts
    weights = 0 if work.layout.offloaded else _FLOAT * count_parameters(shape).total // parts
    tables = 2 * _FLOAT * shape.max_position_embeddings * (shape.hidden_size // shape.num_attention_heads)
    moments = (work.optimizer_bytes + (_FLOAT if work.layout.compressed else 0)) * weights // _FLOAT
    return {
        "weights": weights + tables,
        "moments": moments,
        "staging": 0 if work.on_gpu else _staging_bytes(work),
    }


def host_bytes(work: TrainingWorkload) -> int:
    """Main memory that one GPU process uses: offloaded state and the staged copy."""
    if not work.on_gpu:
        return 0
    weights = _FLOAT * count_parameters(work.architecture).total // work.layout.parts
    state = (2 * _FLOAT + work.optimizer_bytes) * weights // _FLOAT
    return (state if work.layout.offloaded else 0) + _staging_bytes(work)


def _staging_bytes(work: TrainingWorkload) -> int:
    """Bytes of the staged copy of this process's state; replicas share the saving."""
    if not work.staged:
        return 0
    total, layout = _FLOAT * count_parameters(work.architecture).total, work.layout
    saved = (_FLOAT + work.optimizer_bytes) * total // _FLOAT
    return saved // (layout.parts * layout.replicas) + (total if layout.compressed else 0)


def _at_loss(work: TrainingWorkload) -> MemoryParts:
    """Memory in the loss: all activations, logits, their gradient, and two float32 copies of one chunk."""
    count, shape = count_parameters(work.architecture), work.architecture
    kept = shape.num_layers * activations.block_bytes(work) + activations.final_norm_bytes(work)
    copied = count.head + _copied_blocks(work) * count.block
    return MemoryParts(
        **_resident(work),
        gradients=_gradients(work, so_far=0),
        copies=_copies(work, copied),
        activations=work.tokens * (kept + activations.shared_bytes(work)),
        logits=2 * work.tokens * shape.vocab_size * work.compute_bytes,
        workspace=_lasting_workspace(work) + rows_of_logits(work),
    )


def rows_of_logits(work: TrainingWorkload) -> int:
    """Bytes of the two float32 copies of one chunk."""
    row = _FLOAT * work.architecture.vocab_size
    return 2 * row * min(work.tokens, max(1, LOSS_ROWS_BYTES[work.on_gpu] // row))


def _at_final_norm(work: TrainingWorkload) -> MemoryParts:
    count, shape = count_parameters(work.architecture), work.architecture
    floats = 3 if work.compiled or work.on_gpu else 5
    return MemoryParts(
        **_resident(work),
        gradients=_gradients(work, so_far=count.head),
        copies=_copies(work, _copied_blocks(work) * count.block),
        activations=work.tokens
        * (
            shape.num_layers * activations.block_bytes(work)
            + shape.hidden_size * work.residual_bytes
            + activations.shared_bytes(work)
        ),
        workspace=work.tokens * floats * shape.hidden_size * _FLOAT + _lasting_workspace(work),
    )


def _at_feed_forward(work: TrainingWorkload, *, left: int) -> MemoryParts:
    """Memory in SwiGLU's backward pass with `left` blocks to go: gradients of residual and inner width."""
    count, shape = count_parameters(work.architecture), work.architecture
    done = count.head + (shape.num_layers - left) * count.block
    held = (
        shape.hidden_size * work.residual_bytes + 2 * activations.Widths.of(work).inner * work.compute_bytes
    )
    return MemoryParts(
        **_resident(work),
        gradients=_gradients(work, so_far=done + count.feed_forward // 3),
        copies=_copies(work, _copied_blocks(work, left=left) * count.block),
        activations=work.tokens * (_activation_bytes(work, left) + _recomputation_bytes(work)),
        workspace=work.tokens * held + _lasting_workspace(work) + _gathered_block(work, count.feed_forward),
    )


def _at_attention(work: TrainingWorkload, *, left: int) -> MemoryParts:
    """Memory in attention's backward pass with `left` blocks to go: gradients of q, k, v and any scores."""
    count, shape = count_parameters(work.architecture), work.architecture
    widths, done = activations.Widths.of(work), count.head + (shape.num_layers - left) * count.block
    scores = activations.scores_are_kept(work)
    keys = widths.query if work.separate and not scores else widths.key_value
    held = widths.residual * work.residual_bytes + 2 * (widths.query + keys) * work.compute_bytes
    if scores:
        held += 2 * widths.heads * work.sequence_length * work.compute_bytes
    kept = _activation_bytes(work, left) + _recomputation_bytes(work) - activations.feed_forward_bytes(work)
    return MemoryParts(
        **_resident(work),
        gradients=_gradients(work, so_far=done + count.feed_forward),
        copies=_copies(work, _copied_blocks(work, left=left) * count.block - count.feed_forward),
        activations=work.tokens * kept,
        workspace=work.tokens * held + _lasting_workspace(work) + _gathered_block(work, count.block),
    )


def _at_end(work: TrainingWorkload) -> MemoryParts:
    count, shape = count_parameters(work.architecture), work.architecture
    # The embedding's gradient is dense; a tied one is added to the gradient of the output layer.
    tied = _FLOAT * count.embedding // work.layout.parts if shape.tie_word_embeddings else 0
    # A compiled backward pass returns all gradients at once, in addition to those of earlier passes.
    again = _all_gradients(work) if work.compiled and _gradients_stay(work) else 0
    return MemoryParts(
        **_resident(work),
        gradients=_all_gradients(work) + max(tied, again),
        workspace=work.tokens * shape.hidden_size * work.residual_bytes
        + _lasting_workspace(work)
        # The unsharded gradients of embedding and output, and their reduce-scatter buffer.
        + ((work.compute_bytes + _FLOAT) * _tables(work) if work.layout.sharded else 0)
        # PowerSGD's next error, while gradients are exchanged.
        + (_all_gradients(work) if work.layout.compressed else 0),
    )


def _at_optimizer(work: TrainingWorkload) -> MemoryParts:
    workspace = _CUBLAS_WORKSPACE if work.on_gpu else 0
    return MemoryParts(**_resident(work), gradients=_all_gradients(work), workspace=workspace)


def _all_gradients(work: TrainingWorkload) -> int:
    if work.layout.offloaded:
        return 0
    return _FLOAT * count_parameters(work.architecture).total // work.layout.parts


def _gradients(work: TrainingWorkload, *, so_far: int) -> int:
    """Bytes of gradients when the last accumulated pass has computed those of `so_far` parameters."""
    if work.layout.offloaded:
        return 0
    return _all_gradients(work) if _gradients_stay(work) else _FLOAT * so_far // work.layout.parts


def _gradients_stay(work: TrainingWorkload) -> bool:
    """Return whether gradients exist before the last forward pass.

    Those of earlier passes, or DDP's buckets.
    """
    return work.accumulation > 1 or work.layout.gradient_buckets


def _activation_bytes(work: TrainingWorkload, blocks: int) -> int:
    """Bytes per token that `blocks` blocks keep, with what they share."""
    return blocks * activations.block_bytes(work) + activations.shared_bytes(work)


def _recomputation_bytes(work: TrainingWorkload) -> int:
    return activations.block_backward_bytes(work) - activations.block_bytes(work)


def _copied_blocks(work: TrainingWorkload, *, left: int | None = None) -> int:
    """Number of blocks with bfloat16 copies while `left` are to go; with recomputation one."""
    if work.recomputation is Recomputation.NONE:
        return work.architecture.num_layers if left is None else left
    return 0 if left is None else 1


def _copies(work: TrainingWorkload, parameters: int) -> int:
    """Bytes of bfloat16 copies; FSDP casts weights when it gathers them (`_gathered_block`)."""
    return work.compute_bytes * parameters if work.bfloat16 and not work.layout.sharded else 0


def _lasting_workspace(work: TrainingWorkload) -> int:
    """Bytes of cuBLAS's workspace, and of embedding and output that FSDP gathers for the complete pass."""
    gathered = work.compute_bytes * _tables(work) if work.layout.sharded else 0
    return gathered + (_CUBLAS_WORKSPACE if work.on_gpu else 0)


def _tables(work: TrainingWorkload) -> int:
    count = count_parameters(work.architecture)
    return (count.embedding + count.output) // work.layout.tensor + work.architecture.hidden_size


def _gathered_block(work: TrainingWorkload, computed: int) -> int:
    """Bytes of two gathered blocks, the gradients of `computed` parameters, and a reduce-scatter buffer."""
    if not work.layout.sharded:
        return 0
    block = count_parameters(work.architecture).block
    return (work.compute_bytes * (2 * block + computed) + _FLOAT * block) // work.layout.tensor


def main_memory_need(config: Config, *, gpus: int) -> int:
    """Return the bytes of tensors at the peak of a step on a machine with `gpus` GPUs; 0 is the CPU.

    All processes of the machine count, as far as their memory can be computed.
    """
    if gpus:
        processes = gpus if config.compute.strategy != "single" else 1
        return processes * host_bytes(_workload(config, on_gpu=True, processes=gpus))
    return highest_memory_peak(_workload(config, on_gpu=False, processes=1)).parts.total


def _workload(config: Config, *, on_gpu: bool, processes: int) -> TrainingWorkload:
    """Return the workload on `processes`, or on the fewest that `compute` allows."""
    try:
        return training_workload(config, on_gpu=on_gpu, processes=processes)
    except ConfigError:  # more machines train it than this one
        fewest = config.compute.replicas * config.compute.tensor_parallel
        return training_workload(config, on_gpu=on_gpu, processes=fewest)
