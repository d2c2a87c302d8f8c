"""The programs in examples/ train on a CPU, learn, stop on SIGTERM with a checkpoint, and resume.

The search in examples/search stops and resumes too.
"""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests import warm_start
from tests.git_repository import init_repository
from tests.waiting import wait_for
from tests.warm_start import descendants, environment_of

from trainyard.programs.program_events import (
    LoggedFigures,
    ProgramEvent,
    ProgramEvents,
    TrainingSpan,
    WrittenCheckpoint,
)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WITHOUT_TRAINYARD = """
import runpy, sys
sys.modules["trainyard"] = None
sys.argv = ["train.py"]
runpy.run_path("train.py", run_name="__main__")
"""


CONFIG = """
model:
  name: tiny
  device: cpu
  architecture: {hidden_size: 16, intermediate_size: 32, num_layers: 1, num_attention_heads: 2,
                 num_key_value_heads: 2, max_position_embeddings: 32}
training: {batch_size: 2, max_steps: 8}
data: {train_path: corpus, prepared_directory: prepared, sequence_length: 16}
"""


@dataclass(frozen=True)
class Example:
    name: str
    figure: str
    """The figure that gets better."""
    rises: bool = False


OWN_LOOP, GRPO = Example("own_loop", "loss"), Example("grpo", "reward", rises=True)


def start(folder: Path, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    """Start a program in a folder and a process group of its own."""
    given = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment}
    apart: dict[str, Any] = {"stderr": subprocess.STDOUT, "start_new_session": True, "has_trainers": True}
    return warm_start.start([sys.executable, *arguments], cwd=folder, env=given, **apart)


def copied(name: str, folder: Path) -> tuple[Path, dict[str, Any], list[str]]:
    """Copy an example; return its folder, the section of its configuration, and its command's arguments."""
    there = shutil.copytree(EXAMPLES / name, folder / name)
    program = yaml.safe_load((there / "trainyard.yaml").read_text())["program"]
    assert program["command"][0] == "python"
    return there, program, program["command"][1:]


@pytest.mark.slow
@pytest.mark.parametrize("example", [OWN_LOOP, GRPO], ids=lambda example: example.name)
def test_an_example_is_stopped_and_resumed_and_learns(tmp_path: Path, example: Example) -> None:
    folder, program, arguments = copied(example.name, tmp_path)
    file = folder / "events.jsonl"
    moment = random.Random(example.name).randrange(2, program["steps"] // 2)
    first = start(folder, *arguments, TRAINYARD_EVENTS=str(file))
    events = ProgramEvents(file)
    seen: list[ProgramEvent] = []
    while first.poll() is None and not any((event.step or 0) >= moment for event in seen):
        seen += events.poll()
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGTERM)
    output, _ = first.communicate(timeout=120)
    assert first.returncode == 75, output[-3000:]
    seen += events.poll()
    saved = [event for event in seen if isinstance(event, WrittenCheckpoint)]
    stopped_at = saved[-1].step or 0
    assert moment <= stopped_at < program["steps"]
    assert saved[-1].path in set(folder.glob(program["checkpoints"]))

    resume = [part.replace("{checkpoint}", str(saved[-1].path)) for part in program["resume"]]
    second = start(folder, *arguments, *resume, TRAINYARD_EVENTS=str(file))
    output, _ = second.communicate(timeout=500)
    assert second.returncode == 0, output[-3000:]
    resumed = events.poll()
    assert isinstance(resumed[0], TrainingSpan)
    assert (resumed[0].step, resumed[0].steps) == (stopped_at, program["steps"])
    rows = [e.row() for e in [*seen, *resumed] if isinstance(e, LoggedFigures)]
    assert [row["step"] for row in rows] == list(range(1, program["steps"] + 1))
    values = [row[example.figure] for row in rows]
    assert all(math.isfinite(row["loss"]) for row in rows)
    tenth = len(values) // 10
    before, after = sum(values[:tenth]), sum(values[-tenth:])
    assert after > before if example.rises else after < before
    last = [event for event in resumed if isinstance(event, WrittenCheckpoint)][-1]
    assert last.step == program["steps"]
    if example is OWN_LOOP:  # it trains as one that was not stopped
        complete = folder / "complete.jsonl"
        once = start(folder, *arguments, "--output_dir", "once", TRAINYARD_EVENTS=str(complete))
        output, _ = once.communicate(timeout=120)
        found = [e.figures["loss"] for e in ProgramEvents(complete).poll() if isinstance(e, LoggedFigures)]
        assert found == values, output


