"""A job never writes into the run directory of another one."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.scripts.conftest import Program
from tests.unit.jobs.plans import ROOT, containers, request

from trainyard.config.load import load_config
from trainyard.errors import ConfigError
from trainyard.jobs.final_exit_codes import is_final
from trainyard.jobs.job_planning import plan_job
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.job_submission import is_deployed
from trainyard.jobs.kinds import KINDS

TRAIN = """\
import json, sys
for step in range(1, int(sys.argv[1]) + 1):
    print(json.dumps({"step": step, "loss": 5.0 / step}), flush=True)
"""
CASES: dict[str, dict[str, Any]] = {
    "same": {},
    "other namespace": {"namespace": "team-b"},
    "other owner": {"creator": "bob"},
    "other command": {"script": "other.py"},
    "more steps": {"steps": 20},
    "not known": {"creator": ""},
}
REFUSED = {
    "more steps": "training.max_steps: 12, now 20",
    "other namespace": "namespace team-a",
    "other owner": "creator alice",
    "other command": "command ",
}
DEPLOYED = {"same": True, "not known": True, "other namespace": False, "other owner": True}
"""While the first job is there: followed (True), sent (False); all others are refused."""


def job(*, script: str = "train.py", steps: int = 12, **changes: Any) -> JobSpec:
    command = json.dumps([sys.executable, script, "{training.max_steps}"])
    settings = ["recipe=command", f"program.command={command}", f"training.max_steps={steps}"]
    config = load_config(ROOT / "configs" / "smoke.yaml", settings).config
    return plan_job(config, request(**{"namespace": "team-a", "creator": "alice", **changes}))


def run(plan: JobSpec, program: Program, folder: Path) -> Any:
    """Run the pod of a job with the words and variables of its manifest, in the first job's directory."""
    for name, text in plan.program.files.items():
        (folder / name).write_text(text)
    container = containers(KINDS[plan.kind].render(plan).job)[0]
    words = [word.replace("/etc/trainyard", str(folder)) for word in container["command"][5:]]
    words[words.index("--run-dir") + 1] = str(folder / "volume" / "team-a" / "llama")
    variables = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    kept = ("TRAINYARD_OWNER", "TRAINYARD_RUN_ID")
    return program("pod", *words, **{name: variables[name] for name in kept})


def find(made: dict[str, Any], body: Any) -> dict[str, Any] | None:
    """Return the first job, if it has the kind and the namespace of `body`."""
    same = body["kind"] == made["kind"] and body["metadata"]["namespace"] == made["metadata"]["namespace"]
    return made if same else None


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_a_job_of_the_same_owner_and_inputs_writes_into_the_directory_of_a_finished_run(
    program: Program, tmp_path: Path
) -> None:
    """Each other namespace, owner and command x the pod and the command that deploys."""
    for script in ("train.py", "other.py"):
        (tmp_path / script).write_text(TRAIN)
    volume, first = tmp_path / "volume", job()
    volume.mkdir(mode=0o777)
    volume.chmod(0o777)
    done = run(first, program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (volume / "team-a").stat().st_mode & 0o777 == 0o777, "for jobs of other users"
    made = KINDS[first.kind].render(first).job
    wrong = []
    for name, changes in CASES.items():
        plan, before = job(**changes), content(volume)
        done = run(plan, program, tmp_path)
        refusal = REFUSED.get(name)
        if refusal is None:
            wrong += [(name, "pod", done.stderr)] if done.returncode else []
        elif content(volume) != before or done.returncode != 2 or refusal not in done.stderr:
            wrong.append((name, "pod", done.stderr))
        try:
            found: bool | None = is_deployed(partial(find, made), plan, KINDS[plan.kind].render(plan))
        except ConfigError:
            found = None
        if found is not DEPLOYED.get(name):
            wrong.append((name, "deploy", str(found)))
        own = plan.program.command[plan.program.command.index("--run-dir") + 1]
        if own != f"/checkpoints/{plan.namespace}/llama":
            wrong.append((name, "deploy", own))
    assert not wrong
    assert is_final(2), "no operator starts the pod again"
