# SPDX-License-Identifier: Apache-2.0
import pytest

from benchmarks.bars import BarError, load_bars, parse_bars, parse_limit, select
from benchmarks.stats import Interval

ROW = """
[[bar]]
id = "engine.x"
what = "x"
peer = "fio"
metric = "bandwidth"
bar = ">= 0.98"
place = "loop"
handicap = "depth1"
ours_run = "program read"
peer_run = "fio read"
"""


@pytest.mark.parametrize(
    ("limit", "low", "high", "verdict"),
    [
        (">= 0.98", 0.99, 1.01, "met"),
        (">= 0.98", 0.98, 1.01, "met"),
        (">= 0.98", 0.97, 1.01, "undecided"),
        (">= 0.98", 0.90, 0.97, "missed"),
        ("<= 1.3", 1.0, 1.2, "met"),
        ("<= 1.3", 1.2, 1.4, "undecided"),
        ("<= 1.3", 1.31, 1.4, "missed"),
        ("<= 0", 0, 0, "met"),
        ("within 0.5%", 0.996, 1.004, "met"),
        ("within 0.5%", 0.994, 1.004, "undecided"),
        ("within 0.5%", 0.98, 0.994, "missed"),
        ("within 0.5%", 1.006, 1.1, "missed"),
    ],
)
def test_verdict(limit, low, high, verdict):
    assert parse_limit(limit).verdict(Interval((low + high) / 2, low, high)) == verdict


@pytest.mark.parametrize(
    ("limit", "low", "high", "holds"),
    [
        (">= 0.98", 0.991, 1.009, True),
        (">= 0.98", 0.991, 1.011, False),
        (">= 0.98", 0.985, 1.0, False),
        ("<= 1.3", 0.86, 1.14, True),
        ("<= 1.3", 0.84, 1.0, False),
        (">= 3", 0.86, 1.14, True),
        (">= 3", 0.8, 1.0, False),
        ("<= +5us", -2.4, 2.4, True),
        ("<= +5us", -2.6, 0, False),
    ],
)
def test_control(limit, low, high, holds):
    assert parse_limit(limit).control_holds(Interval(1, low, high)) is holds


@pytest.mark.parametrize(
    ("text", "sign", "figure", "unit", "difference", "expected"),
    [
        (">= 0.98", ">=", 0.98, "", False, ">=0.98"),
        ("<=+5us", "<=", 5, "us", True, "<=+5us"),
        ("<= 64MiB", "<=", 64, "MiB", False, "<=64MiB"),
        ("<= 12_000", "<=", 12000, "", False, "<=12_000"),
        ("within 0.5%", "within", 0.005, "", False, "=1+-0.5%"),
    ],
)
def test_limits_are_read(text, sign, figure, unit, difference, expected):
    limit = parse_limit(text)
    assert (limit.sign, limit.unit, limit.difference, limit.text) == (sign, unit, difference, expected)
    assert limit.figure == pytest.approx(figure)


@pytest.mark.parametrize("text", ["", "0.98", "> 1", "== 3", ">= x", "within 5"])
def test_limits_that_mean_nothing_are_refused(text):
    with pytest.raises(BarError, match="expected"):
        parse_limit(text)


@pytest.mark.parametrize(
    ("change", "to", "says"),
    [
        ('bar = ">= 0.98"', 'bar = ">= 1.0"', "exactly 1"),
        ('place = "loop"', 'place = "moon"', "moon"),
        ('place = "loop"', 'place = "throttled"', "needs a rate"),
        ('place = "loop"', 'place = "loop"\nrate = { bps = 5 }', "rate belongs"),
        ('place = "loop"', 'place = "loop"\ndevices = 2', "devices belong"),
        ('place = "loop"', 'place = "throttled"\nrate = { bps = 5 }\ndevices = 9', "from 1 to 8"),
        ('metric = "bandwidth"', 'metric = "beauty"', "beauty"),
        ('handicap = "depth1"', "", "missing .*handicap"),
        ('what = "x"', 'what = "x"\nwat = "y"', "unknown .*wat"),
        ('id = "engine.x"', 'id = "Engine"', "lower case"),
        ("[[bar]]", "[[bar]", "not TOML"),
    ],
)
def test_rows_that_are_wrong_say_how(change, to, says):
    assert change in ROW
    with pytest.raises(BarError, match=says):
        parse_bars(ROW.replace(change, to))


def test_an_id_is_there_once():
    assert len(parse_bars(ROW)) == 1
    with pytest.raises(BarError, match="two rows"):
        parse_bars(ROW + ROW)


def test_kinds():
    assert parse_bars(ROW)[0].kind == "ratio"
    assert parse_bars(ROW.replace(">= 0.98", "<= +5us"))[0].kind == "diff"
    assert parse_bars(ROW.replace('peer_run = "fio read"', ""))[0].kind == "value"


def test_selection_by_prefix_keeps_the_order_of_the_table():
    bars = load_bars()
    assert select(bars, []) == bars
    assert {bar.id for bar in select(bars, ["yardstick"])} == {b.id for b in bars if b.id.startswith("yardstick")}
    with pytest.raises(BarError, match="nothing.at.all"):
        select(bars, ["nothing.at.all"])


