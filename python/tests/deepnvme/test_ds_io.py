# SPDX-License-Identifier: Apache-2.0
"""`penstock ds_io` and `penstock ds_nvme_tune`: DeepSpeed's output to the letter, and sane where theirs is not."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time

import penstock
import pytest

pytest.importorskip("torch")

from penstock import deepnvme  # noqa: E402
from penstock._measure import tool  # noqa: E402
from penstock.deepnvme import _ds_io_engines, _tools, ds_io, ds_nvme_tune  # noqa: E402

ODD = 1_000_001  # neither a multiple of 512 nor of anything else


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "a folder"
    made.mkdir()
    return made


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def closing_speed(text, kind):
    """As DeepSpeed's tuner reads its logs: the last but one word of the first line that begins so."""
    found = [line for line in text.splitlines() if line.startswith(f"E2E {kind} Speed")]
    assert len(found) == 1
    return float(found[0].split()[-2])


@pytest.mark.parametrize("engine", ds_io.ENGINES)
@pytest.mark.parametrize("kind", ["Read", "Write"])
def test_every_engine_ends_in_the_four_lines_and_leaves_nothing(engine, kind, folder, capsys):
    words = ["--folder", str(folder), "--io_size", str(ODD), "--engine", engine, "--loops", "2"]
    assert ds_io.main(words + (["--read"] if kind == "Read" else [])) == 0
    out = capsys.readouterr().out
    number = r"(\d[\d.e+-]*)"
    lines = [
        rf"Task {kind} Latency = {number} sec",
        rf"Task {kind} Speed = {number} GB/sec",
        rf"E2E {kind} Latency = {number} sec",
        rf"E2E {kind} Speed = {number} GB/sec",
    ]
    values = [float(re.fullmatch(line, text)[1]) for line, text in zip(lines, out.splitlines()[-4:])]
    assert values[1] == pytest.approx(2 * ODD / values[0] / (1 << 30))
    assert values[3] == pytest.approx(2 * ODD / values[2] / (1 << 30))
    assert values[2] >= values[0]
    assert closing_speed(out, kind) == values[3]
    assert out.startswith("Testing DeepNVMe python frontend\nargs = Namespace(")
    assert f"[0]: process 0 <----> {folder}\n" in out
    assert names(folder) == []


@pytest.mark.parametrize(
    "engine,name", [("aio_handle", "0_0"), ("aio_basic", "0"), ("torch_io", "0"), ("torch_fastio", "0")]
)
def test_the_file_is_whole_and_named_as_theirs(engine, name, folder):
    words = ["--folder", str(folder), "--io_size", str(ODD), "--engine", engine, "--loops", "1", "--keep_files"]
    assert ds_io.main(words) == 0
    assert names(folder) == [f"_aio_write_{ODD}.pt.{name}"]
    path = folder / f"_aio_write_{ODD}.pt.{name}"
    if engine.startswith("aio"):
        assert path.stat().st_size == ODD
        assert len(set(path.read_bytes()[-100_000:])) > 200  # the last bytes too, and no zeros
    else:
        import torch

        assert torch.load(path, weights_only=True).numel() == ODD


def test_a_file_each_iteration(folder):
    words = [
        "--folder",
        str(folder),
        "--io_size",
        "64K",
        "--loops",
        "2",
        "--different_file_each_iteration",
        "--keep_files",
    ]
    assert ds_io.main(words) == 0
    assert names(folder) == [f"_aio_write_65536.pt.0_{loop}" for loop in range(3)]


def test_a_file_to_read_is_used_and_kept_when_it_fits_and_made_anew_when_not(folder):
    path = folder / f"_aio_read_{ODD}.pt.0_0"
    path.write_bytes(b"x" * ODD)
    words = ["--folder", str(folder), "--io_size", str(ODD), "--read", "--loops", "1"]
    assert ds_io.main(words) == 0
    assert path.read_bytes() == b"x" * ODD
    path.write_bytes(b"short")
    assert ds_io.main([*words, "--keep_files"]) == 0
    assert path.stat().st_size == ODD


