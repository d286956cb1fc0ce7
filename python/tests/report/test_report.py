# SPDX-License-Identifier: Apache-2.0
"""JSON in, page out: what is on it, and what is said where no page can be made. tests/browser looks at it rendered."""

import json
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
from xml.etree import ElementTree

import documents
import pytest
from documents import DELETE, changed
from penstock import report
from penstock.report import _html
from penstock.report.__main__ import main
from penstock.report._model import Table, Text


@pytest.fixture
def write(tmp_path):
    def put(document, name="run.json"):
        path = tmp_path / name
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return str(path)

    return put


@pytest.fixture
def page(write):
    """The page of some documents."""

    def make(*made):
        return report.make_page([write(document, f"{number}.json") for number, document in enumerate(made)])

    return make


def chart(page, title):
    (found,) = (c for c in page.charts() if c.title.startswith(title))
    return found.figure


def table(page, title):
    (found,) = (p for s in page.sections for p in s.parts if isinstance(p, Table) and p.title == title)
    return [[cell.text for cell in cells] for cells in found.rows]


def texts(page):
    return " ".join(p.text for s in page.sections for p in s.parts if isinstance(p, Text))


def test_bench_heat_map_is_block_by_depth(page):
    (heat,) = chart(page(documents.bench()), "Bandwidth by block size and depth: read, penstock")["data"]
    assert heat["x"] == ["1", "16"]
    assert heat["y"] == ["64 KiB", "1 MiB"]
    assert heat["z"] == [[1.0, 2.0], [3.0, 4.0]]
    assert heat["zmin"] == 0 and heat["zmax"] == 5.0  # one scale for both: that of the faster, fio


def test_bench_draws_fio_and_the_limit_beside_ours(page):
    ours, fio, limit = chart(page(documents.bench()), "Bandwidth of each test")["data"]
    assert (ours["name"], ours["y"]) == ("penstock", [1.0, 2.0, 3.0, 4.0])
    assert ours["error_y"]["array"] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert (fio["name"], fio["y"]) == ("fio", [1.25, 2.5, 3.75, 5.0])
    assert (limit["name"], limit["y"]) == ("limit set for the device", [5.0] * 4)


def test_latency_is_the_share_that_took_longer(page):
    ours, fio = chart(page(documents.bench()), "Latency distribution")["data"][:2]
    assert ours["x"][1:] == [100.0, 1000.0] and 80 < ours["x"][0] < 100  # µs; nothing took longer than the last bucket
    assert ours["y"] == pytest.approx([1, 0.1, 0.01])
    # Without a histogram, from the percentiles.
    assert fio["x"] == [200.0, 3000.0, 9000.0] and fio["y"] == [0.5, 0.01, 0.001]
    assert "markers" in fio["mode"] and fio["line"]["dash"] == "dash"


def test_bench_cpu_ratio_and_table(page):
    made = page(documents.bench())
    assert [t["y"] for t in chart(made, "CPU seconds a GiB")["data"]] == [[0.0625] * 4, [0.125] * 4]
    assert chart(made, "Penstock / fio")["data"][0]["x"] == [0.8] * 4
    rows = table(made, "All figures")
    assert rows[0] == [
        "read",
        "64 KiB",
        "1",
        "penstock",
        "1.00",
        "1000",
        "200 µs",
        "3.00 ms",
        "9.00 ms",
        "0.0625",
        "±15.0 %",
    ]
    facts = dict(table(made, "Where it was measured"))
    assert (
        facts["processor"] == "Testium 9000" and facts["disk model"] == "Disk of Tests" and facts["memory"] == "25 GiB"
    )


