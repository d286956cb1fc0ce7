# SPDX-License-Identifier: Apache-2.0
"""Signals, forks and the end of the interpreter, each in a process of its own."""

import copy
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time

import penstock
import pytest

SLOW = """
    import os, signal, sys, time
    import penstock
    SIZE, COUNT = 16 << 20, 20_000
    with open("hole", "wb") as file:
        file.truncate(SIZE * COUNT)
    memory = penstock.empty(SIZE, pinned=False)
    slow = ("hole", [memory] * COUNT, [i * SIZE for i in range(COUNT)])
"""


# The exception of a failed call is made in Python, where a handler may run: what it raises is what comes.
def test_a_signal_while_an_error_is_made(run_script):
    out = run_script(
        """
    import signal, penstock

    class Boom(BaseException):
        pass

    def boom(*_):
        raise Boom

    signal.signal(signal.SIGALRM, boom)
    caught = 0
    while caught < 200:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            while True:
                try:
                    penstock.read("not there", bytearray(1))
                except FileNotFoundError:
                    pass
        except Boom:
            caught += 1
    print("all of them came as they are", flush=True)
    """
    )
    assert out == "all of them came as they are\n"


@pytest.mark.parametrize("backend", ["auto", "posix"])
@pytest.mark.parametrize("how", ["wait", "wait_limit", "read", "drain", "thread"])
def test_ctrl_c(script, how, backend):
    child = script(
        SLOW
        + """
    engine = penstock.Engine(backend=sys.argv[2])
    transfer = None if sys.argv[1] == "read" else engine.read_async(*slow)
    print("ready", flush=True)
    start = time.monotonic()
    try:
        if sys.argv[1] == "wait":
            transfer.result()
        elif sys.argv[1] == "wait_limit":
            transfer.result(500)
        elif sys.argv[1] == "read":
            engine.read(*slow)
        elif sys.argv[1] == "drain":
            engine.drain()
        else:  # the main thread does something else
            import threading
            threading.Thread(target=lambda: transfer.result(500), daemon=True).start()
            time.sleep(500)
    except KeyboardInterrupt:
        print("interrupted after", time.monotonic() - start, flush=True)
    if transfer is not None:
        assert transfer.status == "running"
        transfer.cancel()
        try:
            transfer.result(30)
        except penstock.Cancelled:
            pass
    assert engine.drain(60)
    assert engine.read("hole", bytearray(10)) == 10
    print("works on", flush=True)
    """,
        how,
        backend,
    )
    try:
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("interrupted after") and float(lines[0].split()[-1]) < 20, (out, err)
    assert lines[1] == "works on"


def test_exit_with_writes_in_flight(run_script, tmp_path):
    run_script("""
        import penstock
        data = [bytes([i]) * (8 << 20) for i in range(8)]
        keep = [penstock.write_async(f"f{i}", d) for i, d in enumerate(data)]
        other = penstock.Engine()
        other.write_async("dropped", b"x" * (8 << 20))
        del other
    """)
    for i in range(8):
        assert (tmp_path / f"f{i}").read_bytes() == bytes([i]) * (8 << 20)
    assert (tmp_path / "dropped").read_bytes() == b"x" * (8 << 20)


def test_exit_tells_of_a_lost_write(script):
    child = script("""
        import penstock
        penstock.write_async("no/such/folder", b"x")
    """)
    _, err = child.communicate(timeout=60)
    assert "no/such/folder" in err


def test_exit_by_exception_and_with_daemon_threads(script):
    child = script(
        SLOW
        + """
    import threading
    def traffic():
        while True:
            penstock.read("hole", bytearray(1 << 20))
    for _ in range(3):
        threading.Thread(target=traffic, daemon=True).start()
    transfer = penstock.read_async(slow[0], slow[1][:20], slow[2][:20])
    time.sleep(0.2)
    raise SystemExit(7)
    """
    )
    _, err = child.communicate(timeout=120)
    assert child.returncode == 7, err


