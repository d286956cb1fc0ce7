#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clang-tidy 14 over every source file of the preset `tidy`, as many at once as there are cores.

tools/run_clang_tidy.py [--build DIR] [FILE ...]
"""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = ("src", "include", "tests", "examples", "benchmarks", "fuzz", "python")


def run(tool, build, path):
    # Compile options that only GCC knows are no mistake of the file.
    argv = [tool, "-p", str(build), "--quiet", "--extra-arg=-Wno-unknown-warning-option", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True)
    return path, done.returncode, done.stdout, done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "tidy")
    parser.add_argument("files", nargs="*", type=Path)
    args = parser.parse_args()
    tool = shutil.which("clang-tidy-14")
    if tool is None:
        print("clang-tidy-14 is not here: tools/setup.sh long")
        return 1
    commands = args.build / "compile_commands.json"
    if not commands.exists():
        configured = subprocess.run(["cmake", "--preset", "tidy", "-B", str(args.build)], cwd=ROOT, capture_output=True)
        if configured.returncode:
            print((configured.stdout + configured.stderr).decode(errors="replace"))
            return 1
    paths = sorted({Path(entry["file"]) for entry in json.loads(commands.read_text())})
    paths = [p for p in paths if p.is_relative_to(ROOT) and p.relative_to(ROOT).parts[0] in OURS]
    if args.files:
        wanted = {f.resolve() for f in args.files}
        paths = [p for p in paths if p in wanted]
    failed, seen = [], set()
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for path, status, out, err in pool.map(lambda p: run(tool, args.build, p), paths):
            if status == 0:
                continue
            failed.append(path)
            # A header's findings come with each file that includes it; show them once.
            for block in re.split(r"(?m)^(?=/\S+:\d+:\d+: (?:error|warning))", out):
                if block.strip() and block not in seen:
                    seen.add(block)
                    print(block.replace(f"{ROOT}/", "").rstrip())
            if not out.strip():
                print(f"{path.relative_to(ROOT)}: {err.strip()}")
            sys.stdout.flush()
    print(f"{len(paths)} files, {len(failed)} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
