"""Check within seconds the store, run number, signing key and role, which are otherwise used after training.

The store must have a valid address and do what storing a run needs: list, put if absent, send a file in one
request and another in two parts, read, abort. An operation that the store can never do is named as such.
The two parts are 5 MiB, which a slow line needs time for. The run number must be free or belong to this run;
the first sync claims it. The signing key must be usable. A workflow's role for an s3:// store is assumed
first. All failed checks are reported at once, each with its fix. What was written is removed, also after
Ctrl-C. If the role may not delete, three objects remain: their names start with trainyard-readiness, and
the next check replaces them. Nothing else is changed.

Reads:      --config for artifacts.store and artifacts.encryption; --run-dir (run.json); TRAINYARD_RUN_ID;
            TRAINYARD_SIGNING_KEY[_FILE, _PASSWORD] or TRAINYARD_SIGNING=keyless; AWS_*;
            TRAINYARD_AWS_ROLE, _REGION and _ACCESS (check is enough)
Writes:     three temporary objects in the store; with --json every finding on stdout; in GitHub
            Actions, if a check failed, an annotation, the job summary, and the step output `reason`
Exit codes: 0 ready (degraded findings are reported); 1 a check failed; 2 the configuration or usage is wrong
Example:    scripts/check_readiness.py --store s3://ml-runs/phase2 --run-number 812
"""

import argparse
import contextlib
import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import arguments, output, time_limits
from trainyard.command.parser import script_parser
from trainyard.errors import CheckFailedError, ConfigError, ServiceError, WaitTimeoutError

if TYPE_CHECKING:
    from trainyard.artifacts.store.object_store import Store
    from trainyard.artifacts.store_probe import StoreAnswer
    from trainyard.machine.readiness import Answers

# 5 MiB in so many seconds is a line of 1 Mbit/s. A store that hangs is noticed by CALL_SECONDS, which small
# calls have; a call that sends a file has as long as in a sync.
SECONDS = 60.0
CALL_SECONDS, ATTEMPTS = 5.0, 2


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--config", type=arguments.path, metavar="FILE", help="the configuration")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change one value")
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
    grace = "from a signal until the trainer is killed; compared with earlier stops; default: 30s"
    parser.add_argument("--grace", type=arguments.duration, default="30s", metavar="DURATION", help=grace)
    parser.add_argument("--dry-run", action="store_true", help="only read, write nothing")
    parser.add_argument("--json", action="store_true", help="print every finding as JSON")
    args = parser.parse_args(argv)
    if args.set and args.config is None:
        parser.error("--set changes a value of a configuration: give --config, too")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.machine.preflight import PreflightVerdict, worst_verdict
    from trainyard.machine.readiness import judge_readiness, store_line

    answers = collect_answers(args)
    findings = judge_readiness(answers)
    verdict = worst_verdict(findings)
    if args.json:
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
    return 0


def refuse(findings: Any) -> None:
    """Report the problems on stderr, in GitHub annotations and in the step output that Slack messages use."""
    from trainyard.gateways.github import Level, annotate, append_summary, set_output
    from trainyard.machine.preflight_text import refusal_line, refusal_markdown, refusal_text

    output.announce("readiness", "not ready to start", "failed")
    append_summary(refusal_markdown(findings))
    set_output("reason", refusal_line(findings))
    annotate(Level.ERROR, refusal_text(findings), title="Not started")
    raise CheckFailedError(refusal_text(findings))


def collect_answers(args: argparse.Namespace) -> "Answers":
    """Collect the facts about the store and the signing key that the checks need."""
    from trainyard.artifacts.record.run_numbers import parse_run_number
    from trainyard.artifacts.store.store_address import names_a_store, open_store
    from trainyard.artifacts.store_probe import PART_BYTES, query_store
    from trainyard.machine.readiness import Answers, hanging_message
    from trainyard.run.identity import grace_needed
    from trainyard.run.suggested_commands import script_command

    url, encryption = store_of(args)
    run_id, may_be_stored = run_of(args.run_dir)
    number, writes = parse_run_number(args.run_number), not args.dry_run

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

    role, role_problem = assume_role(url, args.timeout) if names_a_store(url) else ("", "")
    assumed = not role_problem if role else args.role_outcome == "success"
    try:
        facts = asdict(time_limits.within(args.timeout, query)) if assumed else {"queried": False}
    except KeyboardInterrupt:
        remove_probe_objects(stores[-1:] if writes else (), args.timeout)
        raise
    except WaitTimeoutError:
        remove_probe_objects(stores[-1:] if writes else (), args.timeout)
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        facts = {"problems": (hanging_message(url, args.timeout, endpoint),)}
    return Answers(
        url,
        run_id,
        again=f"{script_command('check_readiness.py')} --store",
        is_address=names_a_store(url),
        written=writes,
        role=role or args.role,
        role_is_assumed=assumed,
        role_problem=role_problem,
        grace_seconds=args.grace,
        grace_needed=grace_needed(args.run_dir),
        **facts,
        **query_signer(args.timeout),
    )


def assume_role(url: str, seconds: float) -> tuple[str, str]:
    """Return the workflow's role for a store in S3, and why it cannot be assumed; both empty without one.

    Raises ConfigError for variables that cannot be used.
    """
    from trainyard.gateways.aws_session import assume_workflow_role, workflow_role

    role = workflow_role() if url.startswith("s3://") else None
    if role is None:
        return "", ""
    try:
        time_limits.within(seconds, assume_workflow_role)
    except (ServiceError, WaitTimeoutError) as error:
        return role.arn, str(error)
    return role.arn, ""


def remove_probe_objects(stores: "Sequence[Store]", seconds: float) -> None:
    """Remove what an interrupted check has written, within some seconds: the store may not answer."""
    from trainyard.artifacts.store_probe import remove_probe

    for store in stores:
        with contextlib.suppress(WaitTimeoutError):
            time_limits.within(min(seconds, 2 * CALL_SECONDS), partial(remove_probe, store))


def store_of(args: argparse.Namespace) -> tuple[str, str]:
    """Return the store's address and encryption from the options, or else from the configuration."""
    encryption, configured = "AES256", None
    if args.config:
        from trainyard.config.load import load_config

        artifacts = load_config(args.config, args.set).config.artifacts
        encryption, configured = artifacts.encryption, artifacts.store
    url = args.store or configured
    if not url:
        raise ConfigError(
            "No store: give --store (make train STORE=…), or set artifacts.store in the configuration."
        )
    return url, encryption


def run_of(directory: Path | None) -> tuple[str, bool]:
    """Return the identity of the run, and whether the store may contain it already."""
    from trainyard.run.directory import RunDirectory
    from trainyard.run.identity import choose_run_id, read_run

    if directory is not None and (file := RunDirectory(directory).run_file).exists():
        return str(read_run(file)["run_id"]), True
    return choose_run_id(directory), "TRAINYARD_RUN_ID" in os.environ


def query_signer(seconds: float) -> dict[str, Any]:
    """Return the signing settings of the environment as fields of `Answers`; signing reads the key itself."""
    from trainyard.gateways.model_signing import METHOD, signer_from

    try:
        if time_limits.within(seconds, signer_from) is None:
            return {}
    except ConfigError as error:
        return {"signing_problem": str(error)}
    except (ServiceError, WaitTimeoutError) as error:
        return {"signing_problem": f"Sigstore: {error}", "signing_is_away": True}
    return {"signing": "with this workflow's identity" if os.environ.get(METHOD) else "the key can be used"}
