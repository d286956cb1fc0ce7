# SPDX-License-Identifier: Apache-2.0
"""Engine(options=FILE)."""

import json

import penstock
import pytest


def _file(tmp_path, text):
    path = tmp_path / "options.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


def test_a_file_is_taken_as_any_kind_of_path(tmp_path):
    path = _file(tmp_path, {"about": "mine", "block_bytes": 131072, "queue_depth": 3, "in_flight_bytes": "1MiB"})
    for given in (path, str(path), bytes(path)):
        with penstock.Engine(options=given) as engine:
            options = engine.options
            assert (options.block_bytes, options.queue_depth, options.in_flight_bytes) == (131072, 3, 1 << 20)
            assert options.channels == penstock.Engine().options.channels


def test_what_is_given_beats_the_file_and_the_file_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_QUEUE_DEPTH", "5")
    monkeypatch.setenv("PENSTOCK_CHANNELS", "2")
    monkeypatch.setenv("PENSTOCK_COPY_THREADS", "3")
    path = _file(tmp_path, {"queue_depth": 6, "channels": 4})
    with penstock.Engine(options=path, channels=1) as engine:
        assert (engine.options.queue_depth, engine.options.channels, engine.options.copy_threads) == (6, 1, 3)


def test_an_engine_of_a_file_moves_bytes(tmp_path):
    with penstock.Engine(options=_file(tmp_path, {"backend": "posix", "queue_depth": 2})) as engine:
        assert engine.describe().backend == "posix"
        engine.write(tmp_path / "data", b"0123456789")
        into = bytearray(10)
        assert engine.read(tmp_path / "data", into) == 10
        assert into == b"0123456789"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ({"blok_bytes": 1}, '"blok_bytes".*block_bytes'),
        ({"queue_depth": 0}, "queue_depth: got 0; expected 1 to 4096"),
        ({"queue_depth": "8"}, 'queue_depth: got "8"'),
        ({"block_bytes": 65537}, "multiple of 64 KiB"),
        ({"backend": "nvme"}, "auto"),
        ("not json", "not JSON"),
        ("[]", "object"),
    ],
)
def test_what_is_wrong_names_file_key_and_what_is_allowed(tmp_path, text, says):
    path = _file(tmp_path, text)
    with pytest.raises(ValueError, match=says) as caught:
        penstock.Engine(options=path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_or_no_path(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        penstock.Engine(options=tmp_path / "absent.json")
    with pytest.raises(TypeError, match="options: got int; give a path"):
        penstock.Engine(options=3)
