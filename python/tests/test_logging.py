# SPDX-License-Identifier: Apache-2.0
"""The logger "penstock": what it says of saves and loads, and that it is silent by default."""

import logging
import re
import subprocess
import sys
import time

import penstock
import pytest

torch = pytest.importorskip("torch")

STATE = {"a": torch.arange(100_000.0)}
RATE = r"0\.000 GB in \d+\.\d{3} s, \d+\.\d\d GB/s"


def lines(caplog, count=1):
    end = time.monotonic() + 20
    while len(caplog.records) < count:
        assert time.monotonic() < end, caplog.text
        time.sleep(0.01)
    return [(record.levelno, record.getMessage()) for record in caplog.records]


@pytest.fixture(autouse=True)
def at_info(caplog):
    caplog.set_level(logging.INFO, logger="penstock")


def test_saves_of_files(tmp_path, caplog):
    penstock.save(STATE, tmp_path / "a.pt")
    penstock.save_async(STATE, tmp_path / "b.pt").result()
    first, second = lines(caplog, 2)
    assert first[0] == second[0] == logging.INFO
    assert re.fullmatch(rf"saved '.*a\.pt': {RATE}", first[1])
    assert re.fullmatch(rf"saved '.*b\.pt' in the background: {RATE}", second[1])


def test_saves_of_stores_and_what_is_passed_over(tmp_path, caplog):
    with penstock.CheckpointStore(tmp_path / "store") as store:
        store.save(STATE, step=1)
        info = store.save_async(STATE, step=2).result()
        messages = [text for level, text in lines(caplog, 2) if level == logging.INFO]
        while len(messages) < 2:
            time.sleep(0.01)
            messages = [text for level, text in lines(caplog) if level == logging.INFO]
        assert re.match(rf"saved '.*step-1': {RATE}", messages[0])
        assert re.match(r"saved '.*step-2' in the background: .*more linked", messages[1])
        (tmp_path / "store" / info.path / "manifest.json").write_text("{}")
        caplog.clear()
        with pytest.warns(RuntimeWarning):
            store.load()
        assert any(
            level == logging.WARNING and re.match("checkpoint '.*step-2' was passed over: .", text)
            for level, text in lines(caplog)
        )


def test_a_failure_in_the_background_is_logged_and_still_raised(tmp_path, caplog):
    (tmp_path / "folder").mkdir()
    failed = penstock.save_async(STATE, tmp_path / "folder")
    assert lines(caplog) == [
        (logging.WARNING, f"the background save of '{tmp_path}/folder' failed; result() has the reason")
    ]
    with pytest.raises(ValueError, match="was not begun"):
        penstock.save_async(STATE, tmp_path / "next.pt")
    with pytest.raises(ValueError, match="it is a folder"):
        failed.result()


def test_silent_unless_configured(tmp_path):
    script = (
        "import penstock, sys, torch\n"
        "store = penstock.CheckpointStore(sys.argv[1])\n"
        "store.save({'a': torch.zeros(3)})\n"
        "store.save_async({'a': torch.zeros(3)}).result()\n"
        "store.close()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "store"], capture_output=True, text=True, timeout=120
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
