"""Query what a run and a deployment need, before they start: values for the rooms that judge them.

    store, run number, role, signing key ──> Answers ──> machine.readiness
    machine, store, code, workflows, GitHub, cluster, services ──> Finding ──> machine.checklist

It may import every room, as commands do, and prints nothing. Only the probe of a store writes.
"""

import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.store.store_address import local_store, names_a_store, open_store
from trainyard.artifacts.store_probe import PART_BYTES, query_store
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.commands.cluster import open_query
from trainyard.commands.init_github import find_repository
from trainyard.commands.step_environment import find_on_machine
from trainyard.config.load import load_config
from trainyard.errors import (
    ConfigError,
    ExitCode,
    ServiceError,
    ServiceTroubleError,
    TrainyardError,
    WaitTimeoutError,
)
from trainyard.gateways.aws_session import assume_workflow_role, workflow_role
from trainyard.gateways.bounded_calls import within
from trainyard.gateways.git import git_facts
from trainyard.gateways.github_api import GitHub, server_of, token_of_login
from trainyard.gateways.images.ecr import EcrRepository, find_digest
from trainyard.gateways.local_machine import free_bytes
from trainyard.gateways.model_signing import signer_from
from trainyard.gateways.nvidia import query_gpus
from trainyard.gateways.process import run_git, run_program
from trainyard.gateways.slack import owner_of_token
from trainyard.gateways.wandb_account import api_key, owner_of
from trainyard.github.repository import get_repository
from trainyard.github.setup import Setup, WantedSetup
from trainyard.github.setup_step import FINISHED, SetupStep, SetupVerdict
from trainyard.jobs.job_spec import JobSpec
from trainyard.machine.readiness import Answers, hanging_message, judge_readiness
from trainyard.plan.finding import Finding, Severity
from trainyard.programs.inputs import find_lock, lock_fault
from trainyard.proof.repeatability import FIXES_OF_PROGRAMS
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import choose_run_id, identity_in, read_run
from trainyard.run.suggested_commands import ClusterTarget, trainyard_command

if TYPE_CHECKING:
    from trainyard.artifacts.store.object_store import Store
    from trainyard.artifacts.store_probe import StoreAnswer
    from trainyard.config.schema import Config

# A line of 1 Mbit/s sends 5 MiB in SECONDS. CALL_SECONDS limits each small call, which shows a store that
# hangs; a call that sends a file has the time limit of a sync.
SECONDS = 60.0
CALL_SECONDS, ATTEMPTS = 5.0, 2
# An area of the checklist may import torch on a busy machine.
AREA_SECONDS = 180.0
SERVICE_SECONDS = 10.0
# The files by which a repository sets up a linter, a type checker or tests.
QUALITY_FILES = (".pre-commit-config.yaml", "ruff.toml", ".flake8", "mypy.ini", "tox.ini", "tests")
# The areas of the checklist, in the order in which a person would repair them.
AREAS = (
    *("machine", "store", "configuration", "code", "quality", "documentation", "workflows"),
    *("github", "cluster", "image", "wandb", "slack"),
)


@dataclass(frozen=True)
class Deployment:
    """The run, or the deployment of runs, whose needs are checked."""

    config: Path | None = None
    """None in the folder of a program that has no configuration, which needs none."""
    changes: Sequence[str] = ()
    store: str | None = None
    run_dir: Path | None = None
    run_number: int | None = None
    dry_run: bool = False
    """Whether nothing is written into the store."""
    skipped: tuple[str, ...] = ()
    """Areas of the checklist that are not checked, and listed as not used."""

    def read_config(self) -> "Config":
        """Return the configuration. Raises ConfigError if it cannot be used."""
        if self.config is None:  # the defaults of a program
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "trainyard.yaml")
                file.write_text('recipe: command\nprogram: {command: ["true"]}\n')
                return load_config(file).config
        return load_config(self.config, self.changes).config


def query_readiness(wanted: Deployment, *, timeout: float = SECONDS) -> Answers:
    """Return the facts about the store, the run number, the role and the signing key that are judged.

    Raises ConfigError if neither `wanted` nor its configuration names a store.
    """
    url, encryption = _store_of(wanted)
    run_id, may_be_stored = _run_of(wanted.run_dir)

    def open_limited(**limits: float) -> "Store":
        options: dict[str, Any] = {"attempts": ATTEMPTS, "part_bytes": PART_BYTES, **limits}
        return open_store(url, encryption=encryption, **options)

    def query() -> "StoreAnswer":
        quick = partial(open_limited, call_seconds=CALL_SECONDS)
        how = {"may_be_stored": may_be_stored, "writes": not wanted.dry_run}
        return query_store(quick, run_id, wanted.run_number, for_files=open_limited, **how)

    role, role_problem = _assume_role(url, timeout) if names_a_store(url) else ("", "")
    try:
        facts = {} if role_problem else asdict(within(timeout, query))
    except WaitTimeoutError:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        facts = {"problems": (hanging_message(url, timeout, endpoint),)}
    return Answers(
        url,
        run_id,
        again=f"{trainyard_command('doctor')} --store",
        is_address=names_a_store(url),
        is_here=wanted.run_dir is not None and identity_in(wanted.run_dir) is not None,
        written=not wanted.dry_run,
        role=role,
        role_problem=role_problem,
        **facts,
        **_query_signer(),
    )