def test_several_folders_give_each_and_the_sum(tmp_path, capsys):
    folders = [tmp_path / "one", tmp_path / "two"]
    for made in folders:
        made.mkdir()
    out = tmp_path / "out.json"
    words = ["--folder", *map(str, folders), "--io_size", "4M", "--loops", "2", "--json", str(out)]
    assert ds_io.main(words) == 0
    text = capsys.readouterr().out
    each = [float(re.search(rf"^Folder {made}: Write Speed = (\S+) GB/sec$", text, re.M)[1]) for made in folders]
    total = float(re.search(r"^Sum of 2 folders: Write Speed = (\S+) GB/sec$", text, re.M)[1])
    assert total == pytest.approx(sum(each))
    assert "Configuring 2 process to folder mapping" in text and f"[1]: process 1 <----> {folders[1]}" in text
    run = json.loads(out.read_text())["ds_io"]
    assert [f["path"] for f in run["folders"]] == [str(made) for made in folders]
    assert run["bytes"] == 2 * 2 * (4 << 20)
    assert run["bytes_per_s"] / (1 << 30) == pytest.approx(closing_speed(text, "Write"))
    assert [len(process["seconds"]) for process in run["processes"]] == [3, 3]
    assert [names(made) for made in folders] == [[], []]


def test_the_mapping_takes_a_colon_in_a_folder_and_may_be_repeated(tmp_path):
    words = ["--folder_to_device_mapping", "/mnt/a:b:0", "--folder_to_device_mapping", "/mnt/c:0", "/mnt/d:11"]
    args = ds_io.make_parser().parse_args([*words, "--io_size", "1M"])
    assert ds_io._mapping(args) == [("0", "/mnt/a:b"), ("0", "/mnt/c"), ("11", "/mnt/d")]