def test_bench_of_several_folders_shows_each_the_sum_and_the_scaling(page):
    made = page(documents.bench(["/a/f.tmp", "/b/f.tmp"]))
    one, other, both, total = chart(made, "Each folder alone")["data"]
    assert one["name"] == "/a, alone" and one["y"] == other["y"] == [1.0, 2.0, 3.0, 4.0]
    assert both["y"] == [2.0, 4.0, 6.0, 8.0] == total["y"]
    measured, linear = chart(made, "Bandwidth by number of folders")["data"][:2]
    assert measured["x"] == [1, 2] and measured["y"] == [1.0, 2.0] == linear["y"]


def test_tune(page):
    made = page(documents.tune())
    assert "4 MiB x 32 gives 1.25 (1.21 to 1.29) times the defaults" in texts(made)
    assert "Chosen: 4 MiB x 32, after 32 s." in texts(made)
    (heat,) = chart(made, "Bandwidth by block size and depth: read")["data"]
    assert heat["z"] == [[2.0, None], [None, 2.5]]
    assert chart(made, "Settings / defaults")["data"][0]["x"] == [1.25]
    assert '"overlap_events": true' in texts(made)


def test_bars_have_verdicts_limits_and_ceilings(page):
    made = page(documents.bars())
    assert "6 bars: 4 met, 1 missed, 1 undecided." in texts(made)
    (verdicts,) = (p for s in made.sections for p in s.parts if isinstance(p, Table) and p.title == "Verdicts")
    assert [cells[7].verdict for cells in verdicts.rows[:3]] == ["met", "missed", "undecided"]
    assert [cell.text for cell in verdicts.rows[1]][-1] == "why engine.write_1g is missed"
    traces = {t["name"]: t for t in chart(made, "Ratios and their bars")["data"]}
    assert traces["missed"]["x"] == [0.91] and traces["missed"]["marker"]["color"] == "#c62828"
    assert sorted(set(traces["limit"]["x"])) == [0.97, 0.98, 1.3]
    runs = {t["name"]: t for t in chart(made, "Every run")["data"]}
    assert runs["rate that the place lets through"]["y"] == [1.0] * 2
    measured = chart(made, "Bandwidth by number of devices")["data"][0]
    assert measured["x"] == [1, 2, 4] and measured["y"] == pytest.approx([0.2, 0.4, 0.8])


def test_ds_io_and_two_of_them_compared(page):
    made = page(documents.ds_io(("/a",)), documents.ds_io(("/a", "/b")))
    (bars,) = made.sections[2].parts[1].figure["data"]
    assert bars["x"] == ["/a", "/b", "all"] and bars["y"] == pytest.approx([0.2, 0.2, 0.4])
    (repetitions,) = made.sections[2].parts[2].figure["data"]
    assert repetitions["y"] == pytest.approx([0.2] * 4)  # the warm-up of 0.7 s is left out
    assert made.sections[0].title == "Several folders"
    measured = chart(made, "Bandwidth by number of folders")["data"][0]
    assert measured["x"] == [1, 2] and measured["y"] == pytest.approx([0.2, 0.4])


def test_ds_nvme_tune(page):
    made = page(documents.ds_nvme_tune())
    (heat,) = chart(made, "Bandwidth by block size and depth: read")["data"]
    assert heat["z"] == [[1.5, 1.6], [1.7, 1.8]]
    assert "every run of it beat" in texts(made)


@pytest.mark.parametrize("kind", documents.ALL)
def test_plotly_knows_every_property_of_every_figure(page, kind):
    graph_objects = pytest.importorskip("plotly.graph_objects")
    made = page(documents.ALL[kind]())
    assert made.charts()
    for one in made.charts():
        graph_objects.Figure(one.figure)  # ValueError otherwise


