#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each header compiles alone.

    tools/check_headers.py [--root DIR] [--all]

A public header is compiled with include/ and nothing else, as a user has it. A header of src/ whose own source file
includes it first is proven by the build, so only the others are compiled here (--all: every one).
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sources import ROOT, files  # noqa: E402

FLAGS = [
    "-std=c++20",
    "-fsyntax-only",
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wconversion",
    "-Werror",
    "-x",
    "c++",
]


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
        *(f"-I{d}" for d in include_dirs),
        "-",
    ]
    run = subprocess.run(argv, input=includer, capture_output=True, text=True)
    return header, run.returncode, run.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--all", action="store_true", help="also headers that the build proves")
    args = parser.parse_args()
    root = args.root.resolve()
    include = root / "include"
    jobs = []
    for path in files(root):
        if path.suffix != ".hpp":
            continue
        if path.parts[0] == "include":
            jobs.append((path, [include]))
        elif path.parts[0] == "src" and (args.all or not proven_by_its_source(root, path)):
            jobs.append((path, [root / "src", include]))
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for header, status, text in pool.map(lambda job: compile_alone(root, *job), jobs):
            if status:
                failed += 1
                print(f"{header} does not compile alone:\n{text}")
    print(f"{len(jobs)} headers compiled alone, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