PREFETCH = """
    import os, sys, threading, time
    import penstock
    THREADS, DEPTH, BLOCK = 4, 16, 1 << 20
    with open("data", "wb") as out:
        out.write(os.urandom(8 * BLOCK))
    file = penstock.File("data")
    engine = penstock.Engine()
    ended = []

    def prefetch():
        memory = [bytearray(BLOCK) for _ in range(DEPTH)]
        running = []
        try:
            for i in range(1 << 40):
                if len(running) == DEPTH:
                    running.pop(0).result()
                running.append(engine.read_async(file, memory[i % DEPTH], i % 8 * BLOCK))
        except (ValueError, RuntimeError, penstock.Error) as error:
            ended.append(str(error))

    threads = [threading.Thread(target=prefetch, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    began = time.monotonic()
"""


def test_exit_while_daemon_threads_go_on_reading(script):
    child = script(
        PREFETCH
        + """
    import atexit
    # Registered later, so it runs before: until here everybody works.
    atexit.register(lambda: print("others work:", engine.read(file, bytearray(8)), flush=True))
    mine = penstock.write_async("mine", bytes(1 << 20))
    print("main ends", flush=True)
    """
    )
    try:
        assert child.stdout.readline() == "main ends\n"
        start = time.monotonic()
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 0, err
    assert time.monotonic() - start < 10
    assert out == "others work: 8\n"


CALLBACKS = {
    "progress": "penstock.save(STATE, path, progress=lambda done, total: work() or True)",
    "default": "penstock.save([object()] * 20, path, default=lambda found: work() or 1)",
    "write": "penstock.save(STATE, Slow())",
}


@pytest.mark.parametrize("call", CALLBACKS.values(), ids=CALLBACKS)
def test_exit_while_daemon_threads_are_in_callbacks(script, call):
    """Before 3.14 Python unwinds their stacks, through frames of C++."""
    child = script(f"""
        import io, threading, time
        import penstock
        STATE = {{str(i): bytes(1000) for i in range(200)}}
        in_callback = threading.Semaphore(0)
        def work():
            in_callback.release()
            end = time.perf_counter() + 0.002
            while time.perf_counter() < end:
                pass
        class Slow(io.BytesIO):
            def write(self, piece):
                work()
                return len(piece)
        def calls(path):
            try:
                while True:
                    {call}
            except RuntimeError as error:  # refused between the first handler of the end and Python's own
                if "the interpreter ends" not in str(error):
                    raise
        for number in range(3):
            threading.Thread(target=calls, args=(f"{{number}}.pt",), daemon=True).start()
        for _ in range(20):
            in_callback.acquire()
        """)
    _, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (0, "")


def test_handlers_of_the_end_may_read_and_write(script):
    """Those that were registered before penstock run after its own."""
    child = script("""
        import atexit
        def last():
            import penstock
            penstock.write("last", b"12345678")
            into = bytearray(8)
            print(penstock.read("last", into), into)
        atexit.register(last)
        import penstock
        penstock.write("first", b"1")
    """)
    out, err = child.communicate(timeout=60)
    assert out == "8 bytearray(b'12345678')\n", err


def test_close_while_other_threads_go_on_reading(run_script):
    out = run_script(
        PREFETCH
        + """
    assert engine.drain(30)
    assert time.monotonic() - began < 10
    engine.close(0)
    assert engine.closed
    assert engine.close(30) and engine.close()
    for thread in threads:
        thread.join(30)
    print(ended)
    """
    )
    assert out.count("closed") == 4, out


def test_exit_without_any_use(run_script):
    assert run_script("import penstock; e = penstock.Engine(); print('ok')") == "ok\n"


