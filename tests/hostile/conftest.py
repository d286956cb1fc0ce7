# SPDX-License-Identifier: Apache-2.0
"""Hostile tests: the machine gives way, processes end at the wrong moment, and others share the folder.

    verbs.py, rows_*.py   the table: every public verb, with a small call and a check; a verb without a row fails
    shim.c, shim.py       LD_PRELOAD: fails the n-th call of a kind, moves the wall clock, traces and kills a child
    server.py, scenes.py  forks a child for each case, as nobody, with the shim; what a child does
    test_*.py             the scenes, each over the rows of the table where that makes sense

PENSTOCK_HOSTILE says how much of it: `quick` (a minute; the default), `ci` (four more), `all` (every n of every fault).
The tests clean up what they made, also when they are killed: children die with the server, the server with pytest.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
LEVEL = os.environ.get("PENSTOCK_HOSTILE", "quick")
assert LEVEL in ("quick", "ci", "all"), f"PENSTOCK_HOSTILE is {LEVEL!r}; expected quick, ci or all"
SERVERS = min(2, len(os.sched_getaffinity(0)))


@pytest.fixture(scope="session")
def level():
    return LEVEL


def compiled(folder):
    """shim.c as a library in a folder; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    made = folder / "hostile_shim.so"
    options = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *options, "-o", made, HERE / "shim.c", "-ldl"], check=True)
    return made


@pytest.fixture(scope="session")
def shim_library(tmp_path_factory):
    made = compiled(tmp_path_factory.mktemp("shim"))
    if made is None:
        pytest.skip("needs a C compiler")
    return made


class Server:
    """A process that forks a child for each request. One request at a time."""

    def __init__(self, library):
        self.library = library
        self.process = None

    def ask(self, scene, limit_s=20, kill_at=None, **arguments):
        if self.process is None:
            env = {
                **os.environ,
                "LD_PRELOAD": str(self.library),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PENSTOCK_DEEPNVME": "",
            }
            self.process = subprocess.Popen(
                [sys.executable, HERE / "server.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
            )
        request = {"scene": scene, "limit_s": limit_s, "kill_at": kill_at, "arguments": arguments}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the server ended with status {self.process.wait()}"
        return json.loads(line)

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            try:
                self.process.wait(10)
            finally:
                self.process.kill()
                self.process.wait()


class Pool:
    """Some servers, and cases that run on them ahead of the tests that ask for their results."""

    def __init__(self, library):
        self._library = library
        self._local = threading.local()
        self._servers = []
        self._threads = ThreadPoolExecutor(SERVERS)
        self._results = {}

    def server(self):
        """Of the thread that asks."""
        if not hasattr(self._local, "server"):
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
        self._threads.shutdown(cancel_futures=True)
        for server in self._servers:
            server.close()


@pytest.fixture(scope="session")
def pool(shim_library):
    made = Pool(shim_library)
    yield made
    made.close()


class Folder:
    """A folder that children may use, whoever they are; gone at the end of the block."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="penstock_hostile_")
        if os.geteuid() == 0:
            os.chown(self.path, 65534, 65534)
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)
