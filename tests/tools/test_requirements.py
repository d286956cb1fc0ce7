# SPDX-License-Identifier: Apache-2.0
"""What pip installs is pinned, what others need included: a new release of anything changes nothing here."""

import os
import re
import subprocess

import pytest
from sources import ROOT
from test_parts import parts

LISTS = sorted((ROOT / "tools").glob("requirements*.txt"))
PIN = re.compile(r"([A-Za-z0-9._-]+)==[^ ;]+( ; python_version (<|>=) \"3\.\d+\")?$")
# Those that pip brings itself, our own package, and those that torch pins in its own metadata.
UNPINNED = re.compile(r"pip|wheel|penstock|pkg-resources|triton|cuda-.*|nvidia-.*")


def key(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def lines_of(path):
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def pinned(path):
    """The names that a list pins, and those of the list that it is on top of."""
    names = set()
    for line in lines_of(path):
        names |= pinned(path.with_name(line[3:])) if line.startswith("-r ") else {key(PIN.match(line)[1])}
    return names


def test_every_requirement_has_one_version():
    assert len(LISTS) >= 6
    for path in LISTS:
        wrong = [line for line in lines_of(path) if not PIN.match(line) and not re.match(r"-r \S+$", line)]
        assert not wrong, f"{path.name}: {wrong}: write NAME==VERSION"
        seen = [line.split("==")[0] + line.partition(";")[2] for line in lines_of(path)]
        assert len(seen) == len(set(seen)), path.name


def unpinned(python, *lists):
    listed = "import importlib.metadata as m; print(*(d.name for d in m.distributions()), sep='\\n')"
    there = subprocess.run([python, "-c", listed], capture_output=True, text=True, check=True).stdout.split()
    names = set().union(*(pinned(ROOT / "tools" / one) for one in lists))
    return sorted({key(name) for name in there if not UNPINNED.fullmatch(key(name))} - names)


def test_nothing_is_installed_that_is_not_pinned():
    if not (ROOT / ".venv" / "pyvenv.cfg").exists():
        pytest.skip("there is no .venv: make setup")
    found = {"requirements.txt": unpinned(ROOT / ".venv/bin/python", "requirements.txt", "requirements-test.txt")}
    docs = ROOT / "build/docs/environment/bin/python"
    if docs.exists():
        found["requirements-docs.txt"] = set(unpinned(docs, "requirements-docs.txt")) - {"setuptools"}  # venv brings it
    found = {name: more for name, more in found.items() if more}
    if found and not os.environ.get("CI"):
        pytest.skip(f"somebody installed more than the lists have: {found}")
    assert not found, "add them to the lists in tools/"


def test_every_make_target_has_the_packages_that_its_build_asks_for():
    """A set of tools/apt-packages.txt is what a target has on a machine with nothing in it, with base and build."""
    sets = {}
    for line in (ROOT / "tools" / "apt-packages.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, package = line.split()
            sets.setdefault(name, set()).add(package)
    # The preset release has the tests in it, for which CMake looks for GoogleTest.
    for target in re.findall(
        r"(?m)^([a-z-]+):.*\n(?:\t.*\n)*?\t@tools/setup.sh bench\n", (ROOT / "Makefile").read_text()
    ):
        assert {"libgtest-dev", "libgmock-dev"} <= sets["bench"], f"make {target} builds the preset release"
    assert {"libgtest-dev", "libgmock-dev"} <= sets["test"]


def test_what_a_fresh_debian_is_to_prove():
    (fresh,) = (part for part in parts("long") if part.name == "fresh")
    targets = [word.split()[0] for step in fresh.steps for word in step.argv[1:]]
    assert sorted(targets) == ["bench", "demo", "docs", "test", "wheels"]
    # In one system those with fewer packages come first: demo and docs take base, the others test on top of it.
    assert fresh.steps[0].argv[1:3] == ["demo", "docs"] and len(fresh.steps[1].argv) == 2
