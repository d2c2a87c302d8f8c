"""Write the trust policy of an AWS role: the jobs of a GitHub repository that may assume it without keys.

GitHub's OIDC token names the job in its subject. Repositories created after 15 July 2026 have immutable
subjects with numeric ids; older ones have names. --subject-format both trusts either.

Reads:   its flags; `gh api repos/OWNER/REPO --jq '.owner.id, .id'` prints the ids.
Writes:  the policy as JSON to stdout, or to --output.
Exit codes: 0 written; 2 an option is invalid, or an id is missing.
Example: trainyard init trust-policy --repository me/lab --account 123456789012 --environment training
"""

import argparse
import json
import sys
from collections.abc import Sequence

from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.github.trust_policy import Form, Subject, trust_policy
from trainyard.run.atomic_files import write_bytes_atomically


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--repository", required=True, metavar="OWNER/REPO", help="the repository whose jobs are trusted"
    )
    parser.add_argument("--account", required=True, metavar="ID", help="the AWS account, twelve digits")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument(
        "--environment", default="", metavar="NAME", help="environment of the job, such as training"
    )
    place.add_argument("--ref", default="", help="ref of a job without environment, such as refs/heads/main")
    parser.add_argument(
        "--owner-id", type=arguments.positive, metavar="N", help="needed for the immutable form"
    )
    parser.add_argument(
        "--repository-id", type=arguments.positive, metavar="N", help="needed for the immutable form"
    )
    parser.add_argument(
        "--subject-format",
        choices=("names", "immutable", "both"),
        help="default: immutable with ids, else names",
    )
    workflow = "also require the workflow that has the job: train.yml, or its path; @REF unless it is on main"
    parser.add_argument("--workflow", default="", metavar="FILE[@REF]", help=workflow)
    parser.add_argument("--partition", default="aws", help="aws, aws-cn or aws-us-gov; default: aws")
    parser.add_argument("--output", type=arguments.path, metavar="FILE", help="default: stdout")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    ids = {"owner_id": args.owner_id, "repository_id": args.repository_id}
    subject = Subject(args.repository, args.environment, args.ref, **ids)
    form = Form(args.subject_format or ("immutable" if None not in ids.values() else "names"))
    policy = trust_policy(
        subject, account=args.account, form=form, partition=args.partition, workflow=args.workflow
    )
    text = json.dumps(policy, indent=2) + "\n"
    if args.output is None:
        sys.stdout.write(text)
    else:
        write_bytes_atomically(args.output, text.encode())
        output.announce("trust", f"{args.output}: {', '.join(subject.texts(form))}", "ok")
    return 0