def test_a_process_that_fails_is_named_and_stops_the_others(folder):
    args = ds_io.refine(ds_io.make_parser().parse_args(["--folder", str(folder), "--io_size", "64K"]))
    good = str(folder / "file")
    tasks = [_ds_io_engines.Task(0, "0", str(folder), [good] * 4, args)]
    tasks.append(_ds_io_engines.Task(1, "1", "/absent", ["/absent/file"] * 4, args))
    start = time.monotonic()
    with pytest.raises(tool.ToolError, match=r"process 1 \(/absent\): .*/absent/file"):
        ds_io._in_processes(tasks, lambda tid, text: None)
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("number,processes", [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGTERM, 2)])
def test_a_signal_ends_it_and_the_files_are_gone(number, processes, folder):
    words = ["ds_io", "--folder", str(folder), "--io_size", "16M", "--loops", "1000000"]
    words += ["--multi_process", str(processes)]
    child = subprocess.Popen(
        [sys.executable, "-m", "penstock", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        for line in child.stdout:
            if "running main task 3" in line:
                break
        assert names(folder)
        child.send_signal(number)
        _, err = child.communicate(timeout=30)
    finally:
        child.kill()
    assert child.returncode == 128 + number, err
    assert "the files that it made are removed" in err and "Traceback" not in err
    assert names(folder) == []


def test_everything_wrong_is_told_at_once(capsys):
    words = ["--folder", "/absent", "--io_size", "12Q", "--queue_depth", "0", "--loops", "0", "--gpu", "--engine", "dd"]
    assert ds_io.main(words) == 2
    err = capsys.readouterr().err
    for message in (
        *([] if penstock.gpus() else ["--gpu: no memory of a GPU can be moved here"]),
        "--queue_depth 0: at least 1",
        "--loops 0",
        "--engine dd: choose",
        "--io_size: got '12Q'",
    ):
        assert message in err
    assert ds_io.main(["--folder", "/absent", "--io_size", "1M"]) == 2
    assert "/absent: no folder" in capsys.readouterr().err
    assert ds_io.main(["--io_size", "1M"]) == 2
    assert "--folder or --folder_to_device_mapping" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--queue_depth", "3000000000"],
        ["--io_parallel", "3000000000"],
        ["--multi_process", "3000000000"],
        ["--loops", "3000000000"],
        ["--warmup_loops", "3000000000"],
        ["--engine", "torch_fastio", "--fast_io_size", "1"],
        ["--json", "."],
        ["--json", ""],
        ["--json", "/absent/x.json"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_is_told_before_any_work(folder, capsys, words):
    assert ds_io.main(["--folder", str(folder), "--io_size", "12Q", *words]) == 2
    message = capsys.readouterr().err
    assert f"{words[-2]} " in message and "--io_size: got '12Q'" in message and names(folder) == []


def ending(command, folder, stdout, **options):
    """(exit status, stderr) of a command of the program whose stdout is something else."""
    words = [sys.executable, "-m", "penstock", *command]
    with stdout:
        done = subprocess.run(words, stdout=stdout, stderr=subprocess.PIPE, cwd=folder, timeout=100, **options)
    return done.returncode, done.stderr.decode()


COMMANDS = {
    "ds_io": ["ds_io", "--folder", ".", "--io_size", "64K"],
    "ds_io_in_processes": ["ds_io", "--folder", ".", "--io_size", "64K", "--multi_process", "2"],
    "ds_io_json": ["ds_io", "--folder", ".", "--io_size", "64K", "--json", "-"],
    "ds_nvme_tune": ["ds_nvme_tune", "--nvme_dir", ".", "--io_size", "64K", "--rounds", "1", "--log_dir", "../logs"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_has_gone_ends_it_quietly(command, folder):
    reader, writer = os.pipe()
    os.close(reader)
    status, err = ending(COMMANDS[command], folder, os.fdopen(writer, "wb"))
    assert status == 141 and "Error" not in err and "Traceback" not in err
    assert names(folder) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_under_its_output_is_told_in_a_sentence(command, folder):
    status, err = ending(COMMANDS[command], folder, open("/dev/full", "wb"))
    message = [line for line in err.splitlines() if line.startswith("penstock ")]
    assert status == 1 and len(message) == 1 and "No space left" in message[0], err
    assert "Traceback" not in err and names(folder) == []


def test_a_reader_that_goes_in_the_middle(folder):
    command = [sys.executable, "-m", "penstock", *COMMANDS["ds_io"][:-1], "64M", "--loops", "20"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder)
    assert child.stdout.readline() == b"Testing DeepNVMe python frontend\n"
    while b"main task 0" not in child.stdout.readline():
        pass
    child.stdout.close()
    assert child.wait(60) == 141
    assert child.stderr.read() == b"" and names(folder) == []
    child.stderr.close()


def test_a_folder_whose_name_is_no_text(tmp_path):
    folder = os.fsencode(tmp_path) + b"/a\xffb"
    os.mkdir(folder)
    words = ["ds_io", "--io_size", "4K", "--loops", "1", "--json", os.path.join(folder, b"j.json"), "--folder", folder]
    for more in ([], [folder]):
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *words, *more], capture_output=True, timeout=100, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        assert b"E2E Write Speed" in done.stdout
    words = ["ds_nvme_tune", "--io_size", "4K", "--rounds", "1", "--nvme_dir", folder]
    done = subprocess.run([sys.executable, "-m", "penstock", *words], capture_output=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if importlib.util.find_spec("plotly") is None:
        return
    words = ["report", os.path.join(folder, b"j.json"), "-o", os.path.join(folder, b"page.html")]
    done = subprocess.run([sys.executable, "-m", "penstock", *words], capture_output=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open(os.path.join(folder, b"page.html"), "rb") as page:
        assert b"\\udcff" in page.read().decode("utf-8").encode()


def test_what_is_in_the_way_and_what_does_not_fit(folder, capsys):
    words = ["--folder", str(folder), "--loops", "1", "--io_size"]
    assert ds_io.main([*words, "100000T"]) == 1
    assert "bytes are needed and" in capsys.readouterr().err
    precious = folder / "precious"
    precious.write_text("keep me")
    (folder / "_aio_write_4096.pt.0_0").symlink_to(precious)
    assert ds_io.main([*words, "4K"]) == 1
    assert "is in the way" in capsys.readouterr().err
    assert precious.read_text() == "keep me"


def test_fsync_and_validate_are_in_the_figures_and_told(folder, capsys, monkeypatch):
    synced = []
    monkeypatch.setattr(_ds_io_engines, "_fsync", synced.append)
    words = ["--folder", str(folder), "--io_size", "64K", "--loops", "2"]
    assert ds_io.main(words) == 0
    assert "Not in the figures: fsync" in capsys.readouterr().out and synced == []
    assert ds_io.main([*words, "--fsync", "--validate"]) == 0
    out = capsys.readouterr().out
    assert len(synced) == 3 and "Not in the figures" not in out and "--validate" in out


def test_the_page_cache_is_told(folder, capsys):
    assert ds_io.main(["--folder", str(folder), "--io_size", "64K", "--loops", "1", "--engine", "torch_io"]) == 0
    assert "the figures measure memory as much as storage" in capsys.readouterr().out


# --- ds_nvme_tune


@pytest.fixture
def tune(folder, tmp_path, capsys):
    """Runs it small; (status, stdout, stderr)."""

    def run(*words):
        logs = str(tmp_path / "logs")
        status = ds_nvme_tune.main(["--nvme_dir", str(folder), "--io_size", "256K", "--log_dir", logs, *words])
        return (status, *capsys.readouterr())

    return run


def test_the_closing_lines_are_theirs_and_the_paste_has_the_right_types(tune, folder, tmp_path):
    status, out, err = tune()
    assert status == 0, err
    lines = out.splitlines()
    assert lines[0] == f"Running DeepNVMe performance tuning on ['{folder}']"
    assert re.fullmatch(r"Best performance \(GB/sec\): read = +[\d.]+, write = +[\d.]+", lines[1])
    theirs = json.loads("\n".join(lines[2:]))["aio"]
    assert list(theirs) == ["single_submit", "overlap_events", "num_threads", "queue_depth", "block_size"]
    assert theirs["single_submit"] == "false" and theirs["overlap_events"] == "true"
    ours = json.loads((tmp_path / "logs" / "ds_config_aio.json").read_text())["aio"]
    assert json.dumps({"aio": ours}, indent=3) in err
    assert (ours["block_size"], ours["queue_depth"]) == (theirs["block_size"], theirs["queue_depth"])
    assert ours["overlap_events"] is True and ours["intra_op_parallelism"] == 1
    ours.pop("use_gds")
    assert deepnvme.aio_handle(**ours).get_queue_depth() == ours["queue_depth"]
    assert "How sure: " in err
    assert names(folder) == []


def test_logs_have_their_names_one_run_each_and_no_stale_ones(tune, tmp_path):
    stale = tmp_path / "logs" / "_aio_bench_read_logs"
    stale.mkdir(parents=True)
    (stale / "read_single_sequential_ftd1_d7_bs9M_p8.txt").write_text("E2E Read Speed = 999 GB/sec")
    (stale / "notes.txt").write_text("mine")
    status, _, err = tune("--rounds", "1")
    assert status == 0, err
    settings = ["d128_bs1M", "d128_bs8M", "d32_bs1M", "d32_bs8M"]
    assert names(stale) == ["notes.txt", *(f"read_block_overlap_ftd1_{s}_p1.txt" for s in settings)]
    for kind in ("read", "write"):
        logs = tmp_path / "logs" / f"_aio_bench_{kind}_logs"
        for path in logs.glob(f"{kind}_*"):
            assert closing_speed(path.read_text(), kind.capitalize()) > 0


@pytest.mark.parametrize("left_out,measured", [("read", "write"), ("write", "read")])
def test_one_operation_alone(tune, tmp_path, left_out, measured):
    status, out, err = tune(f"--no_{left_out}", "--rounds", "1")
    assert status == 0, err
    old = tmp_path / "logs" / f"_aio_bench_{left_out}_logs" / f"{left_out}_block_overlap_ftd1_d32_bs1M_p1.txt"
    assert not old.parent.exists()
    assert f"{left_out} = not measured" in out and re.search(rf"{measured} = +[\d.]+", out)
    assert names(tmp_path / "logs") == [f"_aio_bench_{measured}_logs", "ds_config_aio.json"]
    # A log of an earlier run goes, for what reads the logs takes them all for one.
    old.parent.mkdir()
    old.write_text("E2E Read Speed = 999 GB/sec")
    (old.parent / "notes.txt").write_text("mine")
    assert tune(f"--no_{left_out}", "--rounds", "1")[0] == 0
    assert names(old.parent) == ["notes.txt"]


def test_a_sweep_of_ones_own(tune, tmp_path):
    config = tmp_path / "sweep.json"
    config.write_text(json.dumps({"block_size": ["256K"], "io_parallel": [2, 4], "single_submit": [True, False]}))
    status, out, err = tune("--sweep_config", str(config), "--no_write", "--rounds", "1", "--full_sweep")
    assert status == 0, err
    logs = names(tmp_path / "logs" / "_aio_bench_read_logs")
    assert logs == [f"read_{s}_overlap_ftd1_d32_bs256K_p{p}.txt" for s in ("block", "single") for p in (2, 4)]
    status, out, err = tune("--sweep_config", str(config), "--no_write", "--rounds", "1")
    assert names(tmp_path / "logs" / "_aio_bench_read_logs") == ["read_block_overlap_ftd1_d32_bs256K_p2.txt"]
    assert "one setting was measured" in err
    assert json.loads(out[out.index("{") :])["aio"]["block_size"] == 256 << 10


@pytest.mark.parametrize(
    "text,message",
    [
        ("{", "--sweep_config"),
        ("[]", "an object with keys of block_size"),
        ('{"depth": [1]}', "an object with keys of block_size"),
        ('{"queue_depth": []}', "queue_depth: [] came; a list such as [32, 128]"),
        ('{"queue_depth": [true]}', "queue_depth: [True] came"),
        ('{"queue_depth": ["many"]}', "queue_depth: ['many'] came"),
        ('{"single_submit": [1]}', "single_submit: [1] came"),
        ('{"block_size": ["1Q"]}', "block_size: got '1Q'; expected bytes"),
        ('{"block_size": [1e3]}', "block_size: [1000.0] came"),
        ('{"block_size": [1' + 30 * "0" + "]}", "block_size: got '1000"),
        ('{"queue_depth": [3000000000]}', "queue_depth: [3000000000] came"),
        ('{"io_parallel": [2, 3000000000]}', "io_parallel: [2, 3000000000] came"),
        ('{"io_parallel": [0]}', "io_parallel: [0] came"),
        (100_000 * "[", "--sweep_config"),
    ],
)
def test_a_wrong_sweep_is_told(tune, tmp_path, text, message):
    config = tmp_path / "sweep.json"
    config.write_text(text)
    status, _, err = tune("--sweep_config", str(config))
    assert status == 2 and message in err


def test_wrong_arguments_of_the_tuner(tune):
    for words, message in (
        *([] if penstock.gpus() else [(["--gpu"], "--gpu: no memory of a GPU can be moved here")]),
        (["--gds"], "--gds needs --gpu"),
        (["--no_read", "--no_write"], "nothing to measure"),
        (["--rounds", "0"], "--rounds 0"),
        (["--rounds", "3000000000"], "--rounds 3000000000"),
        (["--loops", "3000000000"], "--loops 3000000000"),
        (["--json", "."], "--json '.'"),
        (["--gpu", "--io_size", "many", "--json", "."], "--io_size: got 'many'"),
        (["--io_size", "many"], "--io_size: got 'many'"),
        (["--json", "/absent/x.json"], "--json /absent/x.json"),
    ):
        status, _, err = tune(*words)
        assert status == 2 and message in err


def sweep_of(*rates):
    """A finished sweep of reads with these rates."""
    sweep = object.__new__(ds_nvme_tune._Sweep)
    sweep.operations = ["read"]
    sweep.settings = [
        ds_nvme_tune.Setting("1M", i + 1, False, False, 1, {"read": list(r)}) for i, r in enumerate(rates)
    ]
    sweep._args = ds_nvme_tune.make_parser().parse_args(["--nvme_dir", ".", "--rounds", str(len(rates[0]))])
    return sweep


def test_what_is_not_told_apart_is_not_chosen_by_chance():
    noisy = sweep_of((1.0, 2.0, 1.5), (1.1, 2.2, 1.6), (1.0, 1.9, 1.4))
    assert noisy.best() is noisy.settings[0]
    assert "no difference found among 3 of 3" in noisy.verdict()
    clear = sweep_of((1.0, 1.1, 1.0), (2.0, 2.2, 2.1), (1.5, 1.6, 1.5))
    assert clear.best() is clear.settings[1]
    assert "every run of it beat every run of the other 2" in clear.verdict()
    assert "nothing says how sure" in sweep_of((1.0,), (2.0,)).verdict()


# The words of DeepSpeed's refine_integer_value() are the same number of bytes; what it refuses follows base/text/units.
@pytest.mark.parametrize(
    ("word", "size"),
    [("4096", 4096), ("64K", 65536), ("400M", 400 << 20), ("1G", 1 << 30), ("1.5GiB", 3 << 29), ("4GB", 4 * 10**9)],
)
def test_sizes_are_read_by_one_rule(word, size):
    assert tool.parse_size("--io_size", word) == size


@pytest.mark.parametrize("word", ["", "0", "-1", "1.5", "1Q", "٣", "\udc80", str(1 << 60)])
def test_what_is_no_size_names_the_flag(word):
    with pytest.raises(tool.ToolError, match="^--io_size: got "):
        tool.parse_size("--io_size", word)


def test_the_engine_lets_through_what_is_asked_for(monkeypatch):
    import penstock

    for name in ("BLOCK_BYTES", "QUEUE_DEPTH", "IN_FLIGHT_BYTES"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    with penstock.Engine() as engine:
        plain = engine.describe().options
    assert _tools.engine_settings(plain.block_bytes, 16) == {}
    monkeypatch.setenv("PENSTOCK_QUEUE_DEPTH", "200")
    with _tools.engine_lets_through((8 << 20) - 1, 256), penstock.Engine() as engine:
        options = engine.describe().options
    assert (options.block_bytes, options.queue_depth) == (8 << 20, 200)
    assert options.in_flight_bytes == ((8 << 20) - 1) * 256
    assert "PENSTOCK_BLOCK_BYTES" not in os.environ


def test_a_choice_beyond_the_engine_says_what_to_set(tune, tmp_path):
    config = tmp_path / "sweep.json"
    config.write_text(json.dumps({"block_size": ["8M"], "queue_depth": [4]}))
    status, _, err = tune("--sweep_config", str(config), "--no_write", "--rounds", "1")
    assert (
        status == 0 and "start the training with\nPENSTOCK_BLOCK_BYTES=8388608 PENSTOCK_IN_FLIGHT_BYTES=33554432" in err
    )


def test_both_make_pages(folder, tmp_path):
    from penstock import report

    one, two = tmp_path / "ds_io.json", tmp_path / "tune.json"
    assert ds_io.main(["--folder", str(folder), "--io_size", "64K", "--json", str(one)]) == 0
    words = ["--nvme_dir", str(folder), "--io_size", "64K", "--rounds", "1", "--log_dir", str(tmp_path / "logs")]
    assert ds_nvme_tune.main([*words, "--json", str(two)]) == 0
    made = report.make_page([str(one), str(two)])
    titles = [s.title.split(" \u00b7 ")[0] for s in made.sections]
    assert titles == [f"ds_io write in {folder}", f"ds_nvme_tune in {folder}"]
    assert len(made.charts()) == 4


def test_the_program_knows_both(tmp_path):
    for command in ("ds_io", "ds_nvme_tune"):
        run = [sys.executable, "-m", "penstock", command, "--help"]
        done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "COLUMNS": "100"})
        assert done.returncode == 0 and f"usage: penstock {command}" in done.stdout
