"""A folder with a valid value for every option that a script requires: a stored run, files, folders.

A new required option whose name no other script has needs a line in GOOD.
"""

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.integration.planted.yard import ROOT, make_all, plain
from tests.scripts.command_lines.options import Kind, Option, options_of

_fresh = itertools.count()
CONFIG = """
model:
  name: tiny
  device: cpu
  architecture: {hidden_size: 16, intermediate_size: 32, num_layers: 1, num_attention_heads: 2,
                 num_key_value_heads: 2, max_position_embeddings: 32}
training: {batch_size: 2, max_steps: 8}
data: {train_path: corpus, prepared_directory: prepared, sequence_length: 16}
"""
SEGMENT = {"lineage": "99", "number": 1, "run_number": 7, "commit": "a" * 40, "step": 0, "deaths": 0}
PLAN = {"segment": {**SEGMENT, "thread": ""}, "inputs": {}, "ref": "main", "store": "", "most_segments": 9}
END = {"exit_code": "75", "step": "8", "stored": "true", "outage": "false", "thread": ""}
END["manifest"] = "manifests/run-1-manifest.json"
SHEET = {
    "recipe": "verl",
    "command": ["true"],
    "torchrun": False,
    "nodes": 1,
    "steps": 8,
    "checkpoints": "program",
    "environment": {},
}
KUBECONFIG = {
    "current-context": "here",
    "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "me", "user": {"token": "none"}}],
}
"""Nothing listens at its address."""
FILES = {
    "config.yaml": CONFIG,
    "lock.txt": f"numpy==1.0 \\\n    --hash=sha256:{'a' * 64}\n",
    "kubeconfig.json": json.dumps(KUBECONFIG),
    "notes.md": "Notes.\n",
    "program.json": json.dumps(SHEET),
    "context/Dockerfile": "FROM scratch\nARG KEY=1\nUSER 1\n",
    "dist/a.whl": "a",
    "dist/SHA256SUMS": f"{sha256(b'a').hexdigest()}  a.whl\n",
}


@dataclass(frozen=True)
class Grounds:
    """The folder in which every script is called."""

    path: Path

    @property
    def run(self) -> Path:
        return self.path / "runs" / "run"

    @property
    def store(self) -> str:
        return (self.path / "store").as_uri()

    def new(self) -> Path:
        """Return a path that does not exist yet."""
        (self.path / "new").mkdir(exist_ok=True)
        return self.path / "new" / str(next(_fresh))


