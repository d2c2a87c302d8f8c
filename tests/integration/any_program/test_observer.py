"""Check the observer inside unchanged programs: every way to start one is observed, or says why it is not.

Each start is a process of its own, because that is what is tested: how Python starts.
"""

import os
import re
import stat
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests import warm_start
from tests.shebang import interpreter_line

from trainyard.gateways.process_tree import find_process
from trainyard.program_training import pythons_below
from trainyard.programs.checkpoints.tensor_facts import relation_of_files
from trainyard.programs.observations import Observations, ReadFile
from trainyard.programs.program import Program, ProgramLaunch
from trainyard.programs.program_events import (
    LoggedFigures,
    ObservedFact,
    ProgramEvent,
    ProgramEvents,
    TrainingSpan,
    WrittenCheckpoint,
    exit_codes,
)
from trainyard.run.directory import RunDirectory
from trainyard.run.launch_environment import NodeLauncher

PROGRAM = Path(__file__).parent / "observed_program.py"
PYTHON, PROGRAM_NAME = sys.executable, "observed_program.py"
# Each imports torch. The forks below are those of a process; a shell's has a DataLoader with workers, too.
OBSERVED = {
    "shell": ("bash", "-c", f"'{PYTHON}' {PROGRAM_NAME} crash | tee log.txt"),
    "torchrun": (PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", PROGRAM_NAME, "distributed"),
    "spawn": (PYTHON, PROGRAM_NAME, "spawn"),
}
# Without torch, whose import takes seconds.
LIGHT = {
    "script": (PYTHON, "wait.py", "0"),
    "module": (PYTHON, "-m", "wait", "0"),
    "console script": ("./console", "0"),
}
# So many seconds are enough for a poll.
WAIT = "import sys, time; time.sleep(float(*sys.argv[1:] or [60]))"
UNOBSERVED = {
    "-E": ((PYTHON, "-E", "wait.py"), "wait.py: python -E does not import it"),
    "-I": ((PYTHON, "-uI", "wait.py"), "wait.py: python -I does not import it"),
    "-S": ((PYTHON, "-W", "ignore", "-S", "wait.py"), "wait.py: python -S does not import it"),
    "PYTHONPATH": (
        ("bash", "-c", f"PYTHONPATH=elsewhere '{PYTHON}' wait.py"),
        "wait.py: PYTHONPATH was replaced",
    ),
    "env -i": (("env", "-i", PYTHON, "wait.py"), "wait.py: its environment was replaced"),
}
DEADLINE = 900.0


@dataclass
class Start:
    """A program that was started as `trainyard run` starts it."""

    folder: Path
    is_observed: bool = True
    observed: Observations = field(default_factory=Observations)
    rows: list[LoggedFigures] = field(default_factory=list)
    saves: list[WrittenCheckpoint] = field(default_factory=list)
    events: list[ProgramEvent] = field(default_factory=list)
    codes: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        (self.folder / PROGRAM_NAME).write_text(PROGRAM.read_text())
        (self.folder / "wait.py").write_text(WAIT)
        console = self.folder / "console"
        console.write_text(f"{interpreter_line(PYTHON)}import wait\n")
        console.chmod(console.stat().st_mode | stat.S_IXUSR)

    def start(self, words: tuple[str, ...]) -> "subprocess.Popen[str]":
        directory = RunDirectory(self.folder / "run")
        directory.logs.mkdir(parents=True)
        program = Program("command", words, self.folder, observe=self.is_observed)
        added = ProgramLaunch(program, directory, NodeLauncher(1, 0, 1)).environment(None)
        self._events = ProgramEvents(Path(added["TRAINYARD_EVENTS"]))
        popen = subprocess.Popen if self.is_observed else warm_start.Popen
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **added}
        pipe, one = subprocess.PIPE, subprocess.STDOUT
        return popen(words, cwd=self.folder, env=environment, stdout=pipe, stderr=one, text=True)

    def run(self, words: tuple[str, ...]) -> str:
        output = self.start(words).communicate(timeout=DEADLINE)[0]
        self.events = self._events.poll()
        for event in self.events:
            self.observed.note(event)
            self.rows += [event] if isinstance(event, LoggedFigures) else []
            self.saves += [event] if isinstance(event, WrittenCheckpoint) else []
        self.codes = dict(exit_codes(self._events.path))
        for pid, content in self.codes.items():
            self.observed.note_exit_code(pid, content)
        return output