FORK = """
    import os, sys, threading
    import penstock
    BLOCK, COUNT = 1 << 18, 48
    pattern = bytes(range(256)) * (BLOCK // 256)
    with open("data", "wb") as file:
        for i in range(COUNT):
            file.write(bytes([i]) + pattern[1:])

    def whole(engine, verb):
        into = [bytearray(BLOCK) for _ in range(COUNT)]
        offsets = [i * BLOCK for i in range(COUNT)]
        if verb == "read":
            moved = engine.read("data", into, offsets)
        else:
            moved = engine.read_async("data", into, offsets).result(60)
        assert moved == BLOCK * COUNT
        for i, memory in enumerate(into):
            assert memory == bytes([i]) + pattern[1:], i

    engine = penstock.Engine(backend=sys.argv[1])
    def child_work(mine, memory):
        # The child does not inherit the parent's transfers; it starts afresh.
        try:
            mine.result(30)
            assert mine.status == "done"
        except penstock.Cancelled:
            assert mine.status == "cancelled"
        whole(engine, "read")
        whole(engine, "async")
        engine.write(f"child{os.getpid()}", pattern)
        del mine
        engine.drain()

    stop = False
    failures = []
    def traffic():
        try:
            while not stop:
                whole(engine, "async")
                penstock.read("data", bytearray(4096))
        except BaseException as error:
            failures.append(error)
    threads = [threading.Thread(target=traffic) for _ in range(2)]
    for thread in threads:
        thread.start()
    children = []
    for _ in range(4):
        memory = [bytearray(BLOCK) for _ in range(COUNT)]
        mine = engine.read_async("data", memory, [i * BLOCK for i in range(COUNT)])
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                child_work(mine, memory)
                status = 0
            except BaseException:
                import traceback
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(pid)
        assert mine.result(60) == BLOCK * COUNT
        for i, got in enumerate(memory):
            assert got == bytes([i]) + pattern[1:], i
    statuses = [os.waitpid(pid, 0)[1] for pid in children]
    stop = True
    for thread in threads:
        thread.join()
    assert statuses == [0] * 4, statuses
    assert not failures, failures
    whole(engine, "read")
    print("both work")
"""


@pytest.mark.parametrize("backend", ["io_uring", "libaio", "posix"])
def test_fork_under_traffic(run_script, backend):
    try:
        penstock.Engine(backend=backend).close()
    except penstock.Error as error:
        pytest.skip(f"{backend} cannot be had here: {error}")
    assert run_script(FORK, backend, timeout_s=120).endswith("both work\n")


def test_a_forked_child_may_end_like_any_program(run_script):
    out = run_script("""
        import os, sys
        import penstock
        penstock.write("f", bytes(1 << 20))
        transfer = penstock.read_async("f", bytearray(1 << 20))
        pid = os.fork()
        if pid == 0:
            sys.exit(3)  # runs what was registered for the end
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        print(transfer.result())
    """)
    assert out == f"{1 << 20}\n"


def test_threads_of_a_forked_child_get_one_engine(run_script):
    out = run_script("""
        import os, sys, threading, time
        import penstock
        penstock.write("f", bytes(1 << 20))
        file = penstock.File("f")
        engine = penstock.Engine()
        engine.read(file, bytearray(8192))

        def child():
            errors = []
            barrier = threading.Barrier(8)
            def work():
                barrier.wait()
                try:
                    for _ in range(3):
                        engine.read(file, bytearray(1 << 20))
                except BaseException as error:
                    errors.append(error)
            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return not errors and came_down_to_one()

        def came_down_to_one():
            # A thread that was just made is called as the one that made it for a moment.
            for _ in range(200):
                names = []
                for task in os.listdir("/proc/self/task"):
                    try:
                        with open(f"/proc/self/task/{task}/comm") as comm:
                            names.append(comm.read().strip())
                    except OSError:
                        pass
                if names.count("penstock-io") == 1:
                    return True
                time.sleep(0.01)

        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                os._exit(0 if child() else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        print("one")
    """)
    assert out == "one\n"


def test_a_forked_child_drops_engines_without_making_them(run_script):
    out = run_script("""
        import gc, os
        import penstock
        penstock.write("f", bytes(8))
        engine = penstock.Engine(backend="posix")
        engine.read("f", bytearray(8))
        pid = os.fork()
        if pid == 0:
            before = len(os.listdir("/proc/self/fd"))
            del engine
            gc.collect()
            same = len(os.listdir("/proc/self/fd")) == before and len(os.listdir("/proc/self/task")) == 1
            os._exit(0 if same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        print("nothing")
    """)
    assert out == "nothing\n"


