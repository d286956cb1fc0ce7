# SPDX-License-Identifier: Apache-2.0
"""What of checkpoints is counted and not timed: memory, and bytes read and written."""

import gc
import os
import random

from benchmarks import checkpoint_states as states
from benchmarks.job_tools import figures, need, need_call, skip


def memory(arguments):
    """MiB of peak memory of a synchronous save above the state. Handicap `copy`: the state is cloned first."""
    penstock = need("penstock")
    state = states.state_of(arguments)
    with states.own_folder(arguments) as folder:
        states.reset_peak()
        before = states.resident_bytes()
        whole = states.clone(state) if arguments.get("handicap") == "copy" else state
        if arguments["way"] == "store":
            with need_call(penstock, "CheckpointStore")(f"{folder}/store", keep=1) as store:
                store.save(whole, step=1)
        else:
            penstock.save(whole, f"{folder}/state.pt")
        above = states.peak_bytes() - before
    return figures(value=above / states.MIB, bytes=states.bytes_of(state), resident_before=before)


def lazy(arguments):
    """MiB of peak memory above the start of the process of a save of --count tensors of --size from a generator, to
    --way=index or pt. Handicap `list`: the tensors are there before the save."""
    penstock, torch = need("penstock"), need("torch")
    count, size = int(arguments["count"]), states.byte_count(arguments["size"])
    name = "m.safetensors.index.json" if arguments["way"] == "index" else "m.pt"
    given = ((f"part.{i}", torch.full((size // 4,), float(i))) for i in range(count))
    with states.own_folder(arguments) as folder:
        states.reset_peak()
        before = states.resident_bytes()
        penstock.save(iter(list(given)) if arguments.get("handicap") == "list" else given, f"{folder}/{name}")
        above = states.peak_bytes() - before
        for i in (0, count - 1):
            found = penstock.load(f"{folder}/{name}", names=f"part.{i}")
            if found.nbytes != size or not bool((found == float(i)).all()):
                raise RuntimeError(f"part.{i} is not what was given")
    return figures(value=above / states.MIB, bytes=count * size, resident_before=before)


def update(arguments):
    """MiB given to write calls to change a tensor of --size in a file of --bytes: by the engine's count or the kernel's
    count of calls, whichever is greater. Handicap `rewrite`: the state is saved again."""
    penstock, torch = need("penstock"), need("torch")
    size, total = states.byte_count(arguments["size"]), states.byte_count(arguments["bytes"])
    state = {f"part.{i}": torch.full((size // 4,), float(i)) for i in range(2)}
    state["rest"] = torch.ones((total - 2 * size) // 4)
    with states.own_folder(arguments) as folder:
        path = f"{folder}/m.safetensors"
        penstock.save(state, path)
        changed = {"part.1": torch.full((size // 4,), -1.0)}
        before, calls = penstock.default_engine().stats().bytes_written, states.io_bytes("write", "wchar")
        if arguments.get("handicap") == "rewrite":
            penstock.save({**state, **changed}, path)
        else:
            need_call(penstock, "update")(path, changed)
        counted = states.io_bytes("write", "wchar") - calls
        engine = penstock.default_engine().stats().bytes_written - before
        for name, tensor in {**state, **changed}.items():
            if not torch.equal(penstock.load(path, names=name), tensor):
                raise RuntimeError(f"{name} is not what was given")
    return figures(value=max(counted, engine) / states.MIB, bytes=total, engine=engine, calls=counted)


def leak(arguments):
    """Resident memory after --count asynchronous saves, to that after 10. Handicap `keep`: 1/20 of each is kept."""
    penstock = need("penstock")
    state = states.state_of(arguments)
    size = states.bytes_of(state)
    kept, after = [], []
    with states.own_folder(arguments) as folder:
        with need_call(penstock, "CheckpointStore")(f"{folder}/store", keep=1, incremental=False) as store:
            for index in range(int(arguments["count"])):
                store.save_async(state, step=index).result()
                if arguments.get("handicap") == "keep":
                    kept.append(os.urandom(size // 20))
                after.append(states.resident_bytes())
    resident = {"resident_after_10": after[9], "resident_at_the_end": after[-1]}
    return figures(value=after[-1] / after[9], operations=len(after), **resident)


def incremental(arguments):
    """Bytes written by a save after a tenth of the shards changed, to those of the state; the greater of what the store
    says and what the kernel counts. Handicap `all`: it is not incremental."""
    penstock = need("penstock")
    count, size = int(arguments["count"]), states.byte_count(arguments["size"])
    state = states.even_tensors(count, size)
    options = {"keep": 2, "shard_bytes": size, "incremental": arguments.get("handicap") != "all"}
    with states.own_folder(arguments) as folder:
        with need_call(penstock, "CheckpointStore")(f"{folder}/store", **options) as store:
            first = store.save(state, step=1)
            for name in list(state)[: count // 10]:
                state[name].add_(1)
            before = states.io_bytes("write")
            second = store.save(state, step=2)
            kernel = states.io_bytes("write") - before
    written = max(kernel, second.written_bytes)
    shards = {"shards": first.shards, "linked": second.linked_shards}
    share = written / (count * size)
    return figures(value=share, bytes=written, told=second.written_bytes, counted=kernel, **shards)


def slice_of_rows(arguments):
    """KiB that the kernel reads for rows of a tensor beyond the rows themselves, the most of --count random slices
    along the first dimension; every chunk is verified. `across_ratio`: of columns, bytes read to bytes wanted.
    Handicap `whole`: the tensor is read whole and cut."""
    penstock, torch = need("penstock"), need("torch")
    rows, width = 16384, 1024
    state = {f"part.{i}": states.even_tensors(1, 4 * rows * width)["part.000"].view(rows, width) for i in range(2)}
    whole = arguments.get("handicap") == "whole"
    lot, worst, told = random.Random(1), 0, []
    with states.own_folder(arguments) as folder:
        with need_call(penstock, "CheckpointStore")(f"{folder}/store", keep=1) as store:
            saved = store.save(state, step=1)
            checkpoint = store.open(saved.generation)
            for _ in range(5 if whole else int(arguments["count"])):
                begin = lot.randrange(rows)
                end = min(rows, begin + lot.randrange(1, 600))
                before = states.io_bytes("read")
                got = checkpoint["part.1"][...][begin:end] if whole else checkpoint["part.1"][begin:end]
                told.append(states.io_bytes("read") - before - got.nbytes)
                worst = max(worst, told[-1])
                if not torch.equal(got, state["part.1"][begin:end]):
                    raise RuntimeError(f"rows {begin} to {end} are not what was saved")
            before = states.io_bytes("read")
            column = checkpoint["part.1"][:, 100:116]
            across = states.io_bytes("read") - before
    if not any(read > 0 for read in told):
        skip("the kernel counts no reads here: this file system has no direct I/O")
    more = {"least_kib": min(told) / 1024, "across_ratio": across / column.nbytes}
    return figures(value=worst / 1024, operations=len(told), **more)


def descriptors(arguments):
    """Descriptors that are open more after --count loads of a checkpoint of --shards than after one, with the collector
    off. Handicap `cycle`: each Checkpoint refers to itself (of few loads, for the limit on open files)."""
    penstock = need("penstock")
    cycle = arguments.get("handicap") == "cycle"
    state = states.even_tensors(int(arguments["shards"]), 4096)
    gc.collect()
    gc.disable()
    with states.own_folder(arguments) as folder:
        with need_call(penstock, "CheckpointStore")(f"{folder}/store", shard_bytes=4096) as store:
            saved = store.save(state)
            after = []
            for _ in range(3 if cycle else int(arguments["count"]) + 1):
                checkpoint = store.open(saved.generation)
                checkpoint.load()
                if cycle:
                    checkpoint.itself = checkpoint
                store.load()
                del checkpoint
                after.append(len(os.listdir("/proc/self/fd")))
    more = {"after_one": after[0], "shards": saved.shards}
    return figures(value=after[-1] - after[0], operations=len(after) - 1, **more)


def freed(arguments):
    """Resident memory after `del` of two thirds of a loaded state, to the bytes of the rest: the most of a .pt, a
    .safetensors, an index and a store. Handicap `one_mapping`: all tensors are in one piece of memory."""
    penstock, torch = need("penstock"), need("torch")
    state = dict(states.tensors_of(states.state_of(arguments)))
    doomed = [name for name in state if name.startswith("optimizer")]
    rest = sum(tensor.nbytes for name, tensor in state.items() if name not in doomed)
    above = {}
    with states.own_folder(arguments) as folder:
        with need_call(penstock, "CheckpointStore")(f"{folder}/store", keep=1) as store:
            store.save(state)
            paths = [f"{folder}/{name}" for name in ("s.pt", "s.safetensors", "s.safetensors.index.json")]
            for path in paths:
                penstock.save(state, path, shard_bytes=states.bytes_of(state) // 4)
            shapes = {name: tensor.shape for name, tensor in state.items()}
            total = states.bytes_of(state)
            del state
            for way in (store, *paths):
                load = store.load if way is store else lambda way=way, **into: penstock.load(way, **into)
                load(names=doomed[:1])  # what a first load takes for good
                gc.collect()
                before = states.resident_bytes()
                into = {}
                if arguments.get("handicap") == "one_mapping":
                    parts = torch.empty(total // 4).split([shape.numel() for shape in shapes.values()])
                    into = {"into": {n: p.view(s) for (n, s), p in zip(shapes.items(), parts, strict=True)}}
                    del parts
                loaded = load(**into)
                into.clear()
                for name in doomed:
                    del loaded[name]
                above["store" if way is store else os.path.basename(way)] = states.resident_bytes() - before
                del loaded
    return figures(value=max(above.values()) / rest, bytes=rest, above=above)
