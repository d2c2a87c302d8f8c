"""The shell commands that only the reports suggest, quoted for pasting, and the links of a run."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from trainyard.report.facts.log_tail import program_logs
from trainyard.report.facts.run_facts import RunFacts
from trainyard.run.identity import run_address
from trainyard.run.suggested_commands import from_here, trainyard_command


def prove_command(directory: Path) -> str:
    """Verify and prove the run in `directory` in the store of its configuration."""
    return trainyard_command(f"prove --run-dir {shlex.quote(str(directory))} --run-number auto")


def restore_newest(facts: RunFacts) -> str:
    """Restore the newest checkpoint on any machine; empty while none is stored."""
    proof = facts.proof
    if proof is None or not proof.store or proof.run_number is None or not facts.checkpoints:
        return ""
    step = facts.checkpoints[-1].step
    what = f"--store {shlex.quote(proof.store)} --run-number {proof.run_number} --step {step}"
    return trainyard_command(f"store restore {what} --to runs/restored-{proof.run_number}")


def run_links(facts: RunFacts, *, is_beside: bool) -> list[tuple[str, str]]:
    """Return words and address of what belongs to a run: commit, workflow run, store, logs.

    A page that `is_beside` the run, in its folder `report/`, also has links to folders of this machine.
    """
    address = run_address({str(key): str(value) for key, value in facts.section("ci").items()})
    links = []
    if address and facts.commit:
        commit = f"{address.rpartition('/actions/')[0]}/commit/{quote(facts.commit, safe='')}"
        links.append((f"commit {facts.commit[:7]}", commit))
    if address:
        links += [("workflow run", address), ("artifacts", f"{address}#artifacts")]
    if not is_beside:
        return links
    if facts.proof and facts.proof.store and facts.proof.store.startswith("file:///"):
        links.append(("store", quote(f"{facts.proof.store}/run-{facts.proof.run_number}", safe=":/%")))
    logs = program_logs(facts.directory)
    return links + [(f"log {path.stem}", f"../logs/{quote(path.name)}") for path in logs]


def tensorboard_command(directory: Path, *, run_id: str) -> str:
    """Show the curves in a browser, with the TensorBoard of this environment if it has one.

    A run whose directory is named after its id, as in `runs/`, is shown together with its neighbours.
    """
    among_others = directory.resolve().name == run_id
    logs = directory.parent if among_others else directory / "tensorboard"
    return shlex.join([str(_program("tensorboard")), "--logdir", str(logs)])


def wandb_command(folders: Sequence[Path]) -> str:
    """Upload W&B's offline records; the segments of a resumed run are appended to one run."""
    append = ["--append"] if len(folders) > 1 else []
    return shlex.join([str(_program("wandb")), "sync", *append, *map(str, folders)])


def _program(name: str) -> Path:
    """The path of a program of this environment; only its name where the environment does not have it."""
    program = Path(sys.executable).with_name(name)
    return from_here(program) if program.exists() else Path(name)
