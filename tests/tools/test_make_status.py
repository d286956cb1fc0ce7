# SPDX-License-Identifier: Apache-2.0
"""The tables of results: what missed comes first, and what is undecided says on which side it stands."""

import make_status
import test_choice

TABLE = [
    {"id": name, "what": name, "peer": "them", "place": "disk", "bar": bar}
    for name, bar in (
        ("good", ">= 0.9"), ("near", ">= 0.7"), ("above", "<= 1.3"), ("clear", "<= 1.3"), ("within", "within 1%"),
        ("absent", ">= 1.5"), ("bad", ">= 2"), ("apart", "<= 64MiB"),
    )
]  # fmt: skip


def bar(verdict, value, limit, reason=""):
    line = f"BAR x {value} ci95=[0.5,0.6] aa=[0.9,1.1] bar{limit} pairs=9 place=disk verdict={verdict}"
    return {
        "what": "w",
        "peer": "p",
        "place": "disk",
        "bar": limit,
        "verdict": verdict,
        "reason": reason,
        "line": line,
        "cpus": 2,
        "kernel": "6.1",
    }


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


def test_the_readme_names_what_missed_though_nobody_chose_it():
    text = make_status.readme_figures(TABLE, BARS, ["good", "near", "absent"])
    rows = [row for row in text.splitlines() if "(`" in row]
    assert [row.split("(`")[1].split("`")[0] for row in rows] == ["good", "near", "absent"]
    assert rows[1].endswith("| >= 0.7: undecided, below the bar |")
    assert text.endswith("Of all 8 rows: 1 met, 1 missed, 1 not run, 5 undecided. Missed: `bad`.")


def test_figures_have_the_median_and_a_unit():
    runs = [{"seconds": seconds, "bytes": 3e9, "operations": 6000} for seconds in (1.0, 2.0, 3.0)]
    assert make_status.absolute("bandwidth", runs) == "1.50 GB/s"
    assert make_status.absolute("iops", runs) == "3 thousand a second"
    assert make_status.absolute("seconds", runs) == "2.00 s"
    assert make_status.absolute("value", runs) == ""


def results_of(folder, **outcomes):
    folder.mkdir(exist_ok=True)
    for stem, outcome in outcomes.items():
        inside = "<failure message='m'/>" if outcome == "failed" else ""
        name = stem.replace("__", ".").replace("again_", "again-").replace("_1", "-1")
        case = f"<testcase classname='A' name='x' status='run'>{inside}</testcase>"
        (folder / f"{name}.xml").write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
    return make_status.test_results(folder)


def test_what_passed_when_it_was_run_again_is_flaky(tmp_path):
    results = results_of(tmp_path, release__a_test="failed", release__a_test__again_1_1="passed")
    assert results == {"A.x": {"release": "flaky"}}
    assert make_status.verdict(["A.*"], results) == "passed (1, 1 of them flaky)"
    results = results_of(tmp_path, release__a_test__again_1_1="failed")
    assert make_status.verdict(["A.*"], results) == "**failed** (1 of 1)"


def test_the_commit_of_the_last_whole_run_that_passed_is_kept():
    left_out = {"asan-ubsan": ["a_test", "b_test"], "tsan": []}
    run = {"commit": "0" * 40, "changed": False, "level": "ci", "failed": 0, "left_out": left_out}
    text = "\n".join(make_status.run_text(run, ""))
    assert test_choice.LAST_RUN.search(text)[1] == "0" * 40
    assert "Of asan-ubsan it left out, for a run before or after it: a_test, b_test." in text and "tsan" not in text
    for other in ({"failed": 1}, {"changed": True}, {"level": "test"}):
        assert make_status.run_text({**run, "commit": "1" * 40, **other}, f"a\n{text}b") == text.split("\n")
        assert make_status.run_text({**run, **other}, "nothing yet") == []
    assert make_status.run_text({}, "nothing yet") == []
