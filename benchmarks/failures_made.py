#!/usr/bin/env python3
# ruff: noqa: E501 - a program is as long as it is
"""Make failures, read what `trainyard explain` says about each, do it, and require that the program then ends well.

Each case is a program that fails, the words that its advice must have, and the repair as a person would do it:
another program text, environment or command. Those with `--ten` are made through `trainyard run`, whose record
must name the class, the answer about a retry and the root error. No advice belongs into causes.yaml without a
case here.

Reads:      the environment of this tree; file systems of its own need a user namespace (unshare)
Writes:     temporary folders; a table on stdout
Exit codes: 0 every advice worked, 1 one did not
Example:    benchmarks/failures_made.py --only module disk
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.watch.failure_logs.failure_explanation import LogExplanation, explain_logs, table
from trainyard.watch.failure_logs.log_text import log_of

PYTHON = (sys.executable, "train.py")
TORCH = "import torch\n"
LINEAR = "import torch\nmodel = torch.nn.Linear(4, 2)\n"
SMALL = ("unshare", "-rm", "sh", "-c")


@dataclass(frozen=True)
class Case:
    """A failure, and its repair; what is not repaired stays as it was."""

    program: str
    says: str
    """Words of the advice."""
    repaired: str = ""
    command: Sequence[str] = PYTHON
    repaired_command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    repaired_files: Mapping[str, str] = field(default_factory=dict)


def limited(limit: str) -> tuple[str, ...]:
    return ("sh", "-c", f"ulimit {limit}; exec {sys.executable} train.py")


def on_tmpfs(options: str, place: str = "out") -> tuple[str, ...]:
    return (
        *SMALL,
        f"mkdir -p {place}; mount -t tmpfs -o {options} none {place} && exec {sys.executable} train.py",
    )


LOADER = TORCH + (
    "class Data(torch.utils.data.Dataset):\n"
    "    def __len__(self): return 4\n"
    "    def __getitem__(self, n): return torch.zeros(1 << 20)\n"
    "if __name__ == '__main__':\n    list(torch.utils.data.DataLoader(Data(), num_workers=1))\n"
)
GROUP = (
    TORCH + "import torch.distributed as d\n{init}d.all_reduce(torch.ones(1))\nd.destroy_process_group()\n"
)
INIT = "d.init_process_group('gloo', init_method='tcp://127.0.0.1:29391', rank=0, world_size=1)\n"
KEYS = LINEAR + "torch.save({{'module.' + k: v for k, v in model.state_dict().items()}}, 'a.pt')\n{load}\n"
TLS = (
    "import http.server as h, ssl, subprocess, threading, urllib.request as u\n"
    "subprocess.run('openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 2 -subj /CN=localhost '\n"
    "    '-addext subjectAltName=DNS:localhost', shell=True, check=True, stderr=subprocess.DEVNULL)\n"
    "c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); c.load_cert_chain('c.pem', 'k.pem')\n"
    "s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler); s.socket = c.wrap_socket(s.socket, server_side=True)\n"
    "threading.Thread(target=s.serve_forever, daemon=True).start(); u.urlopen(f'https://localhost:{s.server_port}/')\n"
)
DIVERGES = LINEAR + (
    "o = torch.optim.SGD(model.parameters(), lr={rate})\nfor n in range(60):\n"
    "    l = model(torch.ones(8, 4)).pow(2).mean(); o.zero_grad(); l.backward(); o.step()\n"
    "    if not l.isfinite(): raise RuntimeError(f'Step {{n}}: the loss is {{l.item()}}')\n"
)
CASES: dict[str, Case] = {
    "module": Case("import a_thing", "install a_thing", files={}, repaired_files={"a_thing.py": ""}),
    "relative": Case(
        "import runpy, sys; sys.argv = ['p/a.py']; runpy.run_path('p/a.py', run_name='__main__')", "python -m",
        files={"p/a.py": "from . import b\n", "p/b.py": "", "p/__init__.py": ""},
        repaired_command=(sys.executable, "-m", "p.a"),
    ),
    "disk": Case("open('out/a', 'wb').write(bytes(1 << 20))", "free space", command=on_tmpfs("size=64k"), repaired_command=on_tmpfs("size=9m")),
    "inodes": Case(
        "for n in range(50): open(f'out/{n}', 'w').close()", "df -i",
        command=on_tmpfs("nr_inodes=9"), repaired_command=on_tmpfs("nr_inodes=99"),
    ),
    "file size": Case(
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nopen('a', 'wb').write(bytes(1 << 20))", "ulimit -f",
        command=limited("-f 8"), repaired_command=PYTHON,
    ),
    "open files": Case("k = [open('/dev/null') for _ in range(99)]", "ulimit -n", command=limited("-n 40"), repaired_command=PYTHON),
    "memory": Case("b = bytearray(3 << 29)", "memory", command=limited("-v 900000"), repaired_command=PYTHON),
    "read only": Case(
        "open('out/a', 'w')", "can be written", command=(*SMALL, f"mkdir out; mount -t tmpfs -o ro none out && exec {sys.executable} train.py"),
        repaired="open('a', 'w')", repaired_command=PYTHON,
    ),
    "shared memory": Case(LOADER, "/dev/shm", command=on_tmpfs("size=64k", "/dev/shm"), repaired_command=on_tmpfs("size=99m", "/dev/shm")),
    "port": Case(
        "import os, socket; a = socket.socket(); a.bind(('127.0.0.1', 0)); p = a.getsockname()[1]\n"
        "socket.socket().bind(('127.0.0.1', p if not os.environ.get('P') else 0))", "another port",
        repaired="import socket; socket.socket().bind(('127.0.0.1', 0))",
    ),
    "argument": Case("import argparse; argparse.ArgumentParser().parse_args()", "--fast", command=(*PYTHON, "--fast"), repaired_command=PYTHON),
    "missing argument": Case(
        "import argparse; p = argparse.ArgumentParser(); p.add_argument('--data', required=True); p.parse_args()", "--data",
        repaired_command=(*PYTHON, "--data", "x"),
    ),
    "command": Case("", "no-such-trainer", command=("sh", "-c", "no-such-trainer"), repaired_command=PYTHON),
    "mode": Case("", "chmod +x", command=("sh", "-c", "./run.sh"), files={"run.sh": "#!/bin/sh\nexit 0\n"}, repaired_command=("sh", "-c", "chmod +x run.sh; ./run.sh")),
    "file": Case("open('data.bin')", "data.bin", repaired_files={"data.bin": ""}),
    "lfs pointer": Case(
        TORCH + "torch.load('a.pt', weights_only=False)", "git lfs pull",
        files={"a.pt": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"},
        repaired=TORCH + "torch.save({}, 'a.pt'); torch.load('a.pt')",
    ),
    "damaged": Case(
        TORCH + "torch.save({'w': torch.ones(99)}, 'a.pt'); open('a.pt', 'r+b').truncate(300); torch.load('a.pt')", "earlier checkpoint",
        repaired=TORCH + "torch.save({'w': torch.ones(99)}, 'b.pt'); torch.load('b.pt')",
    ),
    "empty pickle": Case("import pickle; open('a', 'w').close(); pickle.load(open('a', 'rb'))", "earlier checkpoint",
        repaired="import pickle; pickle.dump(1, open('a', 'wb')); pickle.load(open('a', 'rb'))"),
    "weights only": Case(
        TORCH + "import argparse; torch.save({'a': argparse.Namespace()}, 'a.pt'); torch.load('a.pt')", "weights_only=False",
        repaired=TORCH + "import argparse; torch.save({'a': argparse.Namespace()}, 'a.pt'); torch.load('a.pt', weights_only=False)",
    ),
    "keys of DDP": Case(
        KEYS.format(load="model.load_state_dict(torch.load('a.pt'))"), "module.",
        repaired=KEYS.format(load="model.load_state_dict({k.removeprefix('module.'): v for k, v in torch.load('a.pt').items()})"),
    ),
    "other sizes": Case(
        LINEAR + "torch.nn.Linear(3, 2).load_state_dict(model.state_dict())", "the configuration that made",
        repaired=LINEAR + "torch.nn.Linear(4, 2).load_state_dict(model.state_dict())",
    ),
    "vocabulary": Case(TORCH + "torch.nn.Embedding(4, 2)(torch.tensor([9]))", "larger than the model", repaired=TORCH + "torch.nn.Embedding(10, 2)(torch.tensor([9]))"),
    "labels": Case(
        TORCH + "torch.nn.functional.cross_entropy(torch.ones(1, 2), torch.tensor([7]))", "larger than the model",
        repaired=TORCH + "torch.nn.functional.cross_entropy(torch.ones(1, 8), torch.tensor([7]))",
    ),
    "no group": Case(GROUP.format(init=""), "init_process_group", repaired=GROUP.format(init=INIT)),
    "pickle": Case(
        "import multiprocessing as m\nif __name__ == '__main__': m.get_context('spawn').Process(target=lambda: 0).start()", "top level",
        repaired="import multiprocessing as m\nif __name__ == '__main__': m.get_context('spawn').Process(target=print).start()",
    ),
    "interface": Case(GROUP.format(init=INIT), "GLOO_SOCKET_IFNAME", environment={"GLOO_SOCKET_IFNAME": "eth77"}, repaired="import os; os.environ.pop('GLOO_SOCKET_IFNAME')\n" + GROUP.format(init=INIT)),
    "no samples": Case(
        TORCH + "torch.utils.data.DataLoader([], shuffle=True)", "no samples", repaired=TORCH + "torch.utils.data.DataLoader([1], shuffle=True)",
    ),
    "no gradient": Case(TORCH + "torch.ones(2).sum().backward()", "requires_grad", repaired=TORCH + "torch.ones(2, requires_grad=True).sum().backward()"),
    "graph twice": Case(
        LINEAR + "l = model(torch.ones(4)).pow(2).sum(); l.backward(); l.backward()", "once for each forward",
        repaired=LINEAR + "for _ in range(2): model(torch.ones(4)).pow(2).sum().backward()",
    ),
    "dtype": Case(LINEAR + "model(torch.ones(4, dtype=torch.float64))", "same dtype", repaired=LINEAR + "model(torch.ones(4, dtype=torch.float64).float())"),
    "no GPU": Case(LINEAR + "model.cuda()", "no GPU", repaired=LINEAR + "model.to('cuda' if torch.cuda.is_available() else 'cpu')"),
    "encoding": Case(
        "open('a', 'wb').write(b'\\xff\\xfe'); open('a', encoding='utf-8').read()", "encoding",
        repaired="open('a', 'wb').write(b'\\xff\\xfe'); open('a', encoding='utf-16').read()",
    ),
    "json": Case("import json; json.loads('{')", "JSON", repaired="import json; json.loads('{}')"),
    "anomaly": Case(
        TORCH + "torch.autograd.set_detect_anomaly(True); x = torch.zeros(1, requires_grad=True); (x.sqrt() * 0).backward()", "NaN",
        repaired=TORCH + "torch.autograd.set_detect_anomaly(True); x = torch.ones(1, requires_grad=True); (x.sqrt() * 0).backward()",
    ),
    "shape": Case(LINEAR + "model(torch.ones(3, 7))", "7 features", repaired=LINEAR + "model(torch.ones(3, 4))"),
    "sizes in a batch": Case(
        TORCH + "list(torch.utils.data.DataLoader([torch.ones(1), torch.ones(2)], batch_size=2))", "collate_fn",
        repaired=TORCH + "list(torch.utils.data.DataLoader([torch.ones(1), torch.ones(2)], batch_size=2, collate_fn=torch.nn.utils.rnn.pad_sequence))",
    ),
    "in place": Case(
        TORCH + "x = torch.ones(2, requires_grad=True); y = x.exp(); y += 1; y.sum().backward()", "x = x + y",
        repaired=TORCH + "x = torch.ones(2, requires_grad=True); y = x.exp(); y = y + 1; y.sum().backward()",
    ),
    "no parameters": Case(TORCH + "torch.optim.SGD([], lr=1)", "parameters", repaired=LINEAR + "torch.optim.SGD(model.parameters(), lr=1)"),
    "yaml": Case("import yaml; yaml.safe_load(open('a.yaml'))", "YAML", files={"a.yaml": "a: [1\nb: 2\n"}, repaired_files={"a.yaml": "a: [1]\nb: 2\n"}),
    "folder": Case("open('d')", "name a file", files={"d/a": ""}, repaired="open('d/a')"),
    "refused": Case(
        "import urllib.request as u; u.urlopen('http://127.0.0.1:29397/')", "start the server",
        repaired="import urllib.request as u, http.server as h, threading; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler)\n"
        "threading.Thread(target=s.serve_forever, daemon=True).start(); u.urlopen(f'http://127.0.0.1:{s.server_port}/')",
    ),
    "certificate": Case(TLS, "SSL_CERT_FILE", repaired="import os; os.environ['SSL_CERT_FILE'] = 'c.pem'\n" + TLS),
    "NaN": Case(DIVERGES.format(rate=9e3), "learning rate", repaired=DIVERGES.format(rate=0.01)),
    "name": Case(
        "import urllib.request as u, http.server as h, threading, sys; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler)\n"
        "threading.Thread(target=s.serve_forever, daemon=True).start(); u.urlopen(f'http://no-such-host.invalid:{s.server_port}/')", "resolves",
        repaired="import urllib.request as u, http.server as h, threading, sys; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler)\n"
        "threading.Thread(target=s.serve_forever, daemon=True).start(); u.urlopen(f'http://127.0.0.1:{s.server_port}/')",
    ),
}  # fmt: skip


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these cases")
    parser.add_argument(
        "--ten", action="store_true", help="the failures of one machine that are made through trainyard run"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    if args.ten:
        return make_runs()
    wrong, said = [], set()
    for name, case in CASES.items():
        if args.only and name not in args.only:
            continue
        problem, found = try_case(case)
        said |= {found.fix}
        wrong += [f"{name}: {problem}"] if problem else []
        print(f"| {name} | {found.klass} | {found.retry} | {found.fix} | {problem or 'green'} |", flush=True)
    fixes = len(table()["advice"])
    print(f"{len(CASES)} cases, {fixes} advices, {len(wrong)} wrong")
    return 1 if wrong else 0


LOOP = "for n in range(20): print(f'step {n + 1}/40 loss {5 - n / 10}', flush=True)\n"
RANKS = (
    "import os, signal, torch, torch.distributed as d\nd.init_process_group('gloo')\n"
    "for n in range(20):\n    d.all_reduce(torch.ones(1)); d.get_rank() or print(f'step {n + 1}/40 loss {5 - n / 10}', flush=True)\n"
    "if d.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\nd.all_reduce(torch.ones(1))\n"
)
CGROUP = ("sh", "-c")
RUNS = {  # name: program, processes, prefix of the command, class, retry, words of the root error
    "a rank is killed (kill -9)": (RANKS, 2, (), "unknown", "yes", "SIGKILL|exitcode"),
    "a missing module": (LOOP + "import a_thing", 1, (), "configuration", "no", "No module named 'a_thing'"),
    "a wrong shape": (LOOP + "import torch; torch.ones(2, 3) @ torch.ones(2, 3)", 1, (), "unknown", "unknown", "mat1 and mat2"),
    "NaN": (LOOP + "print('Step 21: the loss is not finite (nan)'); raise SystemExit(1)", 1, (), "nan", "no", "not finite"),
    "no network": (LOOP + "import urllib.request as u; u.urlopen('http://no-such-host.invalid/')", 1, (), "network", "yes", "name resolution|Name or service"),
    "its cgroup has no memory left": (LOOP + "b = bytearray(900 << 20)", 1, CGROUP, "oom-host", "no", ""),
    "a full disk": (LOOP + "open('big', 'wb').write(bytes(9 << 20))", 1, (*SMALL,), "disk-full", "no", "No space left"),
}  # fmt: skip


def make_runs() -> int:
    """Make the failures of one machine through `trainyard run`, and check what its record says."""
    wrong = 0
    for name, (program, processes, prefix, klass, retry, words) in RUNS.items():
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            (folder / "train.py").write_text(program)
            launch = ["torchrun", f"--nproc-per-node={processes}"] if processes > 1 else [sys.executable]
            (folder / "own.yaml").write_text(
                json.dumps({"recipe": "command", "program": {"command": [*launch, "train.py"], "data": []}})
            )
            line = f"{sys.executable} -m trainyard train --config own.yaml --run-dir {folder}/one"
            if prefix is CGROUP:
                place = "/sys/fs/cgroup/memory/trainyard-made"
                line = f"mkdir -p {place} && echo 700M > {place}/memory.limit_in_bytes && echo $$ > {place}/cgroup.procs && {line}"
            elif prefix:
                line = f"mkdir t; mount -t tmpfs -o size=2m none t; cp train.py own.yaml t; cd t; {line}"
            known = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            }
            done = subprocess.run(
                [*(prefix or ("sh", "-c")), line],
                cwd=folder,
                env=known,
                capture_output=True,
                text=True,
                timeout=600,
            )
            failure = json.loads((folder / "one" / "run.json").read_text())["outcome"].get("failure", {})
        found = failure.get("class"), failure.get("retry"), failure.get("level"), failure.get("error", "")
        is_right = found[:2] == (klass, retry) and bool(re.search(words, found[3]))
        wrong += not is_right
        shown = [
            each
            for each in done.stderr.splitlines()
            if "training:" in each or "error:" in each or "fix:" in each
        ]
        print(
            f"| {name} | {' | '.join(str(each) for each in found)} | {'right' if is_right else 'WRONG'} |",
            *shown,
            sep="\n",
            flush=True,
        )
    return 1 if wrong else 0


def try_case(case: Case) -> tuple[str, LogExplanation]:
    """Return what is wrong with the advice of a case, empty if it worked, and the explanation."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        code, output = start(folder, case.command, case.program, case.files, case.environment)
        found = explain_logs([log_of("log", output)], code)
        if code == 0:
            return "it did not fail", found
        if case.says not in found.fix:
            return f"{case.says!r} is not in {found.fix!r} for {found.root or output[-300:]!r}", found
        files, command = case.repaired_files, case.repaired_command or case.command
        code, output = start(folder, command, case.repaired or case.program, files, case.environment)
        return (f"repaired, it ends with {code}: {output[-300:]!r}" if code else ""), found


def start(
    folder: Path,
    command: Sequence[str],
    program: str,
    files: Mapping[str, str],
    environment: Mapping[str, str],
) -> tuple[int, str]:
    for name, text in {"train.py": program, **files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    known = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
