#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every part of the test suite, in order, and counts.

    tools/run_tests.py [--level test|ci|long] [--only PART ...] [--budget-scale X] [--began UNIX_S] [--list]

A part has a budget in seconds (on 2 cores, from a cold start); a part that takes longer fails. The parts are in
tools/test_parts.py. Logs are in build/test-logs. The last line is `N passed, N failed, N skipped`; the exit status is 0
when nothing failed. On SIGINT and SIGTERM what runs is stopped first, with all its children, and gets time to clean up.

`ctest --preset dev` runs the programs of one preset. The rest is not in CTest: it counts a program as one test, or
starts a process for each case, which takes minutes; its XML holds no case and no reason of a skip. Builds, pytest and
tools, a budget a part, and children that are asked to end before they are killed would stay here in any case.
"""

import argparse
import concurrent.futures
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from test_counts import Counts, count_gtest, count_junit  # noqa: E402
from test_parts import CPUS, LEVELS, ROOT, Step, parts  # noqa: E402

LOGS = ROOT / "build" / "test-logs"
TEST_MINUTES_MAX = 15  # of `make test` on 2 cores, set-up included
GRACE_S = 10  # what a stopped child gets to unmount and remove what it made
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class Children:
    """The processes that run now, each the leader of its own group, so that all of them can be stopped."""

    def __init__(self):
        self.lock = threading.Lock()
        self.running = set()
        self.stopping = False

    def run(self, argv, env, log, timeout_s):
        """Exit status of argv, or None when it was stopped for taking too long; its output goes to the file `log`."""
        with open(log, "ab") as out:
            out.write(f"$ {' '.join(map(str, argv))}\n".encode())
            out.flush()
            with self.lock:
                if self.stopping:
                    return None
                # Should this runner be killed outright, the kernel tells its children.
                child = subprocess.Popen(
                    [str(a) for a in argv],
                    cwd=ROOT,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
                )
                self.running.add(child)
            try:
                return child.wait(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                stop_group(child)
                return None
            finally:
                stop_group(child, grace_s=0)  # what it may have left behind in its group
                with self.lock:
                    self.running.discard(child)

    def stop(self):
        with self.lock:
            self.stopping = True
            children = list(self.running)
        with concurrent.futures.ThreadPoolExecutor(max(1, len(children))) as pool:
            list(pool.map(stop_group, children))


def stop_group(child, grace_s=GRACE_S):
    """Asks the group to end, waits for it, then insists."""

    def send(number):
        try:
            os.killpg(child.pid, number)
            return True
        except (ProcessLookupError, PermissionError):
            return False

    if grace_s and send(signal.SIGTERM):
        try:
            child.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            pass
    send(signal.SIGKILL)


def tail(path, lines=60):
    text = path.read_text(errors="replace").splitlines()
    return "\n".join(f"    | {line}" for line in text[-lines:])


class Runner:
    def __init__(self, budget_scale):
        self.budget_scale = budget_scale
        self.children = Children()
        self.total = Counts()

    def run_step(self, part, step: Step, deadline):
        """Counts of one step; a command that cannot run at all counts as one failure."""
        if callable(step.argv):
            argvs = step.argv()
        else:
            argvs = [(step.name, step.argv)]
        with concurrent.futures.ThreadPoolExecutor(step.parallel) as pool:
            jobs = [pool.submit(self.run_command, part, step, name, argv, deadline) for name, argv in argvs]
            counts = Counts()
            for job in jobs:
                counts.add(job.result())
        return counts

    def run_command(self, part, step, name, argv, deadline):
        stem = f"{part.name}.{name}".replace("/", "_")
        log, xml = LOGS / f"{stem}.log", LOGS / f"{stem}.xml"
        for old in (log, xml):
            old.unlink(missing_ok=True)
        # Commands that run concurrently share the CPUs: threads of OpenMP that wait for a turn spin, and torch's tests
        # took ten times as long.
        threads = str(max(1, CPUS // step.parallel))
        env = {"OMP_NUM_THREADS": threads, **os.environ, **part.env, **step.env}
        argv = list(argv)
        if step.count == "gtest":
            argv.append(f"--gtest_output=xml:{xml}")
        elif step.count == "junit":
            argv.append(f"--junitxml={xml}")
        status = self.children.run(argv, env, log, max(1.0, deadline - time.monotonic()))
        counts = Counts()
        if step.count == "gtest":
            counts = count_gtest(xml, log, name)
        elif step.count == "junit":
            counts = count_junit(xml, name)
        elif status == 77:
            counts.skipped.append((f"{part.name}.{name}", tail(log, 1).removeprefix("    | ")))
        elif status == 0:
            counts.passed += 1
        if status is None:
            counts.failed.append((f"{part.name}.{name}", f"stopped: it ran past the time of its part\n{tail(log)}"))
        elif status not in (0, 77) and not counts.failed:
            # pytest without a test (status 5) is no success either: the part promised some.
            counts.failed.append(
                (
                    f"{part.name}.{name}",
                    f"exit status {status} of {log.relative_to(ROOT)}\n{tail(log)}",
                )
            )
        elif counts.failed and step.count == "plain":
            counts.failed[-1] = (counts.failed[-1][0], tail(log))
        return counts

    def run_part(self, part):
        budget_s = part.budget_s * self.budget_scale
        print(f"==> {part.name}", flush=True)
        start = time.monotonic()
        counts = Counts()
        for step in part.steps:
            step_start = time.monotonic()
            # A hang must end; a part that is merely slow may finish and then fails by its budget.
            counts.add(self.run_step(part, step, start + 2 * budget_s + 30))
            if self.children.stopping:
                return
            if len(part.steps) > 1:
                print(f"      {step.name:<28} {time.monotonic() - step_start:6.1f} s", flush=True)
            if counts.failed and step.gate:
                break  # without a build there is nothing to run
        took_s = time.monotonic() - start
        if took_s > budget_s:
            counts.failed.append((f"{part.name}.budget", f"took {took_s:.0f} s of {budget_s:.0f} s"))
        for name, text in counts.failed:
            print(f"  FAILED {name}\n{text}", flush=True)
        verdict = "FAILED" if counts.failed else "ok"
        print(
            f"    {part.name:<24} {took_s:6.1f} s of {budget_s:4.0f} s   {counts}   {verdict}",
            flush=True,
        )
        self.total.add(counts)


def minutes_line(level, took_s):
    """How long the command took; more than what `make test` promises a newcomer is a warning."""
    line = f"{took_s / 60:.1f} minutes, set-up included"
    if level == "test" and took_s > TEST_MINUTES_MAX * 60:
        return f"warning: {line}: `make test` should take at most {TEST_MINUTES_MAX} on 2 cores"
    return line


def report(total, time_line):
    if total.skipped:
        print("\nskipped:")
        for name, reason in total.skipped:
            print(f"  {name}: {' '.join(reason.split()) or 'no reason given'}")
    if total.failed:
        print("\nfailed:")
        for name, _ in total.failed:
            print(f"  {name}")
    if not total.passed and not total.failed:
        total.failed.append(("run", "nothing ran"))
    print(f"\n{time_line}\n{total}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--level",
        choices=LEVELS,
        default="test",
        help="test (default): the parts of `make test`; ci, long: also those of `.ci/run`, `make test-long`",
    )
    parser.add_argument("--only", nargs="+", metavar="PART", default=[], help="only these parts")
    parser.add_argument(
        "--budget-scale",
        type=float,
        default=1.0,
        help="budgets times this (a slow or shared machine)",
    )
    parser.add_argument(
        "--began", type=float, default=time.time(), metavar="UNIX_S", help="when the set-up began (default: now)"
    )
    parser.add_argument("--list", action="store_true", help="show the parts and end")
    args = parser.parse_args()

    chosen, absent = [], []
    for part in parts("long" if args.only else args.level):
        if args.only and part.name not in args.only:
            continue
        (chosen if part.present() else absent).append(part)
    unknown = set(args.only) - {p.name for p in chosen + absent}
    if unknown:
        parser.error(f"no part is named {', '.join(sorted(unknown))}; --list shows them")
    if args.list:
        for part in chosen + absent:
            print(f"{part.name:<24} {part.budget_s:5.0f} s  {'' if part.present() else '(nothing there yet)'}")
        return 0

    LOGS.mkdir(parents=True, exist_ok=True)
    if not args.only:
        for old in [*LOGS.glob("*.log"), *LOGS.glob("*.xml")]:
            old.unlink()  # of tests that may not exist any more
    runner = Runner(args.budget_scale)

    def on_signal(number, _frame):
        print(f"\nstopping ({signal.Signals(number).name})", flush=True)
        runner.children.stop()
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    start = time.monotonic()
    for part in chosen:
        runner.run_part(part)
    print(
        f"\nall parts: {time.monotonic() - start:.0f} s of {sum(p.budget_s for p in chosen) * args.budget_scale:.0f} s"
    )
    for part in absent:
        print(f"not run: {part.name} (there is no {part.missing()})")
    report(runner.total, minutes_line("some" if args.only else args.level, time.time() - args.began))
    return 1 if runner.total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
