#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs what a machine with a GPU needs for `make test-gpu`: build/gpu-kit.tar.gz, at most 60 MiB.

    tools/make_gpu_kit.py [--build DIR] [--package DIR]

The test programs, the program of the bars, the fake driver (to try the kit on a machine without a GPU), the bars, and
the package out of the wheel, unpacked. There, with this Python's version and a glibc that is no older than here:

    tar xf gpu-kit.tar.gz && python3 gpu-kit/test_gpu.py

It needs no compiler, no headers and no network.
"""

import argparse
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
PROGRAMS = ("tests/device_conformance_test", "tests/suite_test", "benchmarks/penstock_bench_ours")


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


def fill(kit, build, package):
    for name in PROGRAMS:
        put_program(build / name, kit / "build" / name)
    put_program(build / "src" / "libpenstock.so", kit / "lib" / "x")
    soname = subprocess.run(["objdump", "-p", str(kit / "lib" / "x")], capture_output=True, text=True, check=True)
    (kit / "lib" / "x").rename(kit / "lib" / soname.stdout.split("SONAME")[1].split()[0])
    put_program(build / "tests" / "fake_gpu" / "libcuda.so.1", kit / "fake" / "libcuda.so.1")
    wheel = unpack_package(package, kit / "python")
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
