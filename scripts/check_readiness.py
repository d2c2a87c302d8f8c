#!/usr/bin/env python3
"""Check in seconds, before a run starts, what is otherwise learned after training: store, number, key, role.

The store's address is valid, it can be listed, and a small object can be written, read back and removed. The
run number is free or this very run's; it is claimed later, by the first sync. The signing key can be used.
Every failed check is said in one go, each with its fix. Where the role may not delete, the object stays: it
has one name, trainyard-readiness.json, which the next check replaces. Nothing else that exists is touched.

Reads:      --config for artifacts.store and artifacts.encryption; --run-dir (run.json); TRAINYARD_RUN_ID;
            TRAINYARD_SIGNING_KEY[_FILE, _PASSWORD] or TRAINYARD_SIGNING=keyless; AWS_*
Writes:     one small object in the store, for a moment; with --json every finding on stdout; in GitHub
            Actions an annotation, the job summary of a refusal, and in one line the step output `reason`
Exit codes: 0 ready (degraded findings are said), 1 a check failed, 2 the configuration or usage is wrong
Example:    scripts/check_readiness.py --store s3://ml-runs/phase2 --run-number 812
"""

import argparse
import json
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import arguments, handler, output, time_limits
from trainyard.command.parser import script_parser
from trainyard.errors import CheckFailedError, ConfigError, ServiceError, TrainyardError, WaitTimeoutError

if TYPE_CHECKING:
    from trainyard.artifacts.store.store_settings import StoreSettings
    from trainyard.machine.readiness import Answers

SECONDS = 20.0
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
    parser.add_argument("--role", default="", metavar="ARN", help="what a step before this one assumed")
    parser.add_argument("--role-outcome", default="success", metavar="TEXT", help="how that step ended")
    limit = f"time limit of all that the store is asked, {SECONDS:.0f}s"
    parser.add_argument("--timeout", type=arguments.duration, default=SECONDS, metavar="DURATION", help=limit)
    grace = "of the trainer, compared with what a stop of this run took before; default: 30s"
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
    from trainyard.machine.preflight import PreflightVerdict, worst
    from trainyard.machine.readiness import judge_readiness, store_line

    answers = ask(args)
    findings = judge_readiness(answers)
    verdict = worst(findings)
    if args.json:
        found = {"verdict": verdict, "run_number": answers.number, "findings": [asdict(f) for f in findings]}
        print(json.dumps(found, indent=2))
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
    from trainyard.machine.preflight_text import refusal, refusal_line, refusal_markdown

    output.announce("readiness", "not ready to start", "failed")
    append_summary(refusal_markdown(findings))
    set_output("reason", refusal_line(findings))
    annotate(Level.ERROR, refusal(findings), title="Not started")
    raise CheckFailedError(refusal(findings))


def ask(args: argparse.Namespace) -> "Answers":
    """Collect the facts about the store and the signing key that the checks need."""
    from trainyard.artifacts.record.run_numbers import parse_run_number
    from trainyard.artifacts.store.store_settings import StoreSettings
    from trainyard.gateways import names_a_store
    from trainyard.machine.readiness import Answers, hanging
    from trainyard.run.commands import script_command
    from trainyard.run.identity import grace_needed

    store = StoreSettings(*store_of(args))
    wanted, (run_id, is_begun) = parse_run_number(args.run_number), run_of(args.run_dir)
    assumed = args.role_outcome == "success"

    def asked() -> dict[str, Any]:
        return ask_store(store, Asked(run_id, wanted, is_begun, writes=not args.dry_run))

    try:
        facts = time_limits.within(args.timeout, asked) if assumed else {"asked": False}
    except WaitTimeoutError:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        facts = {"problems": (hanging(store.url, args.timeout, endpoint),)}
    return Answers(
        store.url,
        run_id,
        again=f"{script_command('check_readiness.py')} --store",
        is_address=names_a_store(store.url),
        written=not args.dry_run,
        role=args.role,
        role_is_assumed=assumed,
        grace_seconds=args.grace,
        grace_needed=grace_needed(args.run_dir),
        **facts,
        **ask_signer(args.timeout),
    )


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
    """The identity of the run, and whether the store may contain it already."""
    from trainyard.run.directory import RunDirectory
    from trainyard.run.identity import choose_run_id, read_run

    if directory is not None and (file := RunDirectory(directory).run_file).exists():
        return str(read_run(file)["run_id"]), True
    return choose_run_id(directory), "TRAINYARD_RUN_ID" in os.environ


@dataclass(frozen=True)
class Asked:
    """Questions for the store."""

    run_id: str
    wanted: int | None
    """The run number; None means the number of the run, or else the next free one."""
    is_begun: bool
    """Whether the store may contain this run already."""
    writes: bool


def ask_store(store: "StoreSettings", asked: Asked) -> dict[str, Any]:
    """Ask the store and return its answers as fields of `Answers`."""
    from trainyard.artifacts.store_probe import probe_store, standing_of
    from trainyard.gateways import open_store

    problems: list[str] = []
    facts: dict[str, Any] = {}
    try:
        opened = open_store(
            store.url, encryption=store.encryption, call_seconds=CALL_SECONDS, attempts=ATTEMPTS
        )
        probe = probe_store(opened, secrets.token_hex(8) if asked.writes else None)
        problems, facts["notes"] = list(probe.problems), probe.notes
        if probe.answers:
            facts |= asdict(standing_of(opened, asked.run_id, asked.wanted, may_be_stored=asked.is_begun))
    except TrainyardError as error:
        problems.append(str(error))
    return {**facts, "problems": tuple(dict.fromkeys(problems))}


def ask_signer(seconds: float) -> dict[str, Any]:
    """Return the signing settings of the environment as fields of `Answers`; signing reads the key itself."""
    from trainyard.gateways.signing import METHOD, signer_from

    try:
        if time_limits.within(seconds, signer_from) is None:
            return {}
    except ConfigError as error:
        return {"signing_problem": str(error)}
    except (ServiceError, WaitTimeoutError) as error:
        return {"signing_problem": f"Sigstore: {error}", "signing_is_away": True}
    return {"signing": "with this workflow's identity" if os.environ.get(METHOD) else "the key can be used"}


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