def test_an_own_loop_needs_no_trainyard(tmp_path: Path) -> None:
    folder, _, _ = copied("own_loop", tmp_path)
    (folder / "without.py").write_text(WITHOUT_TRAINYARD)
    output, _ = start(folder, "without.py").communicate(timeout=120)
    assert output.splitlines()[-1].startswith("step 400: loss ")
    assert len(list((folder / "out").iterdir())) == 4


@pytest.mark.parametrize("name", ["own_loop", "sft", "grpo"])
def test_an_example_pins_the_versions_that_are_tested(name: str) -> None:
    root = EXAMPLES.parent
    locks = [root / "requirements-training.txt", root / "requirements-development.txt"]
    tested = {line.split()[0] for lock in locks for line in lock.read_text().splitlines() if "==" in line}
    assert set((EXAMPLES / name / "requirements.txt").read_text().split()) <= tested


@pytest.mark.slow
def test_an_example_is_killed_resumed_stored_and_proven(tmp_path: Path) -> None:
    folder, program, _ = copied("sft", tmp_path)
    steps = program["steps"] // 5
    command = [str(steps) if word == str(program["steps"]) else word for word in program["command"]]
    changed = {"command": [*command, "--save_steps", str(steps // 3)], "steps": steps}
    too_short = {"learned": {"figure": "none"}}  # a fifth of the steps shows no learning
    config = {"recipe": "command", "program": {**program, **changed}, "proof": too_short}
    (folder / "trainyard.yaml").write_text(yaml.safe_dump(config))
    (folder / ".gitignore").write_text("out/\n")
    init_repository(folder)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["-m", "trainyard", "run", "--config", "trainyard.yaml", "--run-dir", "runs/a", "--json"]
    first = start(folder, *command, PATH=path)
    moment = random.Random(1).randrange(1, steps)
    events = folder / "runs" / "a" / "logs" / "program-events.jsonl"
    wait_for(
        lambda: first.poll() is not None or (events.exists() and events.read_text().count('"row"') >= moment),
        f"row {moment}",
        within=300,
    )
    for pid in descendants(first.pid):
        if environment_of(pid).get("TRAINYARD_EVENTS"):  # the program, and nothing of ours
            os.kill(pid, signal.SIGKILL)
    output, _ = first.communicate(timeout=300)

    second = start(folder, *command, PATH=path)
    again, _ = second.communicate(timeout=500)
    assert second.returncode == 0, output[-2000:] + again[-3000:]
    assert json.loads((folder / "runs/a/report/proof.json").read_text())["proven"] is True
    outcome = json.loads((folder / "runs/a/run.json").read_text())["outcome"]
    assert outcome["steps"] == outcome["checkpoint"]["step"] == steps
    lines = (folder / "runs/a/metrics.jsonl").read_text().splitlines()
    rows = [row["step"] for row in map(json.loads, lines) if "step" in row]
    assert rows == list(range(1, steps + 1))


def test_a_search_that_is_stopped_resumes_in_the_run_it_was_in(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    for name in ("a", "b"):
        (tmp_path / "corpus" / f"{name}.txt").write_text(f"the {name} sat on the mat.\n" * 50)
    config = "checkpointing: {save_steps: 20}\nmonitoring: {log_steps: 1}\n"
    (tmp_path / "config.yaml").write_text(CONFIG + config)
    script, line = str(EXAMPLES / "search/search.py"), ["--config", "config.yaml", "--dir", "found"]
    line += ["--trials", "2", "--set", "training.max_steps=800"]
    first = start(tmp_path, script, *line)
    run = tmp_path / "found" / "trial-0000"
    wait_for(
        lambda: first.poll() is not None or any(run.glob("checkpoints/*/manifest.json")),
        "a checkpoint",
        within=300,
    )
    first.terminate()
    output, _ = first.communicate(timeout=300)
    assert first.returncode == 75, output[-3000:]

    assert json.loads((run / "run.json").read_text())["outcome"]["steps"] < 800
    second = start(tmp_path, script, *line)
    output, _ = second.communicate(timeout=500)
    assert second.returncode == 0, output[-3000:]
    ended = [row.split()[1] for row in output.splitlines() if "  trial-" in row]
    assert sorted(ended) == ["trial-0000", "trial-0002"]  # the first was entered again, as number 1
    events = [json.loads(row)["event"] for row in (run / "events.jsonl").read_text().splitlines()]
    assert "resumed" in events
