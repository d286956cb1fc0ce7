# SPDX-License-Identifier: Apache-2.0
"""Whatever way a run ends, nothing of it stays: no folder, no mount, no loop device, no control group."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import cleanup, places

ROOT = Path(__file__).resolve().parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts loop devices: needs root")


def dead_name():
    process = subprocess.Popen(["true"])
    process.wait()
    return f"{cleanup.PREFIX}{process.pid}-12345"


def test_names():
    assert not cleanup.is_left_over(cleanup.own_name())
    assert cleanup.is_left_over(dead_name())
    assert cleanup.is_left_over(f"{cleanup.PREFIX}{os.getpid()}-1")  # the pid lives, but it is another process
    for other in ("penstock", "penstock-bench-", "penstock-bench-1", "penstock-bench-1-2-3", "other-1-2"):
        assert not cleanup.is_left_over(other)


def test_the_sweep_removes_what_is_ours_and_dead_and_nothing_else(tmp_path):
    left = tmp_path / dead_name()
    (left / "deep").mkdir(parents=True)
    (left / "deep" / "file").write_text("x")
    alive = tmp_path / cleanup.own_name()
    other = tmp_path / "penstock-bench-of-somebody"
    alive.mkdir()
    other.mkdir()
    assert left in cleanup.sweep([tmp_path, tmp_path / "absent"])
    assert not left.exists() and alive.exists() and other.exists()
    cleanup.remove_own([tmp_path])
    assert not alive.exists() and other.exists()


# Enters the places, says so, and sleeps until a signal comes.
HOLDER = """
import sys, time
from pathlib import Path
from benchmarks import cleanup, places
cleanup.raise_on_signals()
places.FILE_BYTES = 16 << 20
places._IMAGE_BYTES = 256 << 20
folder = Path(sys.argv[1])
try:
    with places.Places(folder, folder) as made, made.open("throttled", {"bps": 500_000_000}) as place:
        print(place.cgroup, flush=True)
        time.sleep(60)
finally:
    cleanup.remove_own([folder])
"""


def hold(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    cgroup = process.stdout.readline().strip()
    if not cgroup:
        errors = process.communicate()[1]
        if "CannotRun" in errors:
            pytest.skip(errors.strip().splitlines()[-1])
        raise AssertionError(errors)
    return process, Path(cgroup)


def traces(folder):
    mounted = [mount["at"] for mount in cleanup.mounts() if mount["at"].startswith(str(folder) + "/")]
    loops = subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout
    return mounted + list(map(str, folder.iterdir())) + [text for text in loops.splitlines() if str(folder) in text]


@needs_root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_nothing(tmp_path, number):
    process, cgroup = hold(tmp_path)
    assert len(traces(tmp_path)) >= 3 and cgroup.is_dir()
    process.send_signal(number)
    process.communicate(timeout=30)
    assert traces(tmp_path) == [] and not cgroup.exists()


@needs_root
def test_the_next_run_removes_what_a_killed_one_left(tmp_path):
    process, cgroup = hold(tmp_path)
    process.kill()
    process.communicate()
    assert traces(tmp_path) and cgroup.is_dir()
    removed = cleanup.sweep([tmp_path])
    assert cgroup in removed
    time.sleep(0.1)
    assert traces(tmp_path) == [] and not cgroup.exists()


@needs_root
def test_several_throttled_devices_are_apart_and_all_go_away(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "FILE_BYTES", 16 << 20)
    monkeypatch.setattr(places, "_IMAGE_BYTES", 256 << 20)
    rate = {"bps": 500_000_000}
    with places.Places(tmp_path, tmp_path) as made:
        with made.open("throttled", rate, 2) as two:
            files = [Path(path) for path in two.fill("{files}").split(",")]
            assert len({path.stat().st_dev for path in files}) == 2
            assert all(path.stat().st_size == 16 << 20 for path in files)
            group = two.cgroup
            assert group.is_dir()
        assert not group.is_dir()
        with made.open("throttled", rate, 3) as three:
            assert three.device_files()[:2] == files
        with made.open("throttled", rate) as one:
            assert one.data_file().stat().st_dev not in {path.stat().st_dev for path in files}
    assert traces(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@needs_root
def test_the_loop_disk_takes_direct_io(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "FILE_BYTES", 16 << 20)
    monkeypatch.setattr(places, "_IMAGE_BYTES", 256 << 20)
    with places.Places(tmp_path, tmp_path) as made, made.open("loop", {}) as place:
        file = place.data_file()
        assert file.stat().st_size == places.FILE_BYTES
        assert place.about["file_system"] == "ext4" and place.about["device"].startswith("/dev/loop")
        new = Path(place.fill("{new}"))
        new.touch()
        place.remove_new()
        assert not new.exists()
    assert traces(tmp_path) == []


@needs_root
def test_an_image_has_all_its_memory(tmp_path):
    with places.loop_disk(tmp_path, "loop", 64 << 20) as root:
        image = root.parent / "loop-memory" / "image"
        assert image.stat().st_blocks * 512 == 64 << 20
    assert traces(tmp_path) == []


def test_a_folder_in_memory_is_no_disk():
    if not Path("/dev/shm").is_dir():
        pytest.skip("no /dev/shm")
    with pytest.raises(places.CannotRun, match="not on a disk"), places.disk_folder(Path("/dev/shm")):
        pass
