#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every part of the test suite, in order, and counts.

    tools/run_tests.py [--level test|ci|long] [--only PART ...] [--budget-scale X] [--began UNIX_S] [--within S]
                       [--list]

The parts are in tools/test_parts.py. Logs are in build/test-logs. The last line is `N passed, N failed, N skipped`; the
exit status is 0 when nothing failed. On SIGINT and SIGTERM what runs is stopped first, with all its children, and gets
time to clean up.

Nothing fails because it is slow. A part has a budget in seconds (on 2 cores, from a cold start); a part that takes
longer is named in the last lines. A hang fails: a command that prints nothing for HANG_S (a tool: TOOL_HANG_S), and a
part that takes more than PART_BUDGETS_MAX budgets. `.ci/run`, which is itself stopped from outside after 90 minutes,
says --within: what runs then is stopped, and the parts that did not run are a failure by name, for a run without them
proves less.

A test that fails is run again alone, unless its failure is a finding (tools/test_again.py). Tests whose verdict depends
on time run one at a time at the end of their part: in GoogleTest their names end with `Timed`, in pytest they have the
marker `timed`.

`ctest --preset dev` runs the programs of one preset. The rest is not in CTest: it counts a program as one test, or
starts a process for each case, which takes minutes; its XML holds no case and no reason of a skip. Builds, pytest and
tools, a budget a part, and children that are asked to end before they are killed would stay here in any case.
"""

import argparse
import concurrent.futures
import ctypes
import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import test_again  # noqa: E402
import test_choice  # noqa: E402
from test_counts import Counts, Flaky, count_gtest, count_junit  # noqa: E402
from test_parts import CPUS, LEVELS, ROOT, Part, Step, parts  # noqa: E402

LOGS = ROOT / "build" / "test-logs"
TEST_MINUTES_MAX = 12  # of `make test` on 2 cores, set-up included
GRACE_S = 10  # what a stopped child gets to unmount and remove what it made
# Test programs print a line for each test, of which the longest takes a minute on an idle machine.
HANG_S = 600
TOOL_HANG_S = 1800  # builds and tools: pip prints nothing while it compiles the package, which takes two minutes
PART_BUDGETS_MAX = 6  # in which a program that prints for ever is stopped, where no --within does
TIMED = "*Timed:*Timed/*"  # GoogleTest's tests whose verdict depends on time
LIST_S = 60  # for a program to name its tests
NO_TESTS = 5  # pytest's exit status
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class Children:
    """The processes that run now, each the leader of its own group, so that all of them can be stopped."""

    def __init__(self):
        self.lock = threading.Lock()
        self.running = set()
        self.stopping = False

    def run(self, argv, env, log, end, silent_s):
        """Exit status of argv, or None when it was stopped: at `end` (of the monotonic clock), or when it printed
        nothing for silent_s. Its output goes to the file `log`."""
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
                return wait_for(child, log, end, silent_s)
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


def wait_for(child, log, end, silent_s):
    """Exit status, or None when the child was stopped, which is then the last line of its log."""
    size, since = -1, time.monotonic()
    while True:
        now = time.monotonic()
        if (size_now := log.stat().st_size) != size:
            size, since = size_now, now
        why = f"printed nothing for {silent_s:.0f} s" if now - since >= silent_s else None
        why = why or ("its time was up" if now >= end else None)
        if why:
            stop_group(child)
            with open(log, "ab") as out:
                out.write(f"\nstopped: {why}\n".encode())
            return None
        try:
            return child.wait(timeout=max(0.01, min(1.0, end - now, since + silent_s - now)))
        except subprocess.TimeoutExpired:
            pass


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


@dataclasses.dataclass
class Command:
    """One process of a step. `stem` is how its log and its XML are called."""

    part: Part
    step: Step
    name: str
    argv: list
    stem: str
    end: float
    timed: bool = False  # only its tests whose verdict depends on time: nothing else runs meanwhile
    alone: bool = False  # one test that is run again: nothing else runs meanwhile

    @property
    def log(self):
        return LOGS / f"{self.stem}.log"

    @property
    def xml(self):
        return LOGS / f"{self.stem}.xml"


class Runner:
    def __init__(self, budget_scale, deadline=float("inf")):
        self.budget_scale = budget_scale
        self.deadline = deadline  # of the whole run, on the monotonic clock
        self.children = Children()
        self.total = Counts()
        self.late = []  # lines for the end: parts past their budget, and what was left out by plan
        self.not_run = []  # parts that the deadline left out
        self.rerun = 0  # tests that were run again
        # The order of Python's sets depends on it. A test that is run again gets the same.
        self.hash_seed = str(random.randrange(1, 2**32))

    def run_step(self, part, step: Step, end, which="timeless"):
        """Counts of one step: of its timeless tests, or of its timed ones, one at a time."""
        if callable(step.argv):
            argvs = step.argv()
        else:
            argvs = [(step.name, step.argv)]
        timed = which == "timed"
        commands = []
        for name, argv in argvs:
            stem = f"{part.name}.{name}{'.timed' if timed else ''}".replace("/", "_")
            for old in LOGS.glob(f"{stem}.again-*"):
                old.unlink()
            argv = chosen_tests(step, list(argv), which, {**part.env, **step.env})
            if argv is not None:
                commands.append(Command(part, step, name, argv, stem, end, timed=timed))
        with concurrent.futures.ThreadPoolExecutor(1 if timed else step.parallel) as pool:
            ended = list(pool.map(self.run_command, commands))
        counts = Counts()
        for command, (status, found) in zip(commands, ended):
            counts.add(self.run_failures_again(command, status, found))
        return counts

    def run_command(self, command):
        """Exit status (None: stopped) and counts; a command that cannot run at all counts as one failure."""
        part, step, log, xml = command.part, command.step, command.log, command.xml
        for old in (log, xml):
            old.unlink(missing_ok=True)
        # Commands that run concurrently share the CPUs: threads of OpenMP that wait for a turn spin, and torch's tests
        # took ten times as long.
        threads = str(CPUS if command.alone or command.timed else max(1, CPUS // step.parallel))
        env = {"OMP_NUM_THREADS": threads, "PYTHONHASHSEED": self.hash_seed, **os.environ, **part.env, **step.env}
        argv = with_xml(step, command.argv, xml)
        silent_s = (step.silent_s or (TOOL_HANG_S if step.count == "plain" else HANG_S)) * self.budget_scale
        status = self.children.run(argv, env, log, command.end, silent_s)
        counts, whole = Counts(), f"{part.name}.{command.name}"
        ended = "hung, or the time of its part was up," if status is None else "died"
        if step.count == "gtest":
            counts = count_gtest(xml, log, command.name, ended)
        elif step.count == "junit":
            counts = count_junit(xml, log, command.name, ended)
        elif status == 77:
            counts.skipped.append((whole, tail(log, 1).removeprefix("    | ")))
        elif status == 0:
            counts.passed += 1
        if status is None and not counts.failed:
            counts.fail(whole, f"stopped: it hung, or the time of its part was up\n{tail(log)}")
        elif status not in (0, 77) and not counts.failed and not (command.timed and status == NO_TESTS):
            # pytest without a test is no success either: the part promised some. That a file speaks of timed tests is
            # no promise.
            counts.fail(whole, f"exit status {status} of {log.relative_to(ROOT)}\n{tail(log)}")
        return status, counts

    def run_failures_again(self, command, status, counts):
        """The counts, with the failures that are no findings run again, one at a time."""
        step = command.step
        if not counts.failed or step.count == "plain" or not (step.again and command.part.again):
            return counts
        why_all = test_again.of_command(status, command.log.read_text(errors="replace"))
        failed, counts.failed = counts.failed, []
        for failure in failed:
            why = why_all or test_again.of_failure(failure.name, failure.raw or failure.text)
            if not why and failure.case is None:
                why = "it cannot be run alone"
            if not why and self.rerun >= test_again.RERUNS_MAX:
                why = f"{test_again.RERUNS_MAX} others were run again"
            flaky = None
            if why:
                failure.text += f"\n    not run again: {why}"
            else:
                self.rerun += 1
                flaky = self.run_failure_again(command, failure)
            if flaky:
                counts.passed += 1
                counts.flaky.append(flaky)
            else:
                counts.failed.append(failure)
        return counts

    def run_failure_again(self, command, failure):
        """A Flaky when the test passes alone; None when it does not, and the failure says what happened."""
        step = command.step
        for run in range(1, test_again.AGAIN_MAX + 1):
            again = dataclasses.replace(
                command,
                argv=only_test(step, command.argv, failure.case),
                stem=f"{command.stem}.again-{self.rerun}-{run}",
                alone=True,
            )
            status, counts = self.run_command(again)
            if self.children.stopping:
                return None
            if status == 0 and counts.passed and not counts.failed:
                seed = test_again.seed_of(failure.raw) or f"PYTHONHASHSEED {self.hash_seed}"
                if step.count == "gtest" and not test_again.seed_of(failure.raw):
                    seed = "none named; the seeds of a program are fixed"
                log = str(command.log.relative_to(ROOT))
                print(f"  flaky: {failure.name}\n{failure.text}", flush=True)
                return Flaky(f"{command.part.name}.{failure.name}", seed, run + 1, log)
            why = test_again.of_command(status, again.log.read_text(errors="replace"))
            for other in counts.failed:
                why = why or test_again.of_failure(other.name, other.raw or other.text)
            if why:
                failure.text += f"\n    run again alone: {why} ({again.log.relative_to(ROOT)})"
                return None
        failure.text += f"\n    run again alone {test_again.AGAIN_MAX} times: it failed each time"
        return None

    def run_part(self, part):
        budget_s = part.budget_s * self.budget_scale
        print(f"==> {part.name}", flush=True)
        start = time.monotonic()
        if part.skips and (why := part.skips()):
            print(f"    not run: {why}", flush=True)
            self.late.append(f"{part.name}: not run: {why}")
            return
        if part.about:
            choice = part.about()
            print(f"    {choice}", flush=True)
            if choice.left_out:
                self.late.append(f"{part.name}: {choice.short()}")
        if start >= self.deadline:
            self.not_run.append(part.name)
            print("    not run: the time of the whole run was up", flush=True)
            return
        end = min(self.deadline, start + PART_BUDGETS_MAX * budget_s + HANG_S * self.budget_scale)
        counts = Counts()
        for step, which in [(step, "timeless") for step in part.steps] + [(step, "timed") for step in part.steps]:
            step_start = time.monotonic()
            if which == "timed" and step.count == "plain":
                continue
            if step_start >= end:
                counts.fail(f"{part.name}.{step.name}", "    not run: the time of its part, or of the run, was up")
                break
            found = self.run_step(part, step, end, which)
            counts.add(found)
            if self.children.stopping:
                return
            took_s = time.monotonic() - step_start
            if len(part.steps) > 1 and (which == "timeless" or found.passed or found.failed):
                print(f"      {step.name + (' (timed)' if which == 'timed' else ''):<28} {took_s:6.1f} s", flush=True)
            if found.failed and step.gate:
                break  # without a build there is nothing to run
        took_s = time.monotonic() - start
        if took_s > budget_s:
            self.late.append(f"over budget: {part.name} took {took_s:.0f} s of {budget_s:.0f} s")
        for failure in counts.failed:
            print(f"  FAILED {failure.name}\n{failure.text}", flush=True)
        verdict = "FAILED" if counts.failed else "ok"
        late = ", over budget" if took_s > budget_s else ""
        print(
            f"    {part.name:<24} {took_s:6.1f} s of {budget_s:4.0f} s   {counts}   {verdict}{late}",
            flush=True,
        )
        self.total.add(counts)

    def finish(self):
        """What fails a run though no test of it does."""
        if self.not_run:
            self.total.fail("run.unfinished", f"the time of the run was up before {', '.join(self.not_run)}")
        if len(self.total.flaky) > test_again.FLAKY_MAX:
            self.total.fail("run.flaky", f"{len(self.total.flaky)} tests were flaky")


def chosen_tests(step, argv, which, env):
    """The command for a step's timeless tests or its timed ones; None where it has no timed one."""
    if step.count == "plain" or not step.splits:
        return argv if which == "timeless" else None
    if step.count == "junit":
        if which == "timed" and not any(map(has_timed_tests, argv)):
            return None
        return [*argv, "-m", "timed" if which == "timed" else "not timed"]
    # An environment's GTEST_FILTER says what a part leaves out.
    left_out = env.get("GTEST_FILTER", "").removeprefix("-")
    if which == "timeless":
        return [*argv, f"--gtest_filter=-{':'.join(filter(None, [left_out, TIMED]))}"]
    argv = [*argv, f"--gtest_filter={TIMED}-{left_out}"]
    try:
        listed = subprocess.run([*argv, "--gtest_list_tests"], capture_output=True, text=True, timeout=LIST_S)
    except (OSError, subprocess.TimeoutExpired):
        return None  # the run of its other tests says so
    return argv if re.search(r"^  \S", listed.stdout, re.MULTILINE) else None