@pytest.mark.slow
def test_every_way_to_start_a_program_is_observed(tmp_path: Path) -> None:
    digests, wrong = set(), {}
    plain = Start(tmp_path / "plain", is_observed=False)
    digests.update(re.findall("digest (.*)", plain.run((PYTHON, PROGRAM_NAME))))
    assert plain.observed.to_json() == {"unobserved": []}
    for name, words in LIGHT.items():
        start = Start(tmp_path / name)
        start.run(words)
        assert "wait.py" in {Path(each).name for each in start.observed.modules}, name
    for name, words in OBSERVED.items():
        start = Start(tmp_path / name)
        output = start.run(words)
        digests.update(re.findall("digest (.*)", output))
        steps = [each.step for each in start.rows if not each.of_passes]
        saved = {(each.step, each.path.name) for each in start.saves}
        found = {
            "steps": start.observed.steps == 24 and steps == list(range(1, 25)),
            "one loss a step": all(0 < each.figures["loss"] < 10 for each in start.rows),
            "no accumulation": all("accumulated" not in each.figures for each in start.rows),
            "saves": saved == {(n, file) for n in (8, 16, 24) for file in (f"net-{n}.pt", "other.pt")},
            "files": all(
                start.folder.joinpath(each.path).stat().st_ino == each.files[each.path.name][3]
                for each in start.saves
            ),
            "world": start.observed.machine["world"]["size"] == (2 if name == "torchrun" else 1),
            "modules": {Path(each).name for each in start.observed.modules} >= {PROGRAM_NAME},
            "exception": str(start.observed.error(has_failed=False))
            == ("ValueError: bad batch (observed_program.py:62)" if name == "shell" else "None"),
        }
        if not all(found.values()):
            wrong[name] = ([key for key, is_right in found.items() if not is_right], output[-2000:])
    assert wrong == {}
    assert len(digests) == 1, "the observer changes no bit"


OF_TORCH = """
import os, pathlib, sys, threading, torch
import torch._dynamo  # else each fork imports it for its first optimizer

class Wrapper(torch.optim.Optimizer):
    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner
    def step(self):
        self.inner.step()

def train_and_fail(more):
    train(**more)
    raise ValueError("in a thread")

def train(steps, parts=1, divide=True, optimizer=True, nan_at=-1, groups=1, phase=0, wrapped=False,
          tasks=0, apart=False):
    if groups > 1:
        sys.modules["deepspeed"] = sys  # its ZeRO-3 steps once for each group of parameters
    net = torch.nn.Linear(2, 1)
    stepper = torch.optim.SGD(net.parameters(), lr=0.0 if tasks else 0.1)
    stepper = Wrapper(stepper) if wrapped else stepper
    trained = torch.ones(1) if apart else net.bias
    others = [torch.optim.SGD([trained], lr=0.0) for _ in range(tasks)]
    for step in range(steps):
        if phase and step == phase:
            first, stepper = stepper, torch.optim.SGD([trained], lr=0.1)
        for _ in range(parts):
            loss = net(torch.ones(1, 2)).square().mean() * (float("nan") if step == nan_at else 1)
            (loss / parts if divide else loss).backward()
        printed.extend([loss.item()] * (3 if tasks and apart else 1))
        for _ in range(groups if optimizer else 0):
            stepper.step()
        for other in others * (3 if apart else 1):
            net(torch.ones(1, 2)).square().mean().backward()
            other.step()
        stepper.zero_grad()
    torch.save(net.state_dict(), f"{name}.pt")

torch.save({}, "given.pt")
for name, more in MODES.items():
    if not (child := os.fork()):
        printed = []
        torch.load(pathlib.Path("given.pt").absolute())
        thread = threading.Thread(target=train_and_fail, args=(more,))
        thread.start()
        thread.join()
        torch.load("given.pt")
        print(name, os.getpid(), *printed, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
try:
    exit(4)
except SystemExit:
    printed = []
    train(steps=1)
exit(3)
"""
MODES: dict[str, dict[str, object]] = {
    "divided": {"steps": 6, "parts": 4},
    "not divided": {"steps": 6, "parts": 4, "divide": False},
    "by hand": {"steps": 6, "optimizer": False},
    "in groups": {"steps": 6, "groups": 3},
    "in two phases": {"steps": 6, "phase": 4},
    "of two models": {"steps": 6, "phase": 4, "apart": True},
    "of a pair, one three times": {"steps": 4, "tasks": 1, "apart": True},
    "by a wrapper": {"steps": 6, "wrapped": True},
    "of two tasks in turns": {"steps": 6, "tasks": 1},
    "of four tasks in turns": {"steps": 6, "tasks": 3},
    "NaN between rows": {"steps": 1200, "nan_at": 1155},
}


