# SPDX-License-Identifier: Apache-2.0
"""A background save that fails is heard: by wait(), close() and the end of `with`, or by the exit status."""

import os
import shutil
import subprocess
import sys
import sysconfig
import time

import penstock
import pytest

BIG = b"\1" * (2 << 20)  # more than full_disk takes


def ended(pending):
    """Waits for the end of a save, and leaves its error to others."""
    while not pending.done():
        time.sleep(0.01)


@pytest.fixture
def failing(tmp_path, full_disk):
    store = penstock.CheckpointStore(tmp_path / "c")
    ended(store.save_async({"w": BIG}, step=1))
    return store


# ---- by the store


def test_wait_raises_the_failure_of_a_save_once(failing):
    with pytest.raises(OSError, match="the save of step 1 in the background failed") as caught:
        failing.wait()
    assert isinstance(caught.value, penstock.Error) and caught.value.errno
    assert failing.wait() is True
    failing.close()


def test_wait_raises_also_when_its_time_is_over(failing):
    with pytest.raises(OSError, match="step 1"):
        failing.wait(0)
    failing.close()


def test_wait_without_errors_leaves_them_to_the_next_call(failing):
    assert failing.wait(raise_errors=False) is True
    with pytest.raises(OSError, match="step 1"):
        failing.close()
    with pytest.raises(TypeError, match="raise_errors"):
        penstock.CheckpointStore("c").wait(raise_errors=1)


def test_close_raises_the_failure_of_a_save_and_the_store_is_closed(failing, tmp_path):
    with pytest.raises(OSError, match="step 1"):
        failing.close()
    failing.close()
    with pytest.raises(ValueError, match="closed"):
        failing.list()
    with penstock.CheckpointStore(tmp_path / "c") as other:  # the lock is free
        other.save({"w": 1})


def test_close_warns_of_the_failures_after_the_first(run_script):
    """In a process of its own: what is only warned of changes the exit status."""
    out = run_script("""
    import os, penstock, signal, time, warnings
    ready, said = os.pipe()
    child = os.fork()
    if child == 0:
        holder = penstock.CheckpointStore("c")
        holder.save({"w": 1})                         # and holds the lock
        os.write(said, b"1")
        time.sleep(100)
    os.read(ready, 1)
    store = penstock.CheckpointStore("c", lock_wait_s=0.5)
    for step in (1, 2, 3):
        store.save_async({"w": 2}, step=step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            store.close()
        except OSError as error:
            print(str(error).partition(" failed")[0])
    print([str(w.message).partition(" failed")[0] for w in caught], flush=True)
    os.kill(child, signal.SIGKILL)
    os._exit(0)
    """)
    assert out.splitlines() == [
        "the save of step 1 in the background",
        "['penstock: the save of step 2', 'penstock: the save of step 3']",
    ]


def test_the_end_of_with_raises_the_failure_of_a_save(tmp_path, full_disk):
    with pytest.raises(OSError, match="step 1"), penstock.CheckpointStore(tmp_path / "c") as store:
        store.save_async({"w": BIG}, step=1)


def test_what_was_asked_for_is_not_raised_again(tmp_path, full_disk):
    with penstock.CheckpointStore(tmp_path / "c") as store:
        with pytest.raises(OSError):
            store.save_async({"w": BIG}, step=1).result()
        assert store.save_async({"w": BIG}, step=2).exception() is not None
        store.wait()


# ---- by the exit status


PROGRAM = """
import atexit, gc, os, resource, signal, sys, time
import penstock
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
store = penstock.CheckpointStore("c")
def save():
    return store.save_async({"w": b"1" * (2 << 20)}, step=1)
def ended(pending):
    while not pending.done():
        time.sleep(0.01)
def caught(call):
    try:
        call()
    except OSError:
        pass
"""