BROKEN = [
    ("bench", ("jobs",), DELETE, ["'jobs'"]),
    ("bench", ("jobs",), {"0": 1}, ["jobs: a list was expected"]),
    ("bench", ("jobs", 1, "depth"), "deep", ["jobs[1].depth: a whole number from 1 up was expected", '"deep"']),
    ("bench", ("jobs", 0, "depth"), True, ["jobs[0].depth"]),
    ("bench", ("jobs", 0, "block_bytes"), -1, ["jobs[0].block_bytes"]),
    ("bench", ("jobs", 0, "samples", 2, "bytes_per_s"), None, ["jobs[0].samples[2]", "'bytes_per_s'"]),
    ("bench", ("jobs", 0, "samples", 2, "bytes_per_s"), float("nan"), ["jobs[0].samples[2].bytes_per_s", "NaN"]),
    ("bench", ("jobs", 0, "samples", 2, "bytes_per_s"), 10**400, ["jobs[0].samples[2].bytes_per_s"]),
    (
        "bench",
        ("jobs", 0, "samples", 0, "latency_ns", "histogram"),
        [[1, 2, 3]],
        ["histogram[0]: a list of two numbers"],
    ),
    ("bench", ("jobs", 0, "samples", 0, "latency_ns", "histogram"), [7], ["histogram[0]: a list was expected"]),
    ("bench", ("environment",), [], ["environment: an object was expected"]),
    ("bench", ("jobs", 0, "paths"), [], ["jobs[0].paths: a list of one or more was expected, and [] came"]),
    ("bench", ("targets",), [], ["targets: a list of one or more was expected, and [] came"]),
    ("bench", ("targets", 0, "path"), 3, ["targets[0].path: a text was expected"]),
    ("tune", ("tune", "choice", "depth"), 0, ["tune.choice.depth"]),
    ("tune", ("tune", "verdicts"), 1, ["tune.verdicts: a list was expected"]),
    ("bars", ("bars", 0, "figure", "mean"), "1", ["bars[0].figure.mean: a number was expected"]),
    ("bars", ("bars", 3, "place"), None, ["bars[3]", "'place'"]),
    ("ds_io", ("ds_io", "folders", 0), "/a", ["ds_io.folders[0]: an object was expected"]),
    ("ds_nvme_tune", ("ds_nvme_tune", "settings", 0, "block_size"), "1M", ["settings[0].block_size"]),
]


@pytest.mark.parametrize(
    "kind,place,value,message", BROKEN, ids=lambda v: ".".join(map(str, v)) if isinstance(v, tuple) else None
)
def test_what_is_wrong_in_a_file_is_told_with_its_place(write, kind, place, value, message):
    path = write(changed(documents.ALL[kind](), place, value))
    with pytest.raises(report.ReportError) as error:
        report.make_page([path])
    assert str(error.value).startswith(f"{path}: ")
    for word in message:
        assert word in str(error.value)
    assert len(str(error.value)) < 400 + len(path)


HOSTILE = [[], {}, [[]], [{}], "", "\ud800", 0, -1, 1e308, float("inf"), float("nan"), 10**400, None, True, DELETE]


def places(value, place=()):
    """Of every value of a document; of a list's the first stands for all."""
    if place:
        yield place
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*place, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*place, 0))


@pytest.mark.parametrize("kind", documents.ALL)
def test_whatever_stands_in_a_file_a_page_is_made_or_the_reason_told(write, monkeypatch, kind):
    """And the page can be written: it is UTF-8 text, whatever the names in it are."""
    monkeypatch.setattr(_html, "_plotly_js", lambda: "")
    document = documents.ALL[kind]()
    for place in places(document):
        for value in HOSTILE:
            path = write(changed(document, place, value))
            try:
                report.render(report.make_page([path])).encode()
            except report.ReportError as error:
                assert str(error).startswith(path), (place, value)


