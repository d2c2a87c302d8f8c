"""Find mistakes in the network environment of training: NCCL, EFA and torch variables, and manifests.

The content of a file decides how it is read: as a Dockerfile, as NAME=value lines or a shell script, of which
only such lines are read, or as manifests of Kubernetes in YAML or JSON; any other file is refused. A manifest
states where it runs (instance type, EFA interfaces, nodes); for other files the options state it. Each
variable that must not be set or was renamed is reported with its fix.

Reads:      the files
Writes:     the findings on stdout, --json as JSON; in GitHub Actions an annotation for each
Exit codes: 0 no error was found; 1 an error was found; 2 a file cannot be read or was not understood
Example:    trainyard lint-environment docker/fsdp/Dockerfile job.yaml --instance-type p5.48xlarge
"""

import argparse
import re
from collections.abc import Mapping, Sequence

from trainyard.command import arguments, output
from trainyard.command.parser import add_option, script_parser
from trainyard.errors import ConfigError, DamagedFileError, ExitCode
from trainyard.gateways.github import Level, annotate
from trainyard.image.context.dockerfile import pairs_of, parse_dockerfile
from trainyard.plan.environment.environment_lint import lint, lint_record
from trainyard.plan.environment.settings_reading import (
    EnvironmentFile,
    Setting,
    SettingGroup,
    first_line,
    read_environment_file,
)
from trainyard.plan.environment.variable_rules import VariableScope
from trainyard.plan.finding import Finding, Severity, finding_lines
from trainyard.plan.instances import find_instance
from trainyard.report.facts.quantities import format_count
from trainyard.run.untrusted_files import MOST_YAML_BYTES, read_text

_FROM = re.compile(r"\s*(?:(?:ARG|FROM)\s.*|(?i:from\s+\S+(?:\s+as\s+\S+)?\s*))")
# Lines of a template, its statements and comments; in a line, what it fills in.
_TEMPLATE = re.compile(r"(?ms)^[ \t]*\{\{(?:(?!\}\}).)*\}\}[ \t]*$|\{[%#].*?[%#]\}|(\{\{.*?\}\})")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, json="the findings")
    parser.add_argument("files", type=arguments.path, nargs="+", metavar="FILE", help="the files to check")
    add_option(parser, "--instance-type", "TYPE", "such as p5.48xlarge or ml.p5.48xlarge")
    add_option(parser, "--num-nodes", "N", "machines of the run", type=arguments.positive)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    instance = find_instance(args.instance_type) if args.instance_type else None
    efa, gpus = (instance.efa, instance.gpus) if instance else (None, None)
    place = VariableScope(instance=instance, nodes=args.num_nodes, efa=efa, gpus=gpus)
    try:
        files = [read_file(str(path), read_text(path, most=MOST_YAML_BYTES), place) for path in args.files]
    except (FileNotFoundError, DamagedFileError) as error:
        raise ConfigError(str(error)) from None
    findings = lint(files)
    counts = {file.name: sum(len(group.settings) for group in file.groups) for file in files}
    bad = any(finding.severity is Severity.ERROR for finding in findings)
    data = {"ok": not bad, "files": counts, "findings": [*map(lint_record, findings)]}
    output.print_result(data, lambda *_: lines_of(findings, counts), as_json=args.json)
    for finding in findings:
        level = Level.ERROR if finding.severity is Severity.ERROR else Level.WARNING
        annotate(level, f"{finding.subject}: {finding.evidence}", title=f"{finding.file}:{finding.line}")
    return ExitCode.NO if bad else ExitCode.DONE


def read_file(name: str, text: str, place: VariableScope) -> EnvironmentFile:
    """Return the settings of a file; what a template of a Dockerfile fills in is a variable. ConfigError."""
    if not _FROM.fullmatch(first_line(text)):
        return read_environment_file(name, text, place)
    plain = _TEMPLATE.sub(lambda found: "$filled" * bool(found[1]) + "\n" * found[0].count("\n"), text)
    lines = [one for one in parse_dockerfile(plain, name).instructions if one.name == "ENV"]
    settings = (
        Setting(*pair, one.line, is_baked=True) for one in lines for pair in pairs_of(one.text).items()
    )
    return EnvironmentFile(name, (SettingGroup("", tuple(settings), place),))


def lines_of(findings: Sequence[Finding], read: Mapping[str, int]) -> list[str]:
    """Return each finding as text: the place, the message, the fix; `read`: file -> number of variables."""
    lines = [line for finding in findings for line in finding_lines(finding)]
    words = [finding.severity.value for finding in findings]
    counts = [format_count(words.count(word), word) for word in ("error", "warning", "info") if word in words]
    seen = f"{format_count(len(read), 'file')}, {format_count(sum(read.values()), 'variable')}"
    return [*lines, f"{seen}: {', '.join(counts)}" if counts else f"{seen}: no findings"]
