"""Compute the least memory that another program's training step takes on one GPU.

Only what every mixed-precision training holds is counted: weights, gradients, AdamW's state, and the inputs
of the layers that are kept for the backward pass. Other programs hold more. So a model that is refused here
cannot fit, and one that is not refused may still not fit. `device_memory` has the complete account of the
trainer's own step.
"""

from trainyard.config.parameters import count_parameters
from trainyard.config.schema import Config
from trainyard.plan.parallel_degrees import Degrees

_HALF = 2
"""Bytes of a bfloat16."""


MEGATRON = (2 + 4, 12)
"""Bytes per parameter on every process that has it, and bytes divided over the data-parallel processes.

Bfloat16 weight and float32 gradient; float32 weight and both moments in the distributed optimizer.
"""
SHARDED = (0, 16)
"""FSDP, and ZeRO of stage 3: everything is divided; float32 weight, gradient and both moments."""


def least_bytes(config: Config, found: Degrees, state: tuple[int, int]) -> int:
    """Return the least bytes on the GPU that has most of the model."""
    shape = config.model.architecture
    counts = count_parameters(shape)
    layers = shape.num_layers // found.pipeline * counts.block
    tables = counts.embedding if found.pipeline > 1 else counts.embedding + counts.output
    parameters = (layers + tables) // found.tensor
    kept, shared = state
    states = parameters * kept + parameters * shared // (found.data * found.context)
    return states + _kept_inputs(config, found)


def _kept_inputs(config: Config, found: Degrees) -> int:
    """Bytes of the inputs of one stage's layers, for the micro batches that are in progress at once."""
    shape = config.model.architecture
    tokens = found.micro_batch * config.data.sequence_length // (found.context * found.tensor)
    in_progress = min(found.pipeline, found.micro_batches)
    return in_progress * (shape.num_layers // found.pipeline) * tokens * shape.hidden_size * _HALF
