"""The HTML report in Chromium: narrow and wide, light and dark, of one run and of several; its colours."""

import base64
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.report.conftest import HEX, START, maker_of_runs, row

from trainyard.report.dashboard.dashboard import Format, TrainingDashboard, render_dashboards
from trainyard.report.dashboard.html import PAGE, html_index
from trainyard.report.facts.run_list import ListedEntry
from trainyard.run.directory import RunDirectory
from trainyard.run.records import append_event

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

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

HOSTILE = """# Seen

<script>alert(1)</script> <img src=x onerror=alert(1)>
[good](https://example.com/) [bad](javascript:alert(1)) ![remote](https://example.com/x.png)

| a | b |
|---|---|
| 1 | 2 |
"""
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_TOUCHES = """(pairs) => {
  const over = document.querySelector(".u-over"), box = over.getBoundingClientRect();
  pairs.forEach((places, index) => {
    const touches = places.map((share, identifier) => new Touch({
      identifier, target: over, clientX: box.left + share * box.width, clientY: box.top + 50 }));
    over.dispatchEvent(new TouchEvent(index ? "touchmove" : "touchstart", { touches, cancelable: true }));
  });
}"""
PINCH = f"() => ({_TOUCHES})([[0.4, 0.6], [0.1, 0.9]])"
DRAG = f"() => ({_TOUCHES})([[0.5], [0.1]])"
HOLD = f"() => ({_TOUCHES})([[0.9], [0.9]])"


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])


