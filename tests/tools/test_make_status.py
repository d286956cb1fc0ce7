# SPDX-License-Identifier: Apache-2.0
"""The tables of results: what missed comes first, and what is undecided says on which side it stands."""

import make_status

TABLE = [
    {"id": name, "what": name, "peer": "them", "place": "disk", "bar": bar}
    for name, bar in (
        ("good", ">= 0.9"), ("near", ">= 0.7"), ("above", "<= 1.3"), ("clear", "<= 1.3"), ("within", "within 1%"),
        ("absent", ">= 1.5"), ("bad", ">= 2"), ("apart", "<= 64MiB"),
    )
]  # fmt: skip


def bar(verdict, value, limit, reason=""):
    line = f"BAR x {value} ci95=[0.5,0.6] aa=[0.9,1.1] bar{limit} pairs=9 place=disk verdict={verdict}"
    return {"what": "w", "peer": "p", "place": "disk", "bar": limit, "verdict": verdict, "reason": reason, "line": line}


BARS = {
    "good": bar("met", "ratio=0.95", ">=0.9"),
    "near": bar("undecided", "ratio=0.553", ">=0.7", "noise"),
    "above": bar("undecided", "ratio=1.4", "<=1.3"),
    "clear": bar("undecided", "ratio=1.2", "<=1.3"),
    "within": bar("undecided", "ratio=1.02", "=1+-1%"),
    "bad": bar("missed", "ratio=1.5", ">=2"),
    "apart": bar("undecided", "value=65.5MiB", "<=64MiB"),
}


def test_missed_rows_come_first_and_undecided_ones_have_a_side():
    rows = list(make_status.bar_rows(TABLE, BARS))
    ids = [row.split("`")[1] for row in rows]
    assert ids == ["bad", "near", "above", "within", "apart", "clear", "good", "absent"]
    told = {row.split("`")[1]: row.rsplit("|", 2)[1].strip() for row in rows}
    assert told == {
        "bad": "missed", "near": "undecided, below the bar: noise", "above": "undecided, above the bar",
        "within": "undecided, outside the bar", "apart": "undecided, above the bar",
        "clear": "undecided, clears the bar", "good": "met", "absent": "not run",
    }  # fmt: skip


def test_the_readme_shows_what_missed_though_nobody_chose_it():
    rows = make_status.readme_table(TABLE, BARS, ["good", "near", "absent"]).splitlines()
    assert [row.split("`")[1] for row in rows[2:]] == ["bad", "near", "good", "absent"]
    assert rows[3].endswith("| undecided, below the bar |") and rows[2].endswith("| missed |")
    assert "ckpt.save_2g_torch_cpu" in make_status.readme_table(
        make_status.bar_table(), make_status.json.loads(make_status.BARS.read_text()), ["engine.read_1g"]
    )
