# SPDX-License-Identifier: Apache-2.0
import contextlib
import json

import pytest

from benchmarks import fio, huge_pages, places, processes, report, sides
from benchmarks.bars import load_bars
from benchmarks.places import CannotRun, Place
from benchmarks.runner import Outcome
from benchmarks.samples import Sample

FIO = """fio: a warning before the JSON
{"jobs": [{"error": 0, "job_runtime": 2000, "usr_cpu": 1.5, "sys_cpu": 8.5,
  "read": {"io_bytes": 1073741824, "total_ios": 1024, "runtime": 1000,
           "clat_ns": {"percentile": {"50.000000": 15000}}}}]}
"""


def test_fio_figures():
    sample = fio.sample(FIO, "read", ["fio"], 10)
    assert sample.metric("bandwidth") == 1 << 30
    assert sample.metric("iops") == 1024
    assert sample.metric("cpu") == pytest.approx(0.2)
    assert sample.metric("p50_us") == 15


@pytest.mark.parametrize("text", ["", "{}", '{"jobs": []}', FIO.replace('"error": 0', '"error": 5')])
def test_fio_that_failed_is_no_sample(text):
    with pytest.raises(processes.RunFailed):
        fio.sample(text, "read", ["fio"], 0)


def test_fio_variants():
    side = fio.Fio("write bs=1m fallocate=none|native".split())
    assert len(side.variants) == 4
    side.variant = side.variants[-1]
    assert side.name == "fio write fallocate=native ioengine=libaio"
    assert len(fio.Fio("read bs=1m ioengine=libaio".split()).variants) == 1


def test_fio_says_when_it_has_no_huge_pages(monkeypatch):
    monkeypatch.setattr(huge_pages, "why_not", lambda: "")
    side = fio.Fio("write iomem=huge ioengine=libaio".split())
    assert side.variants[0]["iomem"] == "shmhuge" and side.name == "fio write huge pages"
    monkeypatch.setattr(huge_pages, "why_not", lambda: "no leave")
    side = fio.Fio("write iomem=huge ioengine=libaio".split())
    assert side.variants[0]["iomem"] == "malloc" and side.name == "fio write without huge pages: no leave"


def test_huge_pages_are_lent_for_a_run_and_no_longer(tmp_path, monkeypatch):
    limit = tmp_path / "limit"
    limit.write_text("3\n")
    monkeypatch.setattr(huge_pages, "_LIMIT", limit)
    with huge_pages.lent(False):
        assert limit.read_text() == "3\n"
    with pytest.raises(KeyError), huge_pages.lent():
        assert int(limit.read_text()) > 3
        raise KeyError
    assert limit.read_text() == "3\n" and huge_pages.why_not() == ""
    monkeypatch.setattr(huge_pages, "_LIMIT", tmp_path / "nothing" / "limit")
    assert "No such file" in huge_pages.why_not()


def test_a_programs_choices_are_its_variants():
    words = ["job", "--overlap=0|1", "--file={file}"]
    side = sides.Program(["prog"], words, "")
    assert [variant["--overlap"] for variant in side.variants] == ["0", "1"]
    side.variant = side.variants[1]
    assert side.name == "prog job --overlap=1 --file={file}"
    assert sides.Program(["prog"], ["job"], "slow").variants == [{}]


def test_a_program_prints_a_sample_in_its_last_line():
    text = "hello\n" + json.dumps({"seconds": 2, "bytes": 4, "version": "0.1", "backend": "io_uring"})
    sample = sides.parse_sample(text, ["x"], 77)
    assert (sample.seconds, sample.peak_memory_kib) == (2, 77)
    assert sample.details == {"version": "0.1", "backend": "io_uring"}
    with pytest.raises(ValueError, match="gave no cpu"):
        sample.metric("cpu")
    for wrong in ("", "no json"):
        with pytest.raises(processes.RunFailed):
            sides.parse_sample(wrong, ["x"], 0)


def test_a_program_that_is_not_built_says_what_to_do(tmp_path):
    with pytest.raises(CannotRun, match="PENSTOCK_BENCHMARKS"):
        sides.make_side("program read", build=tmp_path)


def test_processes(tmp_path):
    assert processes.run(["echo", "x"]).stdout == "x\n"
    assert processes.run(["true"]).peak_memory_kib > 0
    with pytest.raises(processes.RunFailed, match="exit 3: oh"):
        processes.run(["sh", "-c", "echo oh >&2; exit 3"])
    with pytest.raises(CannotRun, match="no ring"):
        processes.run(["sh", "-c", "echo no ring >&2; exit 77"])
    with pytest.raises(CannotRun, match="not there"):
        processes.run([str(tmp_path / "nothing")])


