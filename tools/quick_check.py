#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the tests of what changed since the last commit: `make check`.

    tools/quick_check.py [--since COMMIT] [--list]

Of C++, the programs of the rooms that a file is of: a changed file of src/store/ is checked by store_test. Programs of
other rooms that include it are for `make test`. Of Python, the test files that changed, and those whose name says that
they test a changed module (python/penstock/_state/load.py: test_load*.py and test_state_load*.py). Then the layout,
layers, types and imports.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import test_choice  # noqa: E402
from sources import ROOT  # noqa: E402

SEEDS = 2000  # of random programs: a look, not a search
SLOW_TESTS = "-*Timed*:*Crash*:*Killed*"
CHECKS = ("check_layers", "check_types", "check_imports", "check_tidy")


def programs_of(changed, root=ROOT):
    """The programs whose own room or tests have one of these files. A file of src/engine/uring/ is of engine/uring
    alone, which is a room within the folder of another."""
    programs = test_choice.programs(root)
    found = set()
    for path in changed:
        having = {
            len(name): program
            for program, (name, _) in programs.items()
            if path.startswith((f"src/{name}/", f"tests/{name}/"))
        }
        if having:
            found.add(having[max(having)])
    return sorted(found)


def python_tests_of(changed, root=ROOT):
    """Test files that changed, and those that name a changed module."""
    found = set()
    for path in map(Path, changed):
        if path.name.startswith("test_") and path.suffix == ".py" and (root / path).exists():
            found.add(path)
        elif path.suffix == ".py" and path.parts[:2] == ("python", "penstock"):
            names = [name.strip("_") for name in path.with_suffix("").parts[2:] if name != "__init__"] or ["penstock"]
            for stem in (names[-1], "_".join(names)):
                found |= {p.relative_to(root) for p in (root / "python" / "tests").rglob(f"test_{stem}*.py")}
        elif path.suffix == ".py" and path.parts[0] == "tools":
            found |= {p.relative_to(root) for p in (root / "tests" / "tools").glob(f"test_{path.stem}*.py")}
    deepspeed = {path for path in found if path.parts[:2] == ("tests", "deepspeed")}  # another environment's
    return sorted(found - deepspeed)


def changed_since(commit):
    return test_choice.changed_files(commit) or []


def run(what, argv, **more):
    """Runs a command, and prints its output where it fails. Whether it succeeded."""
    began = time.monotonic()
    done = subprocess.run([str(word) for word in argv], cwd=ROOT, capture_output=True, text=True, **more)
    ok = done.returncode == 0
    print(f"  {what:40s} {time.monotonic() - began:6.1f} s   {'ok' if ok else 'FAILED'}", flush=True)
    if not ok:
        print("\n".join((done.stdout + done.stderr).strip().splitlines()[-60:]))
    return ok


def commands(changed):
    """(name, words, variables) of what is to be run."""
    programs = programs_of(changed)
    if programs:
        yield f"build {' '.join(programs)}", [sys.executable, "tools/build.py", "release", *programs], {}
    for program in programs:
        words = [ROOT / "build" / "release" / "tests" / program, f"--gtest_filter={SLOW_TESTS}", "--gtest_brief=1"]
        yield program, words, {"PENSTOCK_TEST_SEEDS": str(SEEDS)}
    tests = python_tests_of(changed)
    if tests:
        if any(str(path).startswith("python/") for path in tests):
            yield "wheel", [sys.executable, "tools/build_wheel.py"], {}
        yield "pytest", [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], {}
    for check in CHECKS:
        yield check, [sys.executable, f"tools/{check}.py"], {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", default="HEAD", help="the commit to compare with (default: the last one)")
    parser.add_argument("--list", action="store_true", help="print the commands, and run none")
    args = parser.parse_args()
    changed = changed_since(args.since)
    if not changed:
        print(f"nothing has changed since {args.since}; --since HEAD~1 takes the last commit too")
        return 0
    if args.list:
        for what, words, _ in commands(changed):
            print(f"{what}: {' '.join(map(str, words))}")
        return 0
    began = time.monotonic()
    print(f"{len(changed)} changed file{'s' * (len(changed) != 1)}")
    failed = []
    for what, words, variables in commands(changed):
        if not run(what, words, env={**os.environ, **variables}):
            failed.append(what)
            if re.match("build|wheel", what):
                break
    print(f"{time.monotonic() - began:.0f} s; {'failed: ' + ', '.join(failed) if failed else 'all passed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
