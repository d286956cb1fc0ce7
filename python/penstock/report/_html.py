# SPDX-License-Identifier: Apache-2.0
"""A page as one HTML file that needs no other file: it contains plotly.js, and its policy forbids every request.

Only the two scripts of this module may run (by their hashes), so no text of a JSON file can run as a script. Texts are
escaped, and figures are data in a script element that is not executed. plotly.js sets styles itself, hence style-src.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re

from penstock.report import _figures as figures
from penstock.report._model import Cell, Chart, Page, Section, Table, Text
from penstock.report._read import ReportError

_SHORT_CELL = 12  # cells of up to so many characters are not broken

# A picture is drawn in the colours of _figures.py; for a dark screen each is replaced by its counterpart.
_DARK = {
    "#ffffff": "#0d1117",
    "#1f2328": "#e6edf3",
    "#e6e8eb": "#30363d",
    "#8c959f": "#6e7681",
    "#444444": "#b1bac4",
    "#0072b2": "#56b4e9",
    "#d55e00": "#f0883e",
    "#f6f8fa": "#161b22",
    "#d0d7de": "#30363d",
    "#57606a": "#9198a1",
    "#1a7f37": "#3fb950",
    "#c62828": "#f85149",
    "#9a6700": "#d29922",
}

_LIGHT_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0; background: #ffffff; color: #1f2328; font: 15px/1.5 system-ui, sans-serif; }
main, header, nav { max-width: 1080px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 28px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 21px; margin: 48px 0 4px; padding-top: 20px; border-top: 2px solid #d0d7de; overflow-wrap: anywhere; }
h3 { font-size: 17px; margin: 32px 0 2px; }
p { margin: 4px 0 10px; }
.reading, .source { color: #57606a; font-size: 14px; max-width: 860px; }
nav ul { padding-left: 20px; }
.chart { width: 100%; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; margin: 6px 0 14px; }
th, td { padding: 4px 10px; border-bottom: 1px solid #e6e8eb; text-align: left; vertical-align: top; }
th { background: #f6f8fa; border-bottom: 2px solid #d0d7de; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.verdict { font-weight: 600; white-space: nowrap; }
.met, .faster { color: #1a7f37; } .missed, .slower { color: #c62828; } .undecided { color: #9a6700; }
.level, .other { color: #57606a; }
pre { background: #f6f8fa; padding: 10px 14px; font-size: 13px; margin: 4px 0 14px; white-space: pre-wrap;
  overflow-wrap: anywhere; }
summary { cursor: pointer; font-size: 17px; font-weight: 600; margin: 28px 0 6px; }
footer { max-width: 1080px; margin: 40px auto 30px; padding: 0 24px; color: #57606a; font-size: 13px; }
td.short { white-space: nowrap; }
@media print { .chart { break-inside: avoid; } }
/* It would cover the names of the curves, and on a phone nothing points. */
@media (max-width: 700px) { .modebar { display: none !important; } }
"""


def _darkened(text: str) -> str:
    for light, dark in _DARK.items():
        text = text.replace(light, dark)
    return text


# The rules with colours, repeated with the colours for a dark screen.
_COLOURED = "\n".join(line for line in re.findall(r"[^\n{}]+\{[^}]*\}", _LIGHT_STYLE) if "#" in line)
_STYLE = f"{_LIGHT_STYLE}\n@media screen and (prefers-color-scheme: dark) {{\n{_darkened(_COLOURED)}\n}}\n"

# Draws every figure, then writes their number into the body; the test waits for that.
_SCRIPT = """
"use strict";
const light = document.getElementById("figures").textContent;
const darkColours = DARK;
const dark = matchMedia("(prefers-color-scheme: dark)");
const shade = () => JSON.parse(dark.matches
  ? light.replace(/#[0-9a-f]{6}/g, colour => darkColours[colour] || colour) : light);
const figures = shade();
const settings = {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"]};
Promise.all(figures.map((figure, index) =>
  Plotly.newPlot("chart-" + index, figure.data, figure.layout, settings)
)).then(drawn => { document.body.dataset.charts = String(drawn.length); });
dark.addEventListener("change", () => shade().forEach((figure, index) =>
  Plotly.react("chart-" + index, figure.data, figure.layout, settings)));
""".replace("DARK", json.dumps(_DARK))


