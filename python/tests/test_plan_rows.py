# SPDX-License-Identifier: Apache-2.0
"""Published figures of storage requirements: given within 1 %, and docs/plan.md has each with its command."""

import sys
from pathlib import Path

import pytest
from penstock import _core
from penstock.plan import Answer

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
plan_rows = pytest.importorskip("benchmarks.plan_rows")
PAGE = ROOT / "docs" / "plan.md"


def test_no_published_figure_is_off():
    assert plan_rows.off() == []
    assert set(plan_rows.EXPLAINED) <= {row.what for row in plan_rows.ROWS}


def test_megabytes_taken_for_mebibytes_are_found():
    assert len(plan_rows.off(2**20 / 1e6)) > len(plan_rows.ROWS) / 2


@pytest.mark.parametrize("row", plan_rows.ROWS, ids=lambda row: f"{row.what}, {row.published()}")
def test_the_page_has_each_figure_with_its_command(row):
    assert row.document() in PAGE.read_text()
    answer = Answer.from_json(_core.plan_ask(row.verb, row.words()))
    assert answer[row.figure].value / row.scale == row.ours()