def test_what_the_loss_of_a_step_is_and_what_counts_without_an_optimizer(tmp_path: Path) -> None:
    """All in one process that forks, because torch is imported once. A loss is the one that is printed."""
    start, wrong = Start(tmp_path / "modes"), dict[str, object]()
    (start.folder / "modes.py").write_text(f"MODES = {MODES!r}\n{OF_TORCH}")
    output = start.run((PYTHON, "modes.py"))
    for name in MODES:
        lines = [line for line in output.splitlines() if line.startswith(f"{name} ")]
        [words] = [line.removeprefix(name).split() for line in lines]
        pid, printed = int(words[0]), [float(word) for word in words[1:]]
        rows = [row for row in start.rows if row.pid == pid and row.of_passes == (name == "by hand")]
        exact = all(row.figures["loss"] == pytest.approx(printed[row.step - 1], nan_ok=True) for row in rows)
        saved = [(save.step, save.of_passes) for save in start.saves if save.pid == pid]
        found = (exact, rows[-1].step, saved, 1156 in [row.step for row in rows])
        if found != (True, len(printed), [(len(printed), name == "by hand")], name == "NaN between rows"):
            wrong[name] = (found, output[-2000:])
    assert wrong == {}
    facts = (start.folder / "given.pt").stat()
    given = ReadFile(start.folder / "given.pt", facts.st_dev, facts.st_ctime_ns)
    assert 3 in {content[2] for content in start.codes.values()}, "the exit code of the program"
    for has_failed in (False, True):
        error = start.observed.error(has_failed=has_failed)
        assert "in a thread" in str(error), "what ended the thread that trained"
    assert start.observed.reads == [given] * len(MODES), "those at the end are no resume"


