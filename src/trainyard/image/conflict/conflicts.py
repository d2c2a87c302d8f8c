"""Find what will break in an image, before it is built.

Declared + the machine it is for --rules--> findings, the worst first
"""

from collections.abc import Sequence
from dataclasses import replace

from trainyard.image.conflict.container_rules import CONTAINER_RULES
from trainyard.image.conflict.declared_versions import DeclaredVersions
from trainyard.image.conflict.finding import ERROR, WARNING, ImageFinding, TargetMachine
from trainyard.image.conflict.package_rules import PACKAGE_RULES

RULES = PACKAGE_RULES | CONTAINER_RULES


def judge_versions(
    declared: DeclaredVersions, machine: TargetMachine, resolved: Sequence[ImageFinding] = ()
) -> list[ImageFinding]:
    """Run all rules; the worst findings come first, then they are sorted by place.

    `resolved` are the findings of the resolver.
    """
    found = [
        *resolved,
        *(
            replace(one, rule=name, file=one.file or declared.dockerfile)
            for name, rule in RULES.items()
            for one in rule(declared, machine)
        ),
    ]
    return sorted(found, key=lambda f: ((ERROR, WARNING).index(f.severity), f.file, f.line, f.rule))