def test_a_process_past_its_time_ends_with_what_it_forked(tmp_path):
    mark = tmp_path / "alive"
    with pytest.raises(processes.RunFailed, match="no end"):
        processes.run(["sh", "-c", f"(sleep 1.5; touch {mark}) & sleep 60"], timeout_s=0.2)
    import time

    time.sleep(2)
    assert not mark.exists()


def test_a_place_without_storage_has_no_file():
    assert Place("memory").fill("x {count}") == "x {count}"
    with pytest.raises(CannotRun, match="no storage"):
        Place("memory").fill("{file}")


def test_metrics_of_a_sample_without_figures():
    for metric in ("bandwidth", "iops", "cpu", "seconds", "p50_us", "p99_us", "value"):
        with pytest.raises(ValueError, match="gave no"):
            Sample(command=["x"]).metric(metric)


def test_the_fake_driver_is_found_by_its_folder_or_named_as_missing(tmp_path, monkeypatch):
    monkeypatch.delenv("PENSTOCK_FAKE_GPU", raising=False)
    words = ["device", "--gpu={fake_gpu}"]
    with pytest.raises(CannotRun, match="target fake_cuda"):
        sides.Program(["true"], words, "", tmp_path)
    library = tmp_path / "tests" / "fake_gpu" / "libcuda.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    assert sides.Program(["true"], words, "", tmp_path).name == f"true device --gpu={library}"
    monkeypatch.setenv("PENSTOCK_FAKE_GPU", str(library.parent))
    assert sides.Program(["true"], words, "", tmp_path / "nothing").name == f"true device --gpu={library}"
    monkeypatch.setenv("PENSTOCK_KVIKIO_PYTHON", str(tmp_path / "python"))
    with pytest.raises(CannotRun, match=r"tools/gpu_peers.py"):
        sides.make_side("kvikio kvikio", build=None)


def test_the_place_gpu_wants_one_and_says_fake_in_every_line(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "gpu_name", lambda: (_ for _ in ()).throw(CannotRun("no GPU: none")))
    with places.Places(tmp_path, tmp_path) as made:
        with pytest.raises(CannotRun, match="no GPU: none"), made.open("gpu", {}):
            pass
        monkeypatch.setattr(places, "disk_folder", lambda *_: contextlib.nullcontext(tmp_path))
        bar = next(bar for bar in load_bars() if bar.place == "gpu")
        for name, told in (("NVIDIA X", "place=gpu "), ("Penstock fake GPU 0", "place=gpu(FAKE) ")):
            monkeypatch.setattr(places, "gpu_name", lambda name=name: name)
            with made.open("gpu", {}) as place:
                outcome = Outcome(bar, "cannot-run", place=place.about)
            assert told in report.line(outcome)


def test_rows_on_tmpfs_take_the_first_with_room_and_leave_nothing(tmp_path, monkeypatch):
    small, large = tmp_path / "small", tmp_path / "large"
    large.mkdir()
    monkeypatch.setattr(places, "gpu_name", lambda: "Penstock fake GPU 0")
    monkeypatch.setattr(places, "tmpfs_parents", lambda: [small, large])
    monkeypatch.setattr(places, "_on_tmpfs", lambda _: True)
    monkeypatch.setattr(places, "_FAKE_FILE_BYTES", 4 << 20)
    with places.Places(tmp_path, tmp_path) as made, made.open("gpu", {}, file_gib=8, tmpfs=True) as place:
        assert place.folder.parent == large
        assert place.fill("{file} {bytes}") == f"{place.folder}/data {4 << 20}"
        assert place.data_file().stat().st_size == 4 << 20
    assert not list(large.iterdir())
    monkeypatch.setattr(places, "_FAKE_FILE_BYTES", 1 << 60)
    with places.Places(tmp_path, tmp_path) as made, pytest.raises(CannotRun, match="docker run --shm-size="):
        with made.open("gpu", {}, tmpfs=True):
            pass


def test_an_interpreter_with_deepspeed_is_named_found_or_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_DEEPSPEED_PYTHON", str(tmp_path / "python"))
    monkeypatch.setattr(sides.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(CannotRun, match="PENSTOCK_DEEPSPEED_PYTHON"):
        sides.deepspeed_python()
    (tmp_path / "python").touch()
    assert sides.deepspeed_python() == str(tmp_path / "python")
    monkeypatch.setenv("PENSTOCK_DEEPSPEED_PYTHON", str(tmp_path / "none"))
    monkeypatch.setattr(sides.importlib.util, "find_spec", lambda name: name)
    assert sides.deepspeed_python() == sides.sys.executable
