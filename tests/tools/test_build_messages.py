# SPDX-License-Identifier: Apache-2.0
"""What a machine lacks for a build is reported once, whole, and with what to do."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CMAKE = shutil.which("cmake")
pytestmark = pytest.mark.skipif(CMAKE is None, reason="cmake is not installed")
LINES = (ROOT / "tools" / "apt-packages.txt").read_text().splitlines()
PACKAGES = [line.split()[1] for line in LINES if line.startswith("build ")]


def script(tmp_path, text, cmake=CMAKE, **env):
    """What a script of CMake says on stderr, on one line, and its exit status."""
    file = tmp_path / "try.cmake"
    file.write_text(f'include("{ROOT}/cmake/PenstockPlatform.cmake")\n{text}\n')
    env = {name: value for name, value in {**os.environ, **env}.items() if name not in ("CC", "CXX")}
    done = subprocess.run([cmake, "-P", file], capture_output=True, text=True, env=env)
    return done.returncode, re.sub(r"\s+", " ", done.stderr)


@pytest.mark.parametrize(
    "machine", ["Darwin arm64 glibc", "Linux aarch64 glibc", "Linux x86_64 musl", "Windows AMD64 glibc"]
)
def test_a_platform_that_is_not_supported(tmp_path, machine):
    system, processor, libc = machine.split()
    status, said = script(tmp_path, f"penstock_check_platform({machine})")
    assert status != 0
    assert (
        f"Penstock runs on Linux on x86-64 with glibc, and this is {system} on {processor} ({libc}): use such" in said
    )


def test_the_platform_that_is(tmp_path):
    status, said = script(tmp_path, "penstock_check_platform(Linux x86_64 glibc)")
    assert (status, said) == (0, "")


def test_no_compiler(tmp_path):
    # A cmake on PATH may be a script that needs PATH itself.
    _, program = script(tmp_path, 'message("${CMAKE_COMMAND}")')
    status, said = script(tmp_path, "", program.strip(), PATH="/nonexistent")
    assert status != 0 and "no C++ compiler was found" in said
    assert "sudo apt-get install " + " ".join(PACKAGES) in said and "take a wheel" in said


def test_all_missing_libraries_are_named_at_once(tmp_path):
    missing = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("fmt", "CLI11", "nlohmann_json", "tl-expected")]
    command = [CMAKE, "-S", ROOT, "-B", tmp_path, *missing]
    done = subprocess.run(command, capture_output=True, text=True)
    said = re.sub(r"\s+", " ", done.stderr)
    assert done.returncode != 0 and said.count("CMake Error") == 1
    for name in ("tl-expected 1.0 (libexpected-dev)", "nlohmann_json 3.11 (nlohmann-json3-dev)", "fmt 9 (libfmt-dev)"):
        assert name in said
    assert "CLI11 2.1 (libcli11-dev)" in said and "sudo apt-get install g++ cmake" in said
