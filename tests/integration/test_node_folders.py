"""Runs whose machines do not share a run directory: saved apart, stored together, resumed from the store.

A machine is one `trainyard train` with the variables of a TrainJob and a folder of its own. CPU, gloo.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests import warm_start
from tests.integration.test_launchers import REPOSITORY_ROOT, Nodes, ended, free_port, trainjob
from tests.warm_start import descendants

APART = "checkpointing.shared=false"
STRATEGY = "compute.strategy=fsdp"
RUN = "20261120-214501-7c1f"
"""The folder on every machine has the name of the run, by which the store knows it."""


class Machines(Nodes):
    """Two machines, whose folders of a run have the same name in different places."""

    def train(
        self, name: str, *settings: str, per_node: str = "1", resume: str = "auto"
    ) -> list[tuple[int, str]]:
        begun = self.start(
            trainjob(free_port(), per_node=per_node),
            *(APART, STRATEGY, *settings),
            run_dirs=[f"machine-{number}/{name}" for number in range(2)],
            more=("--resume", resume),
        )
        return ended(begun)

    def script(self, script: str, *words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, str(REPOSITORY_ROOT / "scripts" / script), *words]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
        started = warm_start.Popen(
            command,
            stderr=subprocess.STDOUT,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY_ROOT,
            env=environment,
        )
        self._started.append(started)
        return started

    def on_both(self, name: str, script: str, *words: str) -> list[tuple[int, str]]:
        """Run the script on both machines at the same time; return exit code and output of each."""
        stored = ("--store", f"file://{self.folder}/store", "--run-number", "7", *words)
        both = [
            self.script(script, "--run-dir", f"{self.folder}/machine-{number}/{name}", *stored)
            for number in range(2)
        ]
        said = [each.communicate(timeout=240)[0] for each in both]
        return [(each.returncode, text) for each, text in zip(both, said, strict=True)]

    def machine(self, number: int, name: str) -> Path:
        return self.folder / f"machine-{number}" / name


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    result = Machines(tmp_path_factory.mktemp("machines"))
    (result.folder / "store").mkdir()
    yield result
    result.end()


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_killed_machines_go_on_in_fresh_folders_from_the_store_with_the_weights_of_a_shared_run(
    machines: Machines,
) -> None:
    endless = ("training.max_steps=100000", "checkpointing.save_steps=50", "training.lr_scheduler=constant")
    both = machines.start(
        trainjob(free_port(), per_node="1"),
        *(APART, STRATEGY, *endless),
        run_dirs=[f"machine-{number}/{RUN}" for number in range(2)],
    )
    first, second = (machines.machine(number, RUN) / "checkpoints/step-00000050" for number in range(2))
    deadline = time.monotonic() + 180
    while not (second / "manifest.json").exists() and time.monotonic() < deadline:
        assert both[0].poll() is None, both[0].communicate()[1]
        time.sleep(0.01)
    for pid in [pid for node in both for pid in (*descendants(node.pid), node.pid)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ended(both)
    assert names_in(first) == {"manifest.json", "__0_0.distcp", ".metadata", "trainer_state.json"}
    assert names_in(second) == {"manifest.json", "__1_0.distcp"}
    assert (first / "manifest.json").read_bytes() == (second / "manifest.json").read_bytes()
    assert not (second.parents[1] / "run.json").exists()

    for code, said in machines.on_both(RUN, "training_artifact_sync.py"):
        assert code == 0, said
    for number in range(2):
        shutil.rmtree(machines.machine(number, RUN))
    for code, said in machines.on_both(RUN, "fetch_resume.py", "--resume", "auto", "--fetch", "true"):
        assert code == 0, said
    assert (
        names_in(second)
        == names_in(first)
        == {*("manifest.json", "__0_0.distcp", "__1_0.distcp", ".metadata", "trainer_state.json")}
    )
    until = ("training.max_steps=52", "training.lr_scheduler=constant")
    for code, errors in machines.train(RUN, *until):
        assert code == 0, errors
    for code, errors in machines.finish(
        trainjob(free_port(), per_node="1"), STRATEGY, *until, run_dir="shared"
    ):
        assert code == 0, errors
    outcome = json.loads((machines.machine(0, RUN) / "run.json").read_text())["outcome"]
    assert outcome["state_sha256"] == machines.run("shared")["outcome"]["state_sha256"]
