"""Find what will break in an image, before it is built.

Declared + the machine it is for --rules--> findings, the worst first
"""

from trainyard.image.conflict.container_rules import CONTAINER_RULES
from trainyard.image.conflict.declared_versions import DeclaredVersions
from trainyard.image.conflict.finding import ERROR, WARNING, ImageFinding, TargetMachine
from trainyard.image.conflict.library_rules import LIBRARY_RULES
from trainyard.image.conflict.package_rules import PACKAGE_RULES

RULES = (*PACKAGE_RULES, *LIBRARY_RULES, *CONTAINER_RULES)


def judge_versions(declared: DeclaredVersions, machine: TargetMachine) -> list[ImageFinding]:
    """Run all rules; the worst findings come first, then they are sorted by place."""
    found = [finding for rule in RULES for finding in rule(declared, machine)]
    order = (ERROR, WARNING)
    return sorted(found, key=lambda f: (order.index(f.severity), f.file, f.line, f.rule))
