# SPDX-License-Identifier: Apache-2.0
"""When things go wrong: full disks, shrunk files, threads, Ctrl-C, freed tensors."""

import errno
import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import penstock
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from penstock.deepnvme import aio_handle  # noqa: E402

MIB = 1 << 20


def pattern(size, seed=1):
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def handle():
    return aio_handle(MIB, 8, False, True, 1)


# A file system in a mount namespace of its own: it goes with the process, also with a killed one, and takes its loop
# device with it.
FULL_DISK = """
    import ctypes, errno, os, subprocess, sys
    libc = ctypes.CDLL(None, use_errno=True)
    CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
    if libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
        print("skip: no mount namespace of its own:", os.strerror(ctypes.get_errno()))
        raise SystemExit
    os.mkdir("disk")
    if sys.argv[1] == "tmpfs":
        mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "none", "disk"]
    else:
        with open("image", "wb") as file:
            file.truncate(24 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", "image"], check=True)
        mount = ["mount", "-o", "loop", "image", "disk"]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        print("skip: mount:", done.stderr)
        raise SystemExit
    import torch
    from penstock.deepnvme import aio_handle
    handle = aio_handle(1 << 20, 8, False, True, 1)
    small, large = torch.ones(1 << 20, dtype=torch.uint8), torch.ones(64 << 20, dtype=torch.uint8)
    handle.sync_pwrite(small, "disk/before")  # before the disk fills: two writes in flight race for the last blocks
    handle.async_pread(torch.empty_like(small), "disk/before")
    handle.async_pwrite(large, "disk/large")
    try:
        print("wait gave", handle.wait())
    except OSError as error:
        print(error.errno == errno.ENOSPC, "disk/large" in str(error), handle.wait())
    for call, more in ((handle.sync_pwrite, ()), (handle.write, (False,)), (handle.pwrite, (True, False))):
        try:
            print("the call gave", call(large, "disk/large", *more))
        except OSError as error:
            print(error.errno == errno.ENOSPC)
    os.remove("disk/large")
    os.fsync(os.open("disk", os.O_RDONLY))  # ext4 gives the blocks back when its journal has been written
    print(handle.sync_pwrite(small, "disk/after"), os.path.getsize("disk/before"))
"""


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_full_disk_is_raised_by_wait_and_the_handle_goes_on(run_script, kind):
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    out = run_script(FULL_DISK, kind)
    if out.startswith("skip"):
        pytest.skip(out)
    assert out == f"True True 0\nTrue\nTrue\nTrue\n1 {MIB}\n"


def test_a_file_that_was_shrunk_elsewhere_is_an_end_of_file(handle, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(4 * MIB))
    fd = os.open(path, os.O_RDONLY)
    os.truncate(path, MIB + 1)
    handle.async_pread(torch.zeros(4 * MIB, dtype=torch.uint8), fd)
    handle.async_pread(torch.zeros(MIB, dtype=torch.uint8), str(path))
    with pytest.raises(penstock.EndOfFile, match=str(MIB + 1)):
        handle.wait()
    assert handle.wait() == 0
    os.close(fd)


def test_a_file_that_shrinks_while_it_is_read_ends_one_way_or_the_other(handle, tmp_path):
    path = tmp_path / "f"
    for _ in range(3):
        with open(path, "wb") as file:
            file.truncate(256 * MIB)
        handle.async_pread(torch.empty(256 * MIB, dtype=torch.uint8), str(path))
        os.truncate(path, 0)
        try:
            assert handle.wait() == 1
        except penstock.EndOfFile as error:
            assert error.filename == str(path)
        assert handle.wait() == 0


def test_two_handles_on_one_file(tmp_path):
    data, cuts = pattern(3_000_000), [0, 1000, 5001, 300_000, 300_001, 1_048_576, 2_999_999, 3_000_000]
    handles = [aio_handle(4096, 4), aio_handle(MIB, 32)]
    for i, (begin, end) in enumerate(zip(cuts, cuts[1:])):
        handles[i % 2].async_pwrite(data[begin:end], str(tmp_path / "f"), begin)
    assert [h.wait() for h in handles] == [4, 3]
    assert (tmp_path / "f").read_bytes() == data.numpy().tobytes()
    into = torch.zeros_like(data)
    for i, (begin, end) in enumerate(zip(cuts, cuts[1:])):
        handles[i % 2].async_pread(into[begin:end], str(tmp_path / "f"), begin)
    assert [h.wait() for h in handles] == [4, 3]
    assert torch.equal(into, data)


