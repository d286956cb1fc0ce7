# SPDX-License-Identifier: Apache-2.0
"""The attacks, by name. Each is a module of this folder with a function attack(run)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Attack:
    what: str
    needs: tuple = ("numpy", "torch")  # modules of Python without which it is skipped
    least_s: float = 3  # for which it runs at least, whatever is asked for: less than this is not a round


ATTACKS = {
    "load_memory": Attack(
        "tensors of files of safetensors, torch and ours, freed in random order between loads: what lives stays whole",
        needs=("numpy", "torch", "safetensors"),
    ),
    "engine": Attack(
        "reads, writes, lists, holes, truncation, other writers, eviction: each byte as a bytearray has it",
        needs=("numpy",),
    ),
    "threads": Attack(
        "six threads read, rewrite, cancel and append while pages are evicted and processes forked",
        needs=("numpy",),
    ),
    "rows": Attack("read_rows, RowTable and read_npy against arrays of NumPy"),
    "features": Attack("FeatureStore: types, shapes, stripes, tiers, policies, hints; against indexing by NumPy"),
    "feature_threads": Attack(
        "threads gather, hint, cancel and close one store of features; processes fork meanwhile",
        needs=("numpy",),
    ),
    "state": Attack("random states through files of torch and ours, and a store, there and back, equal to the bit"),
    "into": Attack(
        "into=, names=, slices, dtype=, mmap= and map_location= against the state; guards around all memory",
        needs=("numpy", "torch", "safetensors"),
    ),
    "manifest": Attack(
        "manifests with a right checksum and headers that others never write: an error, and nothing else touched",
        needs=("numpy", "torch", "xxhash"),
    ),
    "history": Attack(
        "a store through saves that change little: each checkpoint that is left has the bytes of its own save",
        needs=("numpy", "torch", "safetensors"),
    ),
    "kills": Attack("saves killed at random moments: what was acknowledged is there, whole", least_s=5),
    "readers": Attack("readers of stores and files that others replace meanwhile: always one whole state", least_s=5),
    "update": Attack(
        "updaters of a file that are killed, next to readers and other writers: all old or all new, nothing else lost",
        needs=("numpy", "torch", "safetensors"),
        least_s=5,
    ),
    "changing": Attack("tensors that change during a save: it fails, or what it commits loads; the good ones stay"),
    "shared_drive": Attack("stores that share folders, are moved, copied and restored: none loses a byte of its own"),
    "zoo": Attack(
        "small random models of transformers, streamed within odd budgets, equal to from_pretrained to the bit",
        needs=("numpy", "torch", "transformers"),
        least_s=10,
    ),
}
