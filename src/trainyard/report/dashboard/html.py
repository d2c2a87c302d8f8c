"""The HTML report: one self-contained file; its content security policy forbids loading anything.

    verdict, figures, proof, curves, sample, checkpoints, provenance, events, configuration

All text that comes from the run is escaped. A section without known facts is left out.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from trainyard.report.dashboard.chart import Frame, Layer, line_chart
from trainyard.report.dashboard.html_tables import checkpoint_table, event_table, provenance_table
from trainyard.report.dashboard.stylesheet import STYLE
from trainyard.report.dashboard.text import utc
from trainyard.report.facts.curve import average_curve, thin_curve
from trainyard.report.facts.figures import figure_tiles
from trainyard.report.facts.headline import Headline, RunVerdict, run_headline
from trainyard.report.facts.history import Curve
from trainyard.report.facts.proof_record import PartRecord, ProofRecord
from trainyard.report.facts.quantities import format_count, format_scaled
from trainyard.report.facts.run_facts import RunFacts

_WIDE, _NARROW, _SMALL = Frame(900, 320), Frame(360, 260, left=42), Frame(430, 190)
_BUCKETS = 450
_MEANS = 150
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_report(runs: Sequence[RunFacts]) -> str:
    """The complete page, with one article per run."""
    title = escape(" · ".join([f"{run_headline(run).text} · {run.title}" for run in runs[:3]]))
    articles = "\n".join(_article(run) for run in runs)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"{articles}\n</main>\n</body>\n</html>\n"
    )


def _article(facts: RunFacts) -> str:
    head = run_headline(facts)
    parts = (
        _header(head, facts),
        _callout(head),
        _tiles(facts),
        _proof(facts),
        _reward_chart(facts),
        _loss_chart(facts),
        _small_charts(facts),
        _sample(facts),
        _card("Checkpoints", checkpoint_table(facts)),
        _card("Where it came from", provenance_table(facts)),
        _card("Events", event_table(facts)),
        _configuration(facts),
        f"<footer>{escape(str(facts.directory))}</footer>",
    )
    return "<article>\n" + "\n".join(part for part in parts if part) + "\n</article>"


def _header(head: Headline, facts: RunFacts) -> str:
    version = facts.run.get("version")
    kicker = f"Trainyard {version}" if version else "Trainyard"
    about = [
        facts.name,
        facts.run.get("config_file"),
        facts.section("hardware").get("device_name") or facts.section("hardware").get("device"),
        None if facts.timestamp is None else utc(facts.timestamp),
    ]
    badge = f'<span class="badge">{escape(str(facts.state.status).lower())}</span>'
    return (
        f'<header><p class="kicker">{escape(kicker)} · {escape(facts.title)} {badge}</p>\n'
        f'<h1 class="{head.verdict}">{escape(head.text)}</h1>\n'
        f'<p class="sub">{escape(" · ".join(str(item) for item in about if item))}</p></header>'
    )


def _callout(head: Headline) -> str:
    if head.verdict is RunVerdict.PROVEN or not (head.reason or head.next_step):
        return ""
    reason = f"<p>{escape(head.reason)}</p>" if head.reason else ""
    step = f'<pre class="command">{escape(head.next_step)}</pre>' if head.next_step else ""
    return f'<section class="card callout {head.verdict}">{reason}{step}</section>'


def _tiles(facts: RunFacts) -> str:
    tiles = "".join(
        f'<div class="tile"><div class="what">{escape(tile.name)}</div>'
        f'<div class="value">{escape(tile.value)}</div>'
        f'<div class="more">{escape(tile.comparison)}</div></div>'
        for tile in figure_tiles(facts)
    )
    return f'<section class="tiles" aria-label="Figures">{tiles}</section>' if tiles else ""


def _proof(facts: RunFacts) -> str:
    if facts.proof is None:
        return ""
    items = "".join(
        f'<li><span class="mark {"proven" if part.holds else "failed"}" aria-label='
        f'"{"holds" if part.holds else "does not hold"}">{"✓" if part.holds else "✗"}</span>'
        f'<span class="name">{escape(part.name)}</span><span class="evidence">{escape(part.evidence)}'
        f"{_next_step(part, facts.proof)}</span></li>"
        for part in facts.proof.parts
    )
    return _card("Proven" if facts.proof.proven else "Not proven", f'<ul class="proof">{items}</ul>')


def _next_step(part: PartRecord, proof: ProofRecord) -> str:
    """The part's next step; empty when the callout at the top of the page shows it already."""
    if not part.next_step or part.next_step == proof.failing[0].next_step:
        return ""
    return f'<pre class="command">{escape(part.next_step)}</pre>'


def _loss_chart(facts: RunFacts) -> str:
    training, validation = facts.history.curves["loss"], facts.history.curves["val_loss"]
    if len(training) < 2:
        return ""
    layers = _line(training)
    legend = '<span><i class="mean"></i>training</span>'
    if len(validation):
        layers.append(Layer("dots", thin_curve(validation, 60), "validation"))
        legend += '<span><i class="dots"></i>validation</span>'
    return _chart_card("Loss", layers, legend=f'<div class="legend">{legend}</div>')


def _reward_chart(facts: RunFacts) -> str:
    rewards = facts.history.curves["reward"]
    return "" if len(rewards) < 2 else _chart_card("Reward", _line(rewards))


def _chart_card(title: str, layers: Sequence[Layer], legend: str = "") -> str:
    """A chart in two sizes, of which the style sheet shows the one that fits the screen."""
    wide, narrow = (
        line_chart(layers, frame, label=f"{title} over steps", format_value="{:g}".format)
        for frame in (_WIDE, _NARROW)
    )
    return _card(title, f'{legend}<div class="wide">{wide}</div><div class="narrow">{narrow}</div>')


def _small_charts(facts: RunFacts) -> str:
    wanted: tuple[tuple[str, str, Any], ...] = (
        (
            "learning_rate",
            "Learning rate",
            lambda value: f"{value:.0e}".replace("e-0", "e-") if value else "0",
        ),
        ("tokens_per_second", "Tokens per second", lambda value: format_scaled(value).replace(" ", "")),
    )
    cards = [
        _card(title, line_chart(_line(curve), _SMALL, label=title, format_value=format_value, from_zero=True))
        for name, title, format_value in wanted
        if len(curve := facts.history.curves[name]) > 1
    ]
    return f'<div class="pair">{"".join(cards)}</div>' if cards else ""


def _line(curve: Curve) -> list[Layer]:
    """A short curve as it is; a long one as faint extremes with the means on top."""
    if len(curve) <= 2 * _MEANS:
        return [Layer("mean", thin_curve(curve, _BUCKETS))]
    return [Layer("raw", thin_curve(curve, _BUCKETS)), Layer("mean", average_curve(curve, _MEANS))]


def _sample(facts: RunFacts) -> str:
    if facts.sample is None:
        return ""
    early = f"<p>{escape(facts.too_early.capitalize())}.</p>" if facts.too_early else ""
    return _card("What the model writes", f"{early}<pre>{escape(facts.sample)}</pre>")


def _configuration(facts: RunFacts) -> str:
    if not facts.config_text:
        return ""
    lines = format_count(len(facts.config_text.splitlines()), "line")
    return (
        f'<section class="card"><details><summary>Configuration, {lines}</summary>'
        f"<pre>{escape(facts.config_text)}</pre></details></section>"
    )


def _card(title: str, body: str) -> str:
    return f'<section class="card"><h2>{escape(title)}</h2>{body}</section>' if body else ""