def _hash(script: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'"


def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ReportError(
            "a report is drawn with plotly, which is not installed here: pip install 'penstock[report]'"
        ) from error
    # An HTML parser ends a script at this text, wherever it occurs.
    return get_plotlyjs().replace("</script", "<\\/script").replace("<!--", "<\\!--").replace("\r\n", "\n")


def _cell(cell: Cell, number: bool) -> str:
    if cell.verdict:
        name = cell.verdict if cell.verdict in figures.VERDICTS else "other"
        return f'<td class="verdict {name}">{html.escape(cell.text)}</td>'
    kind = "number" if number else "short" if len(cell.text) <= _SHORT_CELL else ""
    return (f'<td class="{kind}">' if kind else "<td>") + html.escape(cell.text) + "</td>"


def _table(table: Table) -> str:
    def kind(column: int) -> str:
        return ' class="number"' if column >= table.numbers_from else ""

    head = "".join(f"<th{kind(i)}>{html.escape(name)}</th>" for i, name in enumerate(table.head))
    rows = "".join(
        "<tr>" + "".join(_cell(cell, i >= table.numbers_from) for i, cell in enumerate(cells)) + "</tr>\n"
        for cells in table.rows
    )
    body = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>'
    reading = f'<p class="reading">{html.escape(table.reading)}</p>' if table.reading else ""
    if table.folded:
        return f"<details><summary>{html.escape(table.title)}</summary>{reading}{body}</details>"
    return f"<h3>{html.escape(table.title)}</h3>{reading}{body}"


def _text(text: Text) -> str:
    title = f"<h3>{html.escape(text.title)}</h3>" if text.title else ""
    return title + (f"<pre>{html.escape(text.text)}</pre>" if text.code else f"<p>{html.escape(text.text)}</p>")


def _chart(chart: Chart, index: int) -> str:
    return (
        f"<h3>{html.escape(chart.title)}</h3>"
        f'<p class="reading">{html.escape(chart.reading)}</p>'
        f'<div class="chart" id="chart-{index}" style="height: {chart.height}px"></div>'
    )


def _section(section: Section, number: int, first_chart: int) -> str:
    parts = []
    chart = first_chart
    for part in section.parts:
        if isinstance(part, Chart):
            parts.append(_chart(part, chart))
            chart += 1
        else:
            parts.append(_table(part) if isinstance(part, Table) else _text(part))
    body = "\n".join(parts)
    return (
        f'<section id="section-{number}"><h2>{html.escape(section.title)}</h2>'
        f'<p class="source">{html.escape(section.source)}</p>\n{body}\n</section>'
    )


def render(page: Page) -> str:
    """The whole file. ReportError without plotly; ValueError if a figure has a number that JSON cannot hold."""
    library = _plotly_js()
    data = json.dumps([chart.figure for chart in page.charts()], allow_nan=False, separators=(",", ":"))
    for sign, code in (("&", "\\u0026"), ("<", "\\u003c"), (">", "\\u003e")):
        data = data.replace(sign, code)
    policy = (
        f"default-src 'none'; script-src {_hash(library)} {_hash(_SCRIPT)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    sections = []
    charts = 0
    for number, section in enumerate(page.sections):
        sections.append(_section(section, number, charts))
        charts += sum(isinstance(part, Chart) for part in section.parts)
    links = "".join(
        f'<li><a href="#section-{number}">{html.escape(section.title)}</a> '
        f'<span class="source">{html.escape(section.source)}</span></li>'
        for number, section in enumerate(page.sections)
    )
    contents = f"<nav><ul>{links}</ul></nav>" if len(page.sections) > 1 else ""
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{html.escape(page.title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<header><h1>{html.escape(page.title)}</h1>
<p class="reading">GB/s are 10⁹ bytes a second, GiB 2³⁰ bytes. In the pictures: drag to zoom, double-click to see all
again, point to read a value.</p>
<noscript><p>The pictures need JavaScript; the tables hold the figures without it.</p></noscript></header>
{contents}
<main>
{chr(10).join(sections)}
</main>
<footer>Made by penstock report. Drawn with plotly.js (MIT), which is in this file.</footer>
<script type="application/json" id="figures">{data}</script>
<script>{library}</script>
<script>{_SCRIPT}</script>
</body>
</html>
"""
    # A name with a lone surrogate (possible in JSON) is shown with escapes.
    return page.encode("utf-8", "backslashreplace").decode("utf-8")
