"""The linter's findings are known when a job is planned, however a variable gets into the job."""

import itertools
import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.jobs.plans import IMAGE, config, instance_for, objects, plan, request
from tests.unit.jobs.recipe_orders import GIVEN, recipe_plan

from trainyard.errors import ConfigError
from trainyard.jobs.job_planning import plan_job
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.kinds import KINDS
from trainyard.jobs.plan_problems import command_settings, job_findings, variable_scope
from trainyard.plan.environment.environment_lint import lint
from trainyard.plan.environment.settings_reading import read_environment_file
from trainyard.plan.environment.surroundings import VariableScope
from trainyard.plan.environment.variable_rules import (
    RENAMED,
    RULES,
    judge_variable,
)
from trainyard.plan.finding import Finding, Severity
from trainyard.report.jobs.job_text import kubernetes_yaml

OWN = ("torchrun", "train.py")
OTHERS = ("RDMAV_FORK_SAFE", "NCCL_NVLS_ENABLE", "FI_EFA_USE_HUGE_PAGE")
"""Names that match a pattern, or that have no rule."""
NAMES = (*RULES, *RENAMED, *OTHERS)
VALUES = (
    "",
    "0",
    "1",
    "simple",
    "LL",
    "eth0",
    "^eth0",
    "efa",
    "tcp",
    "Socket",
    "AWS Libfabric",
    "WARN",
    "INFO",
)
WAYS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "--env": lambda name, value: {"environment": {name: value}},
    "--env of an own command": lambda name, value: {"environment": {name: value}, "command": OWN},
    "env": lambda name, value: {"command": ("/usr/bin/env", "-i", "A=1", f"{name}={value}", *OWN)},
    "a shell's export": lambda name, value: {
        "command": ("bash", "-euc", f"cd /code && export {name}={shlex.quote(value)}; torchrun train.py")
    },
    "a shell's prefix": lambda name, value: {
        "command": ("sh", "-c", f"cd /code\n{name}={shlex.quote(value)} exec torchrun train.py A=1")
    },
}
PLACES = (
    ("auto", {"nodes": 1, "instance_type": "p5.48xlarge"}),
    ("auto", {"nodes": 2, "instance_type": "p5.48xlarge"}),
    ("tcp", {"nodes": 2, "instance_type": "p5.48xlarge"}),
    ("auto", {"nodes": 2, "instance_type": "g6.12xlarge"}),
    ("auto", {"nodes": 2, "instance_type": "g6.xlarge"}),
)


def planned(network: str, **changes: Any) -> JobSpec | list[str]:
    """The plan, or the reasons why it is refused."""
    try:
        return plan_job(config("compute.strategy=ddp", f"compute.network={network}"), request(**changes))
    except ConfigError as error:
        return str(error).split("\n")[:-1]


@cache
def scopes() -> list[VariableScope]:
    """The scope of the plan for each of PLACES, as the plan itself knows it."""
    return [
        variable_scope(plan("compute.strategy=ddp", f"compute.network={network}", **place))
        for network, place in PLACES
    ]


def judged(name: str, scope: VariableScope) -> dict[Finding | None, str]:
    """Each judgement of the rules on a variable in this scope, with a value that gets it."""
    return {judge_variable(name, value, scope): value for value in VALUES}


