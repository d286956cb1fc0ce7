# SPDX-License-Identifier: Apache-2.0
"""tools/make_wheels.py: interpreters that are what they are called, tags in words, and what was not found is named."""

import subprocess
import sys
from pathlib import Path

import make_wheels
import pytest
import tomllib

ROOT = Path(make_wheels.__file__).resolve().parents[1]


def test_the_versions_are_those_that_the_package_promises():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["requires-python"] == f">={make_wheels.VERSIONS[0]}"
    assert project["tool"]["scikit-build"]["wheel"]["py-api"] == "cp" + make_wheels.VERSIONS[-1].replace(".", "")
    classifiers = project["project"]["classifiers"]
    assert all(f"Programming Language :: Python :: {version}" in classifiers for version in make_wheels.VERSIONS)


def fake(path, version, name="cpython", headers="True"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version} {name} {headers}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_is_asked_what_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", fake(tmp_path / "running", "3.9"))
    assert make_wheels.find_interpreter("3.10") is None
    fake(tmp_path / "bin/python3.10", "3.8")  # a shim that leads elsewhere
    fake(tmp_path / "versions/3.10.9/bin/python", "3.10", headers="False")
    fake(tmp_path / "versions/3.10.8/bin/python", "3.10", name="pypy")
    assert make_wheels.find_interpreter("3.10") is None
    right = fake(tmp_path / "uv/cpython-3.10.1-linux/bin/python3", "3.10")
    assert make_wheels.find_interpreter("3.10") == right
    # Only the last one may be of a later version.
    later = fake(tmp_path / "versions/3.14.0/bin/python", "3.14")
    assert make_wheels.find_interpreter("3.12") == later and make_wheels.find_interpreter("3.11") is None


@pytest.mark.parametrize(
    ("name", "glibc", "said"),
    [
        ("penstock-0.1.0-cp312-abi3-manylinux_2_34_x86_64.whl", (2, 34), "Ubuntu 22.04"),
        ("penstock-0.1.0-cp311-cp311-manylinux_2_36_x86_64.whl", (2, 36), "Debian 12, Ubuntu 24.04"),
        ("penstock-0.1.0-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", (2, 17), "any and later"),
        ("penstock-0.1.0-cp311-cp311-manylinux_2_50_x86_64.whl", (2, 50), "Debian 13"),
    ],
)
def test_a_tag_in_words(name, glibc, said):
    assert make_wheels.glibc_of(name) == glibc
    assert make_wheels.installs_where(name).startswith(f"glibc {glibc[0]}.{glibc[1]} or later: ")
    assert said in make_wheels.installs_where(name)


def test_a_wheel_without_the_tag_is_refused():
    with pytest.raises(ValueError, match="no manylinux tag"):
        make_wheels.glibc_of("penstock-0.1.0-cp311-cp311-linux_x86_64.whl")


def test_wrong_words():
    done = subprocess.run([sys.executable, make_wheels.__file__, "--python", "2.7"], capture_output=True, text=True)
    assert done.returncode == 2 and "--python 2.7: expected one of 3.10, 3.11, 3.12" in done.stderr
