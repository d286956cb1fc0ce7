# SPDX-License-Identifier: Apache-2.0
"""Transfer and PendingSave are one kind of future: for each call, the same of both."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time

import penstock
import pytest

torch = pytest.importorskip("torch")


def read(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(100_000))
    return lambda: penstock.read_async(path, bytearray(100_000)), 100_000, OSError


def failing_read(tmp_path):
    return lambda: penstock.read_async(tmp_path / "absent", bytearray(10)), None, FileNotFoundError


def save(tmp_path):
    return lambda: penstock.save_async({"a": torch.ones(10)}, tmp_path / "s.pt"), None, OSError


def failing_save(tmp_path):
    (tmp_path / "folder").mkdir()
    return lambda: penstock.save_async({"a": torch.ones(10)}, tmp_path / "folder"), None, ValueError


GOOD = pytest.mark.parametrize("make", [read, save])
BAD = pytest.mark.parametrize("make", [failing_read, failing_save])


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@GOOD
def test_what_a_future_gives(tmp_path, make):
    begin, expected, _ = make(tmp_path)
    future = begin()
    assert isinstance(future, penstock.Future)
    assert future.result(30) == expected and future.result() == expected
    assert future.exception() is None and future.done() and not future.cancelled()
    assert future.cancel() is False and not future.cancelled()


@BAD
def test_what_a_future_raises(tmp_path, make):
    begin, _, kind = make(tmp_path)
    future = begin()
    error = future.exception(30)
    assert isinstance(error, kind) and future.done() and not future.cancelled()
    with pytest.raises(kind, match=str(error).replace("[", r"\[").replace("(", r"\(").replace(")", r"\)")[:40]):
        future.result()


@pytest.mark.parametrize("make", [read, save, failing_read, failing_save])
def test_callbacks_are_called_once_each(tmp_path, make):
    begin, _, _ = make(tmp_path)
    future, called = begin(), []
    for number in range(3):
        future.add_done_callback(lambda f, number=number: called.append((number, f, threading.get_ident())))
    until(lambda: len(called) == 3)
    assert sorted(number for number, _, _ in called) == [0, 1, 2] and all(f is future for _, f, _ in called)
    assert future.done()
    future.add_done_callback(lambda f: called.append((3, f, threading.get_ident())))
    assert called[3] == (3, future, threading.get_ident())
    future.exception()
    time.sleep(0.02)
    assert len(called) == 4


@GOOD
def test_a_callback_that_raises_is_logged_and_harms_nobody(tmp_path, make, caplog):
    begin, _, _ = make(tmp_path)
    for _ in range(2):
        future, called = begin(), []
        future.add_done_callback(lambda _: 1 / 0)
        future.add_done_callback(called.append)
        until(lambda called=called: called)
        future.result()
    until(lambda: len(caplog.records) == 2)
    assert {record.name for record in caplog.records} == {"penstock"}
    assert all(record.levelno == logging.ERROR and record.exc_info[0] is ZeroDivisionError for record in caplog.records)
    with pytest.raises(TypeError, match="expected a function of the future, got a int"):
        future.add_done_callback(3)


def test_many_futures_of_many_threads_call_each_callback(tmp_path):
    begin, _, _ = read(tmp_path)
    called, lock = [], threading.Lock()

    def count(future):
        with lock:
            called.append(future.result())

    def run():
        for _ in range(50):
            begin().add_done_callback(count)  # dropped: it goes on, and is called

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: len(called) == 200)
    assert called == [100_000] * 200


@GOOD
def test_asyncio(tmp_path, make):
    begin, expected, _ = make(tmp_path)

    async def run():
        futures = [begin() for _ in range(5)]
        tasks = [asyncio.create_task(future.coroutine()) for future in futures[:2]]
        assert await asyncio.gather(*futures[2:]) == [expected] * 3
        assert await asyncio.gather(*tasks) == [expected] * 2
        late = futures[0]
        assert await late == expected and await asyncio.wait_for(late, 10) == expected
        if hasattr(asyncio, "TaskGroup"):
            async with asyncio.TaskGroup() as group:
                task = group.create_task(begin().coroutine())
            assert task.result() == expected

    asyncio.run(run())


@BAD
def test_asyncio_raises(tmp_path, make):
    begin, _, kind = make(tmp_path)

    async def run():
        with pytest.raises(kind):
            await begin()
        with pytest.raises(kind):
            await asyncio.create_task(begin().coroutine())

    asyncio.run(run())


def test_cancel_of_either_kind(tmp_path):
    seen = set()
    for _ in range(20):
        future = penstock.save_async({"a": torch.zeros(4_000_000)}, tmp_path / "big.pt")
        ran = future.cancel()
        error = future.exception(30)
        assert (error is None) == (not future.cancelled()) and (error is None or isinstance(error, penstock.Cancelled))
        assert ran or not future.cancelled()
        seen.add(future.cancelled())
    assert True in seen


@GOOD
def test_the_child_of_a_fork_calls_no_callback_of_its_parent_and_its_own(tmp_path, make):
    begin, _, _ = make(tmp_path)
    called = []
    futures = [begin() for _ in range(20)]
    for future in futures:
        future.add_done_callback(called.append)
    before = len(called)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own = []
            known = len(called)
            penstock.read_async(__file__, bytearray(5)).add_done_callback(own.append)
            until(lambda: own)
            status = 0 if len(called) == known >= before else 2
        finally:
            os._exit(status)
    until(lambda: len(called) == 20)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_end_of_the_interpreter_calls_what_is_left(tmp_path):
    # One write() a line: print() writes the newline apart, and the callbacks come from two threads.
    script = (
        "import penstock, sys, torch\n"
        "def tell(f): sys.stdout.write(f'{f.result()}\\n')\n"
        "for i in range(10):\n"
        "    penstock.read_async(sys.argv[1], bytearray(1000)).add_done_callback(tell)\n"
        "penstock.save_async({'a': torch.zeros(1000)}, sys.argv[2]).add_done_callback(tell)\n"
    )
    (tmp_path / "data").write_bytes(bytes(1000))
    command = [sys.executable, "-c", script, str(tmp_path / "data"), str(tmp_path / "s.pt")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and ran.stderr == ""
    assert sorted(ran.stdout.split()) == ["1000"] * 10 + ["None"]


@GOOD
def test_notify_wants_an_eventfd(tmp_path, make):
    begin, _, _ = make(tmp_path)
    future = begin()
    event = os.eventfd(0)
    try:
        future.notify(event)
        future.exception()
        assert os.eventfd_read(event) == 1
        future.notify(event)
        assert os.eventfd_read(event) == 1
    finally:
        os.close(event)
    with open(tmp_path / "file", "wb") as file, pytest.raises(ValueError, match="is not an open eventfd"):
        future.notify(file.fileno())


def test_there_is_one_way_to_wait():
    for kind in (penstock.Transfer, penstock.PendingSave):
        assert issubclass(kind, penstock.Future) and not hasattr(kind, "wait")
        own = set(vars(kind)) & set(vars(penstock.Future))
        assert not {name for name in own if not name.startswith("__")}
