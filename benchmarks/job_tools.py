# SPDX-License-Identifier: Apache-2.0
"""What the programs that are timed share: what they need or skip, and their meter. Only the standard library: imports
are timed too."""

import resource
import sys
import time

SKIP = 77


def skip(reason):
    print(reason, file=sys.stderr)
    sys.exit(SKIP)


def need(module):
    """The module by its whole name; ends with 77 where it is not installed or lacks what a job calls."""
    try:
        __import__(module)
    except ImportError as error:
        skip(f"{module} cannot be imported: {error}; `make bench` sets up what is needed")
    return sys.modules[module]


def need_call(module, name):
    if not hasattr(module, name):
        skip(f"{module.__name__} has no {name}")
    return getattr(module, name)


def cpu_s():
    """Of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Meter:
    """Wall seconds, and CPU seconds of all threads of this process."""

    def __enter__(self):
        self._cpu = cpu_s()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self._start
        self.cpu_s = cpu_s() - self._cpu
