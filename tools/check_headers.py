#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each header compiles alone, and each source of the Python module.

    tools/check_headers.py [--root DIR] [--all] [--changed]

A public header is compiled with include/ and nothing else, as a user has it. A header of src/ whose own source file
includes it first is proven by the build, so only the others are compiled here (--all: every one). The sources of the
Python module are compiled together by the build, where one that lacks an include takes it from its neighbours.

What compiled in the last whole run that passed compiles again where nothing in it has changed: --changed compiles the
rest (all of them where that run is not known; tools/test_choice.py).
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import nanobind

sys.path.insert(0, str(Path(__file__).resolve().parent))
import test_choice  # noqa: E402
from sources import ROOT, files  # noqa: E402

FLAGS = [
    "-std=c++20",
    "-fsyntax-only",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wconversion",
    "-Werror",
    "-x",
    "c++",
]
# Headers of others, whose warnings do not count.
PYTHON = [f"{sysconfig.get_path('include')}", f"{Path(nanobind.include_dir())}"]


def proven_by_its_source(root, header):
    source = (root / header).with_suffix(".cpp")
    if not source.is_file():
        return False
    first = re.search(r'^#include\s+["<]([^">]+)[">]', source.read_text(), re.MULTILINE)
    return first is not None and first.group(1) == header.relative_to("src").as_posix()


def compile_alone(root, header, include_dirs):
    # An includer, so that '#pragma once in main file' is no warning.
    includer = f'#include "{root / header}"\n'
    argv = [
        os.environ.get("CXX", "g++"),
        *FLAGS,
        *(f"{'-isystem' if d in PYTHON else '-I'}{d}" for d in include_dirs),
        "-",
    ]
    run = subprocess.run(argv, input=includer, capture_output=True, text=True)
    return header, run.returncode, run.stderr


def is_touched(root, path, changed):
    """Whether a file, or one that it includes at any depth, has changed. Python's and the system's do not."""
    left, seen = [root / path], set()
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            left += [other for other in test_choice.included(root, one) if other.suffix != ".cpp"]
    return any(one.relative_to(root).as_posix() in changed for one in seen)


def only_changed(root, jobs):
    """The jobs that the changes since the base touch; all where the base is not known."""
    base, told = test_choice.find_base(root)
    changed = test_choice.changed_files(base, root) if base else None
    if changed is None:
        print(f"all headers: no base is known ({told})")
        return jobs
    if any(path in changed for path in ("tools/check_headers.py", "tools/requirements-build.txt")):
        return jobs
    print(f"headers and sources that changed since {base[:12]}, {told}")
    return [job for job in jobs if is_touched(root, job[0], set(changed))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--all", action="store_true", help="also headers that the build proves")
    parser.add_argument(
        "--changed", action="store_true", help="those that changed since the last whole run that passed"
    )
    args = parser.parse_args()
    root = args.root.resolve()
    include = root / "include"
    jobs = []
    for path in files(root):
        if path.parts[0] == "include" and path.suffix == ".hpp":
            jobs.append((path, [include]))
        elif path.parts[0] == "src" and path.suffix == ".hpp" and (args.all or not proven_by_its_source(root, path)):
            jobs.append((path, [root / "src", include]))
        elif path.parts[:2] == ("python", "src") and path.suffix == ".cpp":
            jobs.append((path, [root / "src", include, root / "python" / "src", *PYTHON]))
    if args.changed:
        jobs = only_changed(root, jobs)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for header, status, text in pool.map(lambda job: compile_alone(root, *job), jobs):
            if status:
                failed += 1
                print(f"{header} does not compile alone:\n{text}")
    print(f"{len(jobs)} headers and sources compiled alone, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
