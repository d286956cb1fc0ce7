# SPDX-License-Identifier: Apache-2.0
"""Streams, events, memory of GPUs and pinned memory have one owner each (src/device/cuda/owned.hpp): nobody else calls
the driver to make or end one."""

import re

import pytest
from sources import ROOT

OWNERS = "device/cuda/"

CALLS = re.compile(
    r"(?:\.|->)(cu(?:StreamCreate|StreamDestroy|EventCreate|EventDestroy|MemAlloc|MemFree|MemHostRegister"
    r"|MemHostUnregister|MemHostAlloc|MemFreeHost)\w*)"
)
COMMENT = re.compile(r"//[^\n]*")


def calls(folder):
    """(path below `folder`, call) of each that is made outside of the owners. A name in a text is no call."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix not in (".cpp", ".hpp", ".cu") or name.startswith(OWNERS):
            continue
        for found in CALLS.finditer(COMMENT.sub("", path.read_text())):
            yield name, found[1]


def test_only_owners_make_and_end_what_is_the_drivers():
    assert list(calls(ROOT / "src")) == []


@pytest.mark.parametrize("call", ["cuMemAlloc", "cuStreamCreateWithPriority", "cuEventDestroy_v2"])
def test_a_call_elsewhere_is_found(tmp_path, call):
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "a.cpp").write_text(f"// cuMemFree\nvoid f() {{ driver.{call}(x); }}\n")
    assert list(calls(tmp_path)) == [("probe/a.cpp", call)]
