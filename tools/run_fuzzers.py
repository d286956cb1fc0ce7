#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs each fuzzer of build/fuzz for a while: tools/run_fuzzers.py [--seconds N] [NAME ...]

What they find new is kept in build/fuzz/corpus; an input that breaks something is printed with the way to replay it,
and belongs into fuzz/corpus/<name>/ with its fix.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each fuzzer")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    built = ROOT / "build" / "fuzz"
    programs = sorted(p for p in (built / "fuzz").glob("*_fuzz") if os.access(p, os.X_OK))
    programs = [p for p in programs if not args.names or p.name in args.names or p.name[:-5] in args.names]
    if not programs:
        print(f"no fuzzer in {built}: cmake --preset fuzz && cmake --build --preset fuzz")
        return 1
    failed = 0
    for program in programs:
        name = program.name.removesuffix("_fuzz")
        found = built / "corpus" / name
        found.mkdir(parents=True, exist_ok=True)
        artifacts = built / "artifacts" / name
        artifacts.mkdir(parents=True, exist_ok=True)
        seeds = [str(d) for d in [ROOT / "fuzz" / "corpus" / name] if d.is_dir()]
        argv = [program, f"-max_total_time={args.seconds}", "-print_final_stats=1", "-timeout=25", "-rss_limit_mb=4096"]
        argv += [f"-artifact_prefix={artifacts}/", found, *seeds]
        print("$", *argv, flush=True)
        status = subprocess.run([str(a) for a in argv], cwd=ROOT).returncode
        if status:
            failed += 1
            print(f"{program.name} found something (status {status}); replay: {program} {artifacts}/<file>", flush=True)
    print(f"{len(programs)} fuzzers, {failed} found something")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
