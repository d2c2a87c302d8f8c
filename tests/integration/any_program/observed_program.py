# mypy: ignore-errors
"""A training of plain torch with dropout, a DataLoader and two optimizers, started in many ways.

observed_program.py MODE     steps 24 times, saves three times, and prints the digest of its weights
"""

import hashlib
import os
import sys
from pathlib import Path

MODE = sys.argv[1] if len(sys.argv) > 1 else "plain"


def train(steps=24, workers=0):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(1)
    nets = [
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
        for _ in range(2)
    ]
    optimizers = [torch.optim.Adam(nets[0].parameters()), torch.optim.SGD(nets[1].parameters(), lr=0.1)]
    data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    loader, done = DataLoader(data, batch_size=8, shuffle=True, num_workers=workers), 0
    while done < steps:
        for x, y in loader:
            for net, optimizer in zip(nets, optimizers, strict=True):
                optimizer.zero_grad()
                (net(x) - y).square().mean().backward()
                optimizer.step()
            done += 1
        if int(os.environ.get("RANK", 0)) == 0:
            torch.save(nets[0].state_dict(), f"net-{done}.pt")
            with Path("other.pt").open("wb") as file:
                torch.save(nets[1].state_dict(), file)
    digest = hashlib.sha256()
    for net in nets:
        for tensor in net.state_dict().values():
            digest.update(tensor.numpy().tobytes())
    print("digest", digest.hexdigest(), flush=True)


if __name__ == "__main__":
    if MODE == "spawn":
        import multiprocessing

        process = multiprocessing.get_context(MODE).Process(target=train)
        process.start()
        process.join()
        sys.exit(process.exitcode)
    if MODE == "distributed":
        import torch.distributed

        torch.distributed.init_process_group("gloo")
    train(workers=2 if MODE == "crash" else 0)
    if MODE == "distributed":
        torch.distributed.destroy_process_group()
    if MODE == "crash":
        sys.excepthook = lambda *_: None
        raise ValueError("bad batch")
