# SPDX-License-Identifier: Apache-2.0
"""Everyday calls on tensors of a GPU, next to the stock ways: `python -m benchmarks.gpu_compare FOLDER`. The table of
one machine is in docs/gpu.md. Prints a line for each, with the median and all runs.

It needs torch with CUDA, and safetensors; accelerate for one row. FOLDER lies on the disk, or on tmpfs, that is
measured. `--device cpu` shows that it runs."""

import argparse
import importlib.util
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import penstock
import penstock.safetensors.torch as ours
import safetensors.torch as stock
import torch

_ROWS = 4096
_SMALL = 2000


class Compare:
    """Times of calls, each run once before."""

    def __init__(self, folder: Path, device: str, runs: int) -> None:
        self.folder, self.device, self.runs = folder, device, runs

    def synchronize(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def row(self, name, call, before=lambda: None, calls=1) -> None:
        seconds = []
        for _ in range(self.runs + 1):
            before()
            self.synchronize()
            begin = time.perf_counter()
            made = call()
            self.synchronize()
            seconds.append((time.perf_counter() - begin) / calls)
            del made
        every = ", ".join(f"{one * 1e3:.3f}" for one in seconds[1:])
        print(f"{name}: {statistics.median(seconds[1:]) * 1e3:.3f} ms ({every})", flush=True)

    def evict(self, name: str) -> None:
        penstock.evict(self.path(name))


def saves(compare: Compare, state: dict[str, torch.Tensor]) -> None:
    path = compare.path
    compare.row("torch.save", lambda: torch.save(state, path("t.pt")))
    compare.row("penstock.save, .pt", lambda: penstock.save(state, path("p.pt")))
    compare.row("safetensors save_file", lambda: stock.save_file(state, path("s.safetensors")))
    compare.row("penstock.save, .safetensors", lambda: penstock.save(state, path("p.safetensors")))
    for number in range(compare.runs + 1):
        compare.synchronize()
        begin = time.perf_counter()
        pending = penstock.save_async(state, path("a.pt"))
        stall = time.perf_counter() - begin
        pending.result()
        whole = time.perf_counter() - begin
        print(f"save_async, run {number}: stall {stall * 1e3:.1f} ms, {whole * 1e3:.0f} ms in all", flush=True)


def loads(compare: Compare, cold: bool) -> None:
    path, device = compare.path, compare.device
    words = "cold" if cold else "warm"

    def row(name, file, call):
        compare.row(f"{words}, {name}", call, (lambda: compare.evict(file)) if cold else (lambda: None))

    for mmap in (False, True):
        row(
            f"torch.load(mmap={mmap})",
            "t.pt",
            lambda mmap=mmap: torch.load(path("t.pt"), map_location=device, weights_only=True, mmap=mmap),
        )
    row("penstock.load, .pt", "t.pt", lambda: penstock.load(path("t.pt"), map_location=device))
    row("safetensors load_file", "s.safetensors", lambda: stock.load_file(path("s.safetensors"), device=device))
    row("penstock load_file", "s.safetensors", lambda: ours.load_file(path("s.safetensors"), device=device))
    size = os.path.getsize(path("t.pt"))
    flat = torch.empty(size, dtype=torch.uint8, device=device)
    row("penstock.read, one tensor", "t.pt", lambda: penstock.read(path("t.pt"), flat))


def small(compare: Compare) -> None:
    path, device = compare.path, compare.device
    state = {str(i): torch.randn(100, device=device) for i in range(_SMALL)}
    compare.row("small tensors, torch.save", lambda: torch.save(state, path("st.pt")))
    compare.row("small tensors, penstock.save", lambda: penstock.save(state, path("sp.pt")))
    compare.row("small tensors, torch.load", lambda: torch.load(path("st.pt"), map_location=device, weights_only=True))
    compare.row("small tensors, penstock.load", lambda: penstock.load(path("sp.pt"), map_location=device))
    stock.save_file(state, path("ss.safetensors"))
    compare.row("small tensors, safetensors load_file", lambda: stock.load_file(path("ss.safetensors"), device=device))
    compare.row("small tensors, penstock load_file", lambda: ours.load_file(path("ss.safetensors"), device=device))
    block, calls = torch.empty(4096, dtype=torch.uint8, device=device), 300
    with penstock.File(path("t.pt")) as file:
        compare.row(
            "4 KiB, penstock.read of a File",
            lambda: [penstock.read(file, block, 4096 * i) for i in range(calls)],
            calls=calls,
        )
    descriptor = os.open(path("t.pt"), os.O_RDONLY)
    read = lambda i: torch.frombuffer(bytearray(os.pread(descriptor, 4096, 4096 * i)), dtype=torch.uint8)  # noqa: E731
    compare.row("4 KiB, pread and copy_", lambda: [block.copy_(read(i)) for i in range(calls)], calls=calls)
    os.close(descriptor)


def weights(compare: Compare, gib: float) -> None:
    width, device = 8192, compare.device
    layers = max(4, int(gib * 8))  # of 128 MiB

    def made() -> torch.nn.Module:
        linear = (torch.nn.Linear(width, width, bias=False, dtype=torch.bfloat16) for _ in range(layers))
        return torch.nn.Sequential(*linear)

    path = compare.path("model.safetensors")
    with torch.device(device):
        whole = made()
    penstock.save(whole.state_dict(), path)
    x = torch.randn(1, width, dtype=torch.bfloat16, device=device)
    with torch.no_grad():
        expected = whole(x)
        compare.row("a pass, all on the device", lambda whole=whole: whole(x))
        del whole
        for memory in ("0", "64GiB"):
            with torch.device("meta"):
                empty = made()
            streamed = penstock.stream(empty, path, memory=memory, device=device, device_memory="1GiB")
            assert torch.equal(streamed(x), expected)
            compare.row(f"a pass, device_memory=1GiB, memory={memory}", lambda streamed=streamed: streamed(x))
            del streamed, empty
        if importlib.util.find_spec("accelerate"):
            import accelerate

            model = made()
            model.load_state_dict(penstock.load(path))
            model = accelerate.cpu_offload(model, execution_device=torch.device(device))
            compare.row("a pass, accelerate's cpu_offload", lambda: model(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder in it is made and removed")
    parser.add_argument("--gib", type=float, default=2, help="size of the state (default: 2)")
    parser.add_argument("--device", default="cuda:0", help="default: cuda:0")
    parser.add_argument("--runs", type=int, default=3, help="of each call (default: 3)")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-compare-", dir=arguments.folder))
    try:
        compare = Compare(folder, arguments.device, arguments.runs)
        width = 4096
        tensors = max(1, int(arguments.gib * (1 << 30) / (_ROWS * width * 4)))
        state = {f"layer.{i}": torch.randn(_ROWS, width, device=arguments.device) for i in range(tensors)}
        saves(compare, state)
        loads(compare, cold=False)
        loads(compare, cold=True)
        small(compare)
        if arguments.device != "cpu":
            del state
            weights(compare, 2 * arguments.gib)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