def test_a_tensor_that_the_caller_frees_lives_until_it_is_moved(handle, tmp_path):
    for i in range(8):
        handle.async_pwrite(torch.full((8 * MIB,), i, dtype=torch.uint8), str(tmp_path / f"f{i}"))
        gc.collect()
    junk = [torch.full((8 * MIB,), 255, dtype=torch.uint8) for _ in range(8)]
    assert handle.wait() == 8 and len(junk) == 8
    for i in range(8):
        assert (tmp_path / f"f{i}").read_bytes() == bytes([i]) * (8 * MIB)


def test_of_several_errors_the_first_is_raised_and_the_others_are_logged(handle, tmp_path, caplog):
    (tmp_path / "short").write_bytes(b"x")
    (tmp_path / "long").write_bytes(bytes(MIB))
    good = torch.ones(MIB, dtype=torch.uint8)
    handle.async_pread(good, str(tmp_path / "long"))
    for size in (10, 20, 30):
        handle.async_pread(torch.zeros(size, dtype=torch.uint8), str(tmp_path / "short"))
    with pytest.raises(penstock.EndOfFile, match="10 bytes"):
        handle.wait()
    assert len(caplog.records) == 2 and "20 bytes" in caplog.text and "30 bytes" in caplog.text
    assert not good.any()  # what could be done was done
    assert handle.wait() == 0
    assert handle.sync_pread(good, str(tmp_path / "long")) == 1


def test_an_earlier_error_comes_out_of_the_next_blocking_verb(handle, tmp_path):
    (tmp_path / "short").write_bytes(b"x")
    handle.async_pread(torch.zeros(10), str(tmp_path / "short"))
    with pytest.raises(penstock.EndOfFile):
        handle.sync_pwrite(torch.ones(5), str(tmp_path / "other"))
    assert os.path.getsize(tmp_path / "other") == 20
    assert handle.wait() == 0


def test_an_error_of_a_dropped_handle_is_raised_by_drain(tmp_path):
    (tmp_path / "short").write_bytes(b"x")
    handle = aio_handle()
    handle.async_pread(torch.zeros(10), str(tmp_path / "short"))
    del handle
    with pytest.raises(penstock.EndOfFile):
        penstock.default_engine().drain()
    assert penstock.default_engine().drain()


def test_many_threads_on_one_handle_lose_and_count_nothing_twice(handle, tmp_path):
    threads, rounds, size = 4, 60, 40_000
    counted, failures = [0] * threads, []

    def work(number):
        try:
            for i in range(rounds):
                data = torch.full((size,), (number * rounds + i) % 251, dtype=torch.uint8)
                path = str(tmp_path / f"f{number}")
                handle.async_pwrite(data, path)
                counted[number] += handle.wait()
                # Every write is done, whichever handle counted it.
                with open(path, "rb") as file:
                    assert file.read() == bytes([(number * rounds + i) % 251]) * size
                into = torch.zeros_like(data)
                counted[number] += handle.sync_pread(into, path)
                assert into.tolist() == data.tolist()
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    assert not any(thread.is_alive() for thread in running) and not failures
    assert sum(counted) + handle.wait() == 2 * threads * rounds


SLOW = """
    import os, signal, sys, threading, time
    import torch
    from penstock.deepnvme import aio_handle
    with open("hole", "wb") as file:
        file.truncate(1 << 30)
    tensor = torch.empty(1 << 30, dtype=torch.uint8)
    handle = aio_handle(4096, 1)
    handle.async_pread(tensor[:1000], "hole")
    handle.async_pread(tensor, "hole")  # 262,144 requests, one after the other
"""


