# SPDX-License-Identifier: Apache-2.0
"""`penstock report`: makes an HTML page from the files that bench, tune, the benchmark runner, ds_io, ds_nvme_tune,
checkpoint bench and plan wrote with --json.

    _read      reads files and checks every value            _bench, _shapes, _gnn, _tune, _bars,
    _model     page, sections, charts, tables                           _deepnvme, _checkpoints, _plan: a section for
                                                                        each file
    _figures   the pictures, as plotly's dictionaries        _compare   several files together
                                                             _html      the page as one file
                                                             _svg       its bars as one file

Only _html needs plotly (MIT), and only when it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.report import _bars, _bench, _checkpoints, _compare, _deepnvme, _gnn, _plan, _shapes, _tune
from penstock.report._common import where_and_when
from penstock.report._html import render
from penstock.report._model import Page, Section
from penstock.report._read import Document, ReportError, load
from penstock.report._svg import render as render_svg

__all__ = ["ReportError", "make_page", "render", "render_svg"]

_SECTIONS: dict[str, Callable[[Document], Section]] = {
    "bench": _bench.section,
    "tune": _tune.section,
    "bars": _bars.section,
    "ds_io": _deepnvme.ds_io,
    "ds_nvme_tune": _deepnvme.ds_nvme_tune,
    "checkpoint bench": _checkpoints.section,
    "bench --shapes": _shapes.section,
    "bench gnn": _gnn.section,
    "plan": _plan.section,
}


def make_page(files: Sequence[str], title: str = "Penstock report") -> Page:
    """Reads all files. ReportError names the first file that cannot be used, and what was expected."""
    documents = [load(file) for file in files]
    sections = [_SECTIONS[document.kind](document) for document in documents]
    for section, document in zip(sections, documents):
        if where := where_and_when(document.root.get("environment")):
            section.title += f" · {where}"
    compared = _compare.section(documents)
    return Page(title, [compared, *sections] if compared else sections)
