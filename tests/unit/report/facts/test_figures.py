"""A figure that is entered once in the list is in every report."""

from collections.abc import Callable
from typing import Any

import pytest

from trainyard.report.dashboard.html import html_report
from trainyard.report.dashboard.json_report import json_report
from trainyard.report.dashboard.markdown import markdown_report
from trainyard.report.dashboard.text import text_report
from trainyard.report.facts import figures
from trainyard.report.facts.figures import (
    FIGURES,
    Figure,
    FigureGroup,
    Markup,
    Tile,
    brief_figures,
    figure_tiles,
)
from trainyard.report.facts.run_facts import RunFacts, read_facts
from trainyard.report.slack.slack_events import SUCCEEDED
from trainyard.report.slack.slack_message import Surroundings, slack_message

PLANTED = Figure(
    FigureGroup.GPU,
    "Fan Speed",
    lambda facts: "1200 rpm" if facts.step else None,
    lambda facts: {"fan_rpm": 1200 if facts.step else None},
    tile=(100, lambda facts: Tile("fan", "1,200", "rpm") if facts.step else None),
    brief=lambda facts, markup: markup.strong("fan 1200") if facts.step else "",
)


@pytest.fixture(autouse=True)
def _add_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FIGURES", [*FIGURES, PLANTED])


def test_a_figure_of_one_entry_is_in_every_report(new_run: Callable[[], Any]) -> None:
    facts = read_facts(new_run().train().succeed().prove().path)
    assert "  Fan Speed: 1200 rpm\n" in text_report(facts)
    assert json_report(facts)["gpu_resource_usage"]["fan_rpm"] == 1200
    assert "**fan 1200**" in markdown_report(facts)
    page = html_report([facts])
    assert '<div class="what">fan</div><div class="value">1,200</div><div class="more">rpm</div>' in page
    assert "fan 1200" in slack_message(SUCCEEDED, facts, Surroundings("gh-99")).text


def test_a_figure_that_is_not_known_is_in_no_report(new_run: Callable[[], Any]) -> None:
    facts = read_facts(new_run().path)
    for report in (text_report(facts), str(json_report(facts)), markdown_report(facts), html_report([facts])):
        assert not any(words in report for words in ("Fan Speed", "fan_rpm", "fan 1200", ">fan<"))


def test_the_values_of_no_two_figures_have_the_same_name(new_run: Callable[[], Any]) -> None:
    facts: RunFacts = read_facts(new_run().train(gpu=True).path)
    names = [name for figure in FIGURES for name in figure.values(facts)]
    assert len(names) == len(set(names))


def test_tiles_and_words_keep_their_order(new_run: Callable[[], Any]) -> None:
    facts = read_facts(new_run().train(gpu=True).succeed().path)
    assert [tile.name for tile in figure_tiles(facts)][:4] == [
        "training loss",
        "validation loss",
        "steps",
        "training time",
    ]
    assert [words.split()[0] for words in brief_figures(facts, Markup())][:1] == ["loss"]
