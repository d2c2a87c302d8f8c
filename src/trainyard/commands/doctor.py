"""Check the store, run number, signing key and role before training needs them.

The store must have a valid address and do what storing a run needs: list, put if absent, send a file in one
request and another in two parts, read, abort. An operation that the store can never do is named as such.
The two parts are 5 MiB, which a slow line needs time for. The run number must be free or belong to this run;
the first sync claims it. The signing key must be usable. A workflow's role for an s3:// store is assumed
first. All failed checks are reported at once, each with its fix. What was written is removed, also after
Ctrl-C. If the role may not delete, three objects remain: their names start with trainyard-readiness, and
the next check replaces them. Nothing else is changed.

With --all, or without --store and --config, it also checks everything else that a deployment needs: the
machine, the configuration, the code, the workflows, the settings and runners of the repository, the cluster,
the repository of images, W&B and Slack. What it cannot check is listed as such; each command that checks
runs in a process of its own with a time limit.

Reads:      --config for artifacts.store and artifacts.encryption; --run-dir (run.json); TRAINYARD_RUN_ID;
            TRAINYARD_SIGNING_KEY[_FILE, _PASSWORD] or TRAINYARD_SIGNING=keyless; AWS_*;
            TRAINYARD_AWS_ROLE, _REGION and _ACCESS (check is enough). --all: trainyard.yaml, or
            configs/training_configuration.yaml, if no --config is given; gh, actionlint; SLACK_*, WANDB_*,
            TRAINYARD_EKS_CLUSTER or KUBECONFIG, TRAINYARD_IMAGE_REPOSITORY
Writes:     three temporary objects in the store; with --json every finding on stdout; in GitHub
            Actions, if a check failed, an annotation, the job summary, and the step output `reason`;
            with --all the checklist on stdout, and --sign-off's file
Exit codes: 0 ready (degraded findings are reported); 1 a check failed; 2 the configuration or usage is wrong
Example:    trainyard doctor --store s3://ml-runs/phase2 --run-number 812
            trainyard doctor --sign-off READY.md
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.record.run_numbers import parse_run_number
from trainyard.artifacts.store.store_address import names_a_store, open_store
from trainyard.artifacts.store_probe import PART_BYTES, query_store, remove_probe
from trainyard.command import arguments, output, time_limits
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.parser import script_parser
from trainyard.config.load import load_config
from trainyard.config.yaml_reader import parse_yaml
from trainyard.errors import (
    CheckFailedError,
    ConfigError,
    DamagedFileError,
    ExitCode,
    ServiceError,
    ServiceTroubleError,
    WaitTimeoutError,
)
from trainyard.gateways.aws_session import assume_workflow_role, workflow_role
from trainyard.gateways.git import git_facts
from trainyard.gateways.github import Level, annotate, append_summary, set_output
from trainyard.gateways.images.ecr import EcrRepository
from trainyard.gateways.model_signing import METHOD, signer_from
from trainyard.gateways.process import run_git, run_program
from trainyard.gateways.slack import owner_of_token
from trainyard.gateways.wandb_account import api_key, owner_of
from trainyard.machine.checklist import (
    CheckItem,
    CheckState,
    checklist_rows,
    conclusion,
    is_ready,
    items_of_cluster,
    items_of_findings,
    items_of_setup,
    sign_off_page,
)
from trainyard.machine.preflight import PreflightVerdict, worst_verdict
from trainyard.machine.preflight_text import refusal_line, refusal_markdown, refusal_text
from trainyard.machine.readiness import Answers, hanging_message, judge_readiness, store_line
from trainyard.run.atomic_files import write_bytes_atomically
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import choose_run_id, grace_needed, read_run
from trainyard.run.suggested_commands import trainyard_command

if TYPE_CHECKING:
    from trainyard.artifacts.store.object_store import Store
    from trainyard.artifacts.store_probe import StoreAnswer

# A line of 1 Mbit/s sends 5 MiB in SECONDS. CALL_SECONDS limits each small call, which shows a store that
# hangs; a call that sends a file has the time limit of a sync.
SECONDS = 60.0
GRACE_SECONDS = 30.0  # Kubernetes' own, from a signal until the trainer is killed
CALL_SECONDS, ATTEMPTS = 5.0, 2

COMMAND_SECONDS = 180.0
"""Time limit of a command of the checklist, which may import torch on a busy machine."""
SERVICE_SECONDS = 10.0
CODE = Path(__file__).resolve().parents[2]
AREAS = (
    *("machine", "store", "configuration", "code", "workflows"),
    *("github", "cluster", "image", "wandb", "slack"),
)
"""The areas of the checklist, in the order in which a person would repair them."""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--config", type=arguments.path, metavar="FILE", help="the configuration")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change one value; may be repeated"
    )
    parser.add_argument(
        "--store", metavar="URL", help="s3://bucket/prefix or file:///folder; default: --config's"
    )
    parser.add_argument("--run-number", default="auto", metavar="N|auto", help="default: auto")
    parser.add_argument(
        "--run-dir", type=arguments.path, metavar="DIR", help="the run's directory; need not exist"
    )
    parser.add_argument("--role", default="", metavar="ARN", help="a role that an earlier step assumed")
    parser.add_argument("--role-outcome", default="success", metavar="TEXT", help="the outcome of that step")
    limit = f"time limit of all requests to the store; default: {SECONDS:.0f}s"
    parser.add_argument("--timeout", type=arguments.duration, default=SECONDS, metavar="DURATION", help=limit)
    grace = "time from a signal until the trainer is killed, compared with earlier stops; default: 30s"
    parser.add_argument(
        "--grace", type=arguments.duration, default=GRACE_SECONDS, metavar="DURATION", help=grace
    )
    parser.add_argument("--dry-run", action="store_true", help="read the store, write nothing")
    parser.add_argument("--json", action="store_true", help="print every finding as JSON")
    everything = parser.add_argument_group("the checklist")
    everything.add_argument("--all", action="store_true", help="check all that a deployment needs")
    page = "write the checklist as a page to sign"
    everything.add_argument("--sign-off", type=arguments.path, metavar="FILE", help=page)
    skip = f"an area that is not part of this deployment; may be repeated: {', '.join(AREAS)}"
    everything.add_argument("--skip", action="append", choices=AREAS, default=[], metavar="AREA", help=skip)
    args = parser.parse_args(argv)
    args.all = args.all or not (args.store or args.config)
    for given, option in ((args.sign_off, "--sign-off"), (args.skip, "--skip")):
        if given and not args.all:
            parser.error(f"{option} is for the checklist: add --all")
    if args.set and args.config is None:
        parser.error("--set changes a value of the configuration: add --config FILE")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    if args.all:
        return check_all(
            args.config or default_config(),
            args.set,
            store=args.store or "",
            run_dir=args.run_dir,
            skipped=tuple(args.skip),
            sign_off=args.sign_off,
            dry_run=args.dry_run,
            as_json=args.json,
        )
    return check_readiness(
        args.config,
        args.set,
        run_dir=args.run_dir,
        store=args.store,
        run_number=parse_run_number(args.run_number),
        role=args.role,
        role_is_assumed=args.role_outcome == "success",
        timeout=args.timeout,
        grace=args.grace,
        dry_run=args.dry_run,
        as_json=args.json,
    )


def check_readiness(
    config: Path | None,
    changes: Sequence[str] = (),
    *,
    run_dir: Path | None = None,
    store: str | None = None,
    run_number: int | None = None,
    role: str = "",
    role_is_assumed: bool = True,
    timeout: float = SECONDS,
    grace: float = GRACE_SECONDS,
    dry_run: bool = False,
    as_json: bool = False,
) -> int:
    """Check the store, the run number, the role and the signing key, and report what was found.

    Raises CheckFailedError, with every failed check and its fix, if the run must not start.
    """
    answers = collect_answers(
        *store_of(config, changes, store),
        run_dir=run_dir,
        number=run_number,
        role=role,
        role_is_assumed=role_is_assumed,
        timeout=timeout,
        grace=grace,
        writes=not dry_run,
    )
    findings = judge_readiness(answers)
    verdict = worst_verdict(findings)
    if as_json:
        found = {"verdict": verdict, "run_number": answers.number, "findings": [asdict(f) for f in findings]}
        output.print_json(found)
    if verdict == PreflightVerdict.FAILED:
        refuse(findings)
    output.announce("store", store_line(answers), "ok")
    for note in answers.notes:
        output.announce("note", note)
    for finding in findings:
        if finding.check == "signing" or finding.verdict == PreflightVerdict.DEGRADED:
            text = "; ".join(part for part in (finding.found, finding.fix) if part)
            output.announce(finding.check, text, finding.verdict)
    return ExitCode.DONE


def check_all(
    config: Path,
    changes: Sequence[str] = (),
    *,
    store: str = "",
    run_dir: Path | None = None,
    skipped: tuple[str, ...] = (),
    sign_off: Path | None = None,
    dry_run: bool = False,
    as_json: bool = False,
) -> int:
    """Print the checklist, and write the page to sign; return 1 if an item failed."""
    items = collect_items(Checklist(config, changes, store, run_dir, dry_run=dry_run, skipped=skipped))
    data = {"ready": is_ready(items), "items": [asdict(item) for item in items]}
    output.print_result(
        data,
        lambda _, width: [*checklist_rows(items, width=width), "", conclusion(items)],
        as_json=as_json,
    )
    page = sign_off_page(items, facts_to_sign(config))
    append_summary(page)
    if sign_off and not dry_run:
        write_bytes_atomically(sign_off, page.encode())
        output.announce("sign-off", str(sign_off))
    return ExitCode.DONE if is_ready(items) else ExitCode.NO


def default_config() -> Path:
    """Return the configuration of the folder, or of this repository. Raises ConfigError without one."""
    files = (Path("trainyard.yaml"), REPOSITORY_ROOT / "configs" / "training_configuration.yaml")
    for file in files:
        if file.is_file():
            return file
    raise ConfigError("No configuration: add --config FILE, or run this where trainyard.yaml is.")


def refuse(findings: Any) -> None:
    """Report the problems on stderr, in GitHub annotations and in the step output that Slack messages use."""
    output.announce("readiness", "not ready to start", "failed")
    append_summary(refusal_markdown(findings))
    set_output("reason", refusal_line(findings))
    annotate(Level.ERROR, refusal_text(findings), title="Not started")
    raise CheckFailedError(refusal_text(findings))


def collect_answers(
    url: str,
    encryption: str,
    *,
    run_dir: Path | None,
    number: int | None,
    role: str,
    role_is_assumed: bool,
    timeout: float,
    grace: float,
    writes: bool,
) -> Answers:
    """Collect the facts about the store and the signing key that the checks need.

    `role` is what an earlier step tried to assume; a role of the environment is assumed here instead.
    """
    run_id, may_be_stored = run_of(run_dir)

    stores: list[Store] = []

    def open_limited(**limits: float) -> "Store":
        options: dict[str, Any] = {"attempts": ATTEMPTS, "part_bytes": PART_BYTES, **limits}
        stores.append(open_store(url, encryption=encryption, **options))
        return stores[-1]

    def query() -> "StoreAnswer":
        quick = partial(open_limited, call_seconds=CALL_SECONDS)
        return query_store(
            quick, run_id, number, may_be_stored=may_be_stored, writes=writes, for_files=open_limited
        )

    own_role, role_problem = assume_role(url, timeout) if names_a_store(url) else ("", "")
    assumed = not role_problem if own_role else role_is_assumed
    try:
        facts = asdict(time_limits.within(timeout, query)) if assumed else {"queried": False}
    except KeyboardInterrupt:
        remove_probe_objects(stores[-1:] if writes else (), timeout)
        raise
    except WaitTimeoutError:
        remove_probe_objects(stores[-1:] if writes else (), timeout)
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        facts = {"problems": (hanging_message(url, timeout, endpoint),)}
    return Answers(
        url,
        run_id,
        again=f"{trainyard_command('doctor')} --store",
        is_address=names_a_store(url),
        written=writes,
        role=own_role or role,
        role_is_assumed=assumed,
        role_problem=role_problem,
        grace_seconds=grace,
        grace_needed=grace_needed(run_dir),
        **facts,
        **query_signer(timeout),
    )


def assume_role(url: str, seconds: float) -> tuple[str, str]:
    """Return the workflow's role for a store in S3, and why it cannot be assumed; empty texts without a role.

    Raises ConfigError for variables that cannot be used.
    """
    role = workflow_role() if url.startswith("s3://") else None
    if role is None:
        return "", ""
    try:
        time_limits.within(seconds, assume_workflow_role)
    except (ServiceError, WaitTimeoutError) as error:
        return role.arn, str(error)
    return role.arn, ""


def remove_probe_objects(stores: "Sequence[Store]", seconds: float) -> None:
    """Remove the objects of an interrupted check; give up after some seconds, as the store may not answer."""
    for store in stores:
        with contextlib.suppress(WaitTimeoutError):
            time_limits.within(min(seconds, 2 * CALL_SECONDS), partial(remove_probe, store))


def store_of(config: Path | None, changes: Sequence[str], url: str | None) -> tuple[str, str]:
    """Return `url`, or else the store of the configuration, and the encryption of its objects."""
    encryption = "AES256"
    if config:
        artifacts = load_config(config, changes).config.artifacts
        encryption, url = artifacts.encryption, url or artifacts.store
    if not url:
        raise ConfigError(
            "No store: give --store (make train STORE=…), or set artifacts.store in the configuration."
        )
    return url, encryption


def run_of(directory: Path | None) -> tuple[str, bool]:
    """Return the identity of the run, and whether the store may contain it already."""
    if directory is not None and (file := RunDirectory(directory).run_file).exists():
        return str(read_run(file)["run_id"]), True
    return choose_run_id(directory), "TRAINYARD_RUN_ID" in os.environ


def query_signer(seconds: float) -> dict[str, Any]:
    """Return the signing settings of the environment as fields of `Answers`, never the key itself."""
    try:
        if time_limits.within(seconds, signer_from) is None:
            return {}
    except ConfigError as error:
        return {"signing_problem": str(error)}
    except (ServiceError, WaitTimeoutError) as error:
        return {"signing_problem": f"Sigstore: {error}", "signing_is_away": True}
    return {"signing": "with this workflow's identity" if os.environ.get(METHOD) else "the key can be used"}


@dataclass(frozen=True)
class Checklist:
    """The configuration, store and run directory of a deployment to check."""

    config: Path
    overrides: Sequence[str] = ()
    store: str = ""
    run_dir: Path | None = None
    dry_run: bool = False
    skipped: tuple[str, ...] = ()
    """Areas that are not checked, and listed as not used."""


def collect_items(wanted: Checklist) -> list[CheckItem]:
    """Return the items of all areas, in the order of `AREAS`."""
    given = [f"--set={change}" for change in wanted.overrides]
    config = ["--config", str(wanted.config), *given]
    store = ["--store", wanted.store] if wanted.store else []
    run_dir = ["--run-dir", str(wanted.run_dir)] if wanted.run_dir else []
    dry = ["--dry-run"] if wanted.dry_run else []
    checks: dict[str, Callable[[], Iterable[CheckItem]]] = {
        "machine": lambda: run_check(
            "machine", ["environment", *config, *store, *run_dir, "--json"], items_of_findings
        ),
        "store": lambda: run_check(
            "store", ["doctor", *config, *store, *run_dir, *dry, "--json"], items_of_findings
        ),
        "configuration": lambda: configuration_items(wanted),
        "code": lambda: code_items(Path.cwd()),
        "workflows": lambda: workflow_items(Path.cwd()),
        "github": lambda: run_check("github", ["init", "github", "--dry-run", "--json"], items_of_setup),
        "cluster": lambda: cluster_items(config, os.environ),
        "image": lambda: image_items(os.environ),
        "wandb": lambda: tracker_items(wanted),
        "slack": lambda: [slack_item(os.environ)],
    }

    def check(area: str) -> list[CheckItem]:
        if area in wanted.skipped:
            return [CheckItem(area, area, CheckState.UNUSED, "left out by --skip")]
        return list(checks[area]())

    with ThreadPoolExecutor(len(AREAS)) as pool:
        return [item for found in pool.map(check, AREAS) for item in found]


def run_check(
    area: str, words: Sequence[str], read: Callable[[str, Mapping[str, Any]], list[CheckItem]]
) -> list[CheckItem]:
    """Run a command, and return the items in its JSON, or one item with the reason why it printed none."""
    # The commands must not write summaries, outputs or annotations; only the checklist does.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_STEP_")}
    kept = {name: value for name, value in kept.items() if name not in ("GITHUB_OUTPUT", "GITHUB_ACTIONS")}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (str(CODE), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "trainyard", *words]
    done = run_program(command, seconds=COMMAND_SECONDS, environment=kept)
    try:
        return read(area, json.loads(done.stdout))
    except (ValueError, KeyError, TypeError):
        pass
    message = " ".join(done.stderr.split())[-400:]
    if done.exit_code is None:
        return [
            CheckItem(area, area, CheckState.UNKNOWN, message or f"no answer within {COMMAND_SECONDS:.0f} s")
        ]
    is_away = done.exit_code in (4, 5) or area == "github"
    state = CheckState.UNKNOWN if is_away else CheckState.FAILED
    return [CheckItem(area, area, state, message)]


def configuration_items(wanted: Checklist) -> Iterator[CheckItem]:
    area, place = "configuration", os.path.relpath(wanted.config)
    try:
        load_config(wanted.config, wanted.overrides)
    except ConfigError as error:
        yield CheckItem(area, place, CheckState.FAILED, str(error))
    else:
        yield CheckItem(area, place, CheckState.OK, "every key and value can be used")


def code_items(folder: Path) -> Iterator[CheckItem]:
    """Yield items: is there a commit, is the tree clean, is the commit pushed?"""
    facts = git_facts(folder)
    if not facts:
        yield CheckItem("code", "commit", CheckState.FAILED, f"git knows no commit of {folder}", "git commit")
        return
    commit = str(facts["commit"])[:12]
    if "dirty" not in facts:
        yield CheckItem("code", "tree", CheckState.UNKNOWN, "git did not answer whether it is clean")
    elif facts["dirty"]:
        text = f"changed since {commit}: a run is not repeatable"
        yield CheckItem("code", "tree", CheckState.FAILED, text, "git commit, or git stash")
    else:
        yield CheckItem("code", "tree", CheckState.OK, "clean")
    ahead = run_git(folder, "rev-list", "--count", "@{upstream}..HEAD", seconds=10)
    if ahead.exit_code != 0:
        yield CheckItem("code", "commit", CheckState.UNKNOWN, f"{commit}; the branch has no upstream")
    elif ahead.stdout.strip() == "0":
        yield CheckItem("code", "commit", CheckState.OK, f"{commit}, pushed")
    else:
        text = f"{commit} is not pushed: GitHub trains an older one"
        yield CheckItem("code", "commit", CheckState.DEGRADED, text, "git push")


def workflow_items(folder: Path) -> Iterator[CheckItem]:
    """Yield an item: are the workflows valid for actionlint, or without it at least YAML?"""
    files = sorted((folder / ".github" / "workflows").glob("*.y*ml"))
    if not files:
        yield CheckItem("workflows", "syntax", CheckState.UNUSED, f"no workflow in {folder}")
        return
    problems = []
    for file in files:
        try:
            parse_yaml(file.read_bytes(), file.name)
        except DamagedFileError as error:
            problems.append(str(error))
    if problems:
        yield CheckItem("workflows", "syntax", CheckState.FAILED, "; ".join(problems))
        return
    program = os.environ.get("ACTIONLINT") or shutil.which("actionlint")
    count = f"{len(files)} file" if len(files) == 1 else f"{len(files)} files"
    if not program:
        text = f"{count}: valid YAML; not checked further, because actionlint is not installed"
        yield CheckItem("workflows", "syntax", CheckState.UNKNOWN, text)
        return
    done = run_program([program, "-oneline", *map(str, files)], seconds=60)
    if done.exit_code == 0:
        yield CheckItem("workflows", "syntax", CheckState.OK, f"{count}, checked by actionlint")
    elif done.exit_code == 1:
        yield CheckItem("workflows", "syntax", CheckState.FAILED, done.stdout.strip())
    else:
        yield CheckItem(
            "workflows", "syntax", CheckState.UNKNOWN, f"actionlint failed: {done.stderr.strip()}"
        )


def cluster_items(config: Sequence[str], environment: Mapping[str, str]) -> Sequence[CheckItem]:
    """Return items: is the cluster of TRAINYARD_EKS_CLUSTER, or else of KUBECONFIG, ready?"""
    name = environment.get("TRAINYARD_EKS_CLUSTER")
    if not name and not environment.get("KUBECONFIG"):
        text = "neither TRAINYARD_EKS_CLUSTER nor KUBECONFIG is set"
        return [CheckItem("cluster", "cluster", CheckState.UNUSED, text)]
    options = ["--cluster", name] if name else []
    return run_check("cluster", ["cluster", "check", *config, *options, "--json"], items_of_cluster)


def image_items(environment: Mapping[str, str]) -> Iterator[CheckItem]:
    """Yield an item: does the ECR repository exist and give a login?"""
    name = environment.get("TRAINYARD_IMAGE_REPOSITORY", "")
    if not name:
        yield CheckItem("image", "ecr", CheckState.UNUSED, "TRAINYARD_IMAGE_REPOSITORY is not set")
        return

    def query() -> str:
        repository = EcrRepository(name, "")
        repository.fixed_tags()
        return f"{repository.login().host}/{name} exists, and a login is given"

    yield within_limit("image", "ecr", query, fix=f"aws ecr create-repository --repository-name {name}")


def tracker_items(wanted: Checklist) -> Iterator[CheckItem]:
    """Yield an item: does W&B know the API key, if the configuration enables W&B?"""
    try:
        is_wanted = load_config(wanted.config, wanted.overrides).config.monitoring.wandb.enabled
    except ConfigError:
        return  # `configuration_items` reports it
    key = api_key(os.environ)
    if not is_wanted:
        yield CheckItem("wandb", "key", CheckState.UNUSED, "monitoring.wandb.enabled is false")
    elif os.environ.get("WANDB_MODE", "online") != "online":
        yield CheckItem("wandb", "key", CheckState.UNUSED, f"WANDB_MODE is {os.environ['WANDB_MODE']}")
    elif not key:
        text = "no key: it logs offline, into the run directory"
        yield CheckItem("wandb", "key", CheckState.DEGRADED, text, "set WANDB_API_KEY, or: wandb login")
    else:
        yield within_limit("wandb", "key", lambda: owner_of(key, os.environ), fix="wandb login --relogin")


def slack_item(environment: Mapping[str, str]) -> CheckItem:
    """Return an item: does Slack know the bot token? A webhook can only be checked by sending a message."""
    if token := environment.get("SLACK_BOT_TOKEN"):
        return within_limit(
            "slack",
            "token",
            lambda: owner_of_token(token, environment),
            fix="a new token: the app's page in Slack, OAuth & Permissions, Bot User OAuth Token",
        )
    if environment.get("SLACK_WEBHOOK_URL"):
        text = "a webhook can only be checked by sending a message"
        fix = "trainyard tell started --run-dir runs/slack-test"
        return CheckItem("slack", "webhook", CheckState.UNKNOWN, text, fix)
    text = "neither SLACK_BOT_TOKEN nor SLACK_WEBHOOK_URL is set: messages are printed"
    return CheckItem("slack", "token", CheckState.UNUSED, text)


def within_limit(area: str, name: str, query: Callable[[], str], *, fix: str) -> CheckItem:
    """Return the item of a service: failed if it refuses, unknown if it cannot be reached in time."""
    try:
        return CheckItem(area, name, CheckState.OK, time_limits.within(SERVICE_SECONDS, query))
    except (ServiceTroubleError, WaitTimeoutError) as error:
        return CheckItem(area, name, CheckState.UNKNOWN, str(error))
    except (ServiceError, ConfigError) as error:
        return CheckItem(area, name, CheckState.FAILED, str(error), fix)


def facts_to_sign(config: Path) -> dict[str, str]:
    """Return what a signature refers to: the commit, the configuration, the machine and the time."""
    facts = git_facts(Path.cwd())
    changed = ", with changes" if facts.get("dirty") else ""
    return {
        "commit": f"{facts['commit']}{changed}" if facts else "unknown",
        "configuration": str(config),
        "machine": platform.node(),
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }
