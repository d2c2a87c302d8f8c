#!/usr/bin/env python3
"""Measure the cost of a save for training: `checkpointing.mode: async`, `dcp.save` and `dcp.async_save`.

A model of 100 million parameters (1.2 GB of state) trains in this process with the shipped step. Three savers
take turns: `dcp.save`; `dcp.async_save` at its best settings (a process, and a stager thread with shared
memory, pinned on a GPU, that is kept and is awaited before the optimizer's update); and the shipped saver,
which also computes SHA-256. All write to a disk and fsync. The first saves of each kind, which
allocate memory and start processes, do not count; old checkpoints are removed between saves.

`blocked` is the time that training waited. `lost` is the extra time of the save and of the steps until it is
complete, compared with as many plain steps. Every second step is plain: SIGSTOP stops the writing processes
meanwhile. `whole` is the time from the start of the save to its completion, without the plain steps.

Reads:      nothing
Writes:     temporary checkpoints; each save on stderr, the figures on stdout (--json: as JSON)
Exit codes: 0 the goals are met, 1 they are not
Example:    benchmarks/checkpoint_stall.py --rounds 5
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

if TYPE_CHECKING:
    from trainyard.config.schema import Config

GOALS = {"blocked": 1.2, "lost": 1.0, "whole": 1.5}
"""The largest allowed ratio to the time of `dcp.async_save`."""
PEER = "dcp.async_save"
SHAPE = {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12}
SHAPE |= {"num_key_value_heads": 12, "vocab_size": 9728}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="counted saves of each kind, in turns")
    parser.add_argument("--warm-up", type=int, default=2, help="saves of each kind that are not counted")
    parser.add_argument("--steps", type=int, default=6, help="minimum number of steps during each save")
    parser.add_argument("--tokens", type=int, default=256, help="tokens per step")
    parser.add_argument("--layers", type=int, default=12, help="of the model; 7 million parameters each")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--dtype",
        default="bfloat16",
        choices=("bfloat16", "float32"),
        help="float32 suits a processor without bfloat16 instructions",
    )
    parser.add_argument("--threads", type=int, help="of training; default: one per core")
    parser.add_argument("--folder", type=Path, help="where to write; default: the system's temporary folder")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    warnings.simplefilter("ignore")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    with tempfile.TemporaryDirectory(dir=args.folder) as text, ExitStack() as held:
        parts, step_of = build(args, Path(text))
        kinds: dict[str, Kind] = {
            "dcp.save": AtOnce(parts),
            PEER: held.enter_context(AsyncSave.opened(parts)),
            "async": held.enter_context(Ours.opened(parts)),
        }
        rounds: dict[str, list[Round]] = {name: [] for name in kinds}
        for number in range(args.warm_up + args.rounds):
            for name, kind in kinds.items():
                measured = measure(step_of(kind), kind, least=args.steps)
                print(f"round {number - args.warm_up + 1} {name:15} {measured}", file=sys.stderr, flush=True)
                if number >= args.warm_up:
                    rounds[name].append(measured)
    result = {name: summary(rounds[name], rounds[PEER]) for name in kinds}
    print(json.dumps(result) if args.json else "\n".join(f"{name:15} {row}" for name, row in result.items()))
    ours, peer = result["async"], result[PEER]
    return 0 if all(ours[name] <= most * peer[name] for name, most in GOALS.items()) else 1


@dataclass(frozen=True)
class Round:
    """One save, in seconds."""

    blocked: float
    lost: float
    whole: float
    steps: int
    """Training steps done while the save ran."""
    plain: float
    """Median seconds of a step without a save."""


def summary(rounds: Sequence[Round], peer: Sequence[Round]) -> dict[str, Any]:
    """Return medians and all values of one way to save, and the ratios of its medians to those of `peer`.

    A save whose cost is smaller than the noise may seem to lose less than nothing; then there is no ratio.
    """
    result: dict[str, Any] = {"steps": [each.steps for each in rounds]}
    result["plain"] = [round(each.plain, 3) for each in rounds]
    for name in GOALS:
        values = [getattr(each, name) for each in rounds]
        median, others = statistics.median(values), statistics.median(getattr(each, name) for each in peer)
        result[name] = round(median, 4)
        result[f"{name}_values"] = [round(value, 3) for value in values]
        result[f"{name}_ratio"] = round(median / others, 3) if others > 0 else None
    return result


class Kind(Protocol):
    """A way to save; `waited` is the number of seconds that training has waited for it so far."""

    @property
    def waited(self) -> float: ...

    def save(self) -> None: ...

    def wait_until_staged(self) -> None:
        """Block until the weights may be changed by the next step."""

    def poll(self) -> bool:
        """Return whether the last save is complete."""

    def clean(self) -> None:
        """Remove old checkpoints."""


def measure(step: Any, kind: Kind, *, least: int) -> Round:
    """Save, then train until the save is complete and at least `least` steps are done."""
    plain = [seconds_of(step.step) for _ in range(2)]
    waited, steps, whole, held_up, done = kind.waited, list[float](), 0.0, 0.0, False
    begun = time.perf_counter()
    kind.save()
    saving = time.perf_counter() - begun
    while not done or len(steps) < least:
        start = time.perf_counter()
        step.step()
        if not done and (done := kind.poll()):
            whole = time.perf_counter() - begun - held_up
        steps.append(time.perf_counter() - start)
        with stopped_children():
            plain.append(seconds_of(step.step))
        held_up += plain[-1]
    usual = statistics.median(plain)
    lost = saving + steps[0] - usual + (len(steps) - 1) * (statistics.median(steps[1:]) - usual)
    kind.clean()
    if isinstance(kind, AtOnce):
        whole = saving
    return Round(kind.waited - waited, lost, whole, len(steps), usual)


def seconds_of(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class AtOnce:
    """The synchronous `dcp.save`."""

    def __init__(self, parts: Any) -> None:
        self.waited = 0.0
        self._state, self._target = parts.state, parts.directory.path.parent / "dcp.save"

    def save(self) -> None:
        from torch.distributed.checkpoint.state_dict_saver import save

        tensors = self._state.tensors()
        self.waited += seconds_of(lambda: save(tensors, checkpoint_id=self._target, no_dist=True))

    def wait_until_staged(self) -> None: ...

    def poll(self) -> bool:
        return True

    def clean(self) -> None:
        shutil.rmtree(self._target)


class AsyncSave:
    """`dcp.async_save` with a process, and the stager's fastest options for the device."""

    def __init__(self, parts: Any) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        self._on_gpu = on_gpu = parts.device.type == "cuda"
        options = StagingOptions(
            use_pinned_memory=on_gpu,
            use_shared_memory=True,
            use_async_staging=True,
            use_non_blocking_copy=on_gpu,
        )
        self.waited, self._stager = 0.0, DefaultStager(options)
        self._response: Any = None
        self._state, self._target = parts.state, parts.directory.path.parent / "dcp.async_save"

    @classmethod
    @contextmanager
    def opened(cls, parts: Any) -> Iterator["AsyncSave"]:
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        kind = cls(parts)
        yield kind
        kind._stager.close()
        dist.destroy_process_group()

    def save(self) -> None:
        import torch
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save

        with self._waiting():
            if self._on_gpu:
                torch.cuda.synchronize()  # its stream does not wait for that of training
            self._response = async_save(
                self._state.tensors(),
                checkpoint_id=self._target,
                async_checkpointer_type=AsyncCheckpointerType.PROCESS,
                async_stager=self._stager,
            )

    def wait_until_staged(self) -> None:
        with self._waiting():
            if self._response is not None:
                self._response.staging_completion.result()

    def poll(self) -> bool:
        if not self._response.upload_completion.done():
            return False
        self._response.upload_completion.result()
        self._response = None
        return True

    def clean(self) -> None:
        shutil.rmtree(self._target)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.waited += time.perf_counter() - start


