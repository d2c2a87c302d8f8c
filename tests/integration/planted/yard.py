"""Real, tiny runs in a folder of their own, with the store that they are in.

They are trained once; tests damage copies only.
"""

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trainyard.artifacts.record.run_numbers import claim_of_run
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.run_following import RunningRun
from trainyard.artifacts.upload.sync import sync_run
from trainyard.config.schema import Config
from trainyard.errors import StoppedError
from trainyard.program_training import ProgramOrder, train_program
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import collect_provenance

ROOT = Path(__file__).resolve().parents[3]
GIT = {"commit": "3f2c1ab" + "0" * 33, "dirty": False, "branch": "main"}
STEPS = 8
NEXT = -1
"""Instead of a step: the next one."""
ARCHITECTURE = {"hidden_size": 16, "intermediate_size": 32, "num_layers": 1, "max_position_embeddings": 32}
ARCHITECTURE |= {"num_attention_heads": 2, "num_key_value_heads": 2}


class StopAt:
    """A listener that requests a stop once the row of `step` is written; NEXT: after one more step."""

    def __init__(self, step: int | None) -> None:
        from trainyard.training.runtime.stop_signals import StopRequest

        self.step, self.stop = step, StopRequest(0.0 if step == NEXT else None)

    def on_row(self, row: dict[str, Any]) -> None:
        if row["step"] == self.step:
            self.stop.reason = "the test asked for it"

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Yard:
    """A folder with one run directory and its store; the prepared data lie beside all yards."""

    path: Path
    parts: str = ""
    """The parts of the proof that must hold, where not all five can."""

    @property
    def store_folder(self) -> Path:
        return self.path / "store"

    @property
    def store(self) -> str:
        return self.store_folder.as_uri()

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.path / "run")

    def train(
        self,
        *,
        stop_at: int | None = None,
        resume: str = "auto",
        steps: int = STEPS,
        seed: int = 42,
        shared: bool = True,
    ) -> None:
        """Train or resume the run; with `stop_at`, until that step."""
        # Importing torch takes seconds; a process that only judges runs does without it.
        from trainyard.training.data.tokenize_corpus import prepare_data
        from trainyard.training.loop import train
        from trainyard.training.run.run_context import Request

        config = _config(self.path.parent, steps=steps, seed=seed, shared=shared)
        lock = ROOT / "requirements-training.txt"
        facts = collect_provenance(GIT, lock=lock, config_file=Path("tiny.yaml"))
        listener = StopAt(stop_at)
        data = prepare_data(config.data, config.model)
        request = Request(config, self.run, data, resume, f"id-of-{self.path.name}", facts)
        try:
            train(request, stop=listener.stop, listener=listener)
        except StoppedError:
            assert stop_at is not None
        (self.run.logs / "trainer.log").write_text("training began\ntraining ended\n")

    def sync(self) -> None:
        sync_run(open_store(self.store), self.run, None)

    def claim(self) -> None:
        claim_of_run(open_store(self.store), json.loads(self.run.run_file.read_bytes()), 1)

    def follow(self) -> None:
        """Store what is new, as a follower does while the run is in progress."""
        running = RunningRun(open_store(self.store), self.run, 1)
        while running.store_newest() is not None:
            pass

    def store_anew(self) -> None:
        """Empty the store, then store the run."""
        shutil.rmtree(self.store_folder)
        self.sync()

    def copy_to(self, target: Path) -> "Yard":
        """A copy whose files may be replaced, and must not be written into."""
        shutil.copytree(self.path, target, copy_function=_link, symlinks=True)
        return Yard(target, self.parts)

    @contextmanager
    def damaged(self, plant: Callable[["Yard"], None]) -> Iterator["Yard"]:
        """Yield a copy with the damage, and remove it afterwards."""
        copy = self.copy_to(self.path.parent / "copy")
        try:
            plant(copy)
            yield copy
        finally:
            shutil.rmtree(copy.path)


def make_all(base: Path, kinds: Sequence[Callable[[Path], Yard]] | None = None) -> dict[str, Yard]:
    """Finished runs by the names of their kinds, which are the functions below."""
    for half in ("train", "validation"):
        (base / "corpus" / half).mkdir(parents=True)
        lines = [f"the cat {number} sat on mat {number % 7}.\n" for number in range(60)]
        (base / "corpus" / half / "text.txt").write_text("".join(lines))
    every = (plain, followed, resumed, foreign, unshared)
    return {make.__name__: make(base) for make in kinds or every}


