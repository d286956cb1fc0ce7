# SPDX-License-Identifier: Apache-2.0
"""Runs of the weights.* bars, each in a fresh interpreter (the one with transformers in it):
`python -m benchmarks.weight_jobs JOB --key=value ...`.

Prints one JSON object. Ends with 77 and the reason where something it needs is not installed. weight_models.py says
which model it is. All of them read cold shards, with one processor less than there are for the computation.
"""

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import checkpoint_states as states, cleanup, weight_models as models, weight_zero
from benchmarks.job_tools import SKIP, Meter, figures, need, run_job, skip

_PEERS = {"map": "transformers", "accelerate": "accelerate", "load_file": "safetensors", "zero": "deepspeed"}


def _folder(arguments):
    return Path(arguments["dir"], arguments.get("model", "model"))


def _model(arguments):
    """The folder of the model, and its shards, cold."""
    models.use_processors()
    folder = _folder(arguments)
    return folder, models.lay_out(folder, int(arguments.get("layers", "8")))


def _streamed(folder, memory, **options):
    return need("penstock").stream(None, folder, memory=int(memory), **options)


# ---- rates ----


def decode(arguments):
    """Bytes a second of --tokens=4 with nothing resident, ours; or --way=engine: the engine reads as many bytes of the
    same shards. Handicap `one_slot`: nothing is read while a layer is computed."""
    folder, shards = _model(arguments)
    tokens = int(arguments.get("tokens", "4"))
    if arguments["way"] == "engine":
        total = models.weight_bytes(shards) * tokens
        return figures(seconds=models.read_through_engine(shards, tokens), bytes=total, operations=tokens)
    model = _streamed(folder, models.least_memory(folder))
    if arguments.get("handicap") == "one_slot":
        models.without_overlap(model)
    decoding = models.Decoding(model)
    seconds = decoding.tokens(tokens)
    read = model.stream_stats().plan["read_bytes"] * tokens
    return figures(seconds=seconds, bytes=read, operations=tokens)


def prefill(arguments):
    """A prompt whose computation takes 0.65 of its reading, streamed with nothing resident: the seconds, by the larger
    of the two alone. Handicap `no_read_ahead`: nothing is read while a layer is computed."""
    torch = need("torch")
    folder, shards = _model(arguments)
    whole = _streamed(folder, 3 * models.weight_bytes(shards))

    def seconds_of(model, length):
        ids = torch.arange(length).reshape(1, length)
        start = time.perf_counter()
        with torch.no_grad():
            model(input_ids=ids)
        return time.perf_counter() - start

    memory = models.least_memory(folder)
    reading = need("penstock").weights.plan(folder, memory).read_bytes / models.weight_bytes(shards)
    reading *= models.read_through_engine(shards)
    seconds_of(whole, 8)
    length = 4
    while (computing := min(seconds_of(whole, length) for _ in range(2))) < 0.6 * reading and length < 1500:
        length = max(length + 2, int(length * min(2, 0.65 * reading / computing)))
    if not 0.5 < computing / reading < 0.8:
        skip(f"a prompt of {length} words is computed in {computing:.2f} s and read in {reading:.2f} s")
    del whole
    streamed = _streamed(folder, memory)
    if arguments.get("handicap") == "no_read_ahead":
        models.without_overlap(streamed)
    seconds_of(streamed, 8)  # memory is touched
    together = statistics.median(seconds_of(streamed, length) for _ in range(3))
    return figures(seconds=together, value=together / max(computing, reading), prompt=length, computing=computing)