@pytest.mark.parametrize(
    "text,message",
    [
        ("", "the file ends too early: was the run cut off?"),
        (json.dumps(documents.bench())[:-100], "was the run cut off?"),
        ('{"command": ["penstock",, ]}', "line 1, column 25"),
        ("[" * 100_000, "no JSON that any of the tools writes"),
        ("[" + "9" * 5000 + "]", "no JSON that any of the tools writes"),
        ("[1, 2]", "penstock bench --json, penstock tune --json, python -m benchmarks --json"),
        ('{"jobs": []}', "penstock bench --json"),
        ('{"command": ["penstock", "doctor"]}', "this is the JSON of something else"),
        ('{"command": "penstock"}', "this is the JSON of something else"),
    ],
    ids=["empty", "cut", "comma", "deep", "long", "list", "other", "doctor", "command"],
)
def test_files_that_are_none_of_ours(write, text, message):
    path = write(text)
    with pytest.raises(report.ReportError) as error:
        report.make_page([path])
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    for path, message in ((tmp_path / "absent", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(report.ReportError, match=message):
            report.make_page([str(path)])
    (tmp_path / "latin").write_bytes(b'{"command": "\xe9"}')
    with pytest.raises(report.ReportError, match="UTF-8 text; byte 13"):
        report.make_page([str(tmp_path / "latin")])


def test_a_run_that_was_ended_early_says_so(page):
    made = page(changed(documents.bench(), ("jobs",), []))
    assert "nothing to draw" in texts(made) and not made.charts()


EVIL = '</script><script>alert(1)</script><img src="http://evil.example/x" onerror="alert(2)">&amp;'


def test_texts_of_files_stay_texts(write):
    pytest.importorskip("plotly")
    hostile = changed(documents.bench(), ("jobs", 0, "rw"), EVIL)
    hostile = changed(changed(hostile, ("environment", "cpu"), EVIL), ("environment", EVIL), EVIL)
    hostile = changed(hostile, ("jobs", 0, "samples", 0, "side"), EVIL)
    other = changed(changed(documents.bars(), ("bars", 0, "id"), EVIL), ("bars", 0, "verdict"), EVIL)
    html = report.render(report.make_page([write(hostile), write(other, "bars.json")], title=EVIL))
    ours = html[: html.index("/**\n* plotly.js")] + html[html.rindex("</script>\n<script>") :]
    assert "<img" not in ours and "alert(1)</script>" not in ours
    assert ours.count("<script") == 3  # the figures, the library's opening, ours
    assert "default-src 'none'" in ours
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in ours


def test_without_plotly_it_says_what_to_install(write, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert main([write(documents.bench()), "-o", str(tmp_path / "out.html")]) == 1
    assert "pip install 'penstock[report]'" in capsys.readouterr().err
    assert not (tmp_path / "out.html").exists()


def test_the_command(write, tmp_path):
    pytest.importorskip("plotly")

    def run(*arguments):
        command = [sys.executable, "-m", "penstock", "report", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    bench, bars = write(documents.bench(), "bench.json"), write(documents.bars(), "bars.json")
    done = run(bench, bars, "-o", "out.html", "--title", "Two of them")
    assert done.returncode == 0, done.stderr
    assert "out.html:" in done.stdout and "from 2 files" in done.stdout
    html = (tmp_path / "out.html").read_text()
    assert "<title>Two of them</title>" in html and "Testium 9000" in html and "engine.read_1g" in html
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bars.json", "bench.json", "out.html"]
    same = run(bench, "-o", "bench.json")
    assert same.returncode == 1 and "one of the files to read" in same.stderr
    absent = run(bench, "-o", "absent/out.html")
    assert absent.returncode == 1 and "-o absent/out.html" in absent.stderr
    assert run().returncode == 2


@pytest.fixture
def small(monkeypatch):
    """Pages without the library, which is 5 MB."""
    monkeypatch.setattr(_html, "_plotly_js", lambda: "")


def test_a_link_is_followed_to_what_it_names(write, small, tmp_path):
    run, pages = write(documents.bench()), tmp_path / "pages"
    pages.mkdir()
    for target in (pages / "old.html", pages / "new.html"):
        if target.name == "old.html":
            target.write_text("old")
        link = tmp_path / "link"
        link.symlink_to(target)
        assert main([run, "-o", str(link)]) == 0
        assert link.is_symlink() and "Testium 9000" in target.read_text()
        link.unlink()
    assert sorted(path.name for path in pages.iterdir()) == ["new.html", "old.html"]


def test_what_is_no_ordinary_file_is_left_alone(write, small, tmp_path, capsys):
    run = write(documents.bench())
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "to_fifo").symlink_to("fifo")
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    before = {path.name: path.lstat().st_ino for path in tmp_path.iterdir()}
    for name, message in (
        ("fifo", "no ordinary file"),
        ("to_fifo", "no ordinary file"),
        ("socket", "no ordinary file"),
        ("folder", "a folder"),
        ("folder/", "a folder"),
        (".", "a folder"),
        ("", "no name"),
        ("loop", "symbolic links"),
        ("x" * 250, None),
        ("x" * 300, "too long"),
    ):
        output = name if name in ("", ".") else f"{tmp_path}/{name}"
        assert main([run, "-o", output]) == (message is not None)
        err = capsys.readouterr().err
        assert message is None or (message in err and err.startswith("penstock report: -o ") and err.count("\n") == 1)
    (tmp_path / ("x" * 250)).unlink()
    assert {path.name: path.lstat().st_ino for path in tmp_path.iterdir()} == before


def test_what_bench_writes_today_makes_a_page(tmp_path):
    """The real program, so that its JSON and this reader stay together."""
    out = tmp_path / "bench.json"
    words = ["bench", str(tmp_path), "--rw", "read", "--block-size", "64KiB,1MiB", "--depth", "1,4"]
    words += ["--seconds", "0.1", "--size", "8MiB", "--repeats", "2", "--json", str(out)]
    subprocess.run([sys.executable, "-m", "penstock", *words], check=True, capture_output=True)
    made = report.make_page([str(out)])
    titles = [c.title for c in made.charts()]
    assert "Bandwidth by block size and depth: read" in titles and "Latency distribution" in titles
    assert made.sections[0].title.startswith(f"bench of {tmp_path} · ")


def test_checkpoint_bench_has_a_picture_of_each_verb(page):
    made = page(documents.checkpoint_bench())
    assert [c.title for c in made.charts()] == ["Durable save", "Cold load", "Training stands still"]
    ours, peer = chart(made, "Durable save")["data"]
    assert (ours["name"], ours["x"], ours["y"]) == ("penstock", ["penstock .pt", "torch.save"], [2.0, None])
    assert (peer["name"], peer["y"]) == ("others", [None, 1.0])
    assert ours["error_y"]["array"] == [pytest.approx(0.5), None]
    assert ours["error_y"]["arrayminus"] == [pytest.approx(0.75), None]
    assert chart(made, "Training stands still")["data"][1]["y"] == [None, 1.0]
    rows = table(made, "Figures")
    assert rows[1][:3] == ["Durable save", "torch.save", "1.000"] and rows[1][-1] == "2.00"
    assert "State of gpt2" in texts(made) and "444 tensors" in texts(made)
    assert ["torch", "2.13.0"] in table(made, "Where it was measured")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("bytes",), 0, "bytes: a whole number from 1 up was expected"),
        (("figures",), [], "figures: a list of one or more was expected"),
        (("figures", 0, "seconds"), [], "figures[0].seconds: a list of one or more was expected"),
        (("figures", 0, "seconds"), ["x"], "figures[0].seconds[0]: a number was expected"),
        (("figures", 0, "verb"), "fly", "figures[0].verb: one of save, load, stall was expected"),
        (("model",), DELETE, "'model'"),
    ],
)
def test_checkpoint_bench_that_is_wrong(page, place, value, message):
    with pytest.raises(report.ReportError, match=re.escape(message)):
        page(changed(documents.checkpoint_bench(), place, value))


