# SPDX-License-Identifier: Apache-2.0
"""The PTX that is kept is what the kernels compile to, and every architecture takes it. Skips where nvcc is not."""

import re
import subprocess
import sys

import make_ptx
import pytest
from test_parts import ROOT

KERNELS = sorted((ROOT / "src/kernels").glob("*.cu"))
EXAMPLES = sorted((ROOT / "examples/cuda").glob("*.cu"))


def test_each_kernel_has_kept_ptx_that_old_drivers_take():
    assert {path.stem for path in KERNELS} == {path.stem for path in (ROOT / "src/kernels/ptx").glob("*.ptx")}
    for path in [*KERNELS, *EXAMPLES]:
        folder = path.parent / "ptx" if path in KERNELS else path.parent
        text = (folder / f"{path.stem}.ptx").read_text()
        assert f"\n.version {make_ptx.PTX_VERSION}\n" in text
        assert re.search(r"\n\.target sm_75\n", text)
        for name in re.findall(r"__global__ void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\(", path.read_text()):
            assert f".visible .entry {name}(" in text


def test_instructions_that_a_kernel_needs_are_looked_for(tmp_path):
    source = tmp_path / "x.cu"
    source.write_text("// needs: ld.acquire.sys st.release.sys\n")
    with_one = "\tld.acquire.sys.global.u32 \t%r1, [%rd1];\n\tst.global.u32 \t[%rd1], %r1;\n"
    assert make_ptx.missing(source, with_one) == ["st.release.sys"]
    assert make_ptx.missing(source, with_one + "\t@%p1 st.release.sys.global.u32 \t[%rd1], %r1;\n") == []


def test_the_kept_ptx_is_what_the_kernels_compile_to():
    assert EXAMPLES
    done = subprocess.run(
        [sys.executable, ROOT / "tools/make_ptx.py", "--check", "--installed"],
        capture_output=True,
        text=True,
    )
    if done.returncode == make_ptx.NOT_INSTALLED:
        pytest.skip("no nvcc: tools/make_ptx.py installs it")
    assert done.returncode == 0, done.stdout + done.stderr
