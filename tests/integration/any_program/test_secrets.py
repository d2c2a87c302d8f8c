"""Secrets of a program: every form, in every way in, is in no record; and a resume gets them again.

The runs are started as their owner starts them, because what is recorded passes through every step.
"""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from tests import warm_start
from tests.answering import Slack, answering_slack
from tests.unit.config.secret_samples import BASE64, FORMS, HEX, URL, private_key, random_text

PASSWORD = "a password"
WAYS = ("argument", "YAML", "environment", "output", "URL")
TRAINER = """
import json, os, struct, sys
from pathlib import Path
given = json.loads(os.environ["PRINTS"])
for line in given:
    print(line, flush=True)
print(sys.argv)
for name, value in sorted(os.environ.items()):
    if name != "PRINTS":
        print(f"{name}={value}")
print({"step": 1, "loss": 2.0, "api_key": os.environ["OWN_API_KEY"]})
for step in (2, 3):
    print(json.dumps({"step": step, "loss": 1 / step, "token": given[0]}), flush=True)
Path("seen").write_text(json.dumps([sys.argv[1:], dict(os.environ)]))
Path(os.environ["TRAINYARD_RUN_DIR"], "logs", "own.txt").write_text(given[0])
folder = Path("out/checkpoint-3")
folder.mkdir(parents=True, exist_ok=True)
header = json.dumps({"w": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}).encode()
(folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<d", 1.0))
(folder / "trainer_state.json").write_text(json.dumps({"global_step": 3}))
sys.exit(int(os.environ.get("ENDS_WITH", "0")))
"""


def make(form: str, way: str) -> str:
    """Return a secret of the form, another one for each way."""
    seed = WAYS.index(way) + 1
    if form == PASSWORD:
        return random_text(URL, 24, seed)
    if form == "a private key":
        return private_key(body=300 + 64 * seed).strip()
    if form == "old W&B":
        return random_text(HEX, 40, seed)
    if form == "AWS secret":
        return random_text(BASE64, 40, seed)
    _, usual, maker = FORMS[form]
    return maker(usual, seed)


NAMES = {PASSWORD: "DB_PASSWORD", "old W&B": "WANDB_API_KEY", "AWS secret": "AWS_SECRET_ACCESS_KEY"}
"""The name without which a form is not recognised -> the variable."""
ALL = [*FORMS, *NAMES, "a private key"]


def name_of(form: str, number: int) -> str:
    return NAMES.get(form, f"THING_{number}")


