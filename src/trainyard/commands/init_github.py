"""Set up a copy of this repository on GitHub, from the push to the first green run, and check every step.

It sets what GitHub's API can set: variables, environments limited to the default branch. It prints commands
for what only a person can do: secrets, on the GPU machine, in AWS, the first run. Each step is checked
afterwards. You can run it as often as you like: correct values are not touched, different ones are shown and
replaced with --yes only, nothing is deleted, and no secret is read. It needs only Python 3.11 and gh.

Reads:      GitHub with the login of gh; git's remote origin, unless --repository or GH_REPO says which
            repository
Writes:     variables, environments and settings of Actions on GitHub, unless --dry-run; the steps
            on stdout, with --json as data. A registration token is in the GPU machine's command only
Exit codes: 0 every step is done; 1 steps remain, for a person or for a run without --dry-run; 2 wrong
            usage, no gh or no login, a fork; 4 GitHub refused or could not be reached; 130 interrupted
Example:    PYTHONPATH=src python3 -m trainyard init github --store file:///mnt/storage/store --dry-run
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from trainyard.command import output
from trainyard.command.parser import add_flag, add_option, script_parser
from trainyard.errors import ConfigError
from trainyard.gateways.git import origin_address
from trainyard.gateways.github_api import GitHub, server_of, token_of_login
from trainyard.github import variables
from trainyard.github.repository import get_repository, parse_repository, repository_of_remote
from trainyard.github.setup import Setup, WantedSetup
from trainyard.github.setup_step import describe_steps, exit_code_of_steps, remaining_tasks, step_row

KINDS = ("self-hosted", "scale-set", "hosted", "other")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, dry_run="print every change, make none", json="the steps")
    add_option(parser, "--repository", "[HOST/]OWNER/NAME", "default: git's remote origin", default="")
    add_option(parser, "--store", "URL", "s3://bucket/prefix or file:///folder", default="")
    labels = "labels of the runner: gpu,h100, or JSON with a group; default: self-hosted,gpu"
    parser.add_argument("--labels", default="", help=labels)
    kind = "the kind of machine that --labels names; default: self-hosted, which you register"
    parser.add_argument("--runner", default="", choices=KINDS, help=kind)
    add_option(parser, "--aws-role", "ARN", "the role that jobs assume for s3://", default="")
    more = "another variable of docs/variables.md; may be repeated"
    add_option(parser, "--variable", "NAME=VALUE", more, action="append", default=[])
    missing = "check that this secret is set, and print the command that sets it; may be repeated"
    add_option(parser, "--secret", "[ENVIRONMENT/]NAME", missing, action="append", default=[])
    add_flag(parser, "--no-watch", "do not turn the watchdog on")
    plan = "use no environments, which private repositories on a free plan do not have"
    add_flag(parser, "--no-environments", plan)
    add_flag(parser, "--allow-public", "register a runner although the repository is public")
    add_flag(parser, "--yes", "replace values that are different")
    args = parser.parse_args(argv)
    if args.runner and not args.labels:
        parser.error("--runner says what --labels names: give both")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    wanted = wanted_setup(args)
    host, name = find_repository(args.repository)
    api = GitHub(name, token_of_login(host), server=server_of(host))
    repository = get_repository(api, host, name)
    if not args.json:
        kind = "private" if repository.is_private else "public"
        mode = " · dry run" if args.dry_run else ""
        print(f"{host}/{repository.name} · {kind} · {repository.branch}{mode}\n")
    steps = []
    for step in Setup(api, repository, wanted, dry_run=args.dry_run, replace_chosen=args.yes).steps():
        steps.append(step)
        if not args.json:
            print(step_row(step), flush=True)
    if args.json:
        output.print_json(describe_steps(steps, host, repository.name))
    else:
        print(f"\n{remaining_tasks(steps, host, dry_run=args.dry_run)}")
    return exit_code_of_steps(steps)


def wanted_setup(args: argparse.Namespace) -> WantedSetup:
    """Return the wanted settings; all options are checked before the first request to GitHub."""
    selector = variables.parse_runner_labels(args.labels) if args.labels else variables.RunnerSelector(())
    kind, labels = variables.RunnerKind(args.runner) if args.runner else None, selector.labels
    if labels and not selector.group:
        is_hosted = variables.runner_kind(selector) is variables.RunnerKind.HOSTED
        kind = kind or (variables.RunnerKind.HOSTED if is_hosted else variables.RunnerKind.SELF_HOSTED)
        labels = variables.labels_for(kind, labels)
    return WantedSetup(
        labels=labels,
        group=selector.group,
        kind=kind,
        store=variables.parse_store(args.store) if args.store else "",
        role=variables.parse_role(args.aws_role) if args.aws_role else "",
        variables=dict(variables.parse_variable(text) for text in args.variable),
        secrets=tuple(dict.fromkeys(pair for text in args.secret for pair in variables.parse_secret(text))),
        watch=not args.no_watch,
        environments=not args.no_environments,
        allow_public=args.allow_public,
    )


def find_repository(text: str) -> tuple[str, str]:
    """Return host and OWNER/NAME from the command line, GH_REPO, or git's remote origin."""
    if named := text or os.environ.get("GH_REPO", ""):
        return parse_repository(named, host=os.environ.get("GH_HOST", ""))
    remote = origin_address(Path.cwd())
    if not remote:
        raise ConfigError(
            "git knows no remote origin here. Push a copy: gh repo create NAME --private --source . --push; "
            "or name it: --repository OWNER/NAME"
        )
    return repository_of_remote(remote)
