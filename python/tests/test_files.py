# SPDX-License-Identifier: Apache-2.0
import os
import threading

import penstock
import pytest


def test_modes(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError):
        penstock.File(path)
    with penstock.File(path, "w") as file:
        assert (file.mode, file.size, file.path, file.closed) == ("w", 0, str(path), False)
        penstock.write(file, b"0123456789")
    assert file.closed
    with penstock.File(path, "rw") as file:
        assert file.size == 10
        penstock.write(file, b"ab", 4)
        into = bytearray(10)
        penstock.read(file, into)
        assert into == b"0123ab6789"
    with penstock.File(path, "w", truncate=True) as file:
        assert file.size == 0


def test_records_are_appended_and_gathered(tmp_path):
    path = tmp_path / "log"
    with penstock.File(path, "a") as file:
        assert (file.mode, file.info.mode, file.info.buffer_bytes) == ("a", "a", 0)
        assert file.append(b"one ") == 4
        assert path.read_bytes() == b"one "
    with penstock.File(path, "a", buffer="1KiB") as file:
        assert file.info.buffer_bytes == 1024
        file.append(bytearray(b"two "))
        assert path.read_bytes() == b"one " and file.buffered_bytes == 4
        file.flush()
        assert path.read_bytes() == b"one two " and file.buffered_bytes == 0
        file.append(memoryview(b"three "))
        with open(path, "ab", buffering=0) as other:
            other.write(b"other ")
    assert path.read_bytes() == b"one two other three "
    with pytest.raises(ValueError, match="append()"), penstock.File(path, "a") as file:
        penstock.write(file, b"x", 3)
    with pytest.raises(ValueError, match="open it with 'a'"), penstock.File(path, "w") as file:
        file.append(b"x")
    with pytest.raises(ValueError, match="use mode 'a'"):
        penstock.File(path, "w", buffer=5)
    for wrong in ("much", "2GiB", -1, 1 << 31):
        with pytest.raises(ValueError, match="buffer"):
            penstock.File(path, "a", buffer=wrong)
    with pytest.raises(TypeError, match="data"), penstock.File(path, "a") as file:
        file.append("text")


def test_size_truncate_preallocate_sync(tmp_path):
    with penstock.File(tmp_path / "file", "rw") as file:
        file.truncate(1000)
        assert file.size == 1000
        file.truncate(10)
        assert file.size == 10
        if file.preallocate(0, 1 << 20):
            assert file.size == 1 << 20
        file.sync()
    file.close()
    for use in (lambda: file.size, file.sync, lambda: file.truncate(0), lambda: file.info):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_info_says_what_and_why(tmp_path):
    (tmp_path / "f").write_bytes(bytes(4096))
    with penstock.File(tmp_path / "f", cache="cached") as file:
        info = file.info
        assert not info.direct and info.mode == "r" and info.path == str(tmp_path / "f")
        assert info.block_bytes >= 512 and info.file_system and info.reason
    with penstock.File(tmp_path / "f") as file:
        assert file.info.memory_align & (file.info.memory_align - 1) == 0
        assert str(tmp_path) in repr(file)


def test_closing_leaves_transfers_alone(tmp_path, pattern):
    data = pattern(8 << 20)
    with penstock.Engine() as engine:
        file = penstock.File(tmp_path / "f", "w")
        transfer = engine.write_async(file, data)
        file.close()
        assert transfer.result() == data.nbytes
    assert (tmp_path / "f").read_bytes() == data.tobytes()


def test_close_while_others_read(tmp_path):
    (tmp_path / "f").write_bytes(bytes(1 << 20))
    with penstock.Engine() as engine:
        for _ in range(20):
            file = penstock.File(tmp_path / "f")
            wrong = []

            def reads(file=file, wrong=wrong):
                try:
                    while True:
                        engine.read(file, bytearray(100_000))
                except ValueError as error:
                    if "closed" not in str(error):
                        wrong.append(error)

            threads = [threading.Thread(target=reads) for _ in range(2)]
            for thread in threads:
                thread.start()
            file.close()
            for thread in threads:
                thread.join()
            assert not wrong


def test_a_dropped_file_is_closed(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        penstock.File(tmp_path / "f", "w")
    assert len(os.listdir("/proc/self/fd")) == before


def test_prefetch_and_evict(tmp_path, pattern):
    data = pattern(1 << 20).tobytes()
    (tmp_path / "f").write_bytes(data)
    penstock.evict(tmp_path / "f")
    engine = penstock.Engine()
    into = bytearray(len(data))
    assert engine.read(tmp_path / "f", into) == len(data) and into == data
    cold = engine.stats().bytes_cached
    penstock.prefetch(tmp_path / "f", 0, None)
    penstock.prefetch(tmp_path / "f", 1 << 40, 5)  # behind the end: nothing to do
    into = bytearray(len(data))
    with penstock.File(tmp_path / "f", cache="cached") as file:
        assert engine.read(file, into) == len(data) and into == data  # waits for the last pages
    before = engine.stats().bytes_cached
    with penstock.File(tmp_path / "f") as file:
        asked = file.info.direct and file.info.file_system in ("ext4", "xfs", "btrfs")
        assert engine.read(file, into) == len(data) and into == data
    assert cold == 0
    if asked:
        assert engine.stats().bytes_cached - before == len(data)
    with pytest.raises(FileNotFoundError):
        penstock.prefetch(tmp_path / "none")
    with pytest.raises(ValueError, match="bytes"):
        penstock.evict(tmp_path / "f", 0, -1)


def test_a_call_by_path_takes_a_policy_and_a_file_has_its_own(tmp_path, pattern):
    data = pattern(100_000).tobytes()
    into = bytearray(len(data))
    penstock.write(tmp_path / "f", data, cache="cached")
    for policy in ("auto", "cached", "direct", None):
        assert penstock.read(tmp_path / "f", into, cache=policy) == len(data) and into == data
    with penstock.File(tmp_path / "f") as file, pytest.raises(ValueError, match="policy of its own"):
        penstock.read(file, into, cache="direct")
    with pytest.raises(ValueError, match="cache: got 'off'; expected 'auto'"):
        penstock.read(tmp_path / "f", into, cache="off")