@each_case("way", WAYS)
@each_case("name", NAMES)
def test_every_rule_speaks_when_the_job_is_planned(name: str, way: str) -> None:
    spoke = 0
    answers = (
        (place, *answer)
        for place, scope in zip(PLACES, scopes(), strict=True)
        for answer in judged(name, scope).items()
    )
    for (network, place), expected, value in answers:
        found = planned(network, **place, **WAYS[way](name, value))
        if expected is None:
            assert not isinstance(found, list)
            assert name not in {finding.subject for finding in job_findings(found)}
            continue
        spoke += 1
        if expected.severity is Severity.ERROR:
            flag = "--env " if way.startswith("--env") else ""
            assert found == [f"{flag}{name}: {expected.evidence}; {expected.fix}"]
        else:
            assert not isinstance(found, list), found
            (said,) = [finding for finding in job_findings(found) if finding.subject == name]
            assert (said.severity, said.evidence, said.fix) == (
                expected.severity,
                expected.evidence,
                expected.fix,
            )
            assert said.value == value
    assert bool(spoke) == (name != "FI_EFA_USE_HUGE_PAGE")


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_job_hides_a_variable(kind: str) -> None:
    given = {"NCCL_P2P_DISABLE": "1", "NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}
    for nodes in (1, 3):
        there = plan(
            kind=kind, nodes=nodes, instance_type=instance_for(kind, "p5.48xlarge"), environment=given
        )
        assert {finding.subject for finding in job_findings(there)} == set(given)


@each_case("name", RULES)
def test_variables_that_a_recipe_sets_are_judged_too(name: str) -> None:
    before = recipe_plan("deepspeed")
    sheet = json.loads(before.program.files["program.json"])
    for value in judged(name, variable_scope(before)).values():
        changed = {**sheet, "environment": {**sheet["environment"], name: value}}
        files = {**before.program.files, "program.json": json.dumps(changed)}
        there = replace(before, program=replace(before.program, files=files))
        expected = judge_variable(name, value, variable_scope(there))
        found = [each for each in job_findings(there) if each.subject == name]
        assert [each.evidence for each in found] == ([expected.evidence] if expected else [])


def test_both_names_of_the_allocator_are_reported() -> None:
    both = {"PYTORCH_ALLOC_CONF": "a:b", "PYTORCH_CUDA_ALLOC_CONF": "a:b"}
    (found,) = job_findings(plan(environment=both))
    assert found.severity is Severity.WARNING
    assert "both names are set" in found.evidence


def unchanged_plans() -> Iterator[JobSpec]:
    for kind, nodes, network in itertools.product(KINDS, (1, 2, 16), ("auto", "tcp")):
        for instance in ("p5.48xlarge", "g6.12xlarge", "g6.xlarge"):
            place = {"kind": kind, "nodes": nodes, "instance_type": instance_for(kind, instance)}
            for command in ((), ("python", "work.py")):
                yield plan("compute.strategy=ddp", f"compute.network={network}", **place, command=command)
    for recipe, nodes in itertools.product(GIVEN, (1, 2)):
        yield recipe_plan(recipe, nodes=nodes)


def test_a_job_without_variables_of_its_own_is_told_nothing() -> None:
    for there in unchanged_plans():
        found = [each for each in job_findings(there) if each.severity is not Severity.INFO]
        assert found == [], (there.kind, there.program.name, there.nodes)


def test_a_fixed_rank_in_a_command_is_refused_on_several_nodes() -> None:
    command = ("torchrun", "--node_rank", "0", "train.py")
    (line,) = planned("auto", nodes=2, command=command)  # type: ignore[misc]
    assert "all get the same rank" in line
    assert not isinstance(planned("auto", nodes=1, command=command), list)


@each_case(
    ("words", "names"),
    [
        (["torchrun", "NCCL_PROTO=LL"], []),
        (["env"], []),
        (["env", "A=1", "B=2"], ["A", "B"]),
        (["env", "A=1", "bash", "-c", "B=2 python x.py"], ["A", "B"]),
        (["bash", "run.sh", "A=1"], []),
        (["bash", "-c"], []),
        (["bash", "-c", "echo A=1; B=2 python x.py C=3 || D=4 true"], ["B", "D"]),
        (["bash", "-lc", "A='1 2' export"], ["A"]),
        (["bash", "-c", "A='open"], []),
        ([], []),
    ],
)
def test_only_what_a_command_sets_is_taken_for_a_variable(words: list[str], names: list[str]) -> None:
    assert [setting.name for setting in command_settings(words)] == names


def test_findings_do_not_depend_on_characters_of_other_values() -> None:
    for text in ("{}", "a: b", "\t", "\x7f", "€ 💡", "'\"\\", "-", "#x", "\u2028"):
        there = plan(environment={"NOTE": text, "NCCL_PROTO": "LL"}, image=IMAGE)
        assert [found.subject for found in job_findings(there)] == ["NCCL_PROTO"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_reports_what_the_linter_reports_of_its_printed_manifest(kind: str) -> None:
    given = {"NCCL_P2P_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth0", "CUDA_LAUNCH_BLOCKING": "1", "PORT": "80"}
    for nodes, instance in itertools.product((1, 2), ("p5.48xlarge", "g6.xlarge")):
        place = {"kind": kind, "nodes": nodes, "instance_type": instance_for(kind, instance)}
        there = plan(**place, environment=given)
        text = kubernetes_yaml(objects(there))
        printed = lint([read_environment_file("job.yaml", text, VariableScope())])
        told = {(found.subject, found.severity, found.evidence) for found in job_findings(there)}
        assert told == {(found.subject, found.severity, found.evidence) for found in printed}