GOOD: dict[str, Callable[[Grounds], str]] = {
    "account": lambda _: "123456789012",
    "command": lambda _: "check",
    "config": lambda grounds: str(grounds.path / "config.yaml"),
    "context": lambda grounds: str(grounds.path / "context"),
    "dockerfile": lambda grounds: str(grounds.path / "context" / "Dockerfile"),
    "dist": lambda grounds: str(grounds.path / "dist"),
    "end": lambda _: json.dumps(END),
    "environment": lambda _: "training",
    "exit_code": lambda _: "75",
    "folder": lambda grounds: str(grounds.new()),
    "files": lambda grounds: str(grounds.path / "config.yaml"),
    "job": lambda _: "llama",
    "events": lambda grounds: str(grounds.path / "notes.md"),
    "log": lambda grounds: str(grounds.path / "notes.md"),
    "kubeconfig": lambda grounds: str(grounds.path / "kubeconfig.json"),
    "lock": lambda grounds: str(grounds.path / "lock.txt"),
    "manifest": lambda _: "manifests/run-1-manifest.json",
    "image": lambda _: "trainer:1",
    "keep_last": lambda _: "2",
    "checkpoint": lambda grounds: str(grounds.run / "checkpoints" / "step-00000008"),
    "metrics": lambda grounds: str(grounds.run / "metrics.jsonl"),
    "kind": lambda _: "pytorchjob",
    "memory": lambda grounds: str(grounds.new()),
    "event": lambda _: "started",
    "agents": lambda _: "claude",
    "name": lambda _: "best",
    "names": lambda _: "training-monitor",
    "namespace": lambda _: "team",
    "notes": lambda grounds: str(grounds.path / "notes.md"),
    "own": lambda _: "true",
    "output": lambda grounds: str(grounds.new()),
    "plan": lambda _: json.dumps(PLAN),
    "program": lambda grounds: str(grounds.path / "program.json"),
    "public_key": lambda grounds: str(grounds.path / "key.pem"),
    "pull_request": lambda _: "57",
    "repository": lambda _: "me/lab",
    "resume": lambda _: "auto",
    "root": lambda grounds: str(grounds.path / "root"),
    "run": lambda grounds: str(grounds.run),
    "run_dir": lambda grounds: str(grounds.run),
    "run_number": lambda _: "1",
    "runs": lambda grounds: str(grounds.run),
    "runs_directory": lambda grounds: str(grounds.run.parent),
    "sign_off": lambda grounds: str(grounds.new()),
    "step": lambda _: "8",
    "store": lambda grounds: grounds.store,
    "space": lambda _: "training.batch_size=2,4",
    "shell": lambda _: "bash",
    "stored": lambda _: "true",
    "tag": lambda _: "v0.1.0",
    "watch": lambda _: "1",
    "to": lambda grounds: str(grounds.new()),
}
"""Name of an option -> a valid value for it."""
FOR_ONE = {("job", "command"): "status", ("job_checkpoints", "command"): "list"}
"""Script and option -> the valid value for it there."""
BESIDE = {
    "config_check": ("files",),
    "step_environment": ("lock", "run_dir"),
    "doctor": ("store",),
    "step_check_release": ("root",),
    "image_build": ("context",),
    "build_release": ("root",),
    "step_continue": ("plan", "end"),
    "draw_pictures": ("to", "runs"),
    "evaluate": ("run_dir",),
    "cluster": ("kubeconfig",),
    "job_deploy": ("kubeconfig",),
    "job": ("kubeconfig", "job"),
    "job_checkpoints": ("kubeconfig", "job"),
    "watch": ("run",),
    "store_promote": ("run_number", "step"),
    "prove": ("store",),
    "run": ("config",),
    "store_prune": ("keep_last",),
    "store_restore": ("run_number",),
    "init_github": ("repository",),
    "train": ("run_dir",),
    "store_sync": ("store",),
    "store_verify": ("store", "run_number"),
    "write_config_schema": ("root",),
    "write_failure_reference": ("root",),
    "write_locks": ("root",),
    "write_script_reference": ("root",),
}
"""Script -> the options that it is given although its parser does not require them."""
WITH = {"checkpoint": ("metrics",), "metrics": ("checkpoint",)}
"""Option -> the options that it requires."""
ALWAYS = {"write_locks": ["--check"], "image_build": ["--builder=local"]}
"""Script -> words that keep it from asking a package index, or from refusing files beside the context."""


def line_for(grounds: Grounds, name: str, tried: Option | None = None, text: str = "") -> list[str]:
    """Return the arguments of `scripts/NAME.py`: valid values, and `text` for the option `tried`."""
    always = [word for word in ALWAYS.get(name, ()) if not tried or tried.flag != word]
    words = [*always, *(tried.words(text) if tried and tried.flag else [])]
    last = tried.words(text) if tried and not tried.flag else []
    taken = {tried.name} | set(tried.rivals) if tried else set()
    beside = (*BESIDE.get(name, ()), *WITH.get(tried.name if tried else "", ()))
    for option in options_of(name):
        if option.name in taken or not (option.is_owed or option.name in beside):
            continue
        if option.kind is Kind.SWITCH or (option.action.nargs == "*" and option.name not in beside):
            continue
        taken |= {option.name, *option.rivals}
        assert option.name in GOOD, f"say in GOOD of {__file__} what can be given for {option.shown}"
        words_of = option.words(FOR_ONE.get((name, option.name)) or GOOD[option.name](grounds))
        if option.flag:
            words += words_of
        else:
            last += words_of
    return words + last


def lay_out(path: Path) -> Grounds:
    """Train and store a tiny run, and make everything else that GOOD names."""
    grounds = Grounds(path)
    yard = make_all(path / "trained", kinds=(plain,))["plain"]
    (path / "runs").mkdir()
    yard.run.path.rename(grounds.run)
    yard.store_folder.rename(path / "store")
    for folder in ("new", "corpus", "dist"):
        (path / folder).mkdir(parents=True)
    for name in ("a", "b"):
        (path / "corpus" / f"{name}.txt").write_text(f"the {name} sat on the mat.\n" * 50)
    for name, content in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content)
    public = generate_private_key(SECP256R1()).public_key()
    (path / "key.pem").write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    for name in ("pyproject.toml", "CHANGELOG.md", "src/trainyard/__init__.py"):
        (path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, path / "root" / name)
    for file in ROOT.glob("requirements-*"):
        shutil.copy(file, path / "root")
    return grounds
