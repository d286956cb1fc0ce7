#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the Python package and installs it into the environment that runs this.

    tools/build_wheel.py [--force] [--quick]

The wheel lies in build/wheels. Nothing is done when no file that goes into it has changed. --quick compiles with less
optimisation, in less time: to see whether it builds.
"""

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sources import ROOT, files  # noqa: E402

INPUTS = ("src", "include", "python", "cmake", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE")
WHEELS = ROOT / "build" / "wheels"


def fingerprint():
    digest = hashlib.sha256(sys.version.encode())
    for path in files():
        if path.parts[0] in INPUTS and path.parts[:2] != ("python", "tests"):
            digest.update(str(path).encode() + b"\0" + (ROOT / path).read_bytes())
    return digest.hexdigest()


def pip(*arguments):
    # No isolation: the tools that build are in .venv already, pinned by tools/requirements-build.txt.
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", *arguments]
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    env.setdefault("CCACHE_DIR", str(ROOT / "build" / ".ccache"))
    env.setdefault("CCACHE_BASEDIR", str(ROOT))
    # CMake's own choice, as in the other build trees: to ccache another name is another compiler.
    env.setdefault("CC", "cc")
    env.setdefault("CXX", "c++")
    subprocess.run(argv, cwd=ROOT, env=env, check=True, stdin=subprocess.DEVNULL)


def installed():
    probe = [sys.executable, "-c", "import importlib.metadata as m; m.version('penstock')"]
    return subprocess.run(probe, capture_output=True, cwd=ROOT / "build").returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", action="store_true", help="also when nothing has changed")
    parser.add_argument("--quick", action="store_true", help="with less optimisation: not for use")
    args = parser.parse_args()
    WHEELS.mkdir(parents=True, exist_ok=True)
    stamp = WHEELS / ".inputs"
    inputs = fingerprint() + (" quick" if args.quick else "")
    if not args.force and stamp.exists() and stamp.read_text() == inputs and list(WHEELS.glob("*.whl")) and installed():
        return 0
    for old in WHEELS.glob("*.whl"):
        old.unlink()
    stamp.unlink(missing_ok=True)
    print("building the Python package (the first time takes a minute or two)", flush=True)
    # With the flags of the preset `release` and as deep a folder, so that ccache has all but the bindings already.
    options = ("--no-build-isolation", "--no-deps", "--config-settings=cmake.define.PENSTOCK_WERROR=ON")
    if args.quick:
        options += ("--config-settings=cmake.build-type=None", "--config-settings=cmake.define.CMAKE_CXX_FLAGS=-O1")
    pip("wheel", "-q", *options, "--wheel-dir", str(WHEELS), ".")
    (wheel,) = WHEELS.glob("*.whl")
    pip("install", "-q", "--no-deps", "--force-reinstall", str(wheel))
    stamp.write_text(inputs)
    print(f"built and installed {wheel.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        print(f"building the Python package failed: {' '.join(error.cmd[2:])} ended with {error.returncode} (above)")
        sys.exit(1)
