"""The watchdog's workflow against the code it calls and the workflow it watches."""

from typing import Any

import pytest
import yaml
from tests.cases import each_case
from tests.workflows.conftest import ROOT

from trainyard.github.setup import SCHEDULE


@pytest.fixture(scope="module")
def watching() -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / "watch_runners.yml").read_text()
    assert SCHEDULE not in text, "a copy that does not train polls nothing"
    text = text.replace("\n  # schedule:", SCHEDULE)
    content: dict[str, Any] = yaml.load(text, Loader=yaml.BaseLoader)
    return content


@each_case("fork", [False, True])
@each_case("switch", [None, "", "off", "on", "On", "true", "false", "1", "o"])
@each_case("place", [None, "TRAINYARD_RUNNER_LABELS"])
@each_case("event", ["schedule", "workflow_dispatch"])
def test_it_looks_by_itself_only_where_somebody_wants_it_and_has_a_runner(
    watching: dict[str, Any], expressions: Any, fork: bool, switch: str | None, place: str | None, event: str
) -> None:
    github = {"event_name": event, "event": {"repository": {"fork": fork}}}
    variables = {} if switch is None else {"TRAINYARD_WATCH": switch}
    variables |= {} if place is None else {place: "x"}
    wanted = (switch or "").lower() in ("on", "true") and place is not None and not fork
    looks = expressions.holds(watching["jobs"]["watch"]["if"], github=github, vars=variables)
    assert looks is (event == "workflow_dispatch" or wanted)


@pytest.mark.parametrize(
    ("status", "alerts", "told"),
    [("failure", "gpu-1 is offline", True), ("success", "", False), ("cancelled", "gpu-1", False)],
)
def test_slack_is_told_of_a_new_outage_although_the_look_is_red(
    watching: dict[str, Any], expressions: Any, status: str, alerts: str, told: bool
) -> None:
    needs, condition = {"watch": {"outputs": {"alerts": alerts}}}, watching["jobs"]["notify"]["if"]
    for inputs in ({"dry_run": None}, {"dry_run": False}):
        assert expressions.holds(condition, status=status, needs=needs, inputs=inputs) is told
    assert expressions.holds(condition, status=status, needs=needs, inputs={"dry_run": True}) is False
