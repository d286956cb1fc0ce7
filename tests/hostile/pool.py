# SPDX-License-Identifier: Apache-2.0
"""Servers that run cases, and the folders that the cases work in. All of it goes with the process that made it, however
it is asked to end: children die with their server, the server with its maker."""

import atexit
import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
LEVEL = os.environ.get("PENSTOCK_HOSTILE", "quick")
assert LEVEL in ("quick", "ci", "all"), f"PENSTOCK_HOSTILE is {LEVEL!r}; expected quick, ci or all"
SERVERS = min(2, len(os.sched_getaffinity(0)))


def compiled(folder):
    """shim.c as a library in a folder; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    made = folder / "hostile_shim.so"
    options = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *options, "-o", made, HERE / "shim.c", "-ldl"], check=True)
    return made


class Server:
    """A process that forks a child for each request. One request at a time."""

    def __init__(self, library):
        env = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PENSTOCK_DEEPNVME": "",
        }
        self.process = subprocess.Popen(
            [sys.executable, HERE / "server.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def ask(self, scene, limit_s=20, kill_at=None, **arguments):
        request = {"scene": scene, "limit_s": limit_s, "kill_at": kill_at, "arguments": arguments}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the server ended with status {self.process.wait()}"
        return json.loads(line)

    def kill(self):
        """With the child that works for it."""
        self.process.kill()
        self.process.wait()

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(10)


class Pool:
    """Some servers, and cases that run on them ahead of the tests that ask for their results."""

    def __init__(self, library):
        self._library = library
        self._lock = threading.Lock()
        self._local = threading.local()
        self._servers = []
        self._closed = False
        self._threads = ThreadPoolExecutor(SERVERS)
        self._results = {}

    def server(self):
        """Of the thread that asks."""
        if not hasattr(self._local, "server"):
            with self._lock:
                assert not self._closed
                self._local.server = Server(self._library)
                self._servers.append(self._local.server)
        return self._local.server

    def begin(self, key, function, *arguments):
        self._results[key] = self._threads.submit(function, self, *arguments)

    def result(self, key, function, *arguments):
        if key not in self._results:
            self.begin(key, function, *arguments)
        return self._results[key].result()

    def close(self):
        """Cases that still run fail."""
        with self._lock:
            self._closed = True
        for server in self._servers:
            server.kill()
        self._threads.shutdown(cancel_futures=True)
        for server in self._servers:
            server.close()


REMOVAL_S = 5


def remove(folder):
    """A child that was killed may still be at a write into it."""
    end = time.monotonic() + REMOVAL_S
    while os.path.lexists(folder) and time.monotonic() < end:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _all_folders():
    made = tempfile.mkdtemp(prefix="penstock_hostile_")
    atexit.register(remove, made)
    os.chmod(made, 0o711)
    return made


class Folder:
    """A folder that children of any user may use; gone at the end of the block."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(dir=_all_folders())
        if os.geteuid() == 0:
            os.chown(self.path, 65534, 65534)
        return self.path

    def __exit__(self, *_):
        remove(self.path)