def test_ctrl_c_in_wait_leaves_the_operations_to_the_next_wait(script):
    child = script(
        SLOW
        + """
    print("ready", flush=True)
    try:
        handle.wait()
        print("came too late")
    except KeyboardInterrupt:
        print("interrupted", handle._pending[-1].status, flush=True)
    handle._pending[-1].cancel()
    try:
        handle.wait()
    except OSError as error:
        print(type(error).__name__, handle.wait())
    """
    )
    try:
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 0, err
    assert out.splitlines() == ["interrupted running", "Cancelled 0"]


def test_what_a_signal_handler_raises_is_no_error_of_the_operation(run_script):
    out = run_script(
        SLOW
        + """
    def late(*_):
        raise TimeoutError("the program's own")
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        handle.wait()
        print("came too late")
    except TimeoutError as error:
        print(error, len(handle._pending))
    handle._pending[-1].cancel()
    try:
        handle.wait()
    except OSError:
        print(handle.wait())
    """
    )
    assert out == "the program's own 2\n0\n"


def test_a_wait_does_not_return_while_another_thread_waits_for_the_rest(run_script):
    out = run_script(
        SLOW
        + """
    operation = handle._pending[-1]
    ended = []
    def wait():
        try:
            ended.append(handle.wait())
        except OSError as error:
            ended.append(type(error).__name__)
    waiters = [threading.Thread(target=wait) for _ in range(2)]
    waiters[0].start()
    while handle._pending:  # until it has taken both
        time.sleep(0.01)
    waiters[1].start()
    waiters[1].join(0.3)
    print(ended)
    operation.cancel()
    for waiter in waiters:
        waiter.join()
    print(ended, handle.wait())
    """
    )
    assert out == "[]\n['Cancelled', 'Cancelled'] 0\n"


def test_other_threads_run_while_a_call_blocks(run_script):
    out = run_script(
        SLOW
        + """
    turns = [0]
    stop = threading.Event()
    def count():
        while not stop.is_set():
            turns[0] += 1
    def cancel():
        time.sleep(0.5)
        before.append(turns[0])
        operation.cancel()
    before, operation = [], handle._pending[-1]
    others = [threading.Thread(target=count), threading.Thread(target=cancel)]
    for other in others:
        other.start()
    try:
        handle.wait()
    except OSError:
        pass
    stop.set()
    print(before[0] > 1000)
    """
    )
    assert out == "True\n"


def test_the_block_size_of_a_handle_goes_to_its_requests(tmp_path):
    tensor = pattern(8 * MIB)
    penstock.write(str(tmp_path / "f"), tensor, sync=True)
    counted = []
    for made in (aio_handle(MIB), aio_handle(64 << 10), aio_handle(64 << 10, 1)):
        penstock.default_engine().drain()
        before = penstock.default_engine().stats().requests
        into = torch.zeros_like(tensor)
        made.async_pread(into, str(tmp_path / "f"))
        assert made.wait() == 1 and torch.equal(into, tensor)
        counted.append(penstock.default_engine().stats().requests - before)
    assert counted == [8, 128, 128]


def test_disk_errors_have_errno_path_and_offset(handle, tmp_path):
    (tmp_path / "f").write_bytes(bytes(100))
    handle.async_pread(torch.zeros(10), str(tmp_path / "f"), 96)
    with pytest.raises(penstock.EndOfFile) as caught:
        handle.wait()
    assert caught.value.filename == str(tmp_path / "f") and caught.value.operation == "read"
    (tmp_path / "forbidden").write_bytes(bytes(100))
    (tmp_path / "forbidden").chmod(0)
    if os.geteuid() != 0:
        with pytest.raises(PermissionError) as caught:
            handle.async_pread(torch.zeros(10), str(tmp_path / "forbidden"))
        assert caught.value.errno == errno.EACCES


def test_threads_wait_for_the_same_validated_operations(tmp_path):
    """One thread closed the file of a comparison that another had begun."""
    handle = aio_handle()
    source = [pattern(3_000_001) for _ in range(3)]
    for _ in range(10):
        for i, tensor in enumerate(source):
            handle.pwrite(tensor, str(tmp_path / f"f{i}"), True, True)
        with ThreadPoolExecutor(3) as threads:
            assert sum(threads.map(lambda _: handle.wait(), range(3))) == len(source)
