# SPDX-License-Identifier: Apache-2.0
"""What the programs that are timed share: their command line, what they need or skip, and their meter. Only the
standard library: imports are timed too."""

import importlib
import json
import os
import resource
import signal
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


def run_job(program, jobs, usage="--key=value ..."):
    """The command line `JOB --key=value ...` of a program: prints what the job returns as one line of JSON, and nothing
    else on stdout. A job is a function of a dict, or "module.function" where that imports more than others need.
    Returns the exit status."""
    job, *words = sys.argv[1:] or [""]
    if job not in jobs:
        print(f"python -m benchmarks.{program} JOB {usage}; jobs: {' '.join(jobs)}", file=sys.stderr)
        return 64
    arguments = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    run = jobs[job]
    if isinstance(run, str):
        module, _, name = run.partition(".")
        run = getattr(importlib.import_module(f"benchmarks.{module}"), name)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # folders of its own go, too
    output = os.dup(1)
    os.dup2(2, 1)  # builders of other people's code print to stdout
    result = run(arguments)
    os.write(output, (json.dumps(result) + "\n").encode())
    return 0


def need_call(module, name):
    if not hasattr(module, name):
        skip(f"{module.__name__} has no {name}")
    return getattr(module, name)


def cpu_s():
    """Of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def figures(of="penstock", **measured):
    """What a job returns: its figures, and the version of the module that was measured."""
    return {**measured, "version": need(of).__version__}


class Meter:
    """Wall seconds, and CPU seconds of all threads of this process."""

    def __enter__(self):
        self._cpu = cpu_s()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self._start
        self.cpu_s = cpu_s() - self._cpu

    def figures(self, moved, operations=1, of="penstock", **more):
        """`moved`: bytes."""
        return figures(of, seconds=self.seconds, cpu_s=self.cpu_s, bytes=moved, operations=operations, **more)


def repeated(run, prepare=lambda: None, **more):
    """The median of as many runs as fill half a second, each after `prepare`, after one that brings threads and
    memory."""
    times = []
    prepare()
    run()
    while sum(times) < 0.5:
        prepare()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    times.sort()
    return {"seconds": times[len(times) // 2], "repeated": len(times), **more}