ROWS_OF_PROGRAM = 700


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of a proven run on a CPU, of a diverged and a running one on a GPU, of all three, of a program
    that put files into its report and failed, and the index of 2,000 runs.
    """
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as monkeypatch:
        return written_pages(folder, maker_of_runs(folder, monkeypatch))


def written_pages(folder: Path, new_run: Callable[[], Any]) -> dict[str, Path]:
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
        run.path.rename(folder / f"{name} of the team")
        runs[name] = folder / f"{name} of the team"
    texts = {name: render_dashboards([TrainingDashboard(path)], Format.HTML) for name, path in runs.items()}
    texts["program"] = render_dashboards([TrainingDashboard(failed_program(folder / "program"))], Format.HTML)
    entries = [entry_of(number) for number in range(2000)]
    texts["index"] = html_index("runs", entries, {"runs/1": "1.html"}, now=START, command="trainyard report")
    texts["three"] = render_dashboards([TrainingDashboard(path) for path in runs.values()], Format.HTML)
    assert len(texts["three"]) < 300_000
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in texts}


def failed_program(path: Path) -> Path:
    """A run of another program: own figures, a picture, a text, a table, a log with a traceback."""
    layout = RunDirectory(path)
    layout.create()
    error = "KeyError: 'labels'"
    outcome = {
        "status": "failed",
        "exit_code": 1,
        "reason": "the program ended with exit code 1",
        "steps": 700,
    }
    outcome |= {"failure": {"class": "user-code", "error": error}, "sources": {"loss": "printed"}}
    identity = {
        "run_id": "p",
        "created": START,
        "recipe": "command",
        "program": {"command": ["python", "a.py"]},
    }
    layout.run_file.write_text(json.dumps({"schema": 1, **identity, "outcome": outcome}))
    layout.config_file.write_text("recipe: command\nmodel: {name: a}\nprogram: {command: [python, a.py]}\n")
    rows = [
        {
            "step": step,
            "loss": 2 - step / 1000,
            "learning_rate": 3e-4,
            "eval/f1": step / 700,
            "eval/bleu": step,
            "samples": step * 32,
            "power": 300 + step % 7,
            "time": START + step,
        }
        for step in range(1, ROWS_OF_PROGRAM + 1)
    ]
    layout.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (layout.logs / "node-0.log").write_text(
        "".join(f"line {n}\n" for n in range(99)) + f"Traceback\n{error}\n"
    )
    report = layout.output / "report"
    report.mkdir(parents=True)
    (report / "table.csv").write_text("class,recall\ncat,0.9\n" + "dog,0.8\n" * 300)
    (report / "text.md").write_text(HOSTILE)
    (report / "picture.png").write_bytes(base64.b64decode(PIXEL))
    (report / "fake.png").write_text("<svg onload=alert(1)>")
    (report / "secret.md").symlink_to("/etc/passwd")
    return path


def entry_of(number: int) -> ListedEntry:
    proof = ("proven", "not proven: stored", "not judged")[number % 3]
    curve = (4.0, 2.0, 1.0 + number / 2000)
    return ListedEntry(
        f"runs/{number}",
        f"id-{number}",
        START + number,
        HEX[:40],
        "succeeded",
        proof,
        600,
        curve[-1],
        None,
        108.0,
        2,
        ("baseline",) if number % 10 == 0 else (),
        "<b>a note</b>" if number == 7 else "",
        curve,
    )


@needs_browser
def test_every_report_fits_every_screen_without_an_error(browser: "Browser", pages: dict[str, Path]) -> None:
    tab = browser.new_page()
    errors: list[str] = []
    tab.on("console", lambda message: errors.append(message.text))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    for name, path in pages.items():
        for width in WIDTHS:
            tab.set_viewport_size({"width": width, "height": 900})
            tab.emulate_media(color_scheme="dark" if width == 390 else "light", media="screen")
            tab.goto(path.as_uri())
            assert tab.locator("canvas").count() == tab.locator("figure").count()
            assert name == "index" or tab.locator("canvas").count() >= 5
            assert tab.evaluate(TOO_WIDE) == [], (name, width)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, name
        events = tab.locator("table", has=tab.locator("caption", has_text="events")).first
        if name in ("cpu", "diverged", "running"):
            assert events.evaluate("one => one.getBoundingClientRect().height") < 1200, "at 390 px"
        if name == "index":
            continue
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


@needs_browser
def test_the_pages_are_accessible(browser: "Browser", pages: dict[str, Path]) -> None:
    from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]

    tab = browser.new_page()
    found = []
    for name, path in pages.items():
        for width in WIDTHS:
            tab.set_viewport_size({"width": width, "height": 900})
            tab.emulate_media(color_scheme="dark" if width == 390 else "light")
            tab.goto(path.as_uri())
            if name == "index":
                tab.locator("tbody input").first.check()
            # The page's own policy forbids the script of axe, which is therefore not a script of the page.
            found += [
                (name, width, violation["id"], violation["nodes"][0]["html"][:120])
                for violation in Axe().run(tab).response["violations"]
            ]
    assert found == []
    tab.close()


@needs_browser
def test_a_program_shows_its_figures_files_and_the_end_of_its_log(
    browser: "Browser", pages: dict[str, Path]
) -> None:
    tab = browser.new_page(viewport={"width": 1440, "height": 900})
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(pages["program"].as_uri())
    assert all(url.startswith(("file:", "data:image/png", "blob:")) for url in asked), asked
    assert tab.locator("details.group > summary").all_inner_texts() == ["eval 2", "other 1"]
    captions = tab.locator("figcaption").all_inner_texts()
    assert captions == ["Loss", "Learning rate", "eval/bleu", "eval/f1", "power"]
    assert tab.locator("#axis option").all_inner_texts() == ["step", "time", "samples"]
    assert "KeyError: 'labels'" in tab.locator(".callout").inner_text()
    log = tab.locator(".log").inner_text()
    assert "line 51" in log and "line 40" not in log and log.strip().endswith("KeyError: 'labels'")
    assert tab.locator("section.card h2").all_inner_texts()[1:6] == [
        "fake.png",
        "picture.png",
        "secret.md",
        "table.csv",
        "text.md",
    ]
    assert tab.locator(".card img").evaluate("one => one.naturalWidth") == 1
    assert tab.locator(".text :is(script, img, [onerror])").count() == 0
    assert tab.locator(".text a").evaluate_all("all => all.map((one) => one.href)") == [
        "https://example.com/",
        "https://example.com/x.png",  # shown as a link, which loads nothing by itself
    ]
    assert tab.locator(".text h3").inner_text() == "Seen"
    assert "root:" not in tab.content(), "a link leads out of the folder"
    assert "The first 200 of 302 rows." in tab.content()
    tab.close()


@needs_browser
def test_charts_are_smoothed_saved_and_read_by_keyboard_and_touch(
    browser: "Browser", pages: dict[str, Path], tmp_path: Path
) -> None:
    tab = browser.new_page(viewport={"width": 1440, "height": 900})
    tab.goto(pages["program"].as_uri())
    plot, canvas = tab.locator(".plot").nth(4), tab.locator("canvas").nth(4)
    before = canvas.evaluate("one => one.toDataURL()")
    tab.locator("#smoothing").fill("0.9")
    assert canvas.evaluate("one => one.toDataURL()") != before
    for kind, beginning in (
        ("csv", b"step,power\n1,301\n"),
        ("png", b"\x89PNG"),
        ("json", b'{"title":"power"'),
    ):
        with tab.expect_download() as saved:
            tab.locator("figure").nth(4).locator(f"[data-save={kind}]").click()
        assert Path(saved.value.path()).read_bytes().startswith(beginning), kind

    plot.focus()
    for key, shown in (
        ("ArrowRight", "at 1"),
        ("ArrowRight", "at 2"),
        ("End", "at 700"),
        ("ArrowLeft", "at 699"),
    ):
        tab.keyboard.press(key)
        assert tab.locator("#reading").inner_text().endswith(shown), key
    tab.keyboard.press("+")
    tab.keyboard.press("Home")
    assert int(tab.locator("#reading").inner_text().rpartition(" ")[2]) > 300, "it is zoomed"
    tab.keyboard.press("Escape")
    tab.keyboard.press("Home")
    assert tab.locator("#reading").inner_text().endswith("at 1")

    phone = browser.new_context(has_touch=True, viewport={"width": 390, "height": 900})
    tab = phone.new_page()
    tab.goto(pages["program"].as_uri())
    tab.evaluate(PINCH)
    value = tab.locator("output").first.inner_text()
    assert 250 < int(value.rpartition(" ")[2]) < 450, value
    tab.evaluate(DRAG)
    assert tab.locator("output").first.inner_text() == value, "the chart moves with the finger"
    tab.evaluate(HOLD)
    assert 450 < int(tab.locator("output").first.inner_text().rpartition(" ")[2]) < 530
    phone.close()


@needs_browser
def test_the_index_sorts_filters_and_compares(browser: "Browser", pages: dict[str, Path]) -> None:
    tab = browser.new_page(viewport={"width": 1440, "height": 900})
    tab.goto(pages["index"].as_uri())
    names = tab.locator("tbody th")
    assert names.first.inner_text() == "1999", "the newest is first"
    tab.get_by_role("button", name="loss").click()
    assert names.first.inner_text() == "0"
    tab.locator("#filter").fill("baseline")
    tab.locator("#proof").select_option("not proven")
    assert tab.locator("#count").inner_text() == "67 of 2,000"
    tab.locator("#filter").fill("id-7")
    tab.locator("#proof").select_option("")
    assert tab.locator("tbody td").filter(has_text="<b>a note</b>").count() == 1
    for tick in tab.locator("tbody input").all()[:3]:
        tick.check()
    compared = tab.locator("#compared")
    assert compared.locator("polyline").count() == 3
    assert (
        compared.locator("pre").inner_text()
        == "trainyard report runs/7 runs/70 runs/71 --output compared.html"
    )
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
