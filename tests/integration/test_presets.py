"""Trainers that nobody here wrote: by presets and with our callbacks, killed, stopped, resumed and proven."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start
from tests.git_repository import init_repository

import trainyard
from trainyard.programs import integrations
from trainyard.programs.checkpoints.program_checkpoints import UnitFinder, newest_first
from trainyard.programs.presets.nemo import SCRIPT as SCRIPT_OF_NEMO
from trainyard.programs.program_events import LoggedFigures, ProgramEvents, TrainingSpan, WrittenCheckpoint

SCRIPT = """
import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM
from transformers import Trainer, TrainerCallback, TrainingArguments

class Die(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        import os, pathlib
        if state.global_step == 6 and not pathlib.Path("died").exists():
            pathlib.Path("died").touch()
            os.kill(os.getpid(), 9)

(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
torch.manual_seed(0)
shape = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1)
shape |= dict(num_attention_heads=2, num_key_value_heads=2)
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **shape))
rows = [{"input_ids": (row := torch.randint(64, (16,))), "labels": row} for _ in range(64)]
trainer = Trainer(model=model, args=args, train_dataset=rows, callbacks=[Die()])
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
"""
MODEL = """
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *letters])}
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split("", "isolated")])
words = dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>")
PreTrainedTokenizerFast(tokenizer_object=tokenizer, **words).save_pretrained("model")
shape = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1)
shape |= dict(num_attention_heads=2, num_key_value_heads=2)
shape |= dict(vocab_size=len(vocabulary), eos_token_id=2, bos_token_id=1)
LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained("model")
"""
LIGHTNING = """
import os, pathlib
import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.cli import LightningCLI
from torch.utils.data import DataLoader, TensorDataset

class Small(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        if self.global_step == 6 and not pathlib.Path("died").exists():
            pathlib.Path("died").touch()
            os.kill(os.getpid(), 9)
        loss = self.layer(batch[0]).square().mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4)

LightningCLI(Small)
"""
CONFIG = """
recipe: {recipe}
program: {program}
training: {{max_steps: 12, warmup_steps: 2, batch_size: 4}}
data: {data}
checkpointing: {{save_steps: 4}}
monitoring: {{log_steps: 2}}
model: {model}
"""


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    line = [sys.executable, *words]
    with warm_start.start(line, cwd=folder, env=environment, has_trainers=True) as process:
        output, errors = process.communicate(timeout=400)
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def repository(folder: Path, **values: str) -> None:
    """Make a repository that has nothing of ours."""
    (folder / "trainyard.yaml").write_text(CONFIG.format(**values))
    (folder / "requirements.txt").write_text("transformers==5.23.0\n")
    (folder / ".gitignore").write_text("runs/\ntrainyard-store/\ndied\n")
    init_repository(folder)


START = ("-m", "trainyard", "run", "--config", "trainyard.yaml", "--run-dir", "runs/one", "--json")


def assert_killed_resumed_and_proven(folder: Path) -> None:
    """Start a run that is killed before its seventh step, start it again, and judge it."""
    killed = run(*START, folder=folder)
    assert killed.returncode == 137, killed.stderr[-3000:]
    done = run(*START, folder=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert (found["outcome"]["steps"], found["outcome"]["checkpoint"]["step"]) == (12, 12)
    assert found["proof"]["proven"] is True
    events = [json.loads(line) for line in (folder / "runs/one/events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "resumed"] == [4]


@pytest.mark.slow
def test_a_script_with_the_trainer_is_killed_resumed_stored_and_proven(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    program = "{script: train.py, data: []}"
    repository(tmp_path, recipe="hf-trainer", program=program, data="{}", model="{device: cpu}")
    assert_killed_resumed_and_proven(tmp_path)


@pytest.mark.slow
def test_supervised_fine_tuning_of_trl_needs_no_script(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "make_model.py").write_text(MODEL)
    done = run("make_model.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = (json.dumps({"text": f"the number {n} comes before {n + 1}"}) for n in range(64))
    (tmp_path / "data/train.jsonl").write_text("\n".join(rows) + "\n")
    given = {"data": "{train_path: data, sequence_length: 64}", "model": "{device: cpu, path: model}"}
    repository(tmp_path, recipe="trl-sft", program="{data: [data]}", **given)
    done = run(*START, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert (found["outcome"]["steps"], found["proof"]["proven"]) == (12, True)


@pytest.mark.slow
def test_a_script_with_lightning_cli_is_killed_resumed_stored_and_proven(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LIGHTNING)
    program = "{script: train.py, data: []}"
    repository(tmp_path, recipe="lightning", program=program, data="{}", model="{device: cpu}")
    assert_killed_resumed_and_proven(tmp_path)


@pytest.mark.filterwarnings("ignore")  # Lightning's advice about workers of the loader
def test_the_script_of_nemo_reports_the_steps_that_lightning_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NeMo is not in the lock; its callback needs only what Lightning has."""
    import pytorch_lightning
    import torch

    import trainyard

    class Model(pytorch_lightning.LightningModule):  # type: ignore[misc]  # Lightning is not followed
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            self.log("reduced_train_loss", loss := self.layer(batch).square().mean())
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("val_loss", self.layer(batch).square().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.layer.parameters(), lr=0.1)

    names: dict[str, Any] = {"Callback": pytorch_lightning.Callback, "trainyard": trainyard}
    exec(SCRIPT_OF_NEMO[SCRIPT_OF_NEMO.index("class Rows") : SCRIPT_OF_NEMO.index("def main")], names)
    monkeypatch.setenv("TRAINYARD_EVENTS", str(tmp_path / "events.jsonl"))
    steps = {"max_steps": 7, "log_every_n_steps": 3, "val_check_interval": 4, "accelerator": "cpu"}
    off: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    data: Any = torch.utils.data.DataLoader(list(torch.randn(64, 4)), batch_size=4)  # type: ignore[arg-type]
    pytorch_lightning.Trainer(callbacks=[names["Rows"]()], **steps, **off).fit(Model(), data, data)
    lines = filter(None, (tmp_path / "events.jsonl").read_text().splitlines())
    rows = [json.loads(line) for line in lines]
    found = [(row["step"], "val_loss" in row) for row in rows]
    assert found == [(3, False), (4, True), (6, False), (7, False)]