ENDS = """
import atexit, copy, ctypes, multiprocessing, os, pathlib, signal, sys, torch._dynamo, traceback, zipfile
from sys import exit

def leave():
    # What an interpreter does at its end, without its search for garbage, which takes seconds in a fork.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    ctypes.PyDLL(None).exit(0)

def fail(mode, where):
    if mode.startswith(where):
        raise RuntimeError(where)

@torch.compile(backend="eager")
def step_of(optimizer, loss):
    loss.backward()
    optimizer.step()

def search(mode, net, x, optimizer):
    kept = copy.deepcopy(net.state_dict())
    other = copy.deepcopy(net) if mode == "search with a copy" else net
    if mode != "search by the same optimizer":
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (other(x) - x.sum(1, keepdim=True)).square().mean().backward()
        step_by_hand(net) if mode == "search by hand" else optimizer.step()
    net.load_state_dict(kept)

def step_by_hand(net):
    for each in net.parameters():
        each.data -= 0.01 * each.grad

def train(mode, steps=30):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    kept = copy.deepcopy(net)
    net[0].requires_grad_(mode != "frozen part")
    optimizer = torch.optim.Adam(net.parameters(), lr=0.0 if mode == "learning rate 0" else 0.01)
    x = torch.randn(16, 8)
    if mode.startswith("search"):
        search(mode, net, x, optimizer)
    for step in range(steps):
        if mode == "folds" and step == 15:
            torch.save(net.state_dict(), "fold.pt")
            net.load_state_dict(kept.state_dict())
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        if mode == "only counted" and step > 4:
            for each, gradient in zip(net.parameters(), torch.autograd.grad(loss, net.parameters())):
                each.grad = gradient
        elif mode == "compiled":
            step_of(optimizer, loss)
            continue
        else:
            loss.backward()
        if mode == "gradients dropped":
            optimizer.zero_grad()
        if mode.startswith("average"):
            for mean, new in zip(kept.parameters(), net.parameters()):
                mean.data.lerp_(new.data, 0.1)
        if mode.endswith("by hand"):
            step_by_hand(net)
        elif mode == "only counted":
            type(optimizer).step.__wrapped__(optimizer)  # without its hooks, as a CUDA graph steps
        elif mode != "never stepped":
            optimizer.step()
        if step == steps - 1:
            try:
                fail(mode, "caught in the loop")
            except RuntimeError:
                traceback.print_exc()
            if mode.startswith("left the loop"):
                torch.save({"model": net.state_dict(), "step": steps}, f"{mode}.pt")
            fail(mode, "left the loop")
    try:
        fail(mode, "behind the loop")
    except RuntimeError:
        traceback.print_exc()
    if mode in ("best state never replaced", "average that is loaded"):
        net.load_state_dict(kept.state_dict())
    saved = kept if mode in ("untrained copy", "average") else net[0] if mode == "frozen part" else net
    saved = {"model": saved.state_dict(), "step": steps}
    if mode == "the next fold begins":
        saved = copy.deepcopy(saved)
        net.load_state_dict(kept.state_dict())
    if mode in ("another model", "search of which another state is kept"):
        saved["model"] = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)).state_dict()
    if mode == "other shapes":
        saved = torch.nn.Linear(20, 5)
    if mode == "other bytes":
        pathlib.Path("other.bytes").write_bytes(kept[0].weight.detach().numpy().tobytes())
        pathlib.Path("trained.bytes").write_bytes(b"-" + net[0].weight.detach().numpy().tobytes())
    if mode == "losses":
        saved = {"losses": [1.0, 0.5], "optimizer": optimizer.state_dict(), "step": steps}
    if mode == "bytes":
        saved["model"] = {name: (each * 100).to(torch.int8) for name, each in net.state_dict().items()}
    if mode == "one vector":
        saved = torch.nn.utils.parameters_to_vector(net.parameters())
    if mode == "TorchScript":
        torch.jit.trace(net, x).save(f"{mode}.pt")
    elif mode == "program of export":
        torch.export.save(torch.export.export(net, (x,)), f"{mode}.pt2")
    elif mode == "renamed file":
        with open("part", "wb") as file:
            torch.save(saved, file)
        os.replace("part", f"{mode}.pt")
    elif mode == "archive":
        with zipfile.ZipFile(f"{mode}.zip", "w") as archive, archive.open("model", "w") as file:
            torch.save([saved, torch.tensor(float("nan"))], file)
    else:
        torch.save(saved, f"{mode}.pt")

def work(mode, ready):
    train("ok", steps=3)
    ready.set()
    if mode == "worker raises":
        raise ValueError("in a worker")
    if mode == "worker exits":
        exit(5)
    if mode == "worker is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "worker is stopped":
        signal.pause()

for mode in MODES:
    if child := os.fork():
        print(mode, child, flush=True)
        os.waitpid(child, 0)
        continue
    if mode.startswith("worker"):
        ready = multiprocessing.Event()
        process = multiprocessing.Process(target=work, args=(mode, ready), daemon=True)
        process.start()
        train("ok")
        ready.wait()
        if mode != "worker is stopped":
            process.join()
    elif mode == "left the loop in a notebook":
        from IPython.core.interactiveshell import InteractiveShell

        InteractiveShell().run_code(lambda: train(mode))
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        try:
            train(mode)
        except RuntimeError:
            traceback.print_exc()
    if mode == "left the loop and began again":
        train("ok")
    if mode == "left the loop and left":
        os._exit(0)
    if mode == "raise SystemExit":
        raise SystemExit(7)
    if mode == "exit":
        exit(7)
    leave()
"""
SHELL = """
class InteractiveShell:
    def run_code(self, code):
        try:
            code()
        except Exception:
            self.showtraceback()
    def showtraceback(self, exc_tuple=None): pass
"""
"""The shell of IPython, in its shape; it is not in the lock."""
# What is known of each: whether the weights changed, which ones are saved, the error, what vanished.
ENDINGS: dict[str, tuple[object, ...]] = {
    "ok": (True, "trained", None, None),
    "average": (True, "near", None, None),
    "by hand": (True, "trained", None, None),
    "renamed file": (True, "trained", None, None),
    "archive": (True, "trained", None, None),
    "search by hand": (True, "trained", None, None),
    "only counted": (True, "trained", None, None),
    "compiled": (True, "trained", None, None),
    "average that is loaded": (True, "trained", None, None),
    "search by the same optimizer": (True, "trained", None, None),
    "search by another optimizer": (True, "trained", None, None),
    "search with a copy": (True, "trained", None, None),
    "search of which another state is kept": (True, "unknown", None, None),
    "folds": (True, "trained", None, None),
    "other bytes": (True, "trained", None, None),
    "learning rate 0": (False, "", None, None),
    "gradients dropped": (False, "", None, None),
    "never stepped": (False, "unknown", None, None),
    "untrained copy": (True, "given", None, None),
    "best state never replaced": (True, "given", None, None),
    "frozen part": (True, "unknown", None, None),
    "the next fold begins": (True, "", None, None),
    "another model": (True, "other", None, None),
    "other shapes": (True, "other", None, None),
    "bytes": (True, "near", None, None),
    "losses": (True, "none", None, None),
    "one vector": (True, "near", None, None),
    "TorchScript": (True, "trained", None, None),
    "program of export": (True, "trained", None, None),
    "raise SystemExit": (True, "trained", "SystemExit: 7", None),
    "exit": (True, "trained", "SystemExit: 7", None),
    "caught in the loop": (True, "trained", None, None),
    "behind the loop": (True, "trained", None, None),
    "left the loop": (True, "trained", "RuntimeError: left the loop (ends.py:14)", None),
    "left the loop and left": (True, "trained", "RuntimeError: left the loop (ends.py:14)", None),
    "left the loop and began again": (True, "trained", None, None),
    "left the loop in a notebook": (None, "trained", "RuntimeError: left the loop (ends.py:14)", "ends.py"),
    "worker raises": (True, "trained", "ValueError: in a worker (ends.py:120)", None),
    "worker exits": (True, "trained", "SystemExit: 5", None),
    "worker is killed": (True, "trained", "killed: ends.py", None),
    "worker is stopped": (True, "trained", None, None),
}