def _store_of(wanted: Deployment) -> tuple[str, str]:
    """Return the store, else that of the configuration, and the encryption of its objects."""
    artifacts = wanted.read_config().artifacts
    url = wanted.store or artifacts.store
    if not url:
        raise ConfigError(
            "No store: give --store (make train STORE=…), or set artifacts.store in the configuration."
        )
    return url, artifacts.encryption


def _run_of(directory: Path | None) -> tuple[str, bool]:
    """Return the identity of the run, and whether the store may contain it already."""
    if directory is not None and (file := RunDirectory(directory).run_file).exists():
        return str(read_run(file)["run_id"]), True
    return choose_run_id(directory), "TRAINYARD_RUN_ID" in os.environ


def _assume_role(url: str, seconds: float) -> tuple[str, str]:
    """Return the workflow's role for a store in S3, and why it cannot be assumed; empty texts without a role.

    Raises ConfigError for variables that cannot be used.
    """
    role = workflow_role() if url.startswith("s3://") else None
    if role is None:
        return "", ""
    try:
        within(seconds, assume_workflow_role)
    except (ServiceError, WaitTimeoutError) as error:
        return role.arn, str(error)
    return role.arn, ""


def _query_signer() -> dict[str, Any]:
    """Return the signing settings of the environment as fields of `Answers`, never the key itself."""
    try:
        return {"signing": "the key can be used"} if signer_from() else {}
    except ConfigError as error:
        return {"signing_problem": str(error)}


def default_config() -> Path | None:
    """Return the configuration of the folder: a program's, or in a checkout that of our trainer."""
    if (own := Path("trainyard.yaml")).is_file():
        return own
    file = REPOSITORY_ROOT / "configs" / "training_configuration.yaml"
    return file if file.is_file() and Path.cwd().is_relative_to(REPOSITORY_ROOT) else None


def collect_items(wanted: Deployment) -> list[Finding]:
    """Return the items of all areas, in the order of `AREAS`. An area has a time limit."""
    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "machine": lambda: machine_items(wanted),
        "store": lambda: store_items(wanted),
        "configuration": lambda: configuration_items(wanted),
        "code": lambda: [*code_items(Path.cwd()), *program_items(wanted, Path.cwd())],
        "quality": lambda: quality_items(Path.cwd()),
        "documentation": lambda: documentation_items(Path.cwd()),
        "workflows": lambda: workflow_items(Path.cwd()),
        "github": github_items,
        "cluster": lambda: cluster_items(wanted, os.environ),
        "image": lambda: image_items(os.environ),
        "wandb": lambda: tracker_items(wanted),
        "slack": lambda: [slack_item(os.environ)],
    }

    def check(area: str) -> list[Finding]:
        if area in wanted.skipped:
            return [Finding(area, Severity.UNUSED, "left out by --skip")]
        try:
            return within(AREA_SECONDS, lambda: list(checks[area]()))
        except (TrainyardError, OSError, ImportError) as error:
            # gh, its login or the network are missing more often than a setting is wrong.
            code = error.exit_code if isinstance(error, TrainyardError) else ExitCode.NO
            is_away = area == "github" or code in (ExitCode.REFUSED, ExitCode.TIMED_OUT)
            state = Severity.SKIPPED if is_away else Severity.ERROR
            return [Finding(area, state, " ".join(str(error).split()))]

    with ThreadPoolExecutor(len(AREAS)) as pool:
        found = pool.map(check, AREAS)
        return [replace(item, area=area) for area, items in zip(AREAS, found, strict=True) for item in items]


def machine_items(wanted: Deployment) -> list[Finding]:
    """Return items: can this machine run the configuration?"""
    folder = wanted.run_dir or Path("runs")
    if wanted.config is None:
        names = [gpu.name for gpu in query_gpus().gpus]
        gpus = f"{len(names)} × {names[0]}" if names else "no GPU"
        text = f"{gpus}, {free_bytes(folder) / 1e9:,.0f} GB free; its program decides what it needs"
        return [Finding("machine", Severity.PASSED, text)]
    findings, line = find_on_machine(wanted.config, wanted.changes, run_dir=folder, store=wanted.store)
    return [*findings] or [Finding("machine", Severity.PASSED, line)]


