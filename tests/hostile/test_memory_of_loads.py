# SPDX-License-Identifier: Apache-2.0
"""What loads hold: as much as their tensors have, whatever their size and however few of them are kept, and nothing
that another load needs."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file

_START = """
import gc, resource, sys
import penstock

def bytes_of(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(name))
"""

_ALL_KEPT = """
path, count = sys.argv[1], int(sys.argv[2])
penstock.load(path)
gc.collect()
before = bytes_of("VmRSS:")
kept = [penstock.load(path) for _ in range(count)]
print(bytes_of("VmRSS:") - before)
"""

_ONE_OF_EACH = """
path, count = sys.argv[1], int(sys.argv[2])
kept = [penstock.load(path)["t3"] for _ in range(4)]
gc.collect()
before = bytes_of("VmRSS:")
for _ in range(count):
    kept.append(penstock.load(path)["t3"])
print(bytes_of("VmRSS:") - before)
assert all(bool((tensor == 3).all()) for tensor in kept)
"""

_LITTLE_LEFT = """
small, large = sys.argv[1:]
penstock.load(large)
loaded = [penstock.load(small) for _ in range(4)]
del loaded
gc.collect()
limit = bytes_of("VmSize:") + (20 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print(sum(tensor.nbytes for tensor in penstock.load(large).values()))
"""


def _figure(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", _START + script, *map(str, arguments)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def _tensors(count, size):
    return {f"t{i}": torch.full((size,), i, dtype=torch.uint8) for i in range(count)}


@pytest.mark.parametrize("kib", [1050, 2080, 4100, 16500])
def test_loads_hold_what_their_tensors_have(tmp_path, kib):
    path, count = tmp_path / "x.safetensors", (200 << 10) // kib
    save_file(_tensors(1, kib << 10), path)
    assert _figure(_ALL_KEPT, path, count) < 1.2 * count * (kib << 10)


@pytest.mark.parametrize("mib", [17, 30, 34])
def test_one_tensor_of_each_load_holds_no_more_than_itself(tmp_path, mib):
    path, count = tmp_path / "x.safetensors", 30
    save_file(_tensors(mib, 1 << 20), path)
    assert _figure(_ONE_OF_EACH, path, count) < (1.5 * count + mib + 8) * (1 << 20)  # the last load goes at the next


def test_what_is_kept_for_the_next_load_is_not_missing(tmp_path):
    small, large = tmp_path / "small.safetensors", tmp_path / "large.safetensors"
    save_file(_tensors(1, 15 << 20), small)
    save_file(_tensors(1, 30 << 20), large)
    assert _figure(_LITTLE_LEFT, small, large) == 30 << 20