def test_fork_does_not_wait_for_an_open(run_script):
    """A lease that another process holds on a file keeps an open waiting, as a server that does not answer does."""
    out = run_script("""
        import fcntl, os, signal, sys, time
        import penstock
        with open("leased", "wb") as file:
            file.write(bytes(8192))
        with open("free", "wb") as file:
            file.write(bytes(8192))
        to_child, from_parent = os.pipe()
        to_parent, from_child = os.pipe()
        holder = os.fork()
        if holder == 0:
            signal.alarm(60)
            signal.signal(signal.SIGIO, signal.SIG_IGN)
            fd = os.open("leased", os.O_RDONLY)
            try:
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
                os.write(from_child, b"y")
            except OSError:
                os.write(from_child, b"n")
            os.read(to_child, 1)
            os._exit(0)
        if os.read(to_parent, 1) == b"n":
            print("no leases here")
            sys.exit()
        transfer = penstock.write_async("leased", b"x" * 8192)
        time.sleep(0.3)
        assert not transfer.done()
        start = time.monotonic()
        pid = os.fork()
        if pid == 0:
            penstock.read("free", bytearray(8192))
            os._exit(0)
        took = time.monotonic() - start
        assert not transfer.done(), "nothing was slow"
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        os.write(from_parent, b"x")
        os.waitpid(holder, 0)
        transfer.result(60)
        assert took < 20, took  # the holder lets go when it is told, or after 45 s
        print("at once")
    """)
    if out == "no leases here\n":
        pytest.skip("this file system has no leases (F_SETLEASE)")
    assert out == "at once\n"


def test_nothing_is_drawn_between_the_hook_and_the_fork(tmp_path):
    penstock.write(tmp_path / "f", bytes(1 << 20))
    into = bytearray(1 << 20)
    penstock._core.prepare_fork()
    try:
        transfer = penstock.read_async(tmp_path / "f", into)
        with pytest.raises(TimeoutError):
            transfer.result(0.2)
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert transfer.result(60) == 1 << 20
    finally:
        penstock._core.end_fork()


def _square(path):
    into = bytearray(8)
    penstock.read(path, into)
    return bytes(into)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(tmp_path, method):
    path = str(tmp_path / "f")
    penstock.write(path, b"12345678")
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(_square, [path] * 8) == [b"12345678"] * 8


DATALOADER = """
    import sys, torch, penstock
    ROWS, WIDTH, METHOD = 128, 1024, sys.argv[1]

    class Rows(torch.utils.data.Dataset):
        def __init__(self, fail=False):
            self.fail = fail
            self.file = penstock.File("table") if METHOD == "fork" else "table"
        def __len__(self):
            return ROWS
        def __getitem__(self, i):
            if i == 13 and self.fail:
                penstock.read(self.file, bytearray(10), 1 << 30)
            row = torch.empty(WIDTH)
            penstock.read(self.file, row, i * WIDTH * 4)
            return row

    def load(rows, workers):
        return torch.utils.data.DataLoader(rows, batch_size=32, num_workers=workers, multiprocessing_context=METHOD)

    if __name__ == "__main__":
        table = torch.arange(ROWS * WIDTH, dtype=torch.float32).reshape(ROWS, WIDTH)
        penstock.write("table", table)
        background = penstock.read_async("table", torch.empty_like(table))  # in flight while workers start
        assert torch.equal(torch.cat(list(load(Rows(), 2))), table)
        penstock.read("table", torch.empty_like(table))
        background.result()
        try:
            list(load(Rows(fail=True), 1))
        except penstock.EndOfFile as error:
            print("reported:", "1073741824" in str(error))
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_dataloader_workers(run_script, method):
    pytest.importorskip("torch")
    assert run_script(DATALOADER, method, timeout_s=120) == "reported: True\n"


def test_what_lives_in_a_process_says_what_to_pass_instead(tmp_path):
    penstock.write(tmp_path / "f", b"12345678")
    with penstock.File(tmp_path / "f") as file, pytest.raises(TypeError, match="penstock.File: pass its path"):
        pickle.dumps(file)
    with penstock.Engine() as engine, pytest.raises(TypeError, match="penstock.Engine: pass its options"):
        copy.deepcopy(engine)


def test_import_is_light():
    """No tensor library comes in with it."""
    seen = subprocess.run(
        [sys.executable, "-c", "import sys, penstock; print({'torch', 'numpy', 'asyncio'} & set(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        cwd=os.path.dirname(__file__),
    )
    assert seen.stdout == "set()\n"