UNHEARD = {
    "nobody asks": "save()",
    "the store is dropped": "save(); del store; gc.collect()",
    "wait leaves it": "save(); store.wait(raise_errors=False)",
    "exit 0": "save(); sys.exit(0)",
    "exit of a handler": "save(); atexit.register(lambda: print('mine'))",
    "another exception is caught": """
try:
    with store:
        save()
        raise KeyError
except KeyError:
    pass
""",
    "a file": "penstock.save_async({'w': b'1' * (2 << 20)}, 'a.pt')",
}
HEARD = {
    "nothing failed": "store.save_async({'w': 1})",
    "result": "caught(save().result)",
    "exception": "save().exception()",
    "wait": "save(); caught(store.wait)",
    "close": "save(); caught(store.close)",
    "close in atexit": "save(); atexit.register(lambda: caught(store.close))",
    "the next save": "ended(save()); caught(lambda: store.save({'w': 1}))",
    "cancelled": "pending = save(); pending.cancel(); ended(pending)",
}


def run(path, text, *, command=(), flags=()):
    arguments = [sys.executable, *flags, *(command or ["-c", PROGRAM + text])]
    return subprocess.run(arguments, capture_output=True, text=True, cwd=path, timeout=60)


@pytest.mark.parametrize("name", UNHEARD)
def test_the_exit_status_says_that_a_save_failed(tmp_path, name):
    done = run(tmp_path, UNHEARD[name])
    assert done.returncode == 1, done.stderr
    assert "exit status of this process is 1" in done.stderr and "failed, and nobody asked" in done.stderr


@pytest.mark.parametrize("name", HEARD)
def test_the_exit_status_stays_where_somebody_heard(tmp_path, name):
    done = run(tmp_path, HEARD[name])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(3)", 3), ("1 / 0", 1), ("os._exit(5)", 5), ("sys.exit('x')", 1)]
)
def test_another_exit_status_stays(tmp_path, end, status):
    assert run(tmp_path, f"save(); {end}").returncode == status


def test_the_exit_status_of_a_script_with_ignored_warnings_and_what_it_printed(tmp_path):
    text = """
import ctypes
print("python " * 1000, end="")
c = ctypes.CDLL(None)
c.printf(b"c library " * 5)         # stays in the buffer of stdio until exit()
c.fflush.argtypes = [ctypes.c_void_p]
save()
"""
    (tmp_path / "script.py").write_text(PROGRAM + text)
    done = run(tmp_path, "", command=["script.py"], flags=["-W", "ignore"])
    assert done.returncode == 1 and "step 1 failed" in done.stderr
    assert done.stdout.count("python ") == 1000 and done.stdout.count("c library ") == 5
    done = run(tmp_path, "", command=["-m", "script"])
    assert done.returncode == 1


def test_handlers_of_exit_run_once_and_in_their_order(tmp_path):
    text = """
import ctypes
c = ctypes.CDLL(None)
handler = ctypes.CFUNCTYPE(None)
keep = [ctypes.cast(c.puts, ctypes.c_void_p)]
said = [ctypes.create_string_buffer(b"first"), ctypes.create_string_buffer(b"second")]
register = c.__cxa_atexit
register.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
for text in said:
    register(keep[0], ctypes.addressof(text), None)
save()
"""
    done = run(tmp_path, text)
    assert done.returncode == 1 and done.stdout == "second\nfirst\n"


def test_the_child_of_a_fork_keeps_its_exit_status(tmp_path):
    text = """
pending = save()
ended(pending)
if os.fork() == 0:
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
del pending, store
gc.collect()                  # a warning is all that says so
if os.fork() == 0:
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
    done = run(tmp_path, text)
    assert (done.returncode, done.stdout) == (1, "0\n0\n"), done.stderr


def test_a_child_that_begins_a_save_has_an_exit_status_of_its_own(tmp_path):
    text = """
if os.fork() == 0:
    save()
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
    done = run(tmp_path, text)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


