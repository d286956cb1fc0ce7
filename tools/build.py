#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Configures a preset, the first time, and builds it: tools/build.py PRESET [-D NAME=VALUE ...] [TARGET ...]"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main():
    preset, *rest = sys.argv[1:]
    defines = [a for a in rest if a.startswith("-D")]
    targets = [a for a in rest if not a.startswith("-D")]
    env = {
        **os.environ,
        "CCACHE_DIR": str(ROOT / "build" / ".ccache"),  # nothing outside the checkout
        "CCACHE_BASEDIR": str(ROOT),  # a file compiled for one build tree is there for the others
    }
    if defines or not (ROOT / "build" / preset / "build.ninja").exists():
        subprocess.run(["cmake", "--preset", preset, *defines], cwd=ROOT, env=env, check=True)
    argv = ["cmake", "--build", "--preset", preset]
    if targets:
        argv += ["--target", *targets]
    return subprocess.run(argv, cwd=ROOT, env=env).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