MODELS = {"folds": [15], "left the loop and began again": [30]}
"""After which steps another model's training begins."""


def test_weights_that_stay_and_workers_that_fail_are_seen_behind_exit_code_0(tmp_path: Path) -> None:
    """All in forks of one process, because torch is imported once; each calls what is called at an end."""
    start, wrong = Start(tmp_path / "ends"), dict[str, object]()
    (start.folder / "ends.py").write_text(f"MODES = {[*ENDINGS]!r}\n{ENDS}")
    (start.folder / "IPython/core").mkdir(parents=True)
    (start.folder / "IPython/core/interactiveshell.py").write_text(SHELL)
    output = start.run((PYTHON, "ends.py"))
    for mode, wanted in ENDINGS.items():
        child = int(re.findall(rf"^{mode} (\d+)$", output, re.MULTILINE)[0])
        seen = Observations()
        facts = [each for each in start.events if isinstance(each, ObservedFact)]
        workers = {each.pid for each in facts if child in each.facts.get("parents", [])}
        for event in start.events:
            if not isinstance(event, TrainingSpan) and event.pid in {child, *workers}:
                seen.note(event)
        for pid, content in start.codes.items():
            seen.note_exit_code(pid, content)
        error = seen.error(has_failed=False)
        save = next(each for each in start.saves if each.step == 30 and each.pid == child)
        found = (seen.weights_changed, save.weights, error and str(error), seen.vanished)
        file = ("ok" if mode.startswith("worker") else mode, mode == "archive")
        if (save.path.stem, save.has_nan) != file:
            wrong[mode] = (save.path, save.has_nan)
        if found != wanted or seen.are_losses_partial != (mode == "only counted"):
            wrong[mode] = found
        if seen.models != MODELS.get(mode, []):
            wrong[mode] = seen.models
        if mode == "other bytes":
            excerpts = [pair for pair in seen.excerpts or () if len(pair[0]) == 64]
            files = (start.folder / name for name in ("other.bytes", "trained.bytes", "ends.py"))
            relations = [relation_of_files([file], excerpts[:1]) for file in files]
            assert relations == ["given", "trained", "unknown"]
    assert wrong == {}, output[-2000:]
    assert not re.findall("recompile_limit|does not know how to trace", output), (
        "the compiler saw the observer"
    )


