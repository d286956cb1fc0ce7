# SPDX-License-Identifier: Apache-2.0
"""The section of `penstock plan --json`."""

import json

import penstock.plan as plan
import pytest
from documents import DELETE, changed
from penstock import report
from penstock.report._model import Table, Text

JOBS = [
    plan.Job("train", name="<b>train</b>", model="resnet50", accelerators=64),
    plan.Job("checkpoint", bytes="2450GB", every="2h", within="6min"),
]


def document(answer):
    return {"command": ["penstock", "plan", answer.verb], **json.loads(answer.json())}


@pytest.fixture
def page(tmp_path):
    def make(found):
        (tmp_path / "plan.json").write_text(json.dumps(found))
        return report.make_page([str(tmp_path / "plan.json")])

    return make


def tables(page):
    return [part for part in page.sections[0].parts if isinstance(part, Table)]


def test_figures_have_their_derivation(page):
    made = page(document(plan.train("resnet50", accelerators=8)))
    assert made.sections[0].title.startswith("plan train: resnet50 on h100 (snia-2024), 8 accelerators")
    figures, derivation = tables(made)
    assert ["read rate", "6.097 GB/s (5.678 GiB/s)"] in [[cell.text for cell in row] for row in figures.rows]
    texts = " ".join(cell.text for row in derivation.rows for cell in row)
    assert "read_bytes_per_second = samples_per_second * bytes_per_sample" in texts and "MLPerf Training v3.1" in texts
    notes = " ".join(part.text for part in made.sections[0].parts if isinstance(part, Text))
    assert "Which is which" in notes and "penstock plan train" in notes


def test_a_mix_is_drawn(page):
    made = page(document(plan.mix(JOBS, length="4h", title="a <script> cluster")))
    assert [chart.title for chart in made.charts()] == ["Reads and writes", "Reads", "Writes"]
    trace = made.charts()[2].figure["data"][0]
    assert max(trace["y"]) == pytest.approx(2450 / 360) and trace["x"][-1] < 4
    assert [row[0].text for row in tables(made)[-1].rows] == ["<b>train</b>", "checkpoint"]


def test_rates_are_bars_in_the_small_picture(page):
    made = page(document(plan.mix(JOBS, length="4h", title="a <script> cluster")))
    svg = report.render_svg(made)
    assert "peak of writes" in svg and "<script>" not in svg


def test_all_presets_are_a_table(page):
    (found,) = tables(page(document(plan.train("resnet50")) | {"figures": []} | json.loads(_listed())))
    assert len(found.rows) == len(plan.presets()) and found.numbers_from == 3


def _listed():
    from penstock.plan._ask import ask

    return ask("train", {"list": True}).json()


CHANGES = [
    ("figures", 3, "a list"),
    ("figures", [{"name": 3}], "unit"),
    ("figures", DELETE, "figures"),
    ("verb", [], "a text"),
    ("tables", [{"columns": [], "rows": []}], "a list of one or more"),
    ("series", [{"x": [1], "y": []}], "as many x as y"),
    ("notes", [3], "a text"),
    ("title", None, "title"),
]


@pytest.mark.parametrize(("key", "value", "said"), CHANGES, ids=lambda one: str(one)[:20])
def test_what_is_no_answer_is_named(page, key, value, said):
    with pytest.raises(report.ReportError, match=said):
        page(changed(document(plan.train("resnet50")), (key,), value))


def test_numbers_that_are_none_are_named(page):
    found = document(plan.train("resnet50"))
    found["figures"][0]["value"] = float("nan")
    with pytest.raises(report.ReportError, match=r"figures\[0\]\.value"):
        page(found)