def small_blocks():
    made = documents.bench()
    for job in made["jobs"][:2]:
        job["block_bytes"] = 4096
    return made


def test_small_blocks_have_a_picture_of_their_own(page):
    made = page(small_blocks())
    large, small = chart(made, "Bandwidth of each test"), chart(made, "Operations a second, small blocks")
    assert [len(one["data"][0]["x"]) for one in (large, small)] == [2, 2]
    assert small["layout"]["yaxis"]["title"]["text"] == "operations a second"
    assert not set(large["data"][0]["x"]) & set(small["data"][0]["x"])


def test_an_interval_of_two_pairs_is_not_drawn(page):
    assert chart(page(documents.bench()), "Penstock / fio")["data"][0]["error_x"]["array"][0] > 0
    made = documents.bench()
    for job in made["jobs"]:
        job["samples"] = job["samples"][:4]
    assert {sample["side"] for sample in made["jobs"][0]["samples"]} == {"penstock", "fio"}
    trace = chart(page(made), "Penstock / fio")["data"][0]
    assert trace["x"] == [0.8] * 4 and trace["error_x"]["array"] == trace["error_x"]["arrayminus"] == [None] * 4


def test_the_verdict_is_on_top_and_the_title_says_where_and_when(page):
    bench, shapes = page(documents.bench(), documents.shapes()).sections
    assert bench.parts[0].text.startswith("Penstock reads up to ") and "slower in 4" in bench.parts[0].text
    assert bench.title == "bench of /data · Testium 9000, 2 CPUs"
    assert "1 faster, 0 level, 1 slower" in shapes.parts[0].text and shapes.title == "shapes in /data · 2026-01-02"
    (checkpoint,) = page(documents.checkpoint_bench()).sections
    assert "times as fast as torch" in checkpoint.parts[0].text


