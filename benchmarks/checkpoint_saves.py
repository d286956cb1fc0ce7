# SPDX-License-Identifier: Apache-2.0
"""Saves and loads of whole states: ours, torch's, safetensors'. Both sides end durable: data, file and folder.

`save`: --way=pt|safetensors|store (ours) or torch|torch_nocrc|st (theirs, with fsync of file and folder after it). A
small save of the same way goes before the clock starts. The figure is the median of --repeat saves, each to a new name.
`load`: a file that the side itself has laid out, cold: out of the page cache, and looked up to be.
"""

import statistics
import sys
from pathlib import Path

from benchmarks import checkpoint_states as states
from benchmarks.job_tools import Meter, figures, need, need_call

sides = need("penstock._measure.sides")
_OURS = ("pt", "safetensors", "store")


# ---- save ----


def _store(folder, arguments, **more):
    penstock = need("penstock")
    make = need_call(penstock, "CheckpointStore")
    options = {"keep": 1, "checksums": arguments.get("checksums", "1") == "1", **more}
    if "shard_bytes" in arguments:
        options["shard_bytes"] = states.byte_count(arguments["shard_bytes"])
    return make(folder, **options)


def _folders(folder, arguments):
    """One folder, or with --paths=FILE,FILE,... one next to each of them."""
    if "paths" not in arguments:
        return str(folder)
    paths = arguments["paths"].split(",")
    if arguments.get("handicap") == "in_one" or arguments.get("devices") == "1":
        paths = paths[:1]
    return [str(Path(path).parent / f"{Path(folder).name}-{index}") for index, path in enumerate(paths)]


def _save_once(way, state, folder, arguments):
    """One save under a new name; what to remove after it."""
    if way == "store":
        folders = _folders(folder, arguments)
        with _store(folders, arguments) as store:
            store.save(state, step=1)
        return [folders] if isinstance(folders, str) else folders
    path = str(Path(folder) / ("state.safetensors" if way in ("safetensors", "st") else "state.pt"))
    if way in _OURS:
        need("penstock").save(state, path)
    elif way == "st":
        sides.SAFETENSORS.save(state, path)
    else:
        need("torch").serialization.set_crc32_options(way != "torch_nocrc")
        sides.TORCH.save(state, path)
    return [path]


def _hinder(handicap, state):
    """What a careless design would do to the state before it is written."""
    if handicap == "copy":
        return states.clone(states.clone(state))
    if handicap == "pickle":
        import io

        need("torch").save(state, io.BytesIO())
    if handicap == "python_sum":
        import zlib

        for _, tensor in states.tensors_of(state):
            zlib.crc32(tensor.detach().reshape(-1).view(need("torch").uint8).numpy())
    return state


def _module(way):
    return "penstock" if way in _OURS else "safetensors" if way == "st" else "torch"


def save(arguments):
    """Handicaps: `copy`, the state is copied twice first; `pickle`, torch pickles it as well; `python_sum`, one thread
    checksums it first; `twice`, it is saved twice; `in_one`, one of the folders gets everything."""
    way, handicap = arguments["way"], arguments.get("handicap", "")
    need(_module(way))
    state = states.state_of(arguments)
    small = states.training_state(32 * states.MIB)
    if way in ("safetensors", "st"):
        state, small = states.flat(state), states.flat(small)
    size = states.bytes_of(state)
    seconds, cpu = [], []
    with states.own_folder(arguments) as folder:
        for path in _save_once(way, small, Path(folder) / "warm" if way == "store" else folder, arguments):
            states.storage.remove(path)
        for turn in range(int(arguments.get("repeat", "1"))):
            states.settle(folder)
            need("penstock._measure.host_memory").back_memory(2 * size)
            target = Path(folder) / f"turn-{turn}" if way == "store" else folder
            with Meter() as meter:
                whole = _hinder(handicap, state)
                made = _save_once(way, whole, target, arguments)
                if handicap == "twice":
                    _save_once(way, whole, target, arguments)
            del whole
            seconds.append(meter.seconds)
            cpu.append(meter.cpu_s)
            for path in made:
                states.storage.remove(path)
    medians = {"seconds": statistics.median(seconds), "cpu_s": statistics.median(cpu)}
    return figures(_module(way), **medians, bytes=size, operations=len(seconds), every_s=seconds)


# ---- load ----


def _lay_out(way, arguments):
    """The file that this way loads; made when it is not there, by the same side."""
    theirs = way in ("torch", "torch_mmap", "st")
    suffix = "safetensors" if way in ("st", "safetensors") else "pt"
    path = Path(arguments["dir"]) / f"{'theirs' if theirs else 'ours'}-{arguments['bytes']}.{suffix}"
    if not path.exists():
        state = states.state_of(arguments)
        if suffix == "safetensors":
            state = states.flat(state)
        if not theirs:
            need("penstock").save(state, str(path))
        elif way == "st":
            need("safetensors.torch").save_file(state, str(path))
        else:
            need("torch").save(state, str(path))
        states.make_durable(str(path))
    return str(path)


def _loader(way):
    """load(path, into) of this way, with all its imports done."""
    penstock, torch = need("penstock"), need("torch")
    if way in ("pt", "safetensors"):
        return lambda path, _: penstock.load(path)
    if way == "into":
        return lambda path, into: penstock.load(path, into=into)
    if way == "st":
        need("safetensors.torch")
        return lambda path, _: sides.SAFETENSORS.load(path)
    if way == "torch_mmap":
        return lambda path, _: sides.touched(torch.load(path, mmap=True))
    return lambda path, _: torch.load(path)


def load(arguments):
    """--way=pt|safetensors|into (ours), torch|torch_mmap|st (theirs; what they map is touched, a byte a page). A small
    load of the same way goes before the clock starts.

    Handicap `copy`: what was loaded is copied twice."""
    way = arguments["way"]
    path = _lay_out(way, arguments)
    into, small_into = None, None
    if way == "into":
        into, small_into = (states.training_state(states.byte_count(size)) for size in (arguments["bytes"], "32m"))
        for _, tensor in states.tensors_of(into):
            tensor.zero_()
    load_once = _loader(way)
    load_once(_lay_out(way, {**arguments, "bytes": "32m"}), small_into)
    share = states.make_cold([path])
    need("penstock._measure.host_memory").back_memory(2 * states.byte_count(arguments["bytes"]))
    with Meter() as meter:
        loaded = load_once(path, into)
        if arguments.get("handicap") == "copy":
            states.clone(states.clone(loaded if into is None else into))
    whole = loaded if into is None else into
    _check(whole)
    module = _module("pt" if way == "into" else way.removesuffix("_mmap"))
    return meter.figures(states.bytes_of(whole), of=module, cached_share_before=share)


def _check(loaded):
    """Every matrix of a state begins with the same numbers."""
    torch = need("torch")
    expected = states.even_tensors(1, 4096)["part.000"]
    seen = 0
    for name, tensor in states.tensors_of(loaded):
        if tensor.dim() == 2:
            seen += 1
            first = tensor.reshape(-1)[:1024]
            if not torch.equal(first, expected[: first.numel()]):
                sys.exit(f"{name} is not what was saved")
    if not seen:
        sys.exit("nothing was loaded")
