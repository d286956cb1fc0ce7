# SPDX-License-Identifier: Apache-2.0
"""Every public verb and every exported function is in the tables of the tests that attack it. `make test` runs this
file alone: who adds a function sees it there."""

import inspect
import re
import shutil
import subprocess
from pathlib import Path

import penstock
import pytest
import scenes  # noqa: F401 (it fills the table)
import test_canaries
import verbs
from penstock import deepnvme

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "release" / "src" / "libpenstock.so"
# Functions of the C++ library that need no row where memory runs out.
WITHOUT_MEMORY = {
    "only look at what is there": {
        "ZipfRows", "backend_named", "bits_of", "cache_policy_named", "closed", "destinations", "done_bytes",
        "drain_first", "edge_id", "edge_ids", "edges_to", "element_type_named", "extent_bytes", "folders", "held",
        "gpu_path_named", "gpu_paths_in", "hops", "is_about_the_file", "kept_bytes", "metadata", "next_user", "note",
        "relations", "row_policy", "share_of_bound", "shortfall", "small_weight_bytes", "source_of",
        "staged", "structure", "submitted", "text_of",
        "total_bytes", "wait_for", "wait_for_gpus", "wait_staged", "wake",
    },
    "are part of others that have a row": {
        "add_parts", "check", "default_options", "end_fork", "error_category", "fit_weight_units", "follow", "hear",
        "key", "lead", "leave", "named", "note_whole", "preload", "prepare_fork", "report_to", "ring_view", "settle",
        "start", "try_start", "verify_header", "verify_index", "wait_for_word", "warm_up",
    },
}  # fmt: skip


def test_every_public_verb_has_a_row():
    missing = verbs.public_verbs() - verbs.named_verbs() - set(verbs.EXEMPT) - set(verbs.EXEMPT_CLASSES)
    assert not missing, f"no row of tests/hostile/rows_*.py calls: {', '.join(sorted(missing))}"


def test_no_row_names_a_verb_that_is_not_there():
    named = {name for name in verbs.named_verbs() if ":" not in name}
    gone = (named | set(verbs.EXEMPT) | set(verbs.EXEMPT_CLASSES)) - verbs.public_verbs()
    assert not gone, f"not public (any more): {', '.join(sorted(gone))}"


def test_every_verb_that_reads_has_a_row():
    found = set()
    for prefix, module in (("", penstock), ("deepnvme.", deepnvme)):
        for name in module.__all__:
            thing = getattr(module, name)
            if isinstance(thing, type) and issubclass(thing, BaseException):
                continue
            if inspect.isclass(thing):
                found |= {f"{prefix}{name}.{m}" for m in dir(thing) if m[0] != "_" and callable(getattr(thing, m))}
            elif callable(thing):
                found.add(prefix + name)
    last_words = {name: name.split(".")[-1].replace("thread", "") for name in found}
    readers = {name for name, last in last_words.items() if any(word in last for word in ("read", "load", "memcpy"))}
    readers = {name for name in readers if not name.startswith("deepnvme.gds_handle.")}
    missing = readers - set(test_canaries.READERS) - set(test_canaries.NO_READERS)
    assert not missing, f"no row reads into canaries with: {', '.join(sorted(missing))}"


def test_every_exported_function_of_the_library_has_a_row_where_memory_runs_out():
    if not LIBRARY.exists() or not shutil.which("nm"):
        pytest.skip("needs build/release and nm")
    symbols = subprocess.run(
        ["nm", "-DC", "--defined-only", LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    names = re.findall(r"^\w+ T penstock::((?:\w+::)*~?\w+)(?:\[abi:\w+\])?\(", symbols, re.MULTILINE)
    functions = {name.rpartition("::")[2] for name in names if "~" not in name and not name.endswith("operator")}
    assert {"read", "save_file", "evict"} <= functions
    rows = "".join(path.read_text() for path in (ROOT / "tests" / "allocations").glob("*_test.cpp"))
    without = {name for name in functions if not re.search(rf"\b{name}\b", rows)}
    exempt = set().union(*WITHOUT_MEMORY.values())
    missing = without - exempt
    assert not missing, f"no row of tests/allocations calls: {', '.join(sorted(missing))}"
    assert exempt <= functions, f"not exported (any more): {', '.join(sorted(exempt - functions))}"