def test_the_page_has_a_dark_side(page, monkeypatch):
    monkeypatch.setattr(_html, "_plotly_js", lambda: "")
    text = report.render(page(documents.bench()))
    dark = text[text.index("@media screen and (prefers-color-scheme: dark)") : text.index("</style>")]
    assert "#0d1117" in dark and not [colour for colour in _html._DARK if colour in dark]
    assert '"#ffffff": "#0d1117"' in text and "prefers-color-scheme: dark" in text[text.index("</style>") :]


def test_shapes(page):
    made = page(documents.shapes())
    (section,) = made.sections
    traces = {t["name"]: t for t in chart(made, "Time of Penstock / time of the best stock way")["data"]}
    assert traces["faster"]["x"] == [0.5] and traces["slower"]["x"] == pytest.approx([3.0])
    (table,) = (p for p in section.parts if isinstance(p, Table) and p.title == "Figures")
    assert [cell.text for cell in table.rows[0]][:3] == ["10 x 4 KiB in sequence, cold", "200 ms", "preadv 400 ms"]
    assert [cells[-1].verdict for cells in table.rows] == ["faster", "slower"]
    (skipped,) = (p for p in section.parts if isinstance(p, Table) and p.title == "Not measured")
    assert [cell.text for cell in skipped.rows[0]] == ["load pt", "", "pip install torch"]


def test_gnn(page):
    made = page(documents.gnn())
    (section,) = made.sections
    assert "65,536 rows of 4 KiB, 2 batches. Memory: 64 MiB of the table" in section.parts[0].text
    assert "reads ahead: 128 KiB" in section.parts[0].text
    rates = {t["name"]: t for t in chart(made, "Rows a second")["data"]}
    assert list(rates) == ["memmap", "fio", "ahead"] and len({t["marker"]["color"] for t in rates.values()}) == 3
    assert rates["ahead"]["y"] == pytest.approx([0.005, 0.002]) and rates["fio"]["y"][1] is None
    (table,) = (p for p in section.parts if isinstance(p, Table) and p.title == "Figures")
    assert [cell.text for cell in table.rows[0]] == [
        "rmat",
        "memmap",
        "400",
        "2.50 s",
        "2.50 s",
        "1.00 s",
        "2.00 µs",
        "500 k",
        "3.50",
        "3.4",
        "12.6",
    ]
    assert [cell.text for cell in table.rows[2]][3:5] == ["400 ms", "200 ms"]
    assert {t["name"]: t["y"][0] for t in chart(made, "Busy seconds")["data"]}["ahead"] == pytest.approx(0.4)
    assert {t["name"]: t["y"][0] for t in chart(made, "Exposed seconds")["data"]}["ahead"] == pytest.approx(0.2)
    (published,) = (p for p in section.parts if isinstance(p, Table) and p.title == "Published, not measured here")
    assert [cell.text for cell in published.rows[0]][:2] == ["np.memmap", "100"]


