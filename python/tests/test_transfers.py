# SPDX-License-Identifier: Apache-2.0
"""Transfer: waiting, cancelling, what it keeps alive, threads, asyncio."""

import asyncio
import concurrent.futures
import gc
import os
import select
import socket
import threading
import time
import weakref

import numpy
import penstock
import pytest

SIZE = 4 << 20


@pytest.fixture
def path(tmp_path, pattern):
    made = tmp_path / "data"
    made.write_bytes(pattern(SIZE).tobytes())
    return made


def until(condition, limit_s=20):
    """For what happens soon on another thread."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


def stop(transfer):
    transfer.cancel()
    with pytest.raises(penstock.Cancelled):
        transfer.result(30)


def test_life(engine, path, pattern):
    into = bytearray(SIZE)
    transfer = engine.read_async(path, into)
    assert transfer.nbytes == SIZE
    assert transfer.result() == SIZE and transfer.result(0) == SIZE
    assert transfer.done() and transfer.status == "done" and "done" in repr(transfer)
    assert into == pattern(SIZE).tobytes()
    transfer.cancel()  # too late
    assert transfer.status == "done" and transfer.result() == SIZE


def test_wait_with_a_limit(engine, slow):
    transfer = engine.read_async(*slow)
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"0\.1 s and goes on"):
        transfer.result(0.1)
    assert 0.09 < time.monotonic() - start < 10
    with pytest.raises(TimeoutError):
        transfer.result(timeout=0)
    assert not transfer.done() and transfer.status == "running"
    assert engine.drain(timeout=0.05) is False
    stop(transfer)
    assert transfer.status == "cancelled" and engine.drain(30) is True
    for wrong in ("1", float("nan")):
        with pytest.raises((TypeError, ValueError), match="timeout"):
            transfer.result(wrong)


def test_waiting_leaves_other_threads_alone(engine, slow):
    transfer = engine.read_async(*slow)
    ticks = []
    thread = threading.Thread(target=lambda: [ticks.append(time.sleep(0.001)) for _ in range(100)])
    thread.start()
    with pytest.raises(TimeoutError):
        transfer.result(1)
    assert len(ticks) > 50
    thread.join()
    stop(transfer)


def test_tensors_stay_until_done_and_no_longer(engine, path, slow):
    array = numpy.empty(SIZE, dtype=numpy.uint8)
    seen = weakref.ref(array)
    transfer = engine.read_async(path, array)
    del array
    transfer.result()
    assert seen() is None, "the transfer is still there, its tensor is not"

    file, into, offsets = slow
    memory = numpy.empty(into[0].nbytes, dtype=numpy.uint8)
    seen = weakref.ref(memory)
    transfer = engine.read_async(file, [memory] * len(into), offsets)
    del memory
    gc.collect()
    assert seen() is not None, "it is being read into"
    transfer.cancel()
    until(lambda: transfer.done())
    assert seen() is None


def test_failed_and_done_transfers_let_go(engine, path, tmp_path):
    for name, ask in (("absent", "wait"), ("absent", "status"), ("data", "status"), ("data", "done")):
        array = numpy.empty(100, dtype=numpy.uint8)
        seen = weakref.ref(array)
        transfer = engine.read_async(tmp_path / name, array)
        del array
        if ask == "wait":
            with pytest.raises(FileNotFoundError):
                transfer.result()
        elif ask == "status":
            until(lambda transfer=transfer: transfer.status != "running")
        else:
            until(lambda transfer=transfer: transfer.done())
        assert seen() is None
        if name == "absent" and ask != "wait":
            with pytest.raises(FileNotFoundError):
                transfer.result()  # or drain() would raise it


@pytest.mark.parametrize("sweep", ["verb", "async", "wait", "drain"])
def test_a_dropped_transfer_goes_on_and_is_swept(path, pattern, sweep):
    with penstock.Engine() as engine:
        array = numpy.zeros(SIZE, dtype=numpy.uint8)
        holder = [array]
        seen = weakref.ref(array)
        engine.read_async(path, array)  # dropped at once
        del array, holder
        until(lambda: engine.stats().running == 0)
        if sweep == "verb":
            engine.read(path, bytearray(1))
        elif sweep == "async":
            engine.read_async(path, bytearray(1))
        elif sweep == "wait":
            engine.read_async(path, bytearray(1)).result()
        else:
            engine.drain()
        assert seen() is None


def test_dropped_writes_arrive(tmp_path, pattern):
    engine = penstock.Engine()
    for i in range(20):
        engine.write_async(tmp_path / str(i), pattern(100_000, i))
    del engine  # those that run keep it
    gc.collect()
    end = time.monotonic() + 30
    while sum(f.stat().st_size for f in tmp_path.iterdir()) < 2_000_000:
        assert time.monotonic() < end
        time.sleep(0.01)
    penstock.read(tmp_path / "3", into := bytearray(100_000))
    assert into == pattern(100_000, 3).tobytes()


def test_nothing_leaks(engine, path):
    def round_trip():
        engine.read(path, bytearray(1000), 5)
        engine.read_async(path, [bytearray(10), bytearray(10)], [0, 10]).result()
        with pytest.raises(ValueError):
            engine.read(path, b"123")

    for _ in range(20):
        round_trip()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(200):
        round_trip()
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_buffers_are_locked_while_in_use(engine, slow):
    file, _, offsets = slow
    memory = bytearray(16 << 20)
    transfer = engine.read_async(file, [memory] * len(offsets), offsets)
    with pytest.raises(BufferError):
        memory.append(1)  # would move it
    stop(transfer)
    memory.append(1)


def test_cancel_from_another_thread(engine, slow):
    transfer = engine.read_async(*slow)
    threading.Timer(0.1, transfer.cancel).start()
    with pytest.raises(penstock.Cancelled, match="undefined") as caught:
        transfer.result(30)
    assert isinstance(caught.value, OSError)


def test_many_threads(engine, tmp_path, pattern):
    def work(number):
        data = pattern(50_000 + number, number)
        path = tmp_path / str(number % 5)
        offset = number * 100_000
        for _ in range(5):
            engine.write(path, data, offset)
            back = bytearray(data.nbytes)
            engine.read_async(path, back, offset).result()
            assert back == data.tobytes()
        return data.nbytes

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(40))) == [50_000 + n for n in range(40)]


def test_two_threads_wait_for_one(engine, slow):
    transfer = engine.read_async(*slow)

    def waits():
        with pytest.raises(penstock.Cancelled):
            transfer.result(60)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(waits) for _ in range(3)]
        time.sleep(0.05)
        transfer.cancel()
        for future in waiting:
            future.result()


# ---- asyncio


def test_await(engine, path, pattern):
    async def main():
        into = [bytearray(SIZE) for _ in range(10)]
        done = await asyncio.gather(*(one(engine.read_async(path, memory)) for memory in into))
        assert done == [SIZE] * 10
        assert all(memory == pattern(SIZE).tobytes() for memory in into)
        assert await engine.read_async(path, [bytearray(9)], [SIZE - 4], allow_short=True) == [4]
        finished = engine.read_async(path, bytearray(1))
        finished.result()
        assert await finished == 1
        with pytest.raises(FileNotFoundError):
            await engine.read_async("/nowhere/at/all", bytearray(1))
        return "through"

    async def one(transfer):
        return await transfer

    for _ in range(3):
        assert asyncio.run(main()) == "through"


def test_await_does_not_block_the_loop(engine, slow):
    async def main():
        transfer = engine.read_async(*slow)
        waiting = asyncio.ensure_future(one(transfer))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not waiting.done()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(one(transfer), 0.01)
        assert transfer.status == "running", "giving up waiting is no cancel"
        transfer.cancel()
        with pytest.raises(penstock.Cancelled):
            await waiting

    async def one(transfer):
        return await transfer

    asyncio.run(main())


def test_several_await_one(engine, slow):
    async def one(transfer):
        return await transfer

    async def main():
        transfer = engine.read_async(*slow)
        tasks = [asyncio.ensure_future(one(transfer)) for _ in range(3)]
        await asyncio.sleep(0.01)
        tasks[0].cancel()
        await asyncio.sleep(0)
        transfer.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(r) for r in results] == [asyncio.CancelledError, penstock.Cancelled, penstock.Cancelled]

    asyncio.run(main())


def test_one_descriptor_a_loop(engine, path):
    async def one(transfer):
        return await transfer

    def eventfds():
        names = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                names.append(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                pass
        return sum("eventfd" in name for name in names)

    async def main(before):
        for _ in range(5):
            await asyncio.gather(*(one(engine.read_async(path, bytearray(SIZE))) for _ in range(4)))
        assert eventfds() <= before + 2  # the loop's, and the copy that a transfer lets go of just after its end

    engine.read_async(path, bytearray(SIZE)).result()
    asyncio.run(main(eventfds()))
    before = eventfds()
    for _ in range(5):
        asyncio.run(main(before))
    assert eventfds() <= before + 2


def test_a_loop_that_closes_before_its_transfers(engine, slow):
    async def main():
        transfer = engine.read_async(*slow)
        task = asyncio.ensure_future(one(transfer))
        await asyncio.sleep(0.01)
        task.cancel()
        return transfer

    async def one(transfer):
        return await transfer

    transfer = asyncio.run(main())
    stop(transfer)  # writes to a copy of the descriptor of the closed loop
    assert asyncio.run(one(engine.read_async(slow[0], bytearray(10)))) == 10


def test_transfers_with_blocks_and_a_depth_limit_of_their_own(tmp_path):
    limit = penstock.DepthLimit(2)
    assert limit.requests == 2
    data = numpy.random.default_rng(1).integers(0, 256, 3_000_001, dtype=numpy.uint8)
    back = numpy.zeros_like(data)
    with penstock.Engine() as engine:
        engine.write_async(tmp_path / "file", data, block_bytes=5000, depth_limit=limit).result()
        before = engine.stats().requests
        parts = [(slice(i, i + 500_000), i) for i in range(0, data.size, 500_000)]
        transfers = [
            engine.read_async(tmp_path / "file", back[part], at, block_bytes=100_000, depth_limit=limit)
            for part, at in parts
        ]
        for transfer in transfers:
            transfer.result()
        assert engine.stats().requests - before >= 30
    assert (data == back).all()


def test_a_depth_limit_of_nothing_is_refused():
    with pytest.raises(ValueError, match="1 or more"):
        penstock.DepthLimit(0)


def test_a_closed_engine_leaves_no_threads_to_transfers_that_are_kept(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))

    def threads():
        return len(os.listdir("/proc/self/task"))

    before = threads()
    kept = []
    for _ in range(3):
        with penstock.Engine() as engine:
            kept += [engine.read_async(path, bytearray(1 << 20)) for _ in range(2)]
            kept.append(engine.read_async(tmp_path / "none", bytearray(1)))
            if len(kept) < 5:
                kept[0].result()
    for _ in range(1000):  # a thread that was joined is in the list for a moment more
        if threads() == before:
            break
        time.sleep(0.01)
    assert threads() == before
    for good in kept[0::3] + kept[1::3]:
        assert (good.result(), good.status, good.done()) == (1 << 20, "done", True)
        good.cancel()
    for bad in kept[2::3]:
        assert bad.status == "failed"
        with pytest.raises(FileNotFoundError):
            bad.result()


def test_only_an_eventfd_is_notified(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"precious")
    transfer = penstock.read_async(path, bytearray(8))
    with open(path, "r+b") as file, select.epoll() as epoll, socket.socket() as sock:
        for other in (file, epoll, sock):
            with pytest.raises(ValueError, match="not an open eventfd"):
                transfer.notify(other.fileno())
    assert transfer.result() == 8 and path.read_bytes() == b"precious"


def test_an_engine_that_is_dropped_does_what_it_was_asked(path, pattern, run_script):
    into = [bytearray(SIZE) for _ in range(20)]
    transfers = [penstock.Engine().read_async(path, one) for one in into]
    gc.collect()
    assert [transfer.result() for transfer in transfers] == [SIZE] * 20
    assert all(bytes(one) == pattern(SIZE).tobytes() for one in into)
    out = run_script(
        """
        import os, sys, penstock
        data = os.urandom(64 << 20)
        kept = penstock.Engine().write_async("written", data)
        del kept
        pid = os.fork()
        if pid == 0:
            penstock.write("child", b"x")
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        import atexit
        atexit._run_exitfuncs()
        assert open("written", "rb").read() == data
        print("whole")
        """
    )
    assert out == "whole\n"
