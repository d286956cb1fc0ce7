# SPDX-License-Identifier: Apache-2.0
"""Calls that people expect of stores and engines: steps, iteration, sizes in words, a repr that says something."""

import random

import penstock
import pytest


def test_a_store_is_asked_by_step(tmp_path):
    with penstock.CheckpointStore(tmp_path / "runs" / "a" / "store") as store:
        assert len(store) == 0 and list(store) == [] and 100 not in store and store
        infos = [store.save({"v": step}, step) for step in (100, 200, 300, 200)]
        infos[0], infos[3]
        assert [info.generation for info in store] == [1, 2, 3, 4] and len(store) == 4
        assert 200 in store and 4 not in store and infos[0] in store and "200" not in store and None not in store
        assert store.load(100) == {"v": 100} and store.load(step=300) == {"v": 300}
        assert store.load(generation=2) == {"v": 200}
        with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 7; there are 100, 200, 300 in"):
            store.load(7)
        with pytest.raises(FileNotFoundError, match=r"there are 100, 200, 300 \(generation=3 is of step 300\)"):
            store.load(3)
        with pytest.raises(ValueError, match="generation or step"):
            store.load(100, generation=1)
        store.remove(1)
        assert infos[0] not in store and 100 not in store


WORDS = {"64KiB": 64 << 10, "1MiB": 1 << 20, "1M": 1 << 20, "1.5MiB": 3 << 19, str(1 << 20): 1 << 20}


def test_sizes_in_words(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(300_000))
    for word, size in WORDS.items():
        with penstock.Engine(block_bytes=word, in_flight_bytes="64MiB") as engine:
            assert engine.options.block_bytes == size and engine.options.in_flight_bytes == 64 << 20
            assert engine.read(path, bytearray(300_000), block_bytes=word) == 300_000
        penstock.CheckpointStore(tmp_path / "store", shard_bytes=word, host_memory=word).close()
    for wrong in ("4 parsecs", "", "-1", "4MiBB", "99999999999GiB"):
        for call in (
            lambda wrong=wrong: penstock.Engine(block_bytes=wrong),
            lambda wrong=wrong: penstock.read(path, bytearray(1), block_bytes=wrong),
            lambda wrong=wrong: penstock.CheckpointStore(tmp_path / "store", shard_bytes=wrong),
            lambda wrong=wrong: penstock.CheckpointStore(tmp_path / "store", host_memory=wrong),
            lambda wrong=wrong: penstock.save({}, tmp_path / "s.pt", shard_bytes=wrong),
        ):
            with pytest.raises(
                ValueError, match=r"(block_bytes|shard_bytes|host_memory): got .*expected bytes, such as .*64KiB"
            ):
                call()
    with pytest.raises(TypeError, match="queue_depth: got str"):
        penstock.Engine(queue_depth="8")


def test_a_repr_can_be_called_again():
    rng = random.Random(1)
    with penstock.Engine(queue_depth=rng.randint(1, 4096), block_bytes="1MiB") as engine:
        text = repr(engine.options)
        assert text.startswith("EngineOptions(backend=") and f"<penstock.Engine {text[14:-1]}>" == repr(engine)
        with penstock.Engine(**eval(f"dict({text[14:-1]})")) as again:
            assert repr(again) == repr(engine)
    assert repr(engine) == "<penstock.Engine closed>"
