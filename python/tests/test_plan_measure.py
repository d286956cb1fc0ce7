# SPDX-License-Identifier: Apache-2.0
"""penstock.plan.measure, and `measure` of the questions that rates answer."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import penstock
import penstock.plan as plan
import pytest

QUICK = {"seconds": 0.3, "size": "16MiB"}


def quick(folder, **more):
    return plan.Measure(folder, **QUICK, **more)


def test_folders_are_measured_and_nothing_is_left(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    steps = []
    answer = plan.measure([tmp_path, str(other)], **QUICK, progress=steps.append, checkpoint_bytes="1GB")
    assert answer.verb == "measure" and str(other) in answer.title
    for name in ("files", "samples", "writes"):
        rates = [answer[f"{name}_bytes_per_second{end}"].value for end in ("_low", "", "_high")]
        assert 0 < rates[0] <= rates[1] <= rates[2]
    assert answer["checkpoint_seconds"].value == pytest.approx(1e9 / answer["writes_bytes_per_second"].value)
    assert any("95 % interval" in note for note in answer.notes)
    assert plan.Answer.from_json(answer.json()) == answer and answer.text() and answer.explain()
    assert all(isinstance(step, plan.MeasureStep) for step in steps)
    assert (steps[-1].step, steps[-1].steps) == (18, 18) and steps[0].step == 0
    assert [path.name for path in tmp_path.iterdir()] == ["other"] and not list(other.iterdir())


def test_questions_are_answered_by_what_folders_deliver(tmp_path):
    train = plan.train("unet3d", accelerators=8, measure=quick(tmp_path))
    assert train["accelerators_fed_low"].value <= train["accelerators_fed"].value
    assert train["read_bytes_per_second"] == plan.train("unet3d", accelerators=8)["read_bytes_per_second"]
    saved = plan.checkpoint("7b", interval="2h", measure=quick(tmp_path))
    assert saved["storage_seconds"].value == pytest.approx(98e9 / saved["storage_bytes_per_second"].value)
    assert plan.restore("7b", measure=quick([tmp_path]))["storage_seconds_high"].value > 0
    assert plan.stream("7b", measure=quick(tmp_path))["tokens_per_second_low"].value > 0
    assert not list(tmp_path.iterdir())


def test_a_file_is_only_read(tmp_path):
    path = tmp_path / "precious"
    path.write_bytes(b"p" * (8 << 20))
    answer = plan.measure(os.fsencode(path), seconds=0.3)
    assert any("only read" in note for note in answer.notes)
    with pytest.raises(ValueError, match="expected folders"):
        plan.checkpoint("7b", measure=plan.Measure(path, 0.3))
    assert path.read_bytes() == b"p" * (8 << 20)


def test_what_progress_raises_stops_it(tmp_path):
    class Mine(Exception):
        pass

    def stop(step):
        if step.step >= 2:
            raise Mine

    with pytest.raises(Mine):
        plan.measure(tmp_path, seconds=30, size="16MiB", progress=stop)
    assert not list(tmp_path.iterdir())


def interrupt(begun, delay):
    begun.wait()
    time.sleep(delay)
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_leaves_nothing(tmp_path):
    for delay in (0.05, 0.6):
        begun = threading.Event()
        ends = threading.Thread(target=interrupt, args=(begun, delay))
        ends.start()
        with pytest.raises(KeyboardInterrupt):
            begun.set()
            plan.measure(tmp_path, seconds=60, size="16MiB")
            time.sleep(60)
        ends.join()
        assert not list(tmp_path.iterdir())
    assert plan.measure(tmp_path, **QUICK)["files_bytes_per_second"].value > 0


def test_wrong_arguments_are_named(tmp_path):
    for wrong in (0, -1, 0.05, 3601, float("nan"), float("inf"), True, "20Q", None):
        with pytest.raises((TypeError, ValueError), match="seconds"):
            plan.measure(tmp_path, seconds=wrong)
    for wrong in (0, -1, 1000, 2**70, 5.5, "16MiX", True, b"1GiB"):
        with pytest.raises((TypeError, ValueError), match="size"):
            plan.measure(tmp_path, size=wrong)
    for wrong in (None, 3, [], [3], [None], ["a\0b"], {}):
        with pytest.raises((TypeError, ValueError), match="path"):
            plan.measure(wrong, **QUICK)
    with pytest.raises(TypeError, match="progress"):
        plan.measure(tmp_path, progress=3)
    with pytest.raises(ValueError, match="did you mean 'resnet50'"):
        plan.measure(tmp_path, model="resnet5")
    with pytest.raises(ValueError, match="are the same"):
        plan.measure([tmp_path, f"{tmp_path}/."], **QUICK)
    with pytest.raises(FileNotFoundError):
        plan.measure(tmp_path / "missing", **QUICK)
    with pytest.raises(ValueError, match="rate: got a rate and paths"):
        plan.stream("7b", rate="1GB/s", measure=quick(tmp_path))
    with pytest.raises(ValueError, match="storage: got a rate and paths"):
        plan.train("unet3d", storage=1e9, measure=tmp_path)
    with pytest.raises(TypeError, match="did you mean 'paths'"):
        plan.measure(path=tmp_path)
    if os.path.isdir("/dev/shm"):
        with pytest.raises(penstock.Unsupported, match="direct"):
            plan.measure("/dev/shm", **QUICK)
    assert not list(tmp_path.iterdir())


def test_the_command_line_has_the_same_figures(tmp_path):
    out = tmp_path / "out.json"
    words = ["measure", str(tmp_path), "--seconds", "0.3", "--size", "16MiB", "--model", "unet3d", "--json", str(out)]
    done = subprocess.run([sys.executable, "-m", "penstock", "plan", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    answer = plan.measure(tmp_path, **QUICK, model="unet3d")
    assert [one["name"] for one in found["figures"]] == [one.name for one in answer.figures]
    assert found["environment"] and len(found["notes"]) == len(answer.notes)
