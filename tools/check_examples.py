#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds examples/ as a user would, against the installed package, and runs them.

    tools/check_examples.py [--build DIR]

Installs build/release into a folder of its own, builds every example with find_package(penstock) and with pkg-config,
shared and static, and runs each program of the CMake build in an empty folder; it has to end with status 0. Those for
GPUs run twice: where there may be none, and on the fake driver of the build.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WITH_EIGEN = ("stream_llama",)  # examples/CMakeLists.txt leaves them out without Eigen
FOR_GPUS = {"gpu_read": "read back to it", "storage_bfs_gpu": "reached on a GPU"}  # and what they say with one
STATIC = """cmake_minimum_required(VERSION 3.25)
project(example LANGUAGES CXX)
find_package(penstock REQUIRED)
add_executable(example "{source}")
target_link_libraries(example PRIVATE penstock::penstock_static)
"""


def run(*argv, cwd=ROOT, **env):
    print("$", *argv, flush=True)
    subprocess.run([str(a) for a in argv], cwd=cwd, env={**os.environ, **env}, check=True, stdin=subprocess.DEVNULL)


def output(*argv, **env):
    return subprocess.run(argv, env={**os.environ, **env}, check=True, capture_output=True, text=True).stdout.split()


def run_on_the_fake(build, program, folder):
    driver = (build / "tests" / "fake_gpu").resolve()
    if not (driver / "libcuda.so.1").exists():
        sys.exit(f"the fake CUDA driver is not in {driver}: build it (target fake_cuda)")
    print("$", program, "(on the fake driver)", flush=True)
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    said = subprocess.run([program], cwd=folder, env=env, check=True, capture_output=True, text=True).stdout
    print(said, flush=True)
    if FOR_GPUS[program.name] not in said:
        sys.exit(f"{program.name} did not find the fake GPU in {driver}: {said}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    args = parser.parse_args()
    work = ROOT / "build" / "examples"
    shutil.rmtree(work, ignore_errors=True)
    prefix = work / "installed"
    run("cmake", "--install", args.build, "--prefix", prefix)
    for file in (*prefix.rglob("*.cmake"), *prefix.rglob("*.pc")):
        if found := re.findall(r"(?:/usr|/opt|/home|" + re.escape(str(ROOT)) + r")/[^\s\"';>]+", file.read_text()):
            sys.exit(f"{file} names {found[0]}, which other machines have elsewhere")

    # 1. find_package, away from our own tree, so that nothing of it can be found by accident.
    with tempfile.TemporaryDirectory(prefix="penstock-examples-") as away:
        shutil.copytree(ROOT / "examples", Path(away) / "examples")
        run(
            "cmake", "-S", Path(away) / "examples", "-B", work / "cmake", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"
        )
        run("cmake", "--build", work / "cmake")
        for source in sorted((ROOT / "examples").glob("*.cpp")):
            if source.stem in WITH_EIGEN and not (work / "cmake" / source.stem).exists():
                print(f"{source.stem} is left out: there is no Eigen (apt-get install libeigen3-dev)")
                continue
            folder = Path(away) / f"run-{source.stem}"
            folder.mkdir()
            run(work / "cmake" / source.stem, cwd=folder)
            if source.stem in FOR_GPUS:
                run_on_the_fake(args.build, work / "cmake" / source.stem, folder)

    # 2. The same, statically.
    if list(prefix.rglob("libpenstock.a")):
        with tempfile.TemporaryDirectory(prefix="penstock-static-") as away:
            (Path(away) / "CMakeLists.txt").write_text(
                STATIC.format(source=sorted((ROOT / "examples").glob("*.cpp"))[0])
            )
            run("cmake", "-S", away, "-B", work / "static", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
            run("cmake", "--build", work / "static")
            run(work / "static" / "example", cwd=away)

    # 3. pkg-config
    (pc,) = prefix.rglob("penstock.pc")
    env = {"PKG_CONFIG_PATH": str(pc.parent)}
    source = sorted((ROOT / "examples").glob("*.cpp"))[0]
    libs = output("pkg-config", "--cflags", "--libs", "penstock", **env)
    libdir = pc.parent.parent
    compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-O1", source]
    run(*compiler, "-o", work / "by_pkg_config", *libs, f"-Wl,-rpath,{libdir}")
    if (libdir / "libpenstock.a").exists():
        more = [flag for flag in output("pkg-config", "--cflags", "--libs", "--static", "penstock", **env)]
        more = [str(libdir / "libpenstock.a") if flag == "-lpenstock" else flag for flag in more]
        run(*compiler, "-o", work / "by_pkg_config_static", *more)
    for program in sorted(work.glob("by_pkg_config*")):
        with tempfile.TemporaryDirectory(prefix="penstock-examples-") as folder:
            run(program, cwd=folder)
    print(f"{len(list((ROOT / 'examples').glob('*.cpp')))} examples built and run against the installed package")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        print(f"failed with {error.returncode}: {' '.join(map(str, error.cmd))}\n{error.stderr or ''}")
        sys.exit(1)
