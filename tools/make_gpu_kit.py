#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs what a machine with a GPU needs for `make test-gpu`: build/gpu-kit.tar.gz, at most 60 MiB.

    tools/make_gpu_kit.py [--build DIR] [--package DIR]

The test programs, the tests of Python and pytest, the program of the bars, the fake drivers (which some tests are
about, and to try the kit on a machine without a GPU), the bars, and the package out of the wheel, unpacked. There, with
this Python's version and a glibc that is no older than here:

    tar xf gpu-kit.tar.gz && python3 gpu-kit/test_gpu.py

It needs no compiler, no headers and no network. Torch and NumPy are that machine's; without them the tests of Python
do not run, and are named.
"""

import argparse
import importlib.util
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 60 << 20
PROGRAMS = (
    "tests/device_conformance_test",
    "tests/suite_test",
    "tests/device_test",
    "tests/features_test",
    "benchmarks/penstock_bench_ours",
)
FAKES = ("libcuda.so.1", "libcufile.so.0")
# What pytest is, in pure Python, as it is installed here.
PYTEST = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments")
if sys.version_info < (3, 11):
    PYTEST += ("exceptiongroup", "tomli")


def unpack_package(package, to):
    if package:
        shutil.copytree(package, to / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
        return package.name
    wheels = sorted((ROOT / "build" / "wheels").glob("*.whl"))
    if len(wheels) != 1:
        sys.exit(f"build/wheels has {len(wheels)} wheels; expected one: run tools/build_wheel.py")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(to)
    return wheels[0].name


def put_program(path, to):
    if not path.exists():
        sys.exit(f"{path} is not there: build it (make gpu-kit does)")
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, to)
    subprocess.run(["strip", str(to)], check=True)


def soname_of(library):
    if not library.exists():
        sys.exit(f"{library} is not there: build it (make gpu-kit does)")
    told = subprocess.run(["objdump", "-p", str(library)], capture_output=True, text=True, check=True)
    return told.stdout.split("SONAME")[1].split()[0]


def put_python_tests(kit):
    tests, ignored = kit / "python" / "tests", shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "python" / "tests" / "gpu", tests / "gpu", ignore=ignored)
    shutil.copy(ROOT / "python" / "tests" / "conftest.py", tests)
    for name in PYTEST:
        found = importlib.util.find_spec(name)
        if found is None:
            sys.exit(f"{name} cannot be imported: make setup")
        shutil.copytree(Path(found.origin).parent, kit / "python" / name, ignore=ignored)


def fill(kit, build, package):
    for name in PROGRAMS:
        put_program(build / name, kit / "build" / name)
    library = build / "src" / "libpenstock.so"
    put_program(library, kit / "lib" / soname_of(library))
    for name in FAKES:
        put_program(build / "tests" / "fake_gpu" / name, kit / "fake" / name)
    wheel = unpack_package(package, kit / "python")
    put_python_tests(kit)
    ignored = shutil.ignore_patterns("__pycache__", "src", "CMakeLists.txt", "results")
    shutil.copytree(ROOT / "benchmarks", kit / "benchmarks", ignore=ignored)
    shutil.copy(ROOT / "tools" / "test_gpu.py", kit)
    shutil.copy(ROOT / "LICENSE", kit)
    facts = {"wheel": wheel, "python": platform.python_version(), "libc": platform.libc_ver()[1]}
    (kit / "kit.json").write_text(json.dumps(facts) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="default: build/release")
    parser.add_argument("--package", type=Path, help="a folder `penstock` instead of the wheel's")
    arguments = parser.parse_args()
    kit = ROOT / "build" / "gpu-kit"
    shutil.rmtree(kit, ignore_errors=True)
    fill(kit, arguments.build.resolve(), arguments.package)
    packed = kit.with_suffix(".tar.gz")
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(kit, arcname=kit.name)
    size = packed.stat().st_size
    print(f"{packed.relative_to(ROOT)}: {size / (1 << 20):.1f} MiB")
    if size > MOST_BYTES:
        print(f"it has {size} bytes; at most {MOST_BYTES} are allowed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
