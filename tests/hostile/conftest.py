# SPDX-License-Identifier: Apache-2.0
"""Hostile tests: the machine gives way, processes end at the wrong moment, and others share the folder.

    verbs.py, rows_*.py   the table: every public verb, with a small call and a check; a verb without a row fails
    shim.c, shim.py       LD_PRELOAD: fails the n-th call of a kind, moves the wall clock, traces and kills a child
    pool.py, server.py    a child for each case, forked as nobody, with the shim
    scenes.py             what a child does
    test_*.py             the scenes, each over the rows of the table where that makes sense

PENSTOCK_HOSTILE says how much of it: `quick` (a minute; the default), `ci` (four more), `all` (every n of every fault).
The tests clean up what they made, also when SIGINT or SIGTERM ends them.
"""

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from pool import Pool, compiled  # noqa: E402


def pytest_configure(config):
    def end(number, _frame):
        signal.signal(number, signal.SIG_IGN)
        pytest.exit("SIGTERM", 128 + number)

    before = signal.signal(signal.SIGTERM, end)
    config.add_cleanup(lambda: signal.signal(signal.SIGTERM, before))


@pytest.fixture(scope="session")
def shim_library(tmp_path_factory):
    made = compiled(tmp_path_factory.mktemp("shim"))
    if made is None:
        pytest.skip("needs a C compiler")
    return made


@pytest.fixture(scope="session")
def pool(shim_library):
    made = Pool(shim_library)
    yield made
    made.close()
