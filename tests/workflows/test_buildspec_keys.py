"""`buildspec.yml`: CodeBuild ignores a misspelt key without an error, so that a `finally` never runs.

check-jsonschema has no schema of CodeBuild among its own; the keys here are those that our buildspec uses, of
https://docs.aws.amazon.com/codebuild/latest/userguide/build-spec-ref.html.
"""

import re
from pathlib import Path
from typing import Any

import yaml

TEXT = (Path(__file__).resolve().parents[2] / "buildspec.yml").read_text()
SPEC: dict[str, Any] = yaml.safe_load(TEXT)
PHASE = {"on-failure", "commands", "finally"}
KEYS: dict[str, set[str]] = {
    "env": {"shell", "variables", "exported-variables"},
    "phases": {"install", "pre_build", "build", "post_build"},
    "cache": {"paths"},
    "artifacts": {"files"},
}


def test_every_key_is_one_that_codebuild_reads() -> None:
    assert SPEC.keys() == {"version", *KEYS}
    unknown = [key for name, known in KEYS.items() for key in SPEC[name] if key not in known]
    unknown += [key for phase in SPEC["phases"].values() for key in phase if key not in PHASE]
    assert (unknown, SPEC["version"], SPEC["env"]["shell"]) == ([], 0.2, "bash")


def test_every_command_is_one_line_that_does_not_end_the_shell() -> None:
    """All commands share one shell: after `exec` or `exit` nothing of the phase runs, `finally` included."""
    commands = [
        one
        for phase in SPEC["phases"].values()
        for key in ("commands", "finally")
        for one in phase.get(key, ())
    ]
    ends = r"(^|[;&|{(]\s*)(exec|exit)\b"
    wrong = [one for one in commands if not isinstance(one, str) or re.search(ends, one)]
    assert (len(commands) > 20, wrong) == (True, [])


def test_every_variable_that_we_export_is_declared_or_set_by_a_command() -> None:
    """CodeBuild loses an exported variable that nothing sets, without an error."""
    env = SPEC["env"]
    unset = [name for name in env["exported-variables"] if name not in env["variables"]]
    assert [name for name in unset if not re.search(rf"(?<![\w$]){name}=", TEXT)] == []
