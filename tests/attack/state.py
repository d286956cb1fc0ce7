# SPDX-License-Identifier: Apache-2.0
"""Random states through files of torch and ours, and a store, there and back: equal to the bit, with what they share.

torch.load reads what Penstock writes wherever torch reads its own file of the state; Penstock reads what torch writes.
"""

import io

import numpy as np
import penstock
import torch

from tests.attack.alike import same
from tests.attack.files import a_store
from tests.attack.run import Wrong
from tests.attack.states import States

STEPS = 60


# torch writes in other ways, too: older pickles, and the format before the ZIP files.
WAYS = [{}, {}, {}, {"pickle_protocol": 3}, {"pickle_protocol": 4}, {"_use_new_zipfile_serialization": False}]


def of_torch(state, path, **way):
    """What torch itself makes of a state, or None where it cannot save or load it."""
    try:
        torch.save(state, path, **way)
        return torch.load(path, weights_only=False)
    except Exception:
        return None


def expect(run, state, load, what, of_store=False):
    """What is loaded is the state; an error of a load is a broken promise, too."""
    try:
        loaded = load()
    except Exception as error:
        raise Wrong(f"{what}: what was saved does not load: {type(error).__name__}: {error}") from error
    same(state, loaded, what, of_store)
    run.count("comparisons")


def through_files(run, state):
    ours, stock = f"{run.folder}/ours.pt", f"{run.folder}/stock.pt"
    readable = of_torch(state, stock) is not None
    way = run.random.choice(WAYS)
    theirs = of_torch(state, stock, **way)
    with run.never(TypeError, ValueError, what="a state that can be saved is refused"):
        if run.chance(0.3):
            penstock.save_async(state, ours).result()
        else:
            penstock.save(state, ours, sync=False)
    expect(run, state, lambda: penstock.load(ours), "a file of ours, by us")
    if readable:
        expect(run, state, lambda: torch.load(ours, weights_only=False), "a file of ours, by torch")
    if theirs is not None:
        expect(run, theirs, lambda: penstock.load(stock), f"a file of torch {way}, by us")


def through_memory(run, state):
    """In the middle of a stream, and from bytes that are read past their end by nobody."""
    file = io.BytesIO()
    file.write(b"junk" * 3)
    penstock.save(state, file)
    file.seek(12)
    expect(run, state, lambda: penstock.load(file), "a BytesIO of ours")


def through_writer(run):
    """A FileWriter with blocks of any size, given pieces of any size; one that is aborted leaves the old file."""
    r, path = run.random, f"{run.folder}/written"
    content = run.numbers.integers(0, 256, r.choice([0, 1, 500, 100_000, 1_000_000]), dtype=np.uint8)
    small = [2, 3, 511] if len(content) <= 500 else [4096]
    buffer_bytes = r.choice([*small, 8192, 65_536, len(content) + 2, 2 * len(content) + 2])
    largest = max(1, r.choice([len(content) // 50, buffer_bytes - 1, buffer_bytes, 2 * buffer_bytes + 1]))
    run.note("FileWriter", len(content), buffer_bytes, largest)
    for aborts in (False, True):
        with penstock.FileWriter(path, buffer_bytes=buffer_bytes) as file:
            at = 0
            while at < len(content):
                at += file.write(content[at : at + max(r.randrange(largest + 1), len(content) // 200, 1)])
                if r.random() < 0.05:
                    file.flush()
            run.check(file.tell() == len(content), f"tell() is {file.tell()} after {len(content)} bytes")
            if aborts:
                file.write(b"more")
                file.abort()
        run.equal_bytes(np.fromfile(path, np.uint8), content, "a file of FileWriter")


def through_store(run, state, store):
    if run.chance(0.5):
        store.save(state)
    else:
        store.save_async(state).result()
    expect(run, state, store.load, "a store", of_store=True)


def arrays(run, state):
    """Arrays of NumPy in a file that torch.save has written with pickles of them."""
    found = {
        f"a{i}": value for i, value in enumerate(state) if isinstance(value, np.ndarray) and value.dtype.kind != "U"
    }
    if found:
        torch.save(found, f"{run.folder}/arrays.pt")
        theirs = torch.load(f"{run.folder}/arrays.pt", weights_only=False)
        expect(run, theirs, lambda: penstock.load(f"{run.folder}/arrays.pt"), "arrays in a file of torch")


def attack(run):
    with a_store(f"{run.folder}/store", keep=1) as store:
        for _ in run.steps(STEPS):
            states = States(run.random)
            state = states.state()
            run.note("a state", type(state).__name__, len(states.made), "objects that may be shared")
            through_files(run, state)
            through_store(run, state, store)
            through_memory(run, state)
            arrays(run, states.made)
            through_writer(run)
            run.count("states")
