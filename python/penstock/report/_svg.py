# SPDX-License-Identifier: Apache-2.0
"""The bars of a page as one small SVG, for a README: light, dark, or following the reader's screen."""

from __future__ import annotations

import html

from penstock.report import _figures as figures
from penstock.report._model import Chart, Page
from penstock.report._read import ReportError
from penstock.report._units import figure_text

_WIDTH, _LABELS, _VALUES = 720, 230, 70  # pixels: the picture, names on the left, numbers on the right
_ROW, _GAP = 22, 34

_SHAPE = "text { font: 13px system-ui, sans-serif; } .title { font-weight: 600; } .small { font-size: 11px; }"
_LIGHT = f"""text {{ fill: #1f2328; }} .small {{ fill: #57606a; }}
.back {{ fill: #ffffff; }} .ours {{ fill: {figures.OURS}; }} .other {{ fill: #afb8c1; }}"""
_DARK = """text { fill: #e6edf3; } .small { fill: #9198a1; }
.back { fill: #0d1117; } .ours { fill: #56b4e9; } .other { fill: #6e7681; }"""
_STYLES = {
    "light": f"{_SHAPE}\n{_LIGHT}",
    "dark": f"{_SHAPE}\n{_DARK}",
    "auto": f"{_SHAPE}\n{_LIGHT}\n@media (prefers-color-scheme: dark) {{\n{_DARK}\n}}",
}


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    shown = html.escape(text.encode("utf-8", "replace").decode())
    return f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}">{shown}</text>'


def _bars(chart: Chart) -> list[tuple[str, float, bool]]:
    """(name, value, whether it is Penstock's) of a bar chart, in its order."""
    found = []
    traces = [trace for trace in chart.figure["data"] if trace["type"] == "bar"]
    for trace in traces:
        for place, (name, value) in enumerate(zip(trace["x"], trace["y"])):
            if value is not None:
                ours = trace["name"] == "penstock"
                shown = html.unescape(name)
                several = len(traces) > 1 and chart.figure["layout"].get("barmode") != "overlay"
                found.append((place, not ours, f"{shown}, {trace['name']}" if several else shown, value, ours))
    return [(name, value, ours) for _, _, name, value, ours in sorted(found)]


def _panel(chart: Chart, top: float) -> list[str]:
    unit = chart.figure["layout"]["yaxis"]["title"]["text"]
    rows = _bars(chart)
    longest = max((value for _, value, _ in rows), default=0) or 1
    lines = [_text(0, top, f"{chart.title}, {unit}", "title")]
    for number, (name, value, ours) in enumerate(rows):
        y = top + 10 + number * _ROW
        width = (_WIDTH - _LABELS - _VALUES) * value / longest
        lines += [
            _text(_LABELS - 8, y + 14, name, anchor="end"),
            f'<rect x="{_LABELS}" y="{y + 2:g}" width="{max(width, 1):.1f}" height="{_ROW - 6}" rx="2" '
            f'class="{"ours" if ours else "other"}"/>',
            _text(_LABELS + max(width, 1) + 6, y + 14, figure_text(value)),
        ]
    return lines


def render(page: Page, theme: str = "auto") -> str:
    """theme: "light", "dark", or "auto", which follows the reader's screen. ReportError if no file has a bar chart."""
    lines: list[str] = []
    top = 24.0
    for section in page.sections:
        charts = section.bars or [part for part in section.parts if isinstance(part, Chart)]
        charts = [chart for chart in charts if _bars(chart)]
        for chart in charts:
            lines += _panel(chart, top)
            top += len(_bars(chart)) * _ROW + _GAP
        if charts:
            lines.append(_text(0, top - 8, section.title, "small"))
            top += 16
    if not lines:
        raise ReportError("--svg: no file has a picture of bars: give one of bench, checkpoint bench or the benchmarks")
    body = "\n".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 0 {_WIDTH + 24} {top:g}" width="{_WIDTH + 24}" '
        f'height="{top:g}" role="img">\n<title>{html.escape(page.title)}</title>\n<style>\n{_STYLES[theme]}\n</style>\n'
        f'<rect x="-12" y="0" width="{_WIDTH + 24}" height="{top:g}" class="back"/>\n{body}\n</svg>\n'
    )
