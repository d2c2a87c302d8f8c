"""The figures of a run are in text and JSON if they are known, and the reports agree."""

from collections.abc import Callable
from typing import Any

from trainyard.report.dashboard.json_report import json_report
from trainyard.report.dashboard.text import text_report
from trainyard.report.facts.figures import brief_figures, figure_tiles, figure_values
from trainyard.report.facts.run_facts import read_facts


def test_the_values_of_no_two_figures_have_the_same_name(new_run: Callable[[], Any]) -> None:
    groups = figure_values(read_facts(new_run().path))
    names = [name for figures in groups.values() for name in figures]
    assert len(names) == len(set(names)) > 30


def test_a_figure_that_is_not_known_is_in_no_report(new_run: Callable[[], Any]) -> None:
    facts = read_facts(new_run().path)
    for report in (text_report(facts), str(json_report(facts))):
        assert not any(words in report for words in ("Loss", "loss", "GPU", "gpu_", "Goodput", "goodput"))


def test_tiles_and_words_keep_their_order(new_run: Callable[[], Any]) -> None:
    facts = read_facts(new_run().train(gpu=True).succeed().path)
    names = ["training loss", "validation loss", "steps", "training time"]
    assert [tile.name for tile in figure_tiles(facts)][:4] == names
    assert [words.split()[0] for words in brief_figures(facts)][:1] == ["loss"]