LIBRARIES = {
    "xgboost/core.py": """
class Booster:
    def update(self, dtrain, iteration=0, fobj=None): self.rounds = iteration
    def eval_set(self, evals, iteration=0):
        texts = [f"{name}-{metric}:{1 / (iteration + 1)}" for _, name in evals for metric in ("auc", "rmse")]
        return "\\t".join([f"[{iteration}]", *texts])
    def save_model(self, fname): open(fname, "w").write("{}")
""",
    "lightgbm/basic.py": """
class Booster:
    def update(self, train_set=None, fobj=None): self.rounds = getattr(self, "rounds", 0) + 1
    def eval_valid(self, feval=None):
        return [("valid_0", "auc", 0.5, True), ("valid_0", "l2", 1 / self.rounds, False)]
    def eval_train(self, feval=None): return [("training", "l2", 0.5 / self.rounds, False)]
    def save_model(self, filename): open(filename, "w").write("{}")
""",
    "keras/src/callbacks/callback_list.py": """
class CallbackList:
    def on_train_batch_end(self, batch, logs=None): pass
    def on_epoch_end(self, epoch, logs=None): pass
""",
    "keras/src/saving/saving_api.py": "def save_model(model, filepath): open(filepath, 'w').write('{}')",
    "sklearn/base.py": """
def _fit_context(*, prefer_skip_nested_validation):
    def decorator(method):
        def wrapper(estimator, *args): return method(estimator, *args)
        return wrapper
    return decorator
""",
    "joblib/numpy_pickle.py": "def dump(value, filename): open(filename, 'w').write('{}')",
}
"""The part of each library that the observer hooks into, in its shape; the libraries are not in the lock."""
PROGRAMS: dict[str, tuple[str, list[object]]] = {
    "xgboost": (
        "from xgboost.core import Booster\ntrain, other = object(), object()\nbooster = Booster()\n"
        "for n in range(3):\n    booster.update(train, iteration=n)\n"
        "    booster.eval_set([(other, 'test'), (train, 'train')], n)\nbooster.save_model('m.json')",
        [3, {"test-auc", "test-rmse", "train-auc", "train-rmse", "loss", "val_loss"}, [(3, "m.json", False)]],
    ),
    "lightgbm": (
        "from lightgbm.basic import Booster\nbooster = Booster()\nfor n in range(3):\n    booster.update()\n"
        "    booster.eval_train(), booster.eval_valid()\nbooster.save_model('m.txt')",
        [3, {"valid_0 auc", "valid_0 l2", "training l2", "loss", "val_loss"}, [(3, "m.txt", False)]],
    ),
    "keras": (
        "from keras.src.callbacks.callback_list import CallbackList\n"
        "from keras.src.saving import saving_api\n"
        "calls = CallbackList()\nfor epoch in range(2):\n    for batch in (3, 7, 9):\n"
        "        calls.on_train_batch_end(batch)\n"
        "    calls.on_epoch_end(epoch, {'loss': 1.0, 'val_loss': 2.0})\n"
        "saving_api.save_model(calls, 'm.keras')",
        [20, {"loss", "val_loss"}, [(20, "m.keras", False)]],
    ),
    "sklearn": (
        "from sklearn.base import _fit_context\nfrom joblib.numpy_pickle import dump\nclass Model:\n"
        "    @_fit_context(prefer_skip_nested_validation=True)\n"
        "    def partial_fit(self, x): self.loss_ = 1.0 / x\n"
        "    @_fit_context(prefer_skip_nested_validation=True)\n"
        "    def predict(self, x): return x\n"
        "model = Model()\nfor n in (1, 2, 3):\n    model.partial_fit(n), model.predict(n)\n"
        "dump(model, 'm.joblib')\nclass Array:\n    dtype = type('D', (), {'kind': 'f'})\n"
        "    def __ne__(self, other): return self\n    def any(self): return True\n"
        "model.coefs_ = [Array()]\ndump(model, 'n.joblib')",
        [3, {"loss"}, [(3, "m.joblib", False), (3, "n.joblib", True)]],
    ),
}


