"""Train a small network in a loop of your own, which logs, saves, resumes and can be stopped."""

import argparse
import sys
from pathlib import Path

import torch

try:
    import trainyard
except ImportError:  # it trains without Trainyard, too
    trainyard = None

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--save_steps", type=int, default=100)
parser.add_argument("--output_dir", type=Path, default=Path("out"))
parser.add_argument("--resume_from_checkpoint", type=Path)
options = parser.parse_args()

torch.manual_seed(0)
inputs = torch.randn(4096, 16)
targets = torch.sin(inputs.sum(dim=1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def save(step: int) -> Path:
    path = options.output_dir / f"step-{step:08d}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)  # a checkpoint is complete, or it is not there
    return path


start = 0
if options.resume_from_checkpoint:
    state = torch.load(options.resume_from_checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]
if trainyard:
    trainyard.begin(start, options.steps)

for step in range(start + 1, options.steps + 1):
    # The rows follow from the step, so a run that resumes trains as one that was not stopped.
    rows = torch.randint(len(inputs), (64,), generator=torch.Generator().manual_seed(step))
    loss = torch.nn.functional.mse_loss(model(inputs[rows]), targets[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.4f}", flush=True)
    stop = step < options.steps and trainyard is not None and trainyard.stop_requested()
    if trainyard:
        trainyard.log(step=step, loss=loss)
    if stop or step % options.save_steps == 0 or step == options.steps:
        path = save(step)
        if trainyard:
            trainyard.checkpoint(path, step=step)
    if stop:
        sys.exit(75)  # stopped early with a checkpoint: start it again