CHILD = """
import multiprocessing
def child(end):
    import penstock
    store = penstock.CheckpointStore("c", lock_wait_s=0.1)
    store.save_async({"w": BODY}, step=1)
    exec(end)
if __name__ == "__main__":
    context = multiprocessing.get_context(HOW)
    for end in ENDS:
        one = context.Process(target=child, args=(end,))
        one.start()
        one.join()
        print(one.exitcode, flush=True)
"""


@pytest.mark.parametrize("parent", ["import penstock", ""], ids=["imported before", "imported in the child"])
@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_a_child_of_multiprocessing_finishes_its_saves_and_has_an_exit_status(tmp_path, how, parent):
    """It ends with os._exit(): atexit does not run there."""

    def children(ends, body):
        text = CHILD.replace("HOW", repr(how)).replace("ENDS", repr(ends))
        (tmp_path / "script.py").write_text(parent + text.replace("BODY", body))
        done = run(tmp_path, "", command=["script.py"])
        assert done.returncode == 0, done.stderr
        return done

    assert children([""], "b'1' * (8 << 20)").stdout == "0\n"
    assert penstock.CheckpointStore(tmp_path / "c").load() == {"w": b"1" * (8 << 20)}
    with penstock.CheckpointStore(tmp_path / "c") as store:
        store.save({"w": 1})  # and holds the lock
        done = children(["", "raise SystemExit(3)", "1 / 0", "store.wait(raise_errors=False)"], "1")
    assert done.stdout.split() == ["1", "3", "1", "1"], done.stderr
    assert done.stderr.count("exit status of this process is 1") == 4 and "ZeroDivisionError" in done.stderr


def test_a_child_of_multiprocessing_does_not_wait_for_saves_of_its_parent(tmp_path):
    text = """
import multiprocessing
context = multiprocessing.get_context("fork")
pending = [penstock.save_async({"w": b"1" * (1 << 19)}, f"{i}.pt") for i in range(30)]
for _ in range(30):
    one = context.Process(target=int)
    one.start()
    one.join(20)
    assert one.exitcode == 0, one.exitcode
for one in pending:
    one.result()
"""
    done = run(tmp_path, text)
    assert (done.returncode, done.stderr) == (0, "")


HOST = """
#include <Python.h>
int main(int argc, char** argv) {
    if (argc == 3) return Py_BytesMain(argc, argv);
    Py_Initialize();
    PyRun_SimpleString(argv[1]);
    int ended = Py_FinalizeEx();
    printf("the host goes on\\n");
    return ended;
}
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A program that has Python in it. With two arguments it is Python itself."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "host.c").write_text(HOST)
    compiler = shutil.which("cc") or shutil.which("gcc")
    library = os.path.join(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("LDLIBRARY") or "")
    if compiler is None or not library.endswith(".so") or not os.path.exists(library):
        pytest.skip("needs a C compiler and a shared libpython")
    made = subprocess.run(
        [compiler, "host.c", "-o", "host", "-I" + sysconfig.get_path("include"), library,
         "-Wl,-rpath," + os.path.dirname(library)],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    if made.returncode != 0:
        pytest.skip("needs the headers of Python: " + made.stderr.strip().splitlines()[-1])
    return str(folder / "host")


@pytest.mark.parametrize(
    ("end", "status", "out"), [("", 0, "the host goes on\n"), ("sys.exit(0)", 0, ""), ("sys.exit(3)", 3, "")]
)
def test_the_exit_status_of_another_program_with_python_in_it_is_its_own(host, tmp_path, end, status, out):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    text = PROGRAM + f"save(); {end}\n"
    done = subprocess.run([host, text], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60)
    assert (done.returncode, done.stdout) == (status, out), done.stderr
    assert "step 1 failed" in done.stderr and "exit status" not in done.stderr
    done = subprocess.run([host, "-c", text], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60)
    assert done.returncode == (status or 1), done.stderr