def resident(arguments):
    """Seconds a token with a share r of the bytes resident, by 1 - r of those with none: the r = 0.25, 0.5 or 0.75 that
    is furthest from 1, as its distance. Handicap `all_read`: residents are read too."""
    penstock = need("penstock")
    folder, _ = _model(arguments)
    tokens = int(arguments.get("tokens", "8"))
    least = models.least_memory(folder)
    none = penstock.weights.plan(folder, least).read_bytes
    measured, planned = {}, {}
    for share in (0, 0.25, 0.5, 0.75):
        memory = models.memory_for(folder, (1 - share) * none) if share else least
        planned[share] = penstock.weights.plan(folder, memory).read_bytes
        model = _streamed(folder, least if arguments.get("handicap") == "all_read" else memory)
        measured[share] = models.Decoding(model).tokens(tokens) / tokens
        del model
    worst = max(abs(measured[s] / measured[0] / (planned[s] / planned[0]) - 1) for s in measured)
    return figures(seconds=measured[0], value=worst, measured=list(measured.values()), planned=list(planned.values()))


def plan(arguments):
    """Seconds a token, by those that weights.plan() says with a rate and a computation that it has measured itself;
    with a budget that leaves half of the bytes to read, and with one that leaves so few that computing takes longer.
    The worse of the two. Handicap `no_compute`: the computation is left out of the plan."""
    penstock = need("penstock")
    folder, shards = _model(arguments)
    tokens = int(arguments.get("tokens", "10"))
    computing = 0 if arguments.get("handicap") == "no_compute" else "measured"
    ratios, plans = [], []
    none = penstock.weights.plan(folder, models.least_memory(folder)).read_bytes
    for share in (0.6, 0.03):
        memory = models.memory_for(folder, share * none)
        states.make_cold(shards)
        plans.append(penstock.weights.plan(folder, memory, rate="measured", compute_s=computing))
        decoding = models.Decoding(_streamed(folder, memory))
        measured = statistics.median(decoding.tokens() for _ in range(tokens))
        ratios.append(measured / plans[-1].seconds)
    worst = max(ratios, key=lambda ratio: abs(ratio - 1))
    return figures(value=worst, ratios=ratios, rates=[p.rate for p in plans], computing=plans[0].compute_s)


def devices(arguments):
    """Seconds of --tokens=4 of shards that each of --files has a copy of, all read at once; --way=one: the first
    alone. Handicap `first_only`."""
    models.use_processors()
    folders = [Path(path).parent / "model" for path in arguments["files"].split(",")]
    tokens = int(arguments.get("tokens", "4"))
    for folder in folders:
        models.lay_out(folder, int(arguments.get("layers", "8")))
    one = arguments["way"] == "one" or arguments.get("handicap") == "first_only"
    model = _streamed(folders[0] if one else folders, models.least_memory(folders[0]))
    seconds = models.Decoding(model).tokens(tokens)
    speeds = [folder.bytes_per_second for folder in model.stream_stats().folders]
    return figures(seconds=seconds, operations=tokens, speeds=speeds)


# ---- one memory limit for both ----

_NO_LIMIT = 1 << 50
# What a stream takes that is no weight, as docs/weights.md says: buffers of the reads, and the tables of pages.
_READS = 8 << 20
_PAGE_TABLES = 512


def _in_group(arguments, way, limit=0, seconds_max=None):
    """What child() prints, in a control group with that limit of memory (0: none). `charged` is the most that the group
    was charged for: unlike the peak of the process, it leaves out libraries that others have in the page cache. With
    `seconds_max`, None where the child was killed or took longer."""
    words = [sys.executable, "-m", "benchmarks.weight_jobs", "child", f"--way={way}"]
    words += [f"--{key}={value}" for key, value in arguments.items() if key not in ("way", "handicap")]
    root = Path("/sys/fs/cgroup/memory")
    if limit and not (root / "memory.limit_in_bytes").exists():
        skip("a limit of memory is set through cgroup v1's 'memory', which is not mounted here")
    group = root / cleanup.own_name()
    cleanup.raise_on_signals()  # the group goes with the run
    for other in root.glob(f"{cleanup.PREFIX}*"):
        if cleanup.is_left_over(other.name):
            cleanup.remove_cgroup(other)

    def enter():
        if limit:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    try:
        if limit:
            group.mkdir()
            (group / "memory.limit_in_bytes").write_text(str(limit))
        done = subprocess.run(
            words, stdout=subprocess.PIPE, text=True, preexec_fn=enter, check=False, timeout=seconds_max
        )
        charged = int((group / "memory.max_usage_in_bytes").read_text()) if limit else None
    except PermissionError as error:
        skip(f"{error}: control groups need root")
    except subprocess.TimeoutExpired:
        return None
    finally:
        if limit:
            cleanup.remove_cgroup(group)
    if done.returncode == SKIP:
        skip(f"{way} cannot run here")
    if done.returncode != 0:
        if seconds_max:
            return None
        sys.exit(f"{way}: exit {done.returncode}")
    return {**json.loads(done.stdout.splitlines()[-1]), "charged": charged}