class Ours:
    """The checkpoint saver that Trainyard ships."""

    def __init__(self, saver: Any, heard: "Heard") -> None:
        self._saver, self._heard = saver, heard
        self._saves = 0

    @classmethod
    @contextmanager
    def opened(cls, parts: Any) -> Iterator["Ours"]:
        from trainyard.training.run.checkpoint_scheduler import Saver

        with Saver(parts) as saver:
            yield cls(saver, parts.listener)

    @property
    def waited(self) -> float:
        return sum(self._heard.waited)

    def save(self) -> None:
        self._saves += 1
        self._saver.save()

    def wait_until_staged(self) -> None:
        self._saver.wait_until_staged()

    def poll(self) -> bool:
        self._saver.poll()
        return len(self._heard.waited) == self._saves

    def clean(self) -> None:
        self._saver.finish()


class Heard:
    """Records how many seconds training waited for each save."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def on_row(self, row: dict[str, Any]) -> None: ...

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        if event == "checkpoint_saved":
            self.waited.append(fields["seconds"])


def config_of(args: argparse.Namespace) -> "Config":
    from trainyard.config.schema import Config

    shape = SHAPE | {"num_layers": args.layers}
    return Config.model_validate(
        {
            "model": {"name": "stall", "device": args.device, "dtype": args.dtype, "architecture": shape},
            "training": {"batch_size": 1, "max_steps": 10**6},
            "compute": {"threads": args.threads},
            "data": {"sequence_length": args.tokens},
            "checkpointing": {"keep_last": 1, "mode": "async"},
        }
    )


def build(args: argparse.Namespace, folder: Path) -> tuple[Any, Callable[[Kind], Any]]:
    """Return the context of a training segment, and a function that makes its step for a kind of save."""
    from trainyard.run.directory import RunDirectory
    from trainyard.training.checkpoint.training_state import TrainingState
    from trainyard.training.data.batches import TokenBatches
    from trainyard.training.loop import Trainer
    from trainyard.training.model.optimizer import build_optimizer
    from trainyard.training.model.parallel import put_on_devices
    from trainyard.training.run.run_context import Request, RunContext, RunLength
    from trainyard.training.run.trackers import Trackers
    from trainyard.training.runtime.hardware import prepare_device
    from trainyard.training.runtime.stop_signals import StopRequest
    from trainyard.training.runtime.watchdog import Watchdog
    from trainyard.training.runtime.world import ALONE

    config = config_of(args)
    device = prepare_device(config)
    parallel = put_on_devices(config, ALONE, device)
    directory = RunDirectory(folder / "run")
    directory.create()

    tokens = np.random.default_rng(0).integers(0, SHAPE["vocab_size"], 64 * args.tokens + 1)
    batches = TokenBatches(tokens, sequence_length=args.tokens, batch_size=1, seed=0)
    context = RunContext(
        request=Request(config, directory, cast(Any, None), "none", "stall", {}),
        run_id="stall",
        length=RunLength(10**6, 10**6, 1.0, 1, args.tokens),
        fits={},
        state=TrainingState(parallel.model, build_optimizer(parallel.model, config.training)),
        device=device,
        world=ALONE,
        stop=StopRequest(),
        listener=Heard(),
        watchdog=Watchdog(config.monitoring),
    )
    return context, lambda kind: Trainer(context, cast(Any, kind), parallel, batches, trackers=Trackers({}))


@contextmanager
def stopped_children() -> Iterator[None]:
    """Stop the child processes of this one while the block runs."""
    children = [
        int(number)
        for file in Path("/proc/self/task").glob("*/children")
        for number in file.read_text().split()
    ]
    for number in children:
        os.kill(number, signal.SIGSTOP)
    yield
    for number in children:
        os.kill(number, signal.SIGCONT)


if __name__ == "__main__":
    sys.exit(main())
