#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the Python package and installs it into the environment that runs this.

    tools/build_wheel.py [--force] [--quick]
    tools/build_wheel.py --planted

The wheel lies in build/wheels. Nothing is done when no file that goes into it has changed. --quick compiles with less
optimisation, in less time: to see whether it builds. --planted builds a package with defects that can be switched on
(src/base/planted.hpp) and puts it into build/planted/package, for tests/attack alone; it is not installed.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sources import ROOT, files  # noqa: E402

INPUTS = ("src", "include", "python", "cmake", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE")
WHEELS = ROOT / "build" / "wheels"
PLANTED = ROOT / "build" / "planted"
# With the flags of the preset `release` and as deep a folder, so that ccache has all but the bindings already.
OPTIONS = ("--no-build-isolation", "--no-deps", "--config-settings=cmake.define.PENSTOCK_WERROR=ON")


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


def build_planted():
    """The package with the switches of the defects, in a folder of its own."""
    PLANTED.mkdir(parents=True, exist_ok=True)
    stamp, package = PLANTED / ".inputs", PLANTED / "package"
    inputs = fingerprint()
    if stamp.exists() and stamp.read_text() == inputs and package.exists():
        return
    stamp.unlink(missing_ok=True)
    print("building the Python package with planted defects", flush=True)
    options = (
        *OPTIONS,
        "--config-settings=cmake.define.PENSTOCK_PLANTED=ON",
        "--config-settings=build-dir=build/planted",
    )
    wheels = PLANTED / "wheels"
    pip("wheel", "-q", *options, "--wheel-dir", str(wheels), ".")
    (wheel,) = wheels.glob("*.whl")
    pip("install", "-q", "--no-deps", "--upgrade", "--target", str(package), str(wheel))
    shutil.rmtree(wheels)
    stamp.write_text(inputs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", action="store_true", help="also when nothing has changed")
    parser.add_argument("--quick", action="store_true", help="with less optimisation: not for use")
    parser.add_argument("--planted", action="store_true", help="a package with defects, never for use")
    args = parser.parse_args()
    if args.planted:
        build_planted()
        return 0
    WHEELS.mkdir(parents=True, exist_ok=True)
    stamp = WHEELS / ".inputs"
    inputs = fingerprint() + (" quick" if args.quick else "")
    if not args.force and stamp.exists() and stamp.read_text() == inputs and list(WHEELS.glob("*.whl")) and installed():
        return 0
    for old in WHEELS.glob("*.whl"):
        old.unlink()
    stamp.unlink(missing_ok=True)
    print("building the Python package (the first time takes a minute or two)", flush=True)
    options = OPTIONS
    if args.quick:
        # In a tree of its own: CMake keeps the flags in its cache, and ccache would have nothing for the next build.
        options += (
            "--config-settings=build-dir=build/quick",
            "--config-settings=cmake.build-type=None",
            "--config-settings=cmake.define.CMAKE_CXX_FLAGS=-O1",
        )
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