@dataclass
class Owner:
    """A folder with somebody's program, and the runs of it."""

    folder: Path
    slack: Slack
    secrets: dict[tuple[str, str], str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made = {(form, way): make(form, way) for form in ALL for way in WAYS}
        self.secrets = {key: value for key, value in made.items() if key != ("a private key", "URL")}
        (self.folder / "train.py").write_text(TRAINER)
        (self.folder / "requirements.txt").write_text("pinned==1.0\n")

    def of(self, way: str) -> Iterator[tuple[str, str]]:
        """Yield name and value of each secret that comes this way."""
        for number, form in enumerate(ALL):
            if (form, way) in self.secrets:
                yield name_of(form, number), self.secrets[form, way]

    def configure(self) -> None:
        evaluate = [sys.executable, "-c", "print('{\"accuracy\": 1}')"]
        evaluate += ["--api-key", self.secrets[PASSWORD, "YAML"]]
        environment = {f"YAML_{name}": value for name, value in self.of("YAML")}
        program = {"environment": environment, "data": [], "checkpoints": "out/checkpoint-*"}
        config = {"recipe": "command", "program": program, "evaluation": {"command": evaluate}}
        (self.folder / "trainyard.yaml").write_text(yaml.safe_dump(config))

    def addresses(self) -> list[str]:
        return [f"https://user:{quote(value, safe='')}@host" for _, value in self.of("URL")]

    def words(self) -> list[str]:
        arguments = [("--" + name.lower().replace("_", "-"), value) for name, value in self.of("argument")]
        urls = [f"--url-{number}={address}/x" for number, address in enumerate(self.addresses())]
        pairs = [pair if number % 2 else ["=".join(pair)] for number, pair in enumerate(arguments)]
        return [sys.executable, "train.py", *(word for pair in pairs for word in pair), *urls]

    def environment(self) -> dict[str, str]:
        lines = [f"{name}: {value}" for name, value in self.of("output")]
        lines += [f"connect {address}" for address in self.addresses()]
        hidden = ("GITHUB_", "SLACK_", "TRAINYARD_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        kept |= {f"OWN_{name}": value for name, value in self.of("environment")}
        kept |= {"OWN_API_KEY": self.secrets[PASSWORD, "environment"], "PRINTS": json.dumps(lines)}
        kept |= {"SLACK_WEBHOOK_URL": f"{self.slack.url}/hook"}
        return kept | {"GITHUB_STEP_SUMMARY": str(self.folder / "summary"), **self.variables}

    def call(self, *words: str) -> "subprocess.CompletedProcess[str]":
        line = [sys.executable, "-m", "trainyard", *words]
        return warm_start.run(line, cwd=self.folder, env=self.environment(), timeout=300)

    def records(self) -> Iterator[tuple[str, bytes]]:
        """Yield every record: files of run and store, the summary, messages, and the archive of a dump."""
        for place in ("runs", "trainyard-store", "summary"):
            root = self.folder / place
            for path in [root] if root.is_file() else sorted(root.rglob("*")):
                if path.is_file() and path.name != "own.txt":
                    yield str(path.relative_to(self.folder)), path.read_bytes()
        yield "Slack", json.dumps(self.slack.bodies).encode()
        assert self.slack.bodies
        assert self.folder.joinpath("summary").stat().st_size
        if (dump := self.folder / "dump.tar.gz").exists():
            with tarfile.open(dump) as archive:
                for member in archive:
                    file = archive.extractfile(member)
                    if file and "own.txt" not in member.name:
                        yield f"debug-dump {member.name}", file.read()

    def leaks(self) -> list[str]:
        found = []
        for name, content in self.records():
            for (form, way), value in self.secrets.items():
                lines = [line for line in value.splitlines() if not line.startswith("-----")]
                written = (each for line in lines if len(line) >= 8 for each in (line, quote(line, safe="")))
                if any(each.encode() in content for each in written):
                    found.append(f"{form} by {way}: {name}")
        return found


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    with answering_slack() as server:
        yield Owner(tmp_path, server)


def seen(owner: Owner) -> tuple[list[str], dict[str, str]]:
    """Return what the program got: its arguments and its environment."""
    words, variables = json.loads((owner.folder / "seen").read_text())
    return words, variables


def test_no_record_has_a_secret_of_any_form_that_came_in_any_way(owner: Owner) -> None:
    owner.configure()
    words = ("run", "--config", "trainyard.yaml", "--run-dir", "runs/a", "--", *owner.words())
    plan = owner.call("run", "--dry-run", *words[1:])
    assert [value for value in owner.secrets.values() if value in plan.stdout + plan.stderr] == []
    done = owner.call(*words)
    log = (owner.folder / "runs/a/logs/node-0.log").read_text()
    outcome = json.loads((owner.folder / "runs/a/run.json").read_text())["outcome"]
    assert (outcome["status"], outcome["steps"]) == ("succeeded", 3), done.stderr
    assert outcome["first_loss"] == 2.0, "the figures of a line with a secret are read"
    dump = owner.call("debug-dump", "runs/a", "--output", "dump.tar.gz")
    assert dump.returncode == 0, dump.stderr

    assert owner.leaks() == []
    assert [value for value in owner.secrets.values() if value in done.stdout + done.stderr] == []
    got, variables = seen(owner)
    assert got == owner.words()[2:]
    given = {f"YAML_{name}": value for name, value in owner.of("YAML")}
    assert {name: variables[name] for name in given} == given, "the program has them"

    token = owner.secrets["Hugging Face", "output"]
    assert f"***{hashlib.sha256(token.encode()).hexdigest()[:8]}" in log
    password = owner.secrets[PASSWORD, "output"]
    assert "DB_PASSWORD: ***\n" in log and hashlib.sha256(password.encode()).hexdigest()[:8] not in log
    places = ("program.command: --db-password", "program.environment: YAML_DB_PASSWORD", "evaluation.command")
    assert [place for place in places if place not in done.stderr] == []
    assert "let the program read DB_PASSWORD from the environment" in done.stderr
    assert "own.txt: the program wrote a secret into it, and it is stored as it is" in done.stderr
    stored = next((owner.folder / "trainyard-store").rglob("own.txt"))
    assert stored.read_text() == f"{next(owner.of('output'))[0]}: {next(owner.of('output'))[1]}"

    again = owner.call(*words)
    assert "all steps were done before" in again.stderr, "masked values are compared with masked values"


def test_a_resume_takes_a_secret_from_the_command_or_the_environment_and_else_names_it(owner: Owner) -> None:
    owner.configure()
    token, password = owner.secrets["Hugging Face", "argument"], owner.secrets[PASSWORD, "argument"]
    program = [sys.executable, "train.py", "--hf-token", token, f"--db-password={password}"]
    owner.variables = {"ENDS_WITH": "1"}
    changes = ("--set", "evaluation.command=null", "--set", f"program.environment={{MY_API_KEY: {password}}}")
    start = ("run", "--config", "trainyard.yaml", *changes, "--run-dir", "runs/a")
    assert owner.call(*start, "--", *program).returncode == 1
    assert owner.leaks() == []

    (owner.folder / "seen").unlink()
    refused = owner.call("run", "--run-dir", "runs/a")
    assert refused.returncode == 2
    places = ("command: --hf-token", "command: --db-password (or set DB_PASSWORD)", "environment: MY_API_KEY")
    assert [place for place in places if f"program.{place}" not in refused.stderr] == []
    assert not (owner.folder / "seen").exists(), "nothing was started"

    owner.variables |= {"ANY_NAME": token, "DB_PASSWORD": password, "MY_API_KEY": password}
    ways = {"environment": ("run", "--run-dir", "runs/a"), "command": (*start, "--", *program)}
    for way, words in ways.items():
        owner.call(*words)
        got, variables = seen(owner)
        assert (got, variables["MY_API_KEY"]) == (program[2:], password), way
        (owner.folder / "seen").unlink()
        owner.variables = {"ENDS_WITH": "1"}