def with_xml(step, argv, xml):
    """The command, with the option that writes what it ran to a file."""
    option = {"gtest": f"--gtest_output=xml:{xml}", "junit": f"--junitxml={xml}"}.get(step.count)
    return [*argv, *filter(None, [option])]


def has_timed_tests(argument):
    """Whether a file of tests, or one in a folder, has the marker."""
    path = ROOT / str(argument)
    if path.suffix == ".py":
        found = [path]
    elif path.is_dir() and str(argument) not in ("", "."):
        found = path.rglob("test_*.py")
    else:
        return False
    return any("mark.timed" in file.read_text() for file in found if file.is_file())


def only_test(step, argv, case):
    """The command that runs one test alone."""
    if step.count == "gtest":
        return [*(a for a in argv if not str(a).startswith("--gtest_filter=")), f"--gtest_filter={case}"]
    options = argv[: argv.index("-m", argv.index("-m") + 1)] if argv.count("-m") > 1 else argv
    return [*(a for a in options if not is_tests(a)), case]


def is_tests(argument):
    """Whether an argument of pytest is a file or a folder of tests; the program is one, too, and stays."""
    path = ROOT / str(argument)
    return path.suffix == ".py" or path.is_dir()


def minutes_line(level, took_s):
    """How long the command took; more than what `make test` promises a newcomer is a warning."""
    line = f"{took_s / 60:.1f} minutes, set-up included"
    if level == "test" and took_s > TEST_MINUTES_MAX * 60:
        return f"warning: {line}: `make test` should take at most {TEST_MINUTES_MAX} on 2 cores"
    return line


