"""Check the store, run number, signing key and role before training needs them.

The store must have a valid address and do what storing a run needs: list, put if absent, send a file in one
request and another in two parts, read, abort. An operation that the store can never do is named as such.
The two parts are 5 MiB, which a slow line needs time for. The run number must be free or belong to this run;
a start claims it before it trains. The signing key must be usable. A workflow's role for an s3:// store is
assumed first. All failed checks are reported at once, each with its fix. What was written is removed, also
after Ctrl-C. If the role may not delete, three objects remain: their names start with trainyard-readiness,
and the next check replaces them. Nothing else is changed.

With --all, or without --store and --config, it also checks everything else that a deployment needs: the
machine, the configuration, the code, its tools and README, the workflows, the settings and runners of the
repository, the cluster, the repository of images, W&B and Slack. What it cannot check is listed as such.

Reads:      --config for artifacts.store and artifacts.encryption; --run-dir (run.json); TRAINYARD_RUN_ID;
            TRAINYARD_SIGNING_KEY[_PASSWORD]; AWS_*;
            TRAINYARD_AWS_ROLE, _REGION and _ACCESS (check is enough). --all: trainyard.yaml, or
            in this repository configs/training_configuration.yaml, if no --config is given; gh, actionlint;
            SLACK_*, WANDB_*, TRAINYARD_EKS_CLUSTER or KUBECONFIG, TRAINYARD_IMAGE_REPOSITORY
Writes:     three temporary objects in the store; with --json every finding on stdout; in GitHub
            Actions, if a check failed, an annotation, the job summary, and the step output `reason`;
            with --all the checklist on stdout, and --sign-off's file
Exit codes: 0 ready (degraded findings are reported); 1 a check failed; 2 the configuration or usage is wrong,
            or the run number is another run's
Example:    trainyard doctor --store s3://ml-runs/phase2 --run-number 812
            trainyard doctor --sign-off READY.md
"""

import argparse
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from trainyard.artifacts.record.run_numbers import parse_run_number
from trainyard.command import arguments, output
from trainyard.command.parser import add_flag, add_option, add_run, script_parser
from trainyard.commands.step_environment import refuse_start
from trainyard.deployment_checks import (
    AREAS,
    SECONDS,
    Deployment,
    collect_items,
    default_config,
    query_readiness,
)
from trainyard.errors import ConfigError, ExitCode
from trainyard.gateways.git import git_facts
from trainyard.gateways.github import append_summary
from trainyard.machine.checklist import checklist_rows, conclusion, is_ready, item_record, sign_off_page
from trainyard.machine.preflight import findings_record, worst_severity
from trainyard.machine.readiness import judge_readiness, store_line
from trainyard.plan.finding import Severity
from trainyard.run.atomic_files import write_bytes_atomically


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(
        __doc__,
        reads_config=True,
        needs_config=False,
        dry_run="write nothing into the store",
        json="every finding",
    )
    add_option(parser, "--store", "URL", "s3://bucket/prefix or file:///folder; default: --config's")
    add_option(parser, "--run-number", "N|auto", "default: auto", default="auto")
    add_run(parser, text="the run's directory; need not exist")
    limit = f"time limit of all requests to the store; default: {SECONDS:.0f}s"
    add_option(parser, "--timeout", "DURATION", limit, type=arguments.duration, default=SECONDS)
    everything = parser.add_argument_group("the checklist")
    add_flag(everything, "--all", "check all that a deployment needs")
    add_option(everything, "--sign-off", "FILE", "write the checklist as a page to sign", type=arguments.path)
    skip = f"an area that is not part of this deployment; may be repeated: {', '.join(AREAS)}"
    add_option(everything, "--skip", "AREA", skip, action="append", choices=AREAS, default=[])
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
    if args.run_dir is not None and not (args.store or args.config or args.run_dir.exists()):
        raise ConfigError(f"{args.run_dir}: there is no such run, and the checklist needs none")
    wanted = Deployment(
        args.config or (default_config() if args.all else None),
        args.set,
        store=args.store,
        run_dir=args.run_dir,
        run_number=parse_run_number(args.run_number),
        dry_run=args.dry_run,
        skipped=tuple(args.skip),
    )
    if args.all:
        return check_all(wanted, sign_off=args.sign_off, as_json=args.json)
    return check_readiness(wanted, timeout=args.timeout, as_json=args.json)


def check_readiness(wanted: Deployment, *, timeout: float = SECONDS, as_json: bool = False) -> int:
    """Check the store, the run number, the role and the signing key, and report what was found.

    Raises CheckFailedError, with every failed check and its fix, if the run must not start.
    """
    answers = query_readiness(wanted, timeout=timeout)
    findings = judge_readiness(answers)
    worst = worst_severity(findings)
    if as_json:
        output.print_json({**findings_record(findings), "run_number": answers.number})
    if worst is Severity.ERROR:
        output.announce("readiness", "not ready to start", "failed")
        refuse_start(findings)
    output.announce("store", store_line(answers), "ok")
    for finding in findings:
        if finding.subject == "signing" or finding.severity is Severity.WARNING:
            text = "; ".join(part for part in (finding.evidence, finding.fix) if part)
            output.announce(finding.subject, text, finding.severity.verdict)
    return ExitCode.DONE


def check_all(wanted: Deployment, *, sign_off: Path | None = None, as_json: bool = False) -> int:
    """Print the checklist, and write the page to sign; return 1 if an item failed."""
    items = collect_items(wanted)
    data = {"ready": is_ready(items), "items": [*map(item_record, items)]}
    output.print_result(
        data,
        lambda _, width: [*checklist_rows(items, width=width), "", conclusion(items)],
        as_json=as_json,
    )
    page = sign_off_page(items, facts_to_sign(wanted.config))
    append_summary(page)
    if sign_off and not wanted.dry_run:
        write_bytes_atomically(sign_off, page.encode())
        output.announce("sign-off", str(sign_off))
    return ExitCode.DONE if is_ready(items) else ExitCode.NO


def facts_to_sign(config: Path | None) -> dict[str, str]:
    """Return what a signature refers to: the commit, the configuration, the machine and the time."""
    facts = git_facts(Path.cwd())
    changed = ", with changes" if facts.get("dirty") else ""
    return {
        "commit": f"{facts['commit']}{changed}" if facts else "unknown",
        "configuration": str(config or "none"),
        "machine": platform.node(),
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }
