"""The comparison of short runs of base and head: verdicts, record and Markdown."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.errors import ConfigError, TrainyardError
from trainyard.report.change.change import (
    ChangeRules,
    ChangeVerdict,
    ComparedFigure,
    Comparison,
    Measured,
    Side,
    comparison_from,
    measure_run,
    read_rules,
)
from trainyard.report.change.change_markdown import MARK, comment, markdown, reasons

RUN = Measured(40, 2.5, 2.6, 40_000.0, 500e6, "ab" * 32)


def side(commit: str = "0" * 40, **changes: Any) -> Side:
    """Three runs; a list has one value per run."""
    runs = []
    for turn in range(3):
        mine = {name: value[turn] if isinstance(value, list) else value for name, value in changes.items()}
        runs.append(replace(RUN, **mine))
    return Side(commit, tuple(runs))


def compared(**changes: Any) -> Comparison:
    return Comparison(ChangeRules(), side(), side("f" * 40, **changes))


def verdict(comparison: Comparison, name: str) -> ChangeVerdict:
    return next(figure for figure in comparison.figures if figure.name == name).verdict


def test_equal_figures_have_the_verdict_equal() -> None:
    same = compared()
    assert {figure.verdict for figure in same.figures} == {ChangeVerdict.EQUAL}
    assert same.same_weights
    assert not same.refused


@pytest.mark.parametrize(
    ("changes", "worse"),
    [
        ({"loss": 2.6}, "loss"),
        ({"validation_loss": 2.9}, "validation loss"),
        ({"tokens_per_second": 20_000.0}, "tokens/s"),
        ({"memory_bytes": 600e6}, "memory"),
    ],
)
def test_a_figure_beyond_its_limit_is_worse(changes: dict[str, float], worse: str) -> None:
    comparison = compared(**changes)
    assert comparison.worse == (worse,)
    assert comparison.refused
    assert [title for title, _ in reasons(comparison)] == [f"Worse: {worse}"]
    turned = Comparison(ChangeRules(), comparison.head, comparison.base)
    assert verdict(turned, worse) is ChangeVerdict.BETTER
    assert not turned.refused


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": 2.51},
        {"tokens_per_second": 31_000.0},
        {"memory_bytes": 540e6},
        {"tokens_per_second": [20_000.0, 20_000.0, 40_000.0]},
    ],
)
def test_a_figure_within_its_limit_or_the_noise_is_not_worse(changes: dict[str, Any]) -> None:
    comparison = compared(**changes)
    assert not comparison.refused
    assert ChangeVerdict.WITHIN in {figure.verdict for figure in comparison.figures}


def test_overlapping_runs_are_never_worse_whatever_their_medians() -> None:
    slower = ComparedFigure("tokens/s", (9.0, 10.0, 11.0), (3.0, 4.0, 9.0), 0.25, higher_is_better=True)
    assert slower.verdict is ChangeVerdict.WITHIN
    assert replace(slower, head=(3.0, 4.0, 8.9)).verdict is ChangeVerdict.WORSE


def test_a_base_of_zero_causes_no_division_by_zero() -> None:
    assert ComparedFigure("loss", (0.0,), (0.0,), 0.01).verdict is ChangeVerdict.EQUAL
    assert ComparedFigure("loss", (0.0,), (1.0,), 0.01).verdict is ChangeVerdict.WORSE


def test_a_head_that_does_not_train_is_refused_but_not_a_base_that_does_not() -> None:
    broken = Side("f" * 40, (), "train.py ended with 1:\nStep 3: loss nan is not finite")
    head = Comparison(ChangeRules(), side(), broken)
    assert head.refused
    assert reasons(head) == [("It does not train any more", broken.problem)]
    assert markdown(head).startswith("### ❌ It does not train any more · `0000000` → `fffffff`")
    assert "loss nan is not finite" in markdown(head)
    base = Comparison(ChangeRules(), broken, side())
    assert not base.refused
    assert markdown(base).startswith("### ⚠ Nothing to compare with")


def test_different_weights_are_reported_even_if_no_figure_changed() -> None:
    other = compared(weights_sha256="cd" * 32)
    assert not other.same_weights
    assert "The weights after 40 steps are not the same." in markdown(other)
    unknown = Comparison(ChangeRules(), side(weights_sha256=None), side(weights_sha256=None))
    assert not unknown.same_weights


def test_the_table_has_medians_spreads_and_changes() -> None:
    text = markdown(compared(tokens_per_second=[41_000.0, 38_000.0, 39_000.0], loss=2.6))
    assert "### ❌ Worse: loss" in text
    assert "| loss | 2.50 | 2.60 | +4.0 % | ❌ worse |" in text
    assert "| tokens/s | 40 k | 39 k (38 k to 41 k) | −2.5 % | ✅ |" in text
    assert "| memory | 500.0 MB | 500.0 MB | none | ✅ |" in text


def test_the_comment_begins_with_its_mark_and_ends_with_the_log() -> None:
    text = comment(compared(), address="https://github.com/me/lab/actions/runs/9")
    assert text.startswith(MARK + "\n### ✅ No regression")
    assert text.endswith("[log](https://github.com/me/lab/actions/runs/9)\n")


def test_text_of_the_change_adds_no_markup() -> None:
    hostile = "```\n</details> <img src=x> @everyone [click](https://evil)"
    rules = ChangeRules(config="a`<b>", overrides=("c=`</details>`",))
    problem = Side("<b>`|*", (), hostile)
    text = markdown(Comparison(rules, side(), problem))
    outside = text.replace(hostile, "")
    assert "````\n" + hostile in text
    assert "<b>`|*"[:3] not in outside.replace("a'<b>", "")
    assert outside.count("</details>") == 2  # the comment's own one, and the one in a code span
    assert "c='</details>'" in outside


def test_a_comparison_survives_a_round_trip_through_json() -> None:
    comparison = compared(loss=[2.5, 2.6, None])
    assert comparison_from(json.loads(json.dumps(comparison.to_json()))) == comparison


@pytest.mark.parametrize(
    "spoil",
    [
        lambda value: 3,
        lambda value: {**value, "schema": 2},
        lambda value: {name: part for name, part in value.items() if name != "head"},
        lambda value: {**value, "base": {**value["base"], "runs": "many"}},
        lambda value: {**value, "base": {**value["base"], "runs": [{"steps": float("inf")}]}},
        lambda value: {**value, "rules": {**value["rules"], "loss": "1 %"}},
    ],
)
def test_an_invalid_record_is_refused(spoil: Any) -> None:
    with pytest.raises(ConfigError, match="the comparison"):
        comparison_from(spoil(json.loads(json.dumps(compared().to_json()))))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("los: 0.1", "los: unknown key; there are config, loss"),
        ("loss: -1", "loss: '-1' does not fit; the default is 0.01"),
        ("loss: true", "loss: 'True' does not fit"),
        ("repeats: 0", "repeats: '0' does not fit"),
        ("repeats: 2.5", "repeats: '2.5' does not fit"),
        ("minutes: 0", "minutes: '0' does not fit"),
        ("overrides: a=1", "overrides: 'a=1' does not fit"),
        ("config: 3", "config: '3' does not fit"),
    ],
)
def test_an_invalid_rule_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_rules(text, "rules.yml")
    assert message in str(caught.value)


def test_the_shipped_rules_are_valid() -> None:
    path = Path(__file__).parents[4] / ".github" / "comparison.yml"
    rules = read_rules(path.read_text(), str(path))
    assert rules.repeats == 3
    assert "model.device=cpu" in rules.overrides
    assert read_rules("", "none") == ChangeRules()


def test_the_first_quarter_of_the_speeds_is_ignored(new_run: Any) -> None:
    run = new_run().train(100).succeed()
    found = measure_run(run.path, 123)
    rows = [json.loads(line) for line in run.layout.metrics_file.read_text().splitlines()]
    speeds = sorted(row["tokens_per_second"] for row in rows[25:] if "tokens_per_second" in row)
    assert found.tokens_per_second == pytest.approx(speeds[len(speeds) // 2], rel=0.02)
    assert found.memory_bytes == 123
    assert found.loss is not None
    with pytest.raises(TrainyardError):
        measure_run(run.path / "logs", None)
