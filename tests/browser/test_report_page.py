# SPDX-License-Identifier: Apache-2.0
"""`penstock report` as a browser renders it: headless Chromium, from disk, in a network namespace with nothing in it.

What is looked at is the page after its scripts ran: the pictures are there with their figures, and nothing complained
on the console or asked for anything outside the file.
"""

import html
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python" / "tests" / "report"))

import documents  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")
EVIL = '</script><script>document.body.dataset.evil="1"</script><img src="http://127.0.0.1:9/evil.png">'


@dataclass
class Rendered:
    dom: str
    console: list
    requests: list  # what the page asked for, apart from files

    def texts(self, selector_class):
        """Texts of the SVG elements of a class."""
        found = re.findall(rf'<text[^>]*class="[^"]*\b{selector_class}\b[^"]*"[^>]*>(.*?)</text>', self.dom, re.S)
        return [html.unescape(re.sub(r"<[^>]+>", "", text)) for text in found]

    def count(self, pattern):
        return len(re.findall(pattern, self.dom))


@pytest.fixture
def render(tmp_path):
    alone = subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode == 0

    def run(path):
        log = tmp_path / "net.json"
        command = [*(["unshare", "-n"] if alone else []), CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu"]
        command += ["--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-sync"]
        command += [f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={log}", "--enable-logging=stderr"]
        command += ["--window-size=1200,2000", "--virtual-time-budget=60000", "--dump-dom", Path(path).as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr[-2000:]
        # Chromium's own pages (chrome://) speak there too.
        console = [line for line in done.stderr.splitlines() if "CONSOLE" in line and "source: chrome://" not in line]
        # A page from disk has the origin "null"; what the browser itself does has none.
        events = json.loads(log.read_text())["events"]
        asked = [e["params"]["url"] for e in events if e.get("params", {}).get("initiator") == "null"]
        return Rendered(done.stdout, console, [url for url in asked if not url.startswith(("file:", "data:", "blob:"))])

    return run


@pytest.fixture
def make(tmp_path):
    """The page of some documents, by the command."""

    def run(*made):
        files = []
        for number, document in enumerate(made):
            path = tmp_path / f"{number}.json"
            path.write_text(json.dumps(document))
            files.append(str(path))
        out = tmp_path / "page.html"
        done = subprocess.run([sys.executable, "-m", "penstock", "report", *files, "-o", str(out)], capture_output=True)
        assert done.returncode == 0, done.stderr
        return out

    return run


def test_the_checks_below_see_what_they_look_for(render, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text('<body><script>console.error("boom")</script><img src="http://127.0.0.1:9/x.png"></body>')
    seen = render(page)
    assert any("boom" in line for line in seen.console)
    assert seen.requests == ["http://127.0.0.1:9/x.png"]


def test_all_tools_on_one_page(render, make):
    page = make(*(make_one() for make_one in documents.ALL.values()))
    seen = render(page)
    assert seen.console == []
    assert seen.requests == []
    charts = seen.count(r'<div class="chart js-plotly-plot" id="chart-\d+"')
    assert charts == seen.count(r'id="chart-\d+"') >= 14
    assert f'data-charts="{charts}"' in seen.dom
    assert seen.count('<svg class="main-svg"') >= charts


def test_a_heat_map_shows_its_figures_and_axes(render, make):
    seen = render(make(documents.bench()))
    shown = seen.texts("heatmap-label") or re.findall(r"<text[^>]*>(?:<tspan[^>]*>)?([\d.]+)<", seen.dom)
    for figure in ("1.00", "2.00", "3.00", "4.00", "1.25", "5.00"):
        assert figure in shown
    assert seen.count("heatmaplayer mlayer") >= 1 and seen.count(r"<image[^>]*data:image/png") >= 2
    axes = seen.texts("ytitle") + seen.texts("xtitle")
    for title in (
        "block size",
        "depth: blocks at the device at once",
        "GB/s",
        "CPU s/GiB",
        "share of blocks that took longer",
    ):
        assert title in axes
    assert {"penstock", "fio", "limit set for the device"} <= set(seen.texts("legendtext"))
    assert "64 KiB" in seen.dom and "Testium 9000" in seen.dom


def test_curves_bars_and_dots_are_really_drawn(render, make):
    seen = render(make(documents.bench()))
    assert seen.count(r'<path class="js-line"[^>]* d="M[^"]+L') >= 8  # latency: four jobs, two sides
    assert seen.count(r'<g class="point"><path d="M') >= 16  # bandwidth and CPU: four jobs, two sides each
    assert seen.count(r'<path class="[xy]error"') >= 8


def test_verdicts_are_there_in_words_and_colours(render, make):
    seen = render(make(documents.bars()))
    for verdict, how_many in (("met", 4), ("missed", 1), ("undecided", 1)):
        assert seen.count(rf'<td class="verdict {verdict}">{verdict}</td>') == how_many
    assert "why engine.write_1g is missed" in seen.dom
    assert {"met", "missed", "undecided", "limit"} <= set(seen.texts("legendtext"))
    assert "rgb(198, 40, 40)" in seen.dom  # the red dot of the missed one
    assert seen.count(r"<text[^>]*>engine\.read_1g</text>") >= 1


def test_a_hostile_file_stays_text(render, make):
    hostile = documents.changed(documents.bench(), ("environment", "cpu"), EVIL)
    hostile = documents.changed(hostile, ("jobs", 0, "rw"), EVIL)
    hostile = documents.changed(hostile, ("jobs", 1, "samples", 0, "side"), EVIL)
    seen = render(make(hostile, documents.changed(documents.bars(), ("bars", 0, "id"), EVIL)))
    assert seen.requests == []
    assert seen.console == []
    assert "data-evil" not in seen.dom and "data-charts" in seen.dom
    assert "&lt;/script&gt;&lt;script&gt;document.body" in seen.dom
