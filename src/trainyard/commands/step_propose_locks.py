"""Propose new locks as a pull request: one commit on the branch `trainyard/locks`, kept up to date.

With --what facts it proposes the tables of image lint, on the branch `trainyard/facts`.

The commit is made through GitHub's API from the files here, so that no credentials are needed for git, and
nothing of the new packages runs. GitHub starts no workflow for what its own token does, so ci.yml is started.

Reads:      requirements-*.txt, or the tables, in the current folder; --notes; GITHUB_TOKEN,
            GITHUB_REPOSITORY, GITHUB_SHA (the commit that they change), GITHUB_REF_NAME (the branch that
            they are for)
Writes:     a commit, the branch and a pull request on GitHub, unless --dry-run; the outputs `commit` and
            `pull_request` (its number)
Exit codes: 0 proposed; 2 wrong usage; 4 GitHub refuses, such as where Actions may not open pull requests
Example:    trainyard step propose-locks --notes notes.md
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.errors import ConfigError, ExitCode, ServiceError
from trainyard.gateways.github import append_summary, set_outputs
from trainyard.gateways.github_api import github_from
from trainyard.run.untrusted_files import read_named_text

if TYPE_CHECKING:
    from trainyard.gateways.github_api import GitHub


@dataclass(frozen=True)
class Proposal:
    """One kind of pull request."""

    branch: str
    title: str
    files: str
    """A pattern of files in the repository."""


PROPOSALS = {
    "locks": Proposal("trainyard/locks", "Move the locks to the newest versions", "requirements-*.txt"),
    "facts": Proposal("trainyard/facts", "Renew the tables of versions", "src/trainyard/image/facts/*.yaml"),
}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--notes", type=arguments.path, required=True, metavar="FILE", help="the text of the pull request"
    )
    parser.add_argument("--what", choices=tuple(PROPOSALS), default="locks", help="default: locks")
    parser.add_argument("--dry-run", action="store_true", help="print what would be proposed, change nothing")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    notes = read_named_text(args.notes, "--notes names the text of the pull request")
    proposal = PROPOSALS[args.what]
    found = sorted(Path().glob(proposal.files))
    files = {path.as_posix(): path.read_text(encoding="utf-8") for path in found}
    if not files:
        raise ConfigError(f"There is no {proposal.files} in this folder; run this in the repository.")
    if args.dry_run:
        output.print_text(f"{', '.join(files)} would be proposed on {proposal.branch}:\n\n{notes}")
        return ExitCode.DONE
    api = github_from()
    commit = push_commit(api, proposal, files, parent=os.environ.get("GITHUB_SHA", ""))
    number, url = open_pull_request(api, proposal, notes, base=os.environ.get("GITHUB_REF_NAME", ""))
    set_outputs({"commit": commit, "pull_request": str(number)})
    append_summary(f"The new {args.what} are proposed in {url}\n")
    output.announce(args.what, f"proposed: {url}", "ok")
    api.dispatch("ci.yml", ref=proposal.branch, inputs={})
    return ExitCode.DONE


def push_commit(api: "GitHub", proposal: Proposal, files: dict[str, str], *, parent: str) -> str:
    """Commit these files on top of `parent`, and move the branch to the commit. Return its hash."""
    base = api.get(f"/git/commits/{parent}")["tree"]["sha"]
    entries = [{"path": n, "mode": "100644", "type": "blob", "content": text} for n, text in files.items()]
    tree = api.post("/git/trees", {"base_tree": base, "tree": entries})["sha"]
    commit = api.post("/git/commits", {"message": proposal.title, "tree": tree, "parents": [parent]})["sha"]
    name = f"refs/heads/{proposal.branch}"
    if any(each["ref"] == name for each in api.get(f"/git/matching-refs/heads/{proposal.branch}")):
        api.patch(f"/git/{name}", {"sha": commit, "force": True})
    else:
        api.post("/git/refs", {"ref": name, "sha": commit})
    return str(commit)


def open_pull_request(api: "GitHub", proposal: Proposal, notes: str, *, base: str) -> tuple[int, str]:
    """Return number and address of the branch's pull request, which is opened or gets the new text."""
    owner = os.environ["GITHUB_REPOSITORY"].partition("/")[0]
    there = api.get("/pulls", head=f"{owner}:{proposal.branch}", base=base, state="open")
    if there:
        found = api.patch(f"/pulls/{there[0]['number']}", {"body": notes})
    else:
        body = {"title": proposal.title, "head": proposal.branch, "base": base, "body": notes}
        try:
            found = api.post("/pulls", body)
        except ServiceError as error:
            raise ServiceError(
                f"{error}. The commit is on the branch {proposal.branch}. Let Actions open pull requests: "
                "Settings, Actions, General, Workflow permissions, or open it yourself: "
                f"gh pr create --head {proposal.branch} --title '{proposal.title}' --body ''"
            ) from None
    return int(found["number"]), str(found["html_url"])
