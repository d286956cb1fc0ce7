# SPDX-License-Identifier: Apache-2.0
"""DeepNVMe's calls on either engine: `python -m benchmarks.deepnvme_jobs JOB --engine=ours|theirs --key=value ...`.

The same program for both sides, in the same interpreter (the one with DeepSpeed in it): only where the builders come
from differs. `theirs` is DeepSpeed's own op, built before. Its settings are 1 MiB blocks, depth 32, 4 threads; `ours`
has its defaults. Prints one JSON object; ends with 77 and the reason where something is not installed.
"""

import json
import os
import sys
import time
from pathlib import Path

from benchmarks.job_tools import Meter, need, run_job, skip

_MIB = 1 << 20
_ROOT = Path(__file__).resolve().parent.parent


def prepare_theirs():
    """Their op is compiled at first use: with this environment's ninja, kept in build/."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(_ROOT / "build" / "torch-extensions"))
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


def _builders(engine):
    try:
        if engine == "ours":
            from penstock import deepnvme as builders
        else:
            prepare_theirs()
            from deepspeed.ops import op_builder as builders
    except ImportError as error:
        skip(f"{engine}: {error}; `tools/setup.sh bench` sets up what is needed")
    return builders


def op(engine):
    try:
        return _builders(engine).AsyncIOBuilder().load(verbose=False)
    except (RuntimeError, OSError) as error:
        skip(f"DeepSpeed's op cannot be built here (it wants g++, ninja and libaio-dev): {error}")


def _handle(arguments):
    made = op(arguments["engine"]).aio_handle
    if "choice" in arguments:
        return made(*_choice(arguments))
    if arguments["engine"] == "ours":
        return made()
    overlap = arguments.get("overlap", "0") == "1"
    return made(_MIB, 32, False, overlap, int(arguments.get("threads", "4")))


def _choice(arguments):
    """The settings that a tuner chose: benchmarks/choices/<name>.json, of `read` or `write`, with where it was run."""
    path = Path(__file__).with_name("choices") / f"{arguments['choice']}.json"
    chosen = json.loads(path.read_text())["aio"]
    keys = ("block_size", "queue_depth", "single_submit", "overlap_events", "intra_op_parallelism")
    return [chosen[key] for key in keys]


def _result(arguments, meter, size, operations):
    return meter.figures(size, operations, "penstock" if arguments["engine"] == "ours" else "deepspeed")


def transfer(arguments):
    """One tensor, whole. --memory=pinned: each engine's own locked tensor; tensor: as torch allocates it.

    --repeat: so many times, for what is too little to be told from noise. --fsync: both end in fsync. Handicaps:
    `in_pieces`, in blocks of 1 MiB, a pause of 1 ms after each; `copy`, the bytes are copied thrice besides.
    """
    torch = need("torch")
    size, write, repeat = int(arguments["bytes"]), arguments["op"] == "write", int(arguments.get("repeat", "1"))
    handle = _handle(arguments)
    if arguments["memory"] == "pinned":
        tensor = handle.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
        tensor.fill_(1)
    else:
        tensor = torch.ones(size, dtype=torch.uint8)
    path = arguments["path"]
    if Path(path).exists():  # rings, threads and memory come with the first
        handle.sync_pread(tensor[: 4 * _MIB], path, 0)
    call = handle.sync_pwrite if write else handle.sync_pread
    need("penstock._measure.host_memory").back_memory(size)  # their op takes as much for a tensor that is not locked
    with Meter() as meter:
        for _ in range(repeat):
            if arguments.get("handicap") == "in_pieces":
                for at in range(0, size, _MIB):
                    call(tensor[at : at + _MIB], path, at)
                    time.sleep(0.001)
            else:
                call(tensor, path, 0)
            if arguments.get("handicap") == "copy":
                for _ in range(3):
                    tensor.clone()
        if "fsync" in arguments:
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
    assert Path(path).stat().st_size >= size
    return _result(arguments, meter, size * repeat, repeat)


def gpu(arguments):
    """One tensor on a GPU, whole: ours by the gds_handle, theirs by the aio_handle, which takes tensors of a GPU.

    Handicap `one_slot`: blocks of 1 MiB, each waited for.
    """
    torch = need("torch")
    if not torch.cuda.is_available():
        skip("torch sees no GPU (torch.cuda.is_available() is False): a GPU and a torch built for CUDA are needed")
    ours = arguments["engine"] == "ours"
    if not ours:
        os.environ["DS_ACCELERATOR"] = "cuda"
    handle = _builders("ours").GDSBuilder().load(verbose=False).gds_handle() if ours else _handle(arguments)
    size, path = int(arguments["bytes"]), arguments["path"]
    tensor = torch.ones(size, dtype=torch.uint8, device="cuda:0")
    call = handle.sync_pwrite if arguments["op"] == "write" else handle.sync_pread
    call(tensor[: 4 * _MIB], path, 0)
    torch.cuda.synchronize()
    with Meter() as meter:
        if arguments.get("handicap") == "one_slot":
            for at in range(0, size, _MIB):
                call(tensor[at : at + _MIB], path, at)
        else:
            call(tensor, path, 0)
        torch.cuda.synchronize()
    return _result(arguments, meter, size, 1) | {"gpu": torch.cuda.get_device_name(0)}


def many(arguments):
    """Many tensors of 256 KiB, a file each: async_* for all, then one wait. Handicap `each`: one at a time."""
    torch = need("torch")
    count, size = int(arguments["count"]), int(arguments["size"])
    folder = Path(arguments["dir"], "many")
    folder.mkdir(exist_ok=True)
    handle = _handle(arguments)
    whole = handle.new_cpu_locked_tensor(count * size, torch.empty(0, dtype=torch.uint8))
    whole.fill_(1)
    tensors = [whole[i * size : (i + 1) * size] for i in range(count)]
    paths = [str(folder / f"tensor-{i}") for i in range(count)]
    missing = [path for path in paths if not os.path.exists(path)]
    for path in missing:
        Path(path).write_bytes(bytes(size))
    if missing:
        os.sync()
    handle.sync_pread(tensors[0], paths[0], 0)
    write = arguments["op"] == "write"
    submit = handle.async_pwrite if write else handle.async_pread
    each = handle.sync_pwrite if write else handle.sync_pread
    with Meter() as meter:
        if arguments.get("handicap") == "each":
            for tensor, path in zip(tensors, paths):
                each(tensor, path, 0)
        else:
            for tensor, path in zip(tensors, paths):
                submit(tensor, path, 0)
            assert handle.wait() == count
    return _result(arguments, meter, count * size, count)


def handle(arguments):
    """A handle made and destroyed. Handicap `slow`: 10 ms each."""
    module, count = op(arguments["engine"]), int(arguments["count"])
    with Meter() as meter:
        for _ in range(count):
            made = module.aio_handle(_MIB, 32, False, False, 4)
            del made
            if arguments.get("handicap") == "slow":
                time.sleep(0.010)
    result = _result(arguments, meter, 0, count)
    result["seconds"] /= count
    return result


def first_read(arguments):
    """From the import of the engine to the first tensor read; torch is imported before. Handicap `slow`: 3 s."""
    torch = need("torch")
    tensor = torch.empty(_MIB, dtype=torch.uint8)
    path = Path(arguments["dir"], "first")
    if not path.exists():
        path.write_bytes(os.urandom(_MIB))
    with Meter() as meter:
        if arguments.get("handicap") == "slow":
            time.sleep(3)
        _handle(arguments).sync_pread(tensor, str(path), 0)
    assert bytes(tensor[:64].numpy()) == path.read_bytes()[:64]
    return _result(arguments, meter, _MIB, 1)


def zero_step(arguments):
    """A training step of DeepSpeed itself: deepnvme_zero.py."""
    from benchmarks import deepnvme_zero

    if arguments["engine"] == "theirs":
        op("theirs")  # built before, or the reason why not
    return deepnvme_zero.zero_step(arguments)


_JOBS = {
    "transfer": transfer,
    "gpu": gpu,
    "many": many,
    "handle": handle,
    "first_read": first_read,
    "zero_step": zero_step,
}


def main():
    return run_job("deepnvme_jobs", _JOBS, "--engine=ours|theirs ...")


if __name__ == "__main__":
    sys.exit(main())