STEPS = 12
PROGRAMS = Path(__file__).parent / "callback_programs"
# A warm process has imported the package; the programs shall find the one module beside them.
FORGET = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "trainyard"]:
    del sys.modules[name]
"""
# The figures of each row.
FIGURES = {
    "lightning": {"learning_rate", "epoch", "train_loss"},
    "transformers": {"learning_rate", "grad_norm", "epoch"},
}


def run_program(name: str, folder: Path, *, world: int) -> list[dict[str, Any]]:
    """Run a program with copies of what it needs; return the results of each rank, by training."""
    callback = Path(integrations.__path__[0]) / f"{name}_callback.py"
    for path in (PROGRAMS / "stopping.py", PROGRAMS / f"stop_{name}.py", callback):
        shutil.copy(path, folder)
    shutil.copy(str(trainyard.__file__), folder / "trainyard.py")
    (folder / "sitecustomize.py").write_text(FORGET)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    line = [sys.executable, *launcher[: 4 * (world > 1)], str(folder / f"stop_{name}.py"), str(folder)]
    given = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(folder)}
    apart: dict[str, Any] = {"stderr": subprocess.STDOUT, "start_new_session": True, "has_trainers": True}
    with warm_start.start(line, env=given, **apart) as process:
        output = process.communicate(timeout=1200)[0]
    assert process.returncode == 0, output[-6000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world)]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "least"), [(1, 2), (2, 5)])
@pytest.mark.parametrize("name", FIGURES)
def test_sigterm_in_any_hook_saves_a_step_that_all_ranks_agree_on(
    name: str, world: int, least: int, tmp_path: Path
) -> None:
    """One process gets it with its workers that load data; of two, one gets it."""
    ranks = run_program(name, tmp_path, world=world)
    stops = 0
    for rank in ranks:  # the group to vote in is destroyed with each training, also its threads
        assert len({training["gloo_threads"] for training in rank.values()}) == 1
    for training in ranks[0]:
        (step,) = {rank[training]["step"] for rank in ranks}
        (exit_code,) = {rank[training]["exit_code"] for rank in ranks}
        sent = [rank[training]["sent_at"] for rank in ranks if rank[training]["sent_at"] is not None]
        if sent and sent[0] < STEPS - 1:
            assert exit_code == 75 and step - sent[0] <= 1, training
        assert exit_code == (75 if step < STEPS else None), training
        stops += exit_code == 75
        newest = require_true_events(name, tmp_path / training, step=step)
        if name == "transformers":
            states = [f"rng_state_{rank}.pth" for rank in range(world)] if world > 1 else ["rng_state.pth"]
            needed = {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json", *states}
            assert needed <= newest.files.keys(), training
            found = newest_first(UnitFinder().named(newest.path.parent, "checkpoint-*")).newest
            assert found is not None and not found.found.is_weights_alone
        else:
            assert zipfile.is_zipfile(newest.path)
    assert stops >= least


def require_true_events(name: str, folder: Path, *, step: int) -> WrittenCheckpoint:
    """Compare the events with what was trained and saved; return the last save."""
    reader = ProgramEvents(folder / "events.jsonl")
    events = reader.poll()
    begin, end = events[0], events[-1]
    assert isinstance(begin, TrainingSpan) and isinstance(end, TrainingSpan)
    assert reader.bad_lines == 0
    assert (begin.step, begin.steps, begin.has_ended) == (0, STEPS, False)
    assert (end.step, end.steps, end.has_ended) == (step, STEPS, True)
    rows = [row for event in events if isinstance(event, LoggedFigures) and "loss" in (row := event.row())]
    assert [row["step"] for row in rows] == list(range(1, step + 1))
    assert all(FIGURES[name] <= row.keys() for row in rows)
    assert all(abs(row["loss"] - row.get("train_loss", row["loss"])) < 1e-6 for row in rows)
    saved = [event for event in events if isinstance(event, WrittenCheckpoint)]
    assert [each.step for each in saved] == [at for at in range(1, step + 1) if at % 4 == 0 or at == step]
    last = saved[-1]
    assert last.path.parent == folder / "out" and last.path.name.startswith(("checkpoint-", "epoch="))
    for file, facts in last.files.items():
        found = (last.path / file if last.path.is_dir() else last.path).stat()
        assert facts == (found.st_size, found.st_mtime_ns)
    return last