def child(arguments):
    """Seconds of --tokens, those from the call to the first token, and the peak of memory, of one --way: meta (no
    weights), ours, map, accelerate or zero."""
    torch, transformers = need("torch"), need("transformers")
    models.use_processors()
    folder, way = _folder(arguments), arguments["way"]
    tokens, drawn = int(arguments.get("tokens", "4")), models.is_mixture(folder)
    if way == "meta":
        config = transformers.AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        small = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**models.TINY})).eval()
        models.Decoding(small).tokens(tokens)
        return {"peak": states.peak_bytes()}
    with tempfile.TemporaryDirectory(dir=arguments["dir"], prefix="run-") as scratch:
        begin = time.perf_counter()
        if way == "ours":
            if arguments.get("whole"):  # experts are read with their layer
                need("penstock.weights._stream").taken_out = lambda units, can_be: []
            if arguments.get("copied"):
                folder = shutil.copytree(folder, Path(scratch) / "model")
                os.sync()
            model = _streamed(folder, int(arguments["memory"]))
        elif way == "map":
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        elif way == "zero":
            model = weight_zero.loaded(folder, scratch)
        else:
            need("accelerate")
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype="auto", device_map={"": "disk"}, offload_folder=scratch
            )
        decoding = models.Decoding(model.eval(), drawn=drawn)
        first = decoding.first_at - begin
        return {"seconds": decoding.tokens(tokens), "first": first, "peak": states.peak_bytes()}


def capped(arguments):
    """Seconds of --tokens=4 in a control group whose memory is --cap=0.7 of the weights and what the process needs
    without them; --way=ours, with a budget that leaves room in that share for what a stream takes that is no weight,
    map or accelerate; --model=mixture. --way=zero has no limit: it keeps no weight in memory, and to load takes more
    than that. Handicaps `nothing_resident`, and `whole_layers`: experts are read with their layer."""
    folder, shards = _model(arguments)
    share = int(float(arguments.get("cap", "0.7")) * models.weight_bytes(shards))
    _in_group(arguments, "meta")  # libraries come into the page cache, and are charged to nobody below
    process = _in_group(arguments, "meta", _NO_LIMIT)["charged"]
    budget = share - share // _PAGE_TABLES - _READS
    memory = models.least_memory(folder) if arguments.get("handicap") == "nothing_resident" else budget
    whole = {"whole": "1"} if arguments.get("handicap") == "whole_layers" else {}
    limit = 0 if arguments["way"] == "zero" else share + process
    found = _in_group({**arguments, **whole, "memory": memory}, arguments["way"], limit)
    tokens = int(arguments.get("tokens", "4"))
    return figures(_PEERS.get(arguments["way"], "penstock"), seconds=found["seconds"], operations=tokens, limit=limit)


