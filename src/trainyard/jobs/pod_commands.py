"""The commands of one pod of a job, in order, as plain values; `scripts/run_pod.py` runs them.

    shared directory     train ──> on the first node: store, prove, report
    one per machine      [store what is left] ──> fetch ──> train, beside it: store parts ──> store
                         on the main machine: ──> prove, report

Without a shared directory (`checkpointing.shared: false`) every pod stores its own part of each checkpoint
while it trains. A pod that starts again first stores what it has left of the time before, so that the main
machine can list it, and then fetches the newest checkpoint that is stored whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.errors import ConfigError
from trainyard.run.node_folder import NodeFolder

Command = list[str]
PROVEN_OF_PROGRAMS = ("trained", "stored")
"""The parts of the proof that decide how the job of another program ends; all decide that of the trainer."""
SETTLE_SECONDS = 60
"""How long pods that start again wait for each other to store what they have left of the time before."""
_ENDLESS = "3650d"
"""The pod itself knows when training ends, so a follower waits for anything else as long as it takes."""


@dataclass(frozen=True)
class PodRun:
    """One pod: its run, and how its scripts are started."""

    start: Sequence[str]
    """The interpreter and the folder of the scripts, such as `python scripts/`."""
    run_dir: Path
    config: Path
    changes: Sequence[str] = field(default=(), kw_only=True)
    """The values of `--set`."""
    store: str = field(default="", kw_only=True)
    """Empty: the run is not stored."""
    grace: float = field(default=30.0, kw_only=True)
    """Seconds from SIGTERM to the end of the pod."""
    processes: int | None = field(default=None, kw_only=True)
    program: Path | None = field(default=None, kw_only=True)
    """The description of another program than the trainer."""

    def _script(self, name: str, *words: str) -> Command:
        interpreter, folder = self.start
        return [interpreter, str(Path(folder, name)), *words]

    @property
    def _stored(self) -> tuple[str, ...]:
        return ("--run-dir", str(self.run_dir), "--store", self.store, "--run-number", "auto")

    def before(self, node: NodeFolder | None) -> list[Command]:
        """Bring the newest stored checkpoint, where each machine has a directory of its own.

        `node` is the mark that an earlier start left in the directory; None in a fresh one.
        """
        fetched = self._script("fetch_resume.py", *self._stored, "--resume", "auto", "--fetch", "true")
        if node is None:
            return [fetched]
        settle = f"{SETTLE_SECONDS}s"
        left = self._script("training_artifact_sync.py", *self._stored, "--once", "--others", settle)
        return [left, fetched if node.is_main else [*fetched, "--wait", settle]]

    def beside(self) -> Command:
        """Store this machine's part of each checkpoint while it trains.

        At the end the main machine waits for parts of others as long as their pods may live.
        """
        waits = ("--silence", _ENDLESS, "--outage", _ENDLESS, "--others", f"{self.grace:.3f}s")
        return self._script("training_artifact_sync.py", *self._stored, "--follow", *waits)

    def train(self) -> Command:
        words = ["--config", str(self.config)]
        words += [word for change in self.changes for word in ("--set", change)]
        words += ["--run-dir", str(self.run_dir), "--grace", f"{self.grace:.3f}s"]
        if self.processes:
            words += ["--nproc-per-node", str(self.processes)]
        if self.program:
            return self._script("run_program.py", "--program", str(self.program), *words)
        return self._script("train.py", *words, "--resume", "auto")

    @property
    def required_parts(self) -> tuple[str, ...]:
        """The parts of the proof that must hold."""
        return PROVEN_OF_PROGRAMS if self.program else ("trained", "network", "stored", "repeatable")

    def after(self, *, is_main: bool) -> list[Command]:
        """Store the rest, and on the main machine also prove the run and write its report."""
        stored = self._script("training_artifact_sync.py", *self._stored, "--once")
        if not is_main:
            return [stored]
        only = ("--only", ",".join(self.required_parts)) if self.program else ()
        proven = self._script("prove_run.py", *self._stored, *only)
        return [stored, proven, self._script("training_dashboard.py", str(self.run_dir), "--write")]


def require_resumable(run_id: str, run_dir: Path, store: str | None) -> None:
    """Raise ConfigError unless pods with directories of their own could find their run in the store again."""
    if not store:
        raise ConfigError(
            "checkpointing.shared is false, so each pod has only its part of a checkpoint, and there is no "
            "store to resume from. Set artifacts.store, or checkpointing.shared to true and --run-dir to a "
            "volume that all pods share. Nothing was started."
        )
    if run_id != run_dir.name:
        raise ConfigError(
            f"TRAINYARD_RUN_ID is {run_id}, and --run-dir ends in {run_dir.name}: the store finds a run by "
            "the name of its directory, so both must be the same. Nothing was started."
        )
