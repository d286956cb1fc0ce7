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
        assert transfer.wait() == data.nbytes
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