def start(arguments):
    """Seconds from the call to the first token of a prompt of four words; --way=ours, with half of the weights in
    memory, or zero. Handicap `copied`: the shards are copied first."""
    _, shards = _model(arguments)
    copied = {"copied": "1"} if arguments.get("handicap") == "copied" else {}
    given = {**arguments, **copied, "memory": models.weight_bytes(shards) // 2, "tokens": "1"}
    return figures(_PEERS.get(arguments["way"], "penstock"), seconds=_in_group(given, arguments["way"])["first"])


def small(arguments):
    """The smallest limit of memory under which a process makes --tokens=4: of a quarter of the weights, and steps of
    --step=1.06 up to 16 times that, the lowest that works within --patience=60 seconds. Ours with the least budget, by
    that of ZeRO-Inference. Handicap `five_largest`: the budget is five times the largest parameter, as ZeRO-Inference's
    buffers are."""
    folder, shards = _model(arguments)
    base, patience = models.weight_bytes(shards) // 4, float(arguments.get("patience", "60"))
    step = float(arguments.get("step", "1.06"))
    memory = models.least_memory(folder)
    if arguments.get("handicap") == "five_largest":
        memory = 5 * models.largest_parameter(folder)

    def smallest(way):
        """By halving. Each way runs once without a limit: its op is built then, or it is skipped."""
        _in_group({**arguments, "memory": memory}, way)

        def works(steps):
            limit = int(base * step**steps)
            return _in_group({**arguments, "memory": memory}, way, limit, patience) is not None

        low, high = -1, math.ceil(math.log(16, step))
        if not works(high):
            sys.exit(f"{way}: no end under {int(base * step**high)} bytes")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if works(middle) else (middle, high)
        return int(base * step**high)

    ours, zero = smallest("ours"), smallest("zero")
    return figures(value=ours / zero, ours=ours, zero=zero, weights=4 * base, budget=memory)


def memory(arguments):
    """The peak of a process that streams, less that of the same process without weights, by its budget of half the
    weights. Handicap `power_of_two`: an arena of the next power of two."""
    _, shards = _model(arguments)
    budget = int(0.55 * models.weight_bytes(shards))
    given = 1 << (budget - 1).bit_length() if arguments.get("handicap") == "power_of_two" else budget
    process = _in_group(arguments, "meta")["peak"]
    peak = _in_group({**arguments, "memory": given}, "ours")["peak"]
    return figures(value=(peak - process) / budget, peak=peak, process=process)


def written(arguments):
    """Bytes that stream() and two tokens write to storage, by those of the weights. Handicap `copied`: the shards are
    copied first."""
    folder, shards = _model(arguments)
    total = models.weight_bytes(shards)
    before = states.io_bytes("write")
    with tempfile.TemporaryDirectory(dir=arguments["dir"], prefix="run-") as copy:
        if arguments.get("handicap") == "copied":
            folder = shutil.copytree(folder, Path(copy) / "model")
            os.sync()
        models.Decoding(_streamed(folder, 0.5 * total)).tokens(2)
    return figures(value=(states.io_bytes("write") - before) / total)


class _InTheOrderOfTheList:
    """Handicap of ours: with each unit those are read that follow it in the list, as if it were the order of use."""

    def __init__(self, core, slots):
        self._core, self._ahead = core, slots - 1

    def __getattr__(self, name):
        return getattr(self._core, name)

    def acquire(self, unit, stream):
        read = [number for number, one in enumerate(self._core.plan()["units"]) if number > unit and one[2] != 0]
        for number in read[: self._ahead]:
            self._core.acquire(number, stream)
            self._core.release(number, stream)
        return self._core.acquire(unit, stream)


def first_pass(arguments):
    """Bytes that the first pass of a Llama reads whose layers are divided into their parts, by those that it needs:
    the worst of budgets of 0.6, 1 and 1.5 layers, at 1/8 of the width of the other jobs. Handicap
    `registration_order`: the parts are read in the order in which the model lists them."""
    torch, transformers = need("torch"), need("transformers")
    models.use_processors()
    small = {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 4, "vocab_size": 512}
    config = transformers.LlamaConfig(**{**models.TINY, **small, "num_hidden_layers": 22}, dtype="bfloat16")
    ratios = []
    with tempfile.TemporaryDirectory(dir=arguments.get("dir"), prefix="run-") as folder:
        transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
        whole = transformers.LlamaForCausalLM.from_pretrained(folder, dtype="auto").eval()
        layer = sum(one.nbytes for one in whole.model.layers[0].parameters())
        ids = torch.arange(4).reshape(1, 4)
        for layers in (0.6, 1, 1.5):
            model = _streamed(folder, layers * layer)
            weights = model._penstock_weights
            if arguments.get("handicap") == "registration_order":
                weights.core = _InTheOrderOfTheList(weights.core, weights.asked[2])
            with torch.no_grad():
                assert torch.equal(model(input_ids=ids).logits, whole(input_ids=ids).logits)
            stats = model.stream_stats()
            ratios.append(stats.bytes_read / stats.plan["read_bytes"])
    return figures(value=max(ratios), ratios=ratios)


# ---- loads and rows ----


def load(arguments):
    """Seconds of a cold load of the index, --way=ours, or by load_file of each shard with each tensor cloned. Handicap
    `depth1`."""
    if arguments.get("handicap") == "depth1":
        os.environ["PENSTOCK_QUEUE_DEPTH"] = "1"
    penstock, load_file = need("penstock"), need("safetensors.torch").load_file
    folder, shards = _model(arguments)
    need("penstock._measure.host_memory").back_memory(models.weight_bytes(shards))
    with Meter() as meter:
        if arguments["way"] == "ours":
            loaded = penstock.load(folder / "model.safetensors.index.json")
        else:
            loaded = {name: tensor.clone() for path in shards for name, tensor in load_file(path).items()}
    size = sum(tensor.nbytes for tensor in loaded.values())
    return meter.figures(size, of=_PEERS.get(arguments["way"], "penstock"))


def rows(arguments):
    """--count=20000 rows of 4 KiB of a cold file by random numbers: ours in one list, or copied from a mapping with
    MADV_RANDOM by --threads=32. Handicap `depth1`."""
    import mmap

    numpy, penstock = need("numpy"), need("penstock")
    path, count, threads = arguments["path"], int(arguments.get("count", "20000")), int(arguments["threads"])
    ids = numpy.random.default_rng(1).integers(0, os.path.getsize(path) // 4096, count)
    out = numpy.ones((count, 4096), numpy.uint8)
    depth = {"queue_depth": 1} if arguments.get("handicap") == "depth1" else {}
    states.make_cold([path])
    if arguments["way"] == "ours":
        with penstock.Engine(**depth) as engine, penstock.File(path, cache="direct") as file:
            engine.read_async(file, bytearray(4096)).result()  # the ring comes with the first transfer
            with Meter() as meter:
                engine.read_rows(file, ids, out)
    else:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            mapped.madvise(mmap.MADV_RANDOM)
            table = numpy.frombuffer(mapped, numpy.uint8).reshape(-1, 4096)

            def copy(part):
                for i in range(part, count, threads):
                    out[i] = table[ids[i]]

            with ThreadPoolExecutor(threads) as pool, Meter() as meter:
                list(pool.map(copy, range(threads)))
            del table, copy
    with open(path, "rb") as file:
        file.seek(int(ids[-1]) * 4096)
        assert file.read(4096) == out[-1].tobytes()
    return meter.figures(count * 4096, count, "penstock" if arguments["way"] == "ours" else "numpy")


_JOBS = {job.__name__: job for job in (decode, prefill, resident, plan, devices, child, capped, memory, written, load)}
_JOBS |= {"rows": rows, "first_pass": first_pass, "start": start, "small": small}


def main():
    return run_job("weight_jobs", _JOBS)


if __name__ == "__main__":
    sys.exit(main())
