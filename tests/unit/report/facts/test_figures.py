"""A figure that is entered once in the list is in the reports."""

from collections.abc import Callable
from typing import Any

import pytest

from trainyard.report.dashboard.json_report import json_report
from trainyard.report.dashboard.text import text_report
from trainyard.report.facts import figures
from trainyard.report.facts.figures import (
    FIGURES,
    Figure,
    FigureGroup,
    Markup,
    brief_figures,
    figure_tiles,
)
from trainyard.report.facts.run_facts import read_facts

PLANTED = Figure(
    FigureGroup.GPU,
    "Fan Speed",
    lambda facts, _: 1200 if facts.step else None,
    "fan_rpm",
    "{} rpm".format,
)


@pytest.fixture(autouse=True)
def _add_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FIGURES", [*FIGURES, PLANTED])


def test_a_figure_of_one_entry_is_in_text_and_json(new_run: Callable[[], Any]) -> None:
    facts = read_facts(new_run().train().succeed().prove().path)
    assert "  Fan Speed: 1200 rpm\n" in text_report(facts)
    assert json_report(facts)["gpu_resource_usage"]["fan_rpm"] == 1200


def test_a_figure_that_is_not_known_is_in_no_report(new_run: Callable[[], Any]) -> None:
    facts = read_facts(new_run().path)
    for report in (text_report(facts), str(json_report(facts))):
        assert not any(words in report for words in ("Fan Speed", "fan_rpm"))


def test_the_values_of_no_two_figures_have_the_same_name() -> None:
    names = [name for figure in FIGURES for name in figure.names.split()]
    assert len(names) == len(set(names)) > 30


def test_tiles_and_words_keep_their_order(new_run: Callable[[], Any]) -> None:
    facts = read_facts(new_run().train(gpu=True).succeed().path)
    assert [tile.name for tile in figure_tiles(facts)][:4] == [
        "training loss",
        "validation loss",
        "steps",
        "training time",
    ]
    assert [words.split()[0] for words in brief_figures(facts, Markup())][:1] == ["loss"]