def store_items(wanted: Deployment) -> list[Finding]:
    """Return items: can a run be stored?"""
    config = wanted.read_config()
    if config.is_program and not (wanted.store or config.artifacts.store):
        text = f"none is named, so runs are stored in {local_store()}, on this machine only"
        return [Finding("store", Severity.PASSED, text)]
    return list(judge_readiness(query_readiness(wanted)))


def configuration_items(wanted: Deployment) -> Iterator[Finding]:
    if wanted.config is None:
        text = "none is needed: trainyard run COMMAND; trainyard init program writes one"
        yield Finding("trainyard.yaml", Severity.UNUSED, text)
        return
    state, text = Severity.PASSED, "every key and value can be used"
    try:
        wanted.read_config()
    except ConfigError as error:
        state, text = Severity.ERROR, str(error)
    yield Finding(os.path.relpath(wanted.config), state, text)


def code_items(folder: Path) -> Iterator[Finding]:
    """Yield items: is there a commit, is the tree clean, is the commit pushed?"""
    facts = git_facts(folder)
    if not facts:
        yield Finding("commit", Severity.ERROR, f"git knows no commit of {folder}", "git commit")
        return
    commit = str(facts["commit"])[:12]
    if "dirty" not in facts:
        yield Finding("tree", Severity.SKIPPED, "git did not answer whether it is clean")
    elif facts["dirty"]:
        text = f"changed since {commit}: a run is not repeatable"
        yield Finding("tree", Severity.ERROR, text, "git commit, or git stash")
    else:
        yield Finding("tree", Severity.PASSED, "clean")
    ahead = run_git(folder, "rev-list", "--count", "@{upstream}..HEAD", seconds=10)
    lacks = Finding.warning(f"{commit} is not pushed: GitHub trains an older one", "git push", "commit")
    if ahead.exit_code != 0:
        lacks = Finding("commit", Severity.SKIPPED, f"{commit}; the branch has no upstream")
    yield Finding.success(f"{commit}, pushed", "commit") if ahead.stdout.strip() == "0" else lacks


def program_items(wanted: Deployment, folder: Path) -> Iterator[Finding]:
    """Yield items about a program: what its runs cannot be proven without, as their start reports it."""
    config = wanted.read_config()
    if not config.is_program:
        return
    lock = folder / config.program.lock if config.program.lock else find_lock(folder)
    is_pinned = lock is not None and lock.is_file() and not lock_fault(lock)
    known = {"lock": is_pinned, "data": config.program.data is not None}
    for name, is_known in known.items():
        lacks = Finding.warning("not on record: no run is proven", FIXES_OF_PROGRAMS[name], name)
        yield Finding.success("the configuration or the repository names it", name) if is_known else lacks


def quality_items(folder: Path) -> Iterator[Finding]:
    """Yield an item: is the code checked by a tool that the repository sets up?"""
    found = sorted({file.name for name in QUALITY_FILES for file in folder.glob(name)})
    settings = folder / "pyproject.toml"
    if settings.is_file():
        tools = tomllib.loads(settings.read_text(encoding="utf-8")).get("tool", {})
        found += sorted({"ruff", "mypy", "pytest", "pyright", "black"} & tools.keys())
    fix = "add one, such as ruff and pytest, to pyproject.toml"
    lacks = Finding.warning("no linter, type checker or test is set up here", fix, "tools")
    yield Finding.success(f"set up: {', '.join(found)}", "tools") if found else lacks


def documentation_items(folder: Path) -> Iterator[Finding]:
    """Yield an item: does a README say how to train?"""
    file = next((each for each in sorted(folder.glob("README*")) if each.is_file()), None)
    if file is None:
        fix = "write README.md: the command, the data, the store, and who is called"
        yield Finding("readme", Severity.WARNING, "there is none", fix)
    elif not re.search(r"\btrain", file.read_text(encoding="utf-8", errors="replace"), re.I):
        text = f"{file.name} does not say how to train"
        yield Finding("readme", Severity.WARNING, text, f"name the command in {file.name}")
    else:
        yield Finding("readme", Severity.PASSED, f"{file.name} says how to train")


def workflow_items(folder: Path) -> Iterator[Finding]:
    """Yield an item: are the workflows valid for actionlint?"""
    files = sorted((folder / ".github" / "workflows").glob("*.y*ml"))
    count = f"{len(files)} file" if len(files) == 1 else f"{len(files)} files"
    program = os.environ.get("ACTIONLINT") or shutil.which("actionlint")
    if not files:
        yield Finding("syntax", Severity.UNUSED, f"no workflow in {folder}")
    elif not program:
        text = f"{count}: not checked, because actionlint is not installed"
        yield Finding("syntax", Severity.SKIPPED, text)
    else:
        done = run_program([program, "-oneline", *map(str, files)], seconds=60)
        state, text = Severity.SKIPPED, f"actionlint failed: {done.stderr.strip()}"
        if done.exit_code in (0, 1):
            state = Severity.ERROR if done.exit_code else Severity.PASSED
            text = done.stdout.strip() if done.exit_code else f"{count}, checked by actionlint"
        yield Finding("syntax", state, text)