def plain(base: Path) -> Yard:
    """Two checkpoints, stored in one pass after the end."""
    yard = Yard(base / "plain")
    yard.train()
    yard.sync()
    return yard


def followed(base: Path) -> Yard:
    """Stored while it was trained: one open manifest, then the closed one."""
    yard = Yard(base / "followed")
    yard.train(stop_at=4)
    stopped = yard.run.run_file.read_bytes()
    run = {key: value for key, value in json.loads(stopped).items() if key != "outcome"}
    yard.run.run_file.write_text(json.dumps(run, indent=2))
    yard.claim()
    yard.follow()
    yard.run.run_file.write_bytes(stopped)
    yard.train()
    yard.sync()
    return yard


def resumed(base: Path) -> Yard:
    """Stopped, stored, resumed and stored again: two closed manifests."""
    yard = Yard(base / "resumed")
    yard.train(stop_at=6)
    yard.sync()
    yard.train()
    yard.sync()
    return yard


_PROGRAM = """
import sys
from pathlib import Path
folder, steps = Path(sys.argv[1]), int(sys.argv[2])
for step in range(1, steps + 1):
    print(f"step:{step} - actor/pg_loss:{1 / step} - critic/score/mean:0.5", flush=True)
    if step == steps:
        saved = folder / f"global_step_{step}"
        (saved / "actor").mkdir(parents=True)
        for part in ("model", "optim", "extra_state"):
            (saved / "actor" / f"{part}_world_size_1_rank_0.pt").write_bytes(b"weights")
        (saved / "data.pt").write_bytes(b"data")
        (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
"""


def foreign(base: Path) -> Yard:
    """Another program's run, whose log shows its steps, and whose checkpoint has a form of its own."""
    yard, own = Yard(base / "foreign", parts="trained,stored"), base / "of the program"
    own.mkdir()
    yard.path.mkdir()
    (own / "fake.py").write_text(_PROGRAM)
    program = {"directory": str(own), "steps": STEPS, "checkpoints": "global_step_*/"}
    program["command"] = [sys.executable, str(own / "fake.py"), str(own), str(STEPS)]
    (own / "config.yaml").write_text(json.dumps({"recipe": "command", "program": program}))
    order = ProgramOrder(config=own / "config.yaml", run_dir=yard.run.path)
    assert train_program(order) == 0
    yard.sync()
    return yard


def unshared(base: Path) -> Yard:
    """Two machines that share no directory: the files with the tensors are on the other one."""
    from trainyard.artifacts.upload.node_parts import sync_node
    from trainyard.run.node_folder import NodeFolder, write_node

    yard, other = Yard(base / "unshared"), RunDirectory(base / "unshared" / "of the other machine")
    yard.train(shared=False)
    for step in yard.run.checkpoint_steps():
        other.checkpoint(step).mkdir(parents=True)
        shutil.copy(yard.run.checkpoint(step) / "manifest.json", other.checkpoint(step))
        for part in yard.run.checkpoint(step).glob("*.distcp"):
            part.rename(other.checkpoint(step) / part.name)
    shutil.copy(yard.run.config_file, other.config_file)
    for node, directory in enumerate((yard.run, other)):
        write_node(directory, NodeFolder("id-of-unshared", node, 2, is_over=True))
    yard.claim()
    sync_node(open_store(yard.store), other, 1)
    yard.sync()
    return yard


@cache
def script(name: str) -> Any:
    """`scripts/NAME.py` as a module, to be called in this process."""
    return importlib.import_module(f"trainyard.commands.{name}")


def _config(base: Path, *, steps: int, seed: int, shared: bool) -> Config:
    training = {"batch_size": 2, "max_steps": steps, "learning_rate": 1e-2, "seed": seed}
    corpus = base / "corpus"
    data = {"train_path": str(corpus / "train"), "validation_path": str(corpus / "validation")}
    return Config.model_validate(
        {
            "model": {"name": "tiny", "device": "cpu", "architecture": ARCHITECTURE},
            "training": {**training, "validation_steps": 4, "validation_batches": 1},
            "compute": {"threads": 1},
            "data": {**data, "prepared_directory": str(base / "prepared"), "sequence_length": 16},
            "checkpointing": {"save_steps": 4, "keep_last": 2, "shared": shared},
            "monitoring": {"log_steps": 2, "tensorboard": False},
        }
    )


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)
