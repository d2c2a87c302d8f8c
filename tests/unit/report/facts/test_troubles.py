"""The troubles of a run in one line for Slack and the summary, and its alerts in every report."""

import json
from collections.abc import Callable
from typing import Any

from trainyard.report.dashboard.json_report import json_report
from trainyard.report.dashboard.markdown import markdown_report
from trainyard.report.dashboard.text import text_report
from trainyard.report.facts.run_facts import read_facts
from trainyard.report.facts.troubles import degradation
from trainyard.run.records import append_event


def test_an_alert_that_lasts_is_a_trouble_beside_the_events(new_run: Callable[[], Any]) -> None:
    run = new_run().train(last_step=300)
    last = json.loads(run.layout.metrics_file.read_text().splitlines()[-1])
    with run.layout.metrics_file.open("a") as file:
        file.write(json.dumps({**last, "step": 301, "time": last["time"] + 1, "loss": "nan"}) + "\n")
    append_event(run.layout.events_file, "checkpoint_failed", time=last["time"] + 2, step=300, reason="full")
    facts = read_facts(run.path, now=last["time"] + 3)
    assert degradation(facts) == "checkpoint not saved, step 300: full; the loss is nan"
    assert "HEALTH\n  Alert: the loss is nan\n" in text_report(facts)
    [alert] = json_report(facts)["alerts"]
    assert (alert["rule"], alert["since"]) == ("loss-spike", last["time"] + 1)


def test_an_alert_of_a_run_that_has_ended_is_over_and_stays_in_its_reports(
    new_run: Callable[[], Any],
) -> None:
    run = new_run().train()
    rows = [json.loads(line) for line in run.layout.metrics_file.read_text().splitlines()]
    rows[-1]["loss"] = "inf"
    run.layout.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run.succeed()
    facts = read_facts(run.path)
    assert degradation(facts) == ""
    assert "  Alert: the loss is inf, for " in text_report(facts)
    assert "\n- the loss is inf, for " in markdown_report(facts)
