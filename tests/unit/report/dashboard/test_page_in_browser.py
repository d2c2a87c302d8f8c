"""The HTML report in Chromium: narrow and wide, light and dark, of one run and of several; its colours."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.report.conftest import START, row

from trainyard.report.dashboard.dashboard import Format, TrainingDashboard, render_dashboards
from trainyard.report.dashboard.html import PAGE
from trainyard.run.records import append_event

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NewRun = Callable[[], Any]
pytestmark = pytest.mark.process  # a browser that --quick stops half way leaves its sockets open
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)"
)
WIDTHS = (1440, 390)
TOO_WIDE = """() => [...document.querySelectorAll("body *")].filter((one) => {
  const { right, width } = one.getBoundingClientRect();
  return width && right > innerWidth + 1 && !one.closest(".uplot");
}).map((one) => `${one.tagName}.${one.className}`)"""


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])


@pytest.fixture
def pages(new_run: NewRun, tmp_path: Path) -> dict[str, Path]:
    """Reports of a proven run on a CPU, of a diverged and a running one on a GPU, and of all three."""
    runs = {}
    for name in ("cpu", "diverged", "running"):
        run = new_run()
        if name == "cpu":
            run.train().succeed().prove()
        else:
            run.train(340, gpu=True)
            append_event(run.layout.events_file, "hang_suspected", time=START + 20, reason="x" * 300)
            append_event(run.layout.events_file, "resumed", step=200, time=START + 36)
        if name == "diverged":
            run.end("failed", 1, "loss is nan in batch 12")
        run.path.rename(tmp_path / f"{name} of the team")
        runs[name] = tmp_path / f"{name} of the team"
    texts = {name: render_dashboards([TrainingDashboard(path)], Format.HTML) for name, path in runs.items()}
    texts["three"] = render_dashboards([TrainingDashboard(path) for path in runs.values()], Format.HTML)
    assert len(texts["three"]) < 300_000
    for name, text in texts.items():
        (tmp_path / f"{name}.html").write_text(text)
    return {name: tmp_path / f"{name}.html" for name in texts}


@needs_browser
def test_every_report_fits_every_screen_without_an_error(browser: "Browser", pages: dict[str, Path]) -> None:
    tab = browser.new_page()
    errors: list[str] = []
    tab.on("console", lambda message: errors.append(message.text))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    for name, path in pages.items():
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                tab.set_viewport_size({"width": width, "height": 900})
                tab.emulate_media(color_scheme=scheme, media="screen")
                tab.goto(path.as_uri())
                assert tab.locator("canvas").count() == tab.locator("figure").count() >= 5
                assert tab.evaluate(TOO_WIDE) == [], (name, width)
                assert tab.evaluate("document.documentElement.scrollWidth") <= width, name
        events = tab.locator("table", has=tab.locator("caption", has_text="events")).first
        if name != "three":
            assert events.evaluate("one => one.getBoundingClientRect().height") < 1200, "at 390 px"
        tab.emulate_media(media="print")
        assert tab.locator("svg.chart").first.is_visible()
        assert not tab.locator("canvas").first.is_visible()
    assert errors == []
    tab.close()


@needs_browser
def test_without_scripts_the_charts_are_svg(browser: "Browser", pages: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(pages["three"].as_uri())
    assert tab.locator("svg.chart").first.is_visible()
    assert not tab.locator("input").first.is_visible()
    assert not tab.locator("#axis").is_visible()
    context.close()


def read_at(tab: "Page", share: float, panel: int = 0) -> dict[str, tuple[float, str]]:
    """Point at a place of a chart; return by label the value that its legend shows, and its step or time."""
    box = tab.locator(".u-over").nth(panel).bounding_box()
    assert box is not None
    tab.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    found = {}
    for entry in tab.locator("figure").nth(panel).locator(".legend li").all():
        shown = entry.locator("output").inner_text()
        if match := re.fullmatch(r"(\S+) at (.*)", shown):
            found[entry.inner_text().removesuffix(shown).strip()] = (float(match[1]), match[2])
    return found


@needs_browser
def test_the_cursor_reads_the_values_of_the_rows(browser: "Browser", pages: dict[str, Path]) -> None:
    tab = browser.new_page(viewport={"width": 1440, "height": 3000})
    tab.goto(pages["cpu"].as_uri())
    for share in (0.1, 0.35, 0.62, 0.9):
        value, at = read_at(tab, share)["training"]
        assert value == pytest.approx(row(int(at))["loss"], rel=1e-3)
        assert int(at) == pytest.approx(1 + share * 599, abs=3)
        rate, at = read_at(tab, share, panel=1)[""]
        assert rate == pytest.approx(row(int(at))["learning_rate"], rel=1e-2)
    assert tab.locator("figure").nth(0).locator("output").first.inner_text(), "the cursor is shared"

    tab.locator("#axis").select_option("time")
    assert read_at(tab, 0.5)["training"][1] == "0:54", "600 steps take 108 s"
    tab.locator("#axis").select_option("step")
    box = tab.locator(".u-over").first.bounding_box()
    assert box is not None
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"], box["y"] + 50, steps=4)
    tab.mouse.up()
    zoomed = int(read_at(tab, 0.5, panel=2)[""][1])
    assert zoomed == pytest.approx(450, abs=8), "all charts have the zoomed axis"
    tab.locator("#reset").click()
    assert int(read_at(tab, 0.5)["training"][1]) == pytest.approx(300, abs=5)
    tab.close()


@needs_browser
def test_lines_are_switched_off_and_scales_are_logarithmic(
    browser: "Browser", pages: dict[str, Path]
) -> None:
    tab = browser.new_page(viewport={"width": 1440, "height": 3000})
    tab.goto(pages["three"].as_uri())

    def pictures() -> list[str]:
        tab.mouse.move(0, 0)
        tab.wait_for_timeout(50)
        return [one.evaluate("one => one.toDataURL()") for one in tab.locator("canvas").all()]

    before = pictures()
    tab.locator(".legend input").first.click()
    one_off = pictures()
    assert [a != b for a, b in zip(before, one_off, strict=True)] == [True, *[False] * (len(before) - 1)]
    tab.locator(".legend input").first.click()
    assert pictures() == before
    tab.locator(".runs input").last.click()
    assert all(a != b for a, b in zip(before, pictures(), strict=True)), "a run is switched off everywhere"
    tab.locator(".runs input").last.click()
    tab.locator("#log").check()
    assert pictures()[0] != before[0]
    tab.close()


def luminance(colour: str) -> float:
    parts = [
        int(part * (2 if len(colour) == 4 else 1), 16) / 255
        for part in re.findall("." if len(colour) == 4 else "..", colour[1:])
    ]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("block", [0, 1, 2], ids=["light", "dark", "print"])
def test_colours_have_contrast(block: int) -> None:
    """By WCAG 2.2: 4.5 for text, 3 for lines of charts."""
    blocks = re.findall(r":root \{(.*?)\}", (PAGE / "report.css").read_text(), re.DOTALL)
    colours: dict[str, str] = {}
    for text in {0, block}:
        colours |= dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]+)", blocks[text]))
    for ground in ("page", "card", "code"):
        for name in ("ink", "muted", "good", "bad", "warn", "going", *(f"c{run}" for run in range(6))):
            pair = sorted((luminance(colours[name]), luminance(colours[ground])))
            contrast = (pair[1] + 0.05) / (pair[0] + 0.05)
            assert contrast >= (3 if re.fullmatch(r"c\d", name) else 4.5), (name, ground, contrast)
