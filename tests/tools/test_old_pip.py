# SPDX-License-Identifier: Apache-2.0
"""Wheel and source archive under the pip of older systems: they install, or one sentence says why not. 20.3 is Debian
11's, 22.0 Ubuntu 22.04's. Skipped where the package index does not answer, or has no such pip."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("20.3.4", "22.0.2")
FAQ = (ROOT / "docs" / "faq.md").read_text()
TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"


@pytest.fixture(scope="module", params=VERSIONS)
def pip(request, tmp_path_factory):
    """The words that run a pip of that version with a Python."""
    if sys.version_info >= (3, 12):
        pytest.skip("this pip does not run under Python 3.12")
    folder = tmp_path_factory.mktemp("pip")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, f"pip=={request.param}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = list(folder.glob("pip-*.whl"))
    if not found:
        pytest.skip(f"pip {request.param} cannot be had: {done.stderr.strip()[-200:]}")
    return lambda python=sys.executable: [python, found[0] / "pip", "--disable-pip-version-check"]


def run(words, folder):
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def wheel(tmp_path):
    """The wheel of this Python with the tag of those that are given away. pip looks at the name alone."""
    found = [path for folder in ("dist", "wheels") for path in (ROOT / "build" / folder).glob(f"*-{TAG}-*.whl")]
    if not found:
        pytest.skip("no wheel is built: make python")
    name = "-".join([*found[0].name.split("-")[:4], "manylinux_2_34_x86_64.whl"])
    return Path(shutil.copy(found[0], tmp_path / name))


def older_python():
    """A Python 3.9, as Debian 11 has it."""
    for path in [shutil.which("python3.9"), *Path.home().glob(".pyenv/versions/3.9.*/bin/python")]:
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return str(path)
    return pytest.skip("no Python 3.9 is installed")


def test_the_wheel_installs(pip, wheel, tmp_path):
    status, said = run([*pip(), "install", "--no-index", "--no-deps", "-t", tmp_path / "here", wheel], tmp_path)
    assert status == 0, said
    look = "import penstock; print(penstock.__file__, penstock.default_engine().describe().backend)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, cwd=tmp_path / "here")
    assert done.returncode == 0 and str(tmp_path) in done.stdout, done.stderr


def test_the_wheel_on_an_older_python(pip, wheel, tmp_path):
    status, said = run([*pip(older_python()), "install", "--no-index", "--no-deps", "-t", "here", wheel], tmp_path)
    assert status != 0 and "is not a supported wheel on this platform" in said
    assert "`is not a supported wheel on this platform`" in FAQ and "CPython 3.10 or later" in FAQ


def test_the_source_archive_on_an_older_python(pip, tmp_path):
    """pip says which Python is needed, and not that there is no nanobind for this one."""
    if VERSIONS[-1] not in str(pip()[1]):
        pytest.skip("tried with one pip alone: most of its time is for the packages that build")
    make = "import sys, scikit_build_core.build as build; build.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", make, tmp_path], cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    status, said = run([*pip(older_python()), "install", "--no-cache-dir", "-t", "here", archive], tmp_path)
    if status != 0 and "Could not find a version that satisfies the requirement scikit-build-core" in said:
        pytest.skip("the package index does not answer")
    assert status != 0 and "requires a different Python: 3.9." in said and "not in '>=3.10'" in said
    assert "`requires a different Python`" in FAQ
