"""The state that a step depends on: weights, moments, step, random generators; captured, restored, hashed.

The losses of the last steps are part of it, so that a resumed run judges a loss like an uninterrupted one.
`checkpoint` stores it.
"""

import hashlib
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainyard.run.usual_value import KEPT_VALUES, LEAST_VALUES, noise_limit, usual_value
from trainyard.training.model.shard_assignment import gather_tensor


@dataclass
class LossRecord:
    """The usual losses so far. They are equal on all processes, because each knows the loss of a step."""

    logarithms: list[float] = field(default_factory=list)
    """The last losses that were no spikes."""
    spikes: bool = False
    """Whether the last loss was a spike."""
    skipped_in_row: int = 0
    """Updates that were skipped since the last one that was applied."""

    def is_spike(self, loss: float) -> bool:
        """Return whether `loss` lies above the usual one by more than noise."""
        if loss <= 0 or len(self.logarithms) < LEAST_VALUES:
            return False
        median, deviation = usual_value(self.logarithms)
        return math.log(loss) - median > noise_limit(deviation)

    @property
    def usual(self) -> float:
        """Return the usual loss; there must be at least one."""
        return math.exp(usual_value(self.logarithms)[0])

    def add(self, loss: float) -> bool:
        """Add a finite loss; return whether a spike begins with it."""
        if loss <= 0:
            return False
        was_spike, self.spikes = self.spikes, self.is_spike(loss)
        if not self.spikes:
            self.logarithms = [*self.logarithms[1 - KEPT_VALUES :], math.log(loss)]
        return self.spikes and not was_spike


Tensors = dict[str, Tensor]
_QUICK_BYTES = 1 << 29


@dataclass
class TrainingState:
    """The changing parts of a run between two steps."""

    model: nn.Module
    """The uncompiled model, so that names do not depend on compilation."""
    optimizer: Optimizer
    step: int = 0
    """Optimizer steps done."""
    seconds: float = 0.0
    """Seconds of training so far, over all segments of the run."""
    data_position: dict[str, Any] | None = None
    """The position of this process's next data, if the step number alone does not determine it."""
    restored_positions: list[dict[str, Any]] = field(default_factory=list)
    """The `data_position` of all processes that wrote the checkpoint which was loaded."""
    exchange: Callable[[], Tensors] | None = None
    """The live tensors of a gradient exchange that has a state; they are the part `exchange`."""
    is_of_step: bool = True
    """False once `step` was set back to the last checkpoint's, because the tensors are of a later step."""
    pending_row: dict[str, Any] | None = None
    """The metrics of the last step while a stop has postponed its validation."""
    schedule_steps: int | None = None
    """The length of the learning rate's schedule in steps; None before the first step."""
    losses: LossRecord = field(default_factory=LossRecord)

    def tensors(self) -> dict[str, Tensors]:
        """The live tensors by part (`model`, `optimizer`) and name; loading into them restores both."""
        exchange = {"exchange": self.exchange()} if self.exchange else {}
        return {"model": dict(self.model.state_dict()), "optimizer": self._moments(), **exchange}

    def digests(self, *, hashed: bool = True) -> dict[str, str]:
        """Return `state_sha256` of the run contract: the digests of the model's and the optimizer's tensors.

        All processes must call it; with `hashed=False` a process only takes part in the gathering.
        """
        parts = {"model": self.model.state_dict(), "optimizer": self._moments()}
        return {part: digest_tensors(tensors, hashed=hashed) for part, tensors in parts.items()}

    def is_quick_to_hash(self) -> bool:
        """Return whether this process alone can compute the digests in about a second."""
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            return False
        tensors = (tensor for part in self.tensors().values() for tensor in part.values())
        return self.is_of_step and sum(tensor.nbytes for tensor in tensors) <= _QUICK_BYTES

    def _moments(self) -> Tensors:
        state = self.optimizer.state
        return {
            f"{name}.{key}": value
            for name, parameter in self.model.named_parameters()
            for key, value in state[parameter].items()
        }


def digest_tensors(tensors: Mapping[str, Tensor], *, hashed: bool = True) -> str:
    """SHA-256 over name, dtype, shape and bytes of each tensor, in order of name.

    Sharded tensors are gathered one at a time, so all processes must call it. With `hashed=False` a process
    only takes part in the gathering, and its result is the digest of nothing.
    """
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = gather_tensor(tensors[name].detach())
        if hashed:
            add_to_digest(total, name, tensor.cpu().contiguous())
    return total.hexdigest()


def add_to_digest(total: "hashlib._Hash", name: str, tensor: Tensor) -> None:
    """Add a contiguous `tensor` in main memory to the digest of a state."""
    total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
    total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)


def generator_states() -> dict[str, Any]:
    """The states of Python's, numpy's and torch's generators, as JSON."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [str(kind), np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": _hex(torch.get_rng_state()),
        "cuda": [_hex(state) for state in devices],
    }


def restore_generators(states: Mapping[str, Any]) -> None:
    """Set all generators to captured states; states of devices that no longer exist are ignored."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_from_hex(states["torch"]))
    for index, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_from_hex(state), index)


def _hex(state: Tensor) -> str:
    return bytes(state.numpy()).hex()


def _from_hex(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
