"""Install the skills of Trainyard for coding agents, in the Agent Skills format (agentskills.io).

Each skill is a folder with a SKILL.md, which an agent loads when a task fits its description. --for names the
agent: its folder is made in the working directory, and with --user in the home directory. A file that is the
same stays as it is. One that differs, because it is of another version or was edited, is kept and named,
unless --replace is given.

Reads:      the skills of this package or checkout; the files that are there already
Writes:     FOLDER/NAME/SKILL.md for each skill, unless --dry-run; with --json what was done, on stdout
Exit codes: 0 installed, or the same already; 1 a file differs and was kept; 2 wrong usage, or a folder that
            cannot be written

Example:    trainyard skills install --for claude --dry-run
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainyard.command import arguments, output
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.parser import add_flag, add_option, script_parser
from trainyard.errors import ConfigError, ExitCode
from trainyard.run.atomic_files import make_folder, write_bytes_atomically

# Agent -> its folder in a project and in a home directory, by the agents' documentation of November 2026.
FOLDERS = {
    "claude": ".claude/skills",
    "cursor": ".cursor/skills",
    **dict.fromkeys(("codex", "copilot", "gemini", "opencode", "others"), ".agents/skills"),
}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, dry_run="print what would be written, write nothing", json="the files")
    where = parser.add_mutually_exclusive_group(required=True)
    agent = "the agent that gets them; may be repeated"
    where.add_argument("--for", action="append", choices=sorted(FOLDERS), dest="agents", help=agent)
    add_option(where, "--to", "DIR", "another folder for the skills", type=arguments.path)
    add_flag(parser, "--user", "with --for: in the home directory")
    add_flag(parser, "--replace", "overwrite files that differ")
    args = parser.parse_args(argv)
    if args.user and args.to:
        parser.error("--user is for --for; --to names its folder by itself")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    found = skill_files()
    home = Path.home() if args.user else Path()
    folders = [args.to] if args.to else list(dict.fromkeys(home / FOLDERS[name] for name in args.agents))
    rows = []
    for target in (folder / name / "SKILL.md" for folder in folders for name in found):
        content = found[target.parent.name].read_bytes()
        action = planned_action(target, content, replace=args.replace)
        if action in ("new", "replaced") and not args.dry_run:
            make_folder(target.parent)
            write_bytes_atomically(target, content)
        rows.append({"file": str(target), "action": action})
    kept = sum(row["action"] == "kept" for row in rows)
    lines = [f"{row['file']}: {row['action']}" for row in rows]
    output.print_json({"files": rows}) if args.json else output.print_text("\n".join(lines))
    written = sum(row["action"] in ("new", "replaced") for row in rows)
    text = (
        f"{written} of {len(rows)} {'would be written; nothing was changed' if args.dry_run else 'written'}"
    )
    if kept:
        text += f"; {kept} kept because of differences: compare them, or overwrite them with --replace"
    output.announce("skills", text, "failed" if kept else "ok")
    return ExitCode.NO if kept else ExitCode.DONE


def skill_files() -> dict[str, Path]:
    """Return the SKILL.md of each skill by its name, from this checkout or the installed package."""
    for folder in (REPOSITORY_ROOT / "skills", Path(sys.prefix) / "share/trainyard/skills"):
        if found := {path.parent.name: path for path in sorted(folder.glob("*/SKILL.md"))}:
            return found
    raise ConfigError("This installation of trainyard has no skills. Install it again, or use a checkout.")


def planned_action(target: Path, content: bytes, *, replace: bool) -> str:
    """Return `new`, `same`, `kept` or `replaced` for a file that is to have `content`."""
    if not target.exists():
        return "new"
    if target.is_file() and target.read_bytes() == content:
        return "same"
    return "replaced" if replace else "kept"