def record_run(level, chosen, total):
    """What tools/make_status.py says of a whole run: its commit, and what its sanitizers left out."""
    left_out = {part.name: list(part.about().left_out) for part in chosen if part.about}
    record = {
        "commit": test_choice.git("rev-parse", "HEAD"),
        "changed": bool(test_choice.git("status", "--porcelain")),
        "level": level,
        "failed": len(total.failed),
        "left_out": left_out,
    }
    (LOGS / "run.json").write_text(json.dumps(record, indent=1) + "\n")


def report(total, time_line, late=()):
    if total.skipped:
        print("\nskipped:")
        for name, reason in total.skipped:
            print(f"  {name}: {' '.join(reason.split()) or 'no reason given'}")
    if total.failed:
        print("\nfailed:")
        for failure in total.failed:
            print(f"  {failure.name}{': ' + failure.text if failure.name.startswith('run.') else ''}")
    if not total.passed and not total.failed:
        total.fail("run", "nothing ran")
    print()
    for one in total.flaky:
        print(f"flaky: {one.name}: {one.seed}; passed at run {one.runs}, alone; {one.log}")
    if total.flaky:
        print(f"{len(total.flaky)} flaky; more than {test_again.FLAKY_MAX} fail a run")
    for line in late:
        print(line)
    print(f"{time_line}\n{total}", flush=True)


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
    parser.add_argument(
        "--within", type=float, default=float("inf"), metavar="S", help="stop S seconds after --began (default: never)"
    )
    parser.add_argument("--list", action="store_true", help="show the parts and end")
    args = parser.parse_args()

    chosen, absent = [], []
    for part in parts(None if args.only else args.level):
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
        for old in [*LOGS.glob("*.log"), *LOGS.glob("*.xml"), *LOGS.glob("run.json")]:
            old.unlink()  # of tests that may not exist any more
    runner = Runner(args.budget_scale, time.monotonic() + args.began + args.within - time.time())

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
    runner.finish()
    if not args.only:
        record_run(args.level, chosen, runner.total)
    report(runner.total, minutes_line("some" if args.only else args.level, time.time() - args.began), runner.late)
    return 1 if runner.total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
