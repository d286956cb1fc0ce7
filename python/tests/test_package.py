# SPDX-License-Identifier: Apache-2.0
"""What is installed: version, stubs, the program, and what the compiled part asks of the machine."""

import ast
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import penstock
import pytest
from penstock import _core

PACKAGE = Path(penstock.__file__).parent
MODULE = Path(_core.__file__)
# The newest glibc that the extension may ask for: what runs Linux 5.15 (Ubuntu 22.04) has this one or a later.
GLIBC_MAX = (2, 34)
DEBIAN_12_GLIBC = (2, 36)


def test_version():
    header = Path(__file__).parents[2] / "include" / "penstock" / "version.hpp"
    assert f'"{penstock.__version__}"' in header.read_text()
    assert importlib.metadata.version("penstock") == penstock.__version__


def test_typed_and_stubs():
    assert (PACKAGE / "py.typed").exists()
    tree = ast.parse((PACKAGE / "_core.pyi").read_text())
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    in_python = {n for n in penstock.__all__ if isinstance(getattr(penstock, n), type | types.FunctionType)}
    in_python = {n for n in in_python if not getattr(penstock, n).__module__.startswith("penstock._core")}
    assert {"Error", "save", "load"} <= in_python
    assert set(penstock.__all__) - in_python - defined == {"__version__"}
    (engine,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Engine")
    reads = [n for n in engine.body if isinstance(n, ast.FunctionDef) and n.name == "read"]
    assert len(reads) == 3  # the size, the sizes of a list that may be short, and either
    (buffer,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Buffer")
    assert "__buffer__" in {n.name for n in buffer.body if isinstance(n, ast.FunctionDef)}
    for read in reads:
        assert [a.arg for a in read.args.args] == ["self", "file", "into", "offset"]
        assert [a.arg for a in read.args.kwonlyargs] == [
            "allow_short", "stream", "priority", "block_bytes", "depth_limit", "cache",
        ]  # fmt: skip


def test_stub_is_of_this_module():
    """Everything public in the module is in the stub, and the other way round."""
    tree = ast.parse((PACKAGE / "_core.pyi").read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                # The slot of the buffer protocol has this name in Python since 3.12.
                if isinstance(member, ast.FunctionDef) and member.name != "__buffer__":
                    assert hasattr(getattr(_core, node.name), member.name), (node.name, member.name)
        elif isinstance(node, ast.FunctionDef):
            assert hasattr(_core, node.name)


def test_everything_public_is_documented():
    for name in penstock.__all__:
        if name != "__version__":
            assert getattr(penstock, name).__doc__, name


def test_program():
    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "penstock", *arguments], capture_output=True, text=True)

    said = run("--version")
    assert said.returncode == 0 and penstock.__version__ in said.stdout
    assert run("--no-such-option").returncode == 2
    script = shutil.which("penstock", path=str(Path(sys.executable).parent))
    assert script, "the console script is not installed"
    again = subprocess.run([script, "--version"], capture_output=True, text=True)
    assert (again.returncode, again.stdout) == (0, said.stdout)


def _skip_on_newer_glibc():
    """The wheel that goes elsewhere is built on Debian 12; a newer glibc has newer names for the same calls."""
    built_on = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    if tuple(map(int, built_on.split("."))) > DEBIAN_12_GLIBC:
        pytest.skip(f"this wheel was built on glibc {built_on}; those for others are built on Debian 12")


def glibc_versions():
    _skip_on_newer_glibc()
    if shutil.which("objdump") is None:
        pytest.skip("objdump is not installed")
    table = subprocess.run(["objdump", "-T", MODULE], capture_output=True, text=True, check=True).stdout
    return {
        tuple(map(int, v.split("."))): line for line in table.splitlines() for v in re.findall(r"GLIBC_([\d.]+)", line)
    }


def test_glibc():
    versions = glibc_versions()
    assert versions and max(versions) <= GLIBC_MAX, versions[max(versions)]


def test_auditwheel():
    """The same by auditwheel, of the wheel that this was installed from."""
    _skip_on_newer_glibc()
    wheels = sorted((Path(__file__).parents[2] / "build" / "wheels").glob("penstock-*.whl"))
    if not wheels or shutil.which("auditwheel", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("no wheel in build/wheels, or no auditwheel")
    command = [sys.executable, "-m", "auditwheel", "show", wheels[-1]]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    tags = re.findall(r'platform tag:\s*"manylinux_(\d+)_(\d+)_', said)
    assert tags and max(tuple(map(int, tag)) for tag in tags) <= GLIBC_MAX, said


def test_libraries():
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not installed")
    dynamic = subprocess.run(["readelf", "-d", MODULE], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    allowed = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
    assert {n for n in needed if not n.startswith("ld-linux")} <= allowed
    table = subprocess.run(["objdump", "-T", MODULE], capture_output=True, text=True, check=True).stdout
    exported = [line.split()[-1] for line in table.splitlines() if " g " in line and ".text" in line]
    assert exported == ["PyInit__core"]


def test_no_planted_defect_is_in_it():
    """They are compiled in only for tests/attack, by a definition that no wheel has."""
    planted = (Path(__file__).parents[2] / "tests" / "attack" / "planted.py").read_text()
    names = re.findall(r'^    "(\w+)": Defect\(', planted, re.MULTILINE)
    content = MODULE.read_bytes()
    assert len(names) >= 10
    assert [name for name in names if name.encode() in content] == []


def test_a_framework_that_is_not_installed_is_named():
    if importlib.util.find_spec("lightning") or importlib.util.find_spec("pytorch_lightning"):
        pytest.skip("PyTorch Lightning is installed")
    with pytest.raises(ImportError, match="pip install lightning"):
        importlib.import_module("penstock.lightning")
