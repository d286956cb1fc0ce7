# SPDX-License-Identifier: Apache-2.0
"""The pictures, as plotly's {data, layout}: plain dictionaries, so that nothing here needs plotly.

Texts from files must go through `label`, because plotly interprets some HTML in them.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.report._units import figure_text, rate_text, size_text

OURS = "#0072b2"
PEER = "#d55e00"
CEILING = "#444444"
# Colours that colour-blind readers can distinguish too.
COLOURS = ("#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#d55e00", "#6a3d9a", "#777777")
VERDICTS = {
    "met": "#1a7f37",
    "missed": "#c62828",
    "undecided": "#9a6700",
    "faster": "#0072b2",
    "level": "#777777",
    "slower": "#d55e00",
}

Figure = dict[str, Any]


def label(text: str, longest: int = 60) -> str:
    """Escapes a text, so that plotly shows it unchanged."""
    return html.escape(text if len(text) <= longest else text[: longest - 1] + "…", quote=False)


def _layout(**more: Any) -> dict[str, Any]:
    return {
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1f2328"},
        "margin": {"l": 80, "r": 30, "t": 40, "b": 70},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hoverlabel": {"align": "left"},
        **more,
    }


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {
        "title": {"text": title, "standoff": 12},
        "gridcolor": "#e6e8eb",
        "linecolor": "#8c959f",
        "zerolinecolor": "#8c959f",
        "ticks": "outside",
        "automargin": True,
        **more,
    }


def heat_map(cells: dict[tuple[int, int], float], top: float = 0) -> Figure:
    """Bytes a second by (block bytes, depth); cells without a measurement are blank. The colours end at `top`, or at
    the largest value if that is higher."""
    blocks = sorted({block for block, _ in cells})
    depths = sorted({depth for _, depth in cells})
    values = [[cells.get((block, depth)) for depth in depths] for block in blocks]
    z = [[None if value is None else value / 1e9 for value in line] for line in values]
    texts = [["" if value is None else rate_text(value) for value in line] for line in values]
    return {
        "data": [
            {
                "type": "heatmap",
                "x": [str(depth) for depth in depths],
                "y": [size_text(block) for block in blocks],
                "z": z,
                "text": texts,
                "texttemplate": "%{text}",
                "colorscale": "YlGnBu",
                "reversescale": True,
                "zmin": 0,
                "zmax": max([top, *cells.values()]) / 1e9 or 1.0,
                "xgap": 2,
                "ygap": 2,
                "hoverongaps": False,
                "colorbar": {"title": {"text": "GB/s"}, "thickness": 16},
                "hovertemplate": "block %{y}, depth %{x}: %{z:.3f} GB/s<extra></extra>",
            }
        ],
        "layout": _layout(
            xaxis=_axis("depth: blocks at the device at once", type="category"),
            yaxis=_axis("block size", type="category"),
        ),
    }


@dataclass
class Series:
    """Values by category, with the smallest and the largest run; None if there is no value."""

    name: str
    values: list[float | None]
    lows: list[float | None] = field(default_factory=list)
    highs: list[float | None] = field(default_factory=list)
    colour: str = OURS


@dataclass
class Line:
    """A line across some categories: a ceiling or a bar."""

    name: str
    values: list[float | None]


def bars(categories: Sequence[str], series: Sequence[Series], axis: str, lines: Sequence[Line] = ()) -> Figure:
    """Grouped bars with whiskers from the smallest to the largest run, and lines for ceilings."""
    names = [label(category) for category in categories]
    data: list[dict[str, Any]] = []
    for one in series:
        trace: dict[str, Any] = {
            "type": "bar",
            "name": label(one.name),
            "x": names,
            "y": one.values,
            "text": ["" if value is None else figure_text(value) for value in one.values],
            "textposition": "outside",
            "cliponaxis": False,
            "marker": {"color": one.colour},
            "hovertemplate": "%{x}: %{y:.4g}<extra>" + label(one.name) + "</extra>",
        }
        if one.lows and one.highs:
            trace["error_y"] = {
                "type": "data",
                "symmetric": False,
                "array": [_less(high, value) for high, value in zip(one.highs, one.values)],
                "arrayminus": [_less(value, low) for low, value in zip(one.lows, one.values)],
                "color": "#1f2328",
                "thickness": 1,
                "width": 4,
            }
            trace["textposition"] = "inside"
            trace["insidetextanchor"] = "start"
        data.append(trace)
    for line in lines:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label(line.name),
                "x": names,
                "y": line.values,
                "marker": {"symbol": "line-ew-open", "size": 46, "color": CEILING, "line": {"width": 2}},
                "hovertemplate": "%{x}: %{y:.4g}<extra>" + label(line.name) + "</extra>",
            }
        )
    layout = _layout(
        barmode="group",
        bargap=0.25 if len(names) > 3 else 0.6,
        xaxis=_axis("", type="category"),
        yaxis=_axis(axis, rangemode="tozero"),
        showlegend=True,
    )
    return {"data": data, "layout": layout}


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else max(0.0, one - other)


@dataclass
class Curve:
    """Points (nanoseconds, share of the blocks that took longer)."""

    name: str
    points: list[tuple[float, float]]
    colour: str
    dashed: bool = False
    marked: bool = False  # shows the points, because there are few
    hidden: bool = False  # hidden until its name is clicked


def latency(curves: Sequence[Curve]) -> Figure:
    """The share of blocks that took longer than a time. Both axes are logarithmic, to show the tail."""
    smallest = min((share for curve in curves for _, share in curve.points if share > 0), default=1e-3)
    decades = range(0, min(7, max(2, math.ceil(-math.log10(smallest)))) + 1)
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers" if curve.marked else "lines",
            "name": label(curve.name),
            "x": [time / 1e3 for time, _ in curve.points],
            "y": [share for _, share in curve.points],
            "line": {"color": curve.colour, "width": 2, "dash": "dash" if curve.dashed else "solid"},
            "visible": "legendonly" if curve.hidden else True,
            "hovertemplate": "%{y:.3%} took longer than %{x:.3~s} µs<extra>" + label(curve.name) + "</extra>",
        }
        for curve in curves
    ]
    return {
        "data": data,
        "layout": _layout(
            xaxis=_axis("time of one block, µs (logarithmic)", type="log", dtick=1, minor={"showgrid": True}),
            yaxis=_axis(
                "share of blocks that took longer",
                type="log",
                tickvals=[10.0**-decade for decade in decades],
                ticktext=[f"{100 * 10.0**-decade:.6g} %" for decade in decades],
                range=[-decades[-1] - 0.1, 0.1],
            ),
            showlegend=True,
        ),
    }


@dataclass
class Ratio:
    """A ratio with its 95 % interval and its limits."""

    name: str
    mean: float
    low: float
    high: float
    limits: list[float]
    verdict: str = ""
    hover: str = ""


def ratios(rows: Sequence[Ratio], axis: str) -> Figure:
    """A dot and its interval in each row; a tall mark is the limit."""
    names = [label(row.name) for row in rows]
    data: list[dict[str, Any]] = []
    for verdict in dict.fromkeys(row.verdict for row in rows):
        mine = [row for row in rows if row.verdict == verdict]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label(verdict or "ratio"),
                "x": [row.mean for row in mine],
                "y": [label(row.name) for row in mine],
                "marker": {"size": 10, "color": VERDICTS.get(verdict, OURS)},
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    # An interval without an end has no whisker.
                    "array": [max(0.0, row.high - row.mean) if math.isfinite(row.high) else None for row in mine],
                    "arrayminus": [max(0.0, row.mean - row.low) if row.low > 0 else None for row in mine],
                    "thickness": 2,
                    "width": 5,
                },
                "customdata": [label(row.hover, 300) for row in mine],
                "hovertemplate": "%{y}: %{x:.4g}<br>%{customdata}<extra></extra>",
            }
        )
    marks = [(limit, label(row.name)) for row in rows for limit in row.limits]
    if marks:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "limit",
                "x": [limit for limit, _ in marks],
                "y": [name for _, name in marks],
                "marker": {"symbol": "line-ns-open", "size": 22, "color": CEILING, "line": {"width": 2}},
                "hovertemplate": "limit %{x:.4g}<extra></extra>",
            }
        )
    layout = _layout(
        xaxis=_axis(axis, type="log", minor={"showgrid": True}),
        yaxis=_axis("", type="category", categoryorder="array", categoryarray=names[::-1]),
        showlegend=True,
        shapes=[
            {
                "type": "line",
                "x0": 1,
                "x1": 1,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": "#8c959f", "width": 1},
            }
        ],
    )
    return {"data": data, "layout": layout}


def scaling(lines: Sequence[tuple[str, list[tuple[int, float]]]], what: str) -> Figure:
    """Bytes a second by number of `what`; a dashed line shows linear scaling of the smallest."""
    data: list[dict[str, Any]] = []
    for index, (name, points) in enumerate(lines):
        points = sorted(points)
        colour = COLOURS[index % len(COLOURS)]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers+text" if len(lines) <= 2 else "lines+markers",
                "name": label(name),
                "x": [count for count, _ in points],
                "y": [rate / 1e9 for _, rate in points],
                "text": [rate_text(rate) for _, rate in points],
                "textposition": "top left",
                "line": {"color": colour, "width": 2},
                "marker": {"size": 8},
                "hovertemplate": f"%{{x}} {what}: %{{y:.4g}} GB/s<extra>{label(name)}</extra>",
            }
        )
        first, rate = points[0]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"linear from {first}",
                "showlegend": index == 0,
                "x": [count for count, _ in points],
                "y": [rate * count / first / 1e9 for count, _ in points],
                "line": {"color": colour, "width": 1, "dash": "dash"},
                "hoverinfo": "skip",
            }
        )
    counts = sorted({count for _, points in lines for count, _ in points})
    layout = _layout(
        xaxis=_axis(f"number of {what}", tickvals=counts, rangemode="tozero"),
        yaxis=_axis("GB/s, all together", rangemode="tozero"),
        showlegend=True,
    )
    return {"data": data, "layout": layout}


def runs(groups: Sequence[tuple[str, list[tuple[str, list[float]]]]], axis: str, ceilings: Line | None) -> Figure:
    """Every run as a dot: (category, [(side, values)]). Scattered dots mean that the runs vary."""
    data: list[dict[str, Any]] = []
    sides = list(dict.fromkeys(side for _, found in groups for side, _ in found))
    for index, side in enumerate(sides):
        xs = [label(name) for name, found in groups for s, values in found if s == side for _ in values]
        ys = [value for _, found in groups for s, values in found if s == side for value in values]
        data.append(
            {
                "type": "box",
                "name": label(side),
                "x": xs,
                "y": ys,
                "boxpoints": "all",
                "jitter": 0.4,
                "pointpos": 0,
                "fillcolor": "rgba(0,0,0,0)",
                "line": {"color": (OURS, PEER)[index % 2], "width": 1},
                "marker": {"size": 5, "color": (OURS, PEER)[index % 2]},
            }
        )
    if ceilings:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label(ceilings.name),
                "x": [label(name) for name, _ in groups],
                "y": ceilings.values,
                "marker": {"symbol": "line-ew-open", "size": 46, "color": CEILING, "line": {"width": 2}},
            }
        )
    layout = _layout(
        boxmode="group",
        xaxis=_axis("", type="category"),
        yaxis=_axis(axis, rangemode="tozero"),
        showlegend=True,
    )
    return {"data": data, "layout": layout}


def steps(name: str, x: Sequence[float], y: Sequence[float], across: str, up: str) -> Figure:
    """A step curve with a filled area; each step begins at its x."""
    trace = {
        "type": "scatter",
        "mode": "lines",
        "name": label(name),
        "x": list(x),
        "y": list(y),
        "line": {"color": OURS, "width": 2, "shape": "hv"},
        "fill": "tozeroy",
        "hovertemplate": "%{x:.4g}: %{y:.4g}<extra>" + label(name) + "</extra>",
    }
    layout = _layout(xaxis=_axis(across), yaxis=_axis(up, rangemode="tozero"), showlegend=False)
    return {"data": [trace], "layout": layout}