def test_libraries_without_an_optimizer_of_torch_count_their_own_steps(tmp_path: Path) -> None:
    wrong = {}
    for name, (program, wanted) in PROGRAMS.items():
        start = Start(tmp_path / name)
        for path, text in LIBRARIES.items():
            file = start.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (start.folder / "fit.py").write_text(program)
        output = start.run((PYTHON, "fit.py"))
        figures = set().union(*(row.figures for row in start.rows))
        saves = [(save.step, save.path.name, save.has_nan) for save in start.saves]
        if [start.observed.steps, figures, saves] != wanted:
            wrong[name] = (start.observed.steps, figures, saves, output)
    assert wrong == {}


@pytest.mark.process
def test_a_python_without_the_observer_says_why(tmp_path: Path) -> None:
    for name, (words, reason) in UNOBSERVED.items():
        start = Start(tmp_path / name)
        process = start.start(words)
        try:
            until = time.monotonic() + 30
            while not start.observed.unobserved and time.monotonic() < until:
                time.sleep(0.1)
                start.observed.check(pythons_below(process.pid))
        finally:
            for each in [*pythons_below(process.pid)]:
                if (found := find_process(each.pid)) is not None:
                    os.kill(found.pid, 9)
            process.communicate()
        assert start.observed.unobserved == [reason], name


def test_the_sitecustomize_of_the_environment_runs_as_it_would(tmp_path: Path) -> None:
    """Its errors, its exit and its import path are those of a Python without the observer."""
    contents = {
        "prints": "import sys\nprint('mine', len(sys.path), __name__)",
        "raises": "raise ValueError('mine')",
        "ends": "import sys\nsys.exit(3)",
        "needs": "import nothing_of_this_name",
        "none": None,
    }
    shows = "import sys; print(sys.path, [type(each) for each in sys.path_hooks], sys.argv)"
    for name, content in contents.items():
        seen = []
        for is_observed in (True, False):
            start = Start(tmp_path / f"{name} {is_observed}", is_observed=is_observed)
            mine = tmp_path / f"mine {name}"
            mine.mkdir(exist_ok=True)
            if content is not None:
                (mine / "sitecustomize.py").write_text(content)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PYTHONPATH", str(mine))
                process = start.start((PYTHON, "-c", shows))
                lines = process.communicate(timeout=DEADLINE)[0].splitlines()
                seen.append((lines[-2:], process.returncode))  # a traceback has more frames
        assert seen[0] == seen[1], name