def test_the_bars_are_a_picture_for_a_readme(write, tmp_path, capsys):
    out = tmp_path / "out.svg"
    files = [write(documents.bench()), write(documents.checkpoint_bench(), "checkpoint.json")]
    assert main([*files, "--svg", str(out)]) == 0
    assert "the bars of 2 files" in capsys.readouterr().out
    root = ElementTree.parse(out).getroot()
    texts = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "Bandwidth of each test, GB/s" in texts and "Durable save, GB/s" in texts
    assert "bench of /data · Testium 9000, 2 CPUs" in texts and "penstock .pt" in texts
    width = [float(one.get("width")) for one in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(width) > 10 and max(width[1:]) <= 420
    assert "prefers-color-scheme: dark" in out.read_text() and out.stat().st_size < 20_000


def test_a_picture_needs_bars_and_has_no_markup_of_a_file(write, capsys, tmp_path):
    assert main([write(documents.shapes()), "--svg", str(tmp_path / "x.svg")]) == 1
    assert "no file has a picture of bars" in capsys.readouterr().err and not (tmp_path / "x.svg").exists()
    made = documents.checkpoint_bench()
    made["figures"][0]["side"] = made["model"] = "<script>alert(1)</script>\ud800"
    assert main([write(made), "--svg", str(tmp_path / "y.svg")]) == 0
    assert "<script" not in (tmp_path / "y.svg").read_text()


def test_bars_of_benchmarks_are_a_picture_of_both_sides(write, tmp_path, capsys):
    light, dark = tmp_path / "light.svg", tmp_path / "dark.svg"
    assert main([write(documents.bars()), "--svg", str(light), "--svg-dark", str(dark)]) == 0
    assert f"{light}, {dark}: the bars of 1 file" in capsys.readouterr().out
    texts = ["".join(one.itertext()) for one in ElementTree.parse(light).iter("{http://www.w3.org/2000/svg}text")]
    assert "what engine.read_1g measures, GB/s" in texts and texts.count("Penstock") == 3 and texts.count("fio") == 3
    assert "what engine.cpu measures, seconds, less is better" in texts and "engine.memory" not in "".join(texts)
    for picture, ground in ((light.read_text(), "#ffffff"), (dark.read_text(), "#0d1117")):
        assert "prefers-color-scheme" not in picture and f".back {{ fill: {ground}; }}" in picture


def test_the_pictures_of_the_readme_are_what_the_command_of_the_page_draws(tmp_path):
    root = pathlib.Path(__file__).resolve().parents[3]
    (command,) = re.findall(r"    penstock report (docs/images.*\\\n.*)", (root / "docs" / "report.md").read_text())
    words = shlex.split(command.replace("\\\n", ""))
    for word in words:
        if word.endswith(".svg"):
            (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
    made = [str(tmp_path / w) if w.endswith(".svg") else str(root / w) if w.endswith(".json") else w for w in words]
    assert main(made) == 0
    drawn = sorted(tmp_path.rglob("*.svg"))
    assert len(drawn) == 2
    for picture in drawn:
        name = str(picture.relative_to(tmp_path))
        assert picture.read_text() == (root / name).read_text(), f"{name}: run the command in docs/report.md"
        assert name in (root / "README.md").read_text()
    rows = json.loads((root / "docs" / "images" / "measured.json").read_text())["bars"]
    assert {row["verdict"] for row in rows} == {"met"}
