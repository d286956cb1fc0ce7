# SPDX-License-Identifier: Apache-2.0
import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap

import penstock
import pytest

SLOW_PIECE = 16 << 20
SLOW_COUNT = 20_000  # of them: 312 GiB, minutes on any machine


@pytest.fixture
def engine():
    with penstock.Engine() as made:
        yield made


@pytest.fixture
def pattern():
    """Bytes that differ from place to place."""

    def make(size, seed=1):
        import numpy

        return numpy.random.default_rng(seed).integers(0, 256, size, dtype=numpy.uint8)

    return make


@pytest.fixture
def slow(tmp_path):
    """Arguments of a read that takes minutes: a file that is all hole, into one piece of memory again and again."""
    path = tmp_path / "hole"
    with open(path, "wb") as file:
        file.truncate(SLOW_PIECE * SLOW_COUNT)
    memory = penstock.empty(SLOW_PIECE, pinned=False)
    return str(path), [memory] * SLOW_COUNT, [i * SLOW_PIECE for i in range(SLOW_COUNT)]


@pytest.fixture
def script(tmp_path):
    """Starts Python on a program of its own. What still runs at the end of the test is killed."""
    children = []

    def start(text, *arguments, **options):
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(text))
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        env = {**os.environ, **options.pop("env", {})}
        children.append(
            subprocess.Popen(
                [sys.executable, str(path), *map(str, arguments)], text=True, cwd=tmp_path, env=env, **options
            )
        )
        return children[-1]

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
            child.wait()


@pytest.fixture
def run_script(script):
    """Runs it to its end, which has to be a good one, and gives what it printed."""

    def run(text, *arguments, timeout_s=60, **options):
        child = script(text, *arguments, **options)
        try:
            out, err = child.communicate(timeout=timeout_s)
        finally:
            child.kill()
        assert child.returncode == 0, f"exit status {child.returncode}\n{out}\n{err}"
        return out

    return run


@pytest.fixture
def store(tmp_path):
    with penstock.CheckpointStore(tmp_path / "checkpoints") as made:
        yield made


@pytest.fixture
def memory_folder(tmp_path):
    """A folder in memory where the machine has one: for tests whose time would be that of the disk."""
    if not os.access("/dev/shm", os.W_OK):
        yield str(tmp_path)
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield folder


@pytest.fixture
def full_disk():
    """No file may become longer than 1 MiB: a full disk that needs no root."""
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old)
    signal.signal(signal.SIGXFSZ, old_handler)