def test_every_row_of_the_table_names_a_handicap_and_a_side():
    for bar in load_bars():
        assert bar.handicap, bar.id
        kinds = ("program", "model", "callgrind", "python", "checkpoint", "deepnvme", "weights", "gpu", "kvikio", "fio")
        assert bar.ours_run.split()[0] in kinds, bar.id
        assert not bar.peer_run or bar.peer_run.split()[0] in kinds, bar.id


CELLS = """
depth_straight depth_slots depth_random depth_devices classes read_1g write_1g read_torch write_torch random_4k
cpu_1g_read cpu_1g_write cpu_4k instructions_1m instructions_4k instructions_blocking copies_aligned_4
copies_aligned_512 new_file latency_4k_cpp latency_4k_python many_small_write many_small_read
syscalls_1m syscalls_4k idle_cpu idle_memory import_time import_first_read
""".split()


DEEPNVME_CELLS = """
pinned_read pinned_write pinned_cpu_read pinned_cpu_write tensor_read tensor_write tensor_cpu_read tensor_cpu_write
new_file many_read many_write handle first_read zero_step
scaling_2 scaling_4 scaling_8 tune_seconds
""".split()

CKPT_CELLS = """
save_2g save_2g_store save_100m depth save_2g_torch save_2g_torch_cpu save_100m_torch save_100m_torch_cpu save_nocrc
save_st small_pt small_store small_file stall stall_dcp stall_dcp_first every_step checksum load_into load_fresh
load_torch load_st load_mmap slice devices memory memory_store leak incremental
""".split()

DEVICE_CELLS = """
depth_read depth_write depth_copy depth_two fake_read fake_write fake_kvikio cpu copies syncs pinned absent stall_fake
gpu_read gpu_write gpu_read_tmpfs gpu_write_tmpfs gpu_kvikio gpu_kvikio_tmpfs gpu_deepnvme gpu_latency gpu_stall
gpu_auto
""".split()

PROMISED = [
    *(f"device.{cell}" for cell in DEVICE_CELLS),
    "features.gpu_rows",
    "features.gpu_hits",
    *(f"engine.{cell}" for cell in CELLS),
    *(f"deepnvme.{cell}" for cell in DEEPNVME_CELLS),
    *(f"ckpt.{cell}" for cell in CKPT_CELLS),
]


@pytest.mark.parametrize("cell", PROMISED)
def test_every_promise_has_its_row(cell):
    assert any(bar.id == cell for bar in load_bars())


def test_an_image_belongs_to_a_loop_device_and_is_larger_than_its_file():
    row = ROW + "image_gib = 5\nfile_gib = 2\n"
    (bar,) = parse_bars(row)
    assert (bar.image_gib, bar.file_gib) == (5, 2)
    with pytest.raises(BarError, match="belongs to places"):
        parse_bars(row.replace('"loop"', '"disk"'))
    with pytest.raises(BarError, match="wants a larger image_gib"):
        parse_bars(row.replace("= 2", "= 5"))


def test_the_place_gpu_has_files_of_any_size_on_the_disk_or_on_tmpfs():
    row = ROW.replace('"loop"', '"gpu"') + "file_gib = 8\ntmpfs = true\n"
    (bar,) = parse_bars(row)
    assert (bar.file_gib, bar.tmpfs) == (8, True)
    with pytest.raises(BarError, match="tmpfs belongs to place 'gpu'"):
        parse_bars(ROW + "tmpfs = true\n")


GPU_BARS = {
    "device.gpu_read": ">=0.95",
    "device.gpu_write": ">=0.95",
    "device.gpu_read_tmpfs": ">=0.95",
    "device.gpu_write_tmpfs": ">=0.95",
    "device.gpu_kvikio": ">=1.1",
    "device.gpu_kvikio_tmpfs": ">=1.1",
    "device.gpu_deepnvme": ">=1.5",
    "device.gpu_latency": "<=1.3",
    "device.gpu_stall": "<=1.15",
    "device.gpu_auto": ">=0.97",
    "features.gpu_rows": ">=0.9",
    "features.gpu_hits": ">=0.8",
}


def test_no_bar_of_a_gpu_is_weaker_than_what_was_asked():
    bars = {bar.id: bar for bar in load_bars() if bar.place == "gpu"}
    assert {name: bars[name].limit.text for name in GPU_BARS} == GPU_BARS
    for name, bar in bars.items():
        if name.startswith(("device.gpu_read", "device.gpu_write", "device.gpu_kvikio")):
            assert (bar.file_gib, bar.tmpfs) == (8, name.endswith("_tmpfs")), name
    assert "--threads=1|4|16" in bars["device.gpu_kvikio"].peer_run


@pytest.mark.parametrize(
    ("text", "mean", "side"),
    [
        (">= 0.98", 0.99, "clears the bar"),
        (">= 0.98", 0.97, "below the bar"),
        ("<= 1.3", 1.31, "above the bar"),
        ("<= 1.3", 1.3, "clears the bar"),
        ("within 0.5%", 0.996, "clears the bar"),
        ("within 0.5%", 1.006, "outside the bar"),
    ],
)
def test_the_side_on_which_a_figure_stands(text, mean, side):
    assert parse_limit(text).side(mean) == side
