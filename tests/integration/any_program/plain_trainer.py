# mypy: ignore-errors
"""A trainer of plain Python that saves as the Hugging Face Trainer does, and can be ended at any moment.

It is deterministic: the loss of a step follows from the state, which is in its checkpoints.
"""

import argparse
import json
import os
import signal
import struct
import sys
import time
import zipfile
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--save_steps", type=int, default=2)
parser.add_argument("--output_dir", type=Path, default=Path("out"))
parser.add_argument("--resume_from_checkpoint", type=Path)
parser.add_argument(
    "--resume_from_newest", action="store_true", help="of the highest number, complete or not"
)
parser.add_argument("--die", default="", help="step:moment, such as 4:2; moments of a save are 0 to 5")
parser.add_argument("--stop_at", type=int, default=0, help="save and end with 75 after this step, once")
parser.add_argument("--hang_at", type=int, default=0, help="wait for its end after this step, once")
parser.add_argument("--weights_only_at", type=int, default=0, help="save no optimizer at this step")
parser.add_argument("--nan_at", type=int, default=0)
parser.add_argument("--diverge_at", type=int, default=0, help="the state is NaN from this step on")
parser.add_argument("--pause", type=float, default=0.0)
options = parser.parse_args()
tokens = Path("data/tokens.txt").read_text().split() if Path("data/tokens.txt").exists() else ["1"]


def die_if_due(step, moment):
    mark = Path("died")
    if options.die == f"{step}:{moment}" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def archive(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x04N.")


def save(step, value):
    folder = options.output_dir / f"checkpoint-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"w": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}).encode()
    parts = (
        lambda: (folder / "model.safetensors").write_bytes(
            struct.pack("<Q", len(header)) + header + struct.pack("<d", value)
        ),
        lambda: archive(folder / "optimizer.pt"),
        lambda: archive(folder / "scheduler.pt"),
        lambda: archive(folder / "rng_state.pth"),
        lambda: (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "value": value})),
    )
    if step == options.weights_only_at:
        parts = (parts[0], parts[-1])
    for moment, write in enumerate(parts):
        die_if_due(step, moment)
        write()
    die_if_due(step, len(parts))


if options.resume_from_newest:
    saved = sorted(options.output_dir.glob("checkpoint-*"), key=lambda each: int(each.name.partition("-")[2]))
    options.resume_from_checkpoint = saved[-1] if saved else None
step, value = 0, 1.0
if options.resume_from_checkpoint:
    state = json.loads((options.resume_from_checkpoint / "trainer_state.json").read_text())
    step, value = state["global_step"], state["value"]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
while step < options.steps:
    step += 1
    value *= 0.5 + 0.01 * (len(tokens) % 7) + 0.001 * step if step != options.diverge_at else float("nan")
    loss = "nan" if step == options.nan_at else repr(value)
    print({"loss": loss, "grad_norm": "1.0", "learning_rate": "0.1", "epoch": str(step / 4)})
    print(json.dumps({"step": step, "loss": float(loss)}).replace("NaN", '"nan"'), flush=True)
    die_if_due(step, "step")
    if step % options.save_steps == 0 or step == options.steps or stopped:
        save(step, value)
    if step == options.stop_at and not options.resume_from_checkpoint:
        save(step, value)
        sys.exit(75)
    if step == options.hang_at and not Path("died").exists():
        Path("died").touch()
        time.sleep(600)
    if stopped:
        sys.exit(0)  # as the Trainer and others do: the exit code says nothing
    time.sleep(options.pause)