def github_items() -> list[Finding]:
    """Return an item for each step of `trainyard init github`; nothing is changed."""
    host, name = find_repository("")
    api = GitHub(name, token_of_login(host), server=server_of(host))
    repository = get_repository(api, host, name)
    steps = Setup(api, repository, WantedSetup()).steps()
    return [item_of_setup(step, host) for step in steps]


def item_of_setup(step: SetupStep, host: str) -> Finding:
    """Return the item of a step of the set-up of GitHub."""
    states = dict.fromkeys(FINISHED, Severity.PASSED) | {SetupVerdict.REFUSED: Severity.SKIPPED}
    calls = [change.command_line(host) for change in step.changes]
    fix = "\n".join([*calls, *(todo.command for todo in step.todo)])
    return Finding(step.name, states.get(step.verdict, Severity.ERROR), step.text, fix)


def cluster_items(wanted: Deployment, environment: Mapping[str, str]) -> list[Finding]:
    """Return items: is the cluster of TRAINYARD_EKS_CLUSTER, or else of KUBECONFIG, ready?"""
    name = environment.get("TRAINYARD_EKS_CLUSTER", "")
    if not name and not environment.get("KUBECONFIG"):
        text = "neither TRAINYARD_EKS_CLUSTER nor KUBECONFIG is set"
        return [Finding("cluster", Severity.UNUSED, text)]
    settings = wanted.read_config().cluster
    query = open_query(JobSpec(target=ClusterTarget(cluster=name)), settings)
    target = query.job.target
    return [replace(each, fix=target.in_text(each.fix)) for each in query.judge(find_digest).findings]


def image_items(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield an item: does the ECR repository exist and give a login?"""
    name = environment.get("TRAINYARD_IMAGE_REPOSITORY", "")
    if not name:
        yield Finding("ecr", Severity.UNUSED, "TRAINYARD_IMAGE_REPOSITORY is not set")
        return

    def query() -> str:
        repository = EcrRepository(name, "")
        repository.fixed_tags()
        return f"{repository.login().host}/{name} exists, and a login is given"

    yield within_limit("ecr", query, fix=f"aws ecr create-repository --repository-name {name}")


def tracker_items(wanted: Deployment) -> Iterator[Finding]:
    """Yield an item: does W&B know the API key, if the configuration enables W&B?"""
    try:
        is_wanted = wanted.read_config().monitoring.wandb.enabled
    except ConfigError:
        return  # `configuration_items` reports it
    key = api_key(os.environ)
    if not is_wanted:
        yield Finding("key", Severity.UNUSED, "monitoring.wandb.enabled is false")
    elif os.environ.get("WANDB_MODE", "online") != "online":
        yield Finding("key", Severity.UNUSED, f"WANDB_MODE is {os.environ['WANDB_MODE']}")
    elif not key:
        text = "no key: it logs offline, into the run directory"
        yield Finding("key", Severity.WARNING, text, "set WANDB_API_KEY, or: wandb login")
    else:
        yield within_limit("key", lambda: owner_of(key, os.environ), fix="wandb login --relogin")


def slack_item(environment: Mapping[str, str]) -> Finding:
    """Return an item: does Slack know the bot token? A webhook can only be checked by sending a message."""
    if token := environment.get("SLACK_BOT_TOKEN"):
        return within_limit(
            "token",
            lambda: owner_of_token(token, environment),
            fix="a new token: the app's page in Slack, OAuth & Permissions, Bot User OAuth Token",
        )
    if environment.get("SLACK_WEBHOOK_URL"):
        text = "a webhook can only be checked by sending a message"
        fix = "trainyard notify started --run-dir runs/slack-test"
        return Finding("webhook", Severity.SKIPPED, text, fix)
    text = "neither SLACK_BOT_TOKEN nor SLACK_WEBHOOK_URL is set: messages are printed"
    return Finding("token", Severity.UNUSED, text)


def within_limit(name: str, query: Callable[[], str], *, fix: str) -> Finding:
    """Return the item of a service: failed if it refuses, unknown if it cannot be reached in time."""
    try:
        return Finding(name, Severity.PASSED, within(SERVICE_SECONDS, query))
    except (ServiceTroubleError, WaitTimeoutError) as error:
        return Finding(name, Severity.SKIPPED, str(error))
    except (ServiceError, ConfigError) as error:
        return Finding(name, Severity.ERROR, str(error), fix)
