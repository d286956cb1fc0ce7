# SPDX-License-Identifier: Apache-2.0
"""What loads hold: as much as their tensors have, whatever their size and however few of them are kept, and nothing
that another load needs. What is in use keeps its bytes, whatever else goes."""

import random
import subprocess
import sys

import penstock
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


_NO_ADDRESSES = """
path = sys.argv[1]
penstock.load(path, mmap=True)  # makes the threads
gc.collect()
limit = bytes_of("VmSize:") + (20 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    penstock.load(path, mmap=True)
except MemoryError as error:
    print(int(path in str(error) and "ulimit -v" in str(error)))
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


def test_a_file_that_cannot_be_mapped_is_named_with_the_cure(tmp_path):
    save_file(_tensors(1, 40 << 20), tmp_path / "large.safetensors")
    penstock.save(_tensors(1, 40 << 20), tmp_path / "large.pt")
    for name in ("large.safetensors", "large.pt"):
        assert _figure(_NO_ADDRESSES, tmp_path / name) == 1


def _layers(numbers):
    """Large tensors with short ones between them, as the layers of a model have them, and some of any size."""
    state = {}
    for i in range(numbers.randrange(4, 14)):
        for size in (
            (1 << 20) + numbers.choice([0, 0, 4096, numbers.randrange(1 << 18)]),
            numbers.choice([1, 7, 512, 3072, 4095, 4097, numbers.randrange(1, 20_000)]),
            numbers.randrange(1, 1 << numbers.randrange(1, 22)),
        ):
            state[f"{len(state):03}.{i}"] = torch.full((size,), len(state) % 255 + 1, dtype=torch.uint8)
    return state


WRITERS = {
    "safetensors.safetensors": save_file,
    "torch.pt": torch.save,
    "ours.safetensors": penstock.save,
    "ours.pt": penstock.save,
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_in_use_keeps_its_bytes(tmp_path, name, seed):
    numbers = random.Random(seed)
    saved = _layers(numbers)
    WRITERS[name](saved, tmp_path / name)
    penstock.save({"a": torch.ones(3 << 20, dtype=torch.uint8)}, tmp_path / "another.pt")
    loaded = penstock.load(tmp_path / name)
    for gone in numbers.sample(sorted(loaded), len(loaded) - 1):
        del loaded[gone]
        if numbers.random() < 0.3:
            penstock.load(tmp_path / "another.pt")  # parts of a small load go at the next one
        wrong = [key for key in loaded if not torch.equal(loaded[key], saved[key])]
        assert not wrong, f"seed {seed}: {wrong} after {gone} was freed"
