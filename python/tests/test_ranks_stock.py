# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint, without Penstock, reads the folder of a checkpoint that many ranks saved."""

import json
import random
import struct
import threading
from pathlib import Path

import penstock
import pytest

torch = pytest.importorskip("torch")
# Before the ranks are forked: each import takes them seconds.
for module in ("checkpoint", "device_mesh", "tensor"):
    pytest.importorskip(f"torch.distributed.{module}")
hf_storage = pytest.importorskip("torch.distributed.checkpoint.hf_storage")
import torch.distributed.checkpoint as dcp  # noqa: E402
from rank_processes import run_ranks  # noqa: E402
from torch.distributed.checkpoint import _consolidate_hf_safetensors as consolidate  # noqa: E402

TYPES = [
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.complex64),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
]
NAMES = ["w", "w@2,0", 'a "b"', "ä\n", "c\\d", "proj.weight", "~2"]


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def random_tensor(dice, shape=None):
    shape = [dice.randint(1, 9) for _ in range(dice.randint(0, 3))] if shape is None else shape
    kind = dice.choice(TYPES)
    if kind is torch.bool:
        return torch.rand(shape) < 0.5
    raw = torch.randint(0, 256, [*shape, kind.itemsize], dtype=torch.uint8)
    return raw.view(kind).reshape(shape)


def random_state(seed):
    """Nested, as torch flattens it: dicts, keys that are numbers, and a list."""
    dice = random.Random(seed)
    torch.manual_seed(seed)
    return {
        "model": {name: random_tensor(dice) for name in NAMES},
        "opt": {"state": {i: {"exp_avg": random_tensor(dice), "step": torch.tensor(float(i))} for i in range(2)}},
        "list": [random_tensor(dice, [4, 5]), random_tensor(dice, [6])],
        "none": random_tensor(dice, [0, 3]),
    }


def of_each(function, state):
    if isinstance(state, dict):
        return {key: of_each(function, value) for key, value in state.items()}
    return [of_each(function, value) for value in state] if isinstance(state, list) else function(state)


def leaves(state):
    if isinstance(state, torch.Tensor):
        return [state]
    return [leaf for value in (state.values() if isinstance(state, dict) else state) for leaf in leaves(value)]


# ---- saved by threads


def boxes_of(dice, shape, count):
    """Random boxes that tile a shape."""
    boxes = [([0] * len(shape), list(shape))]
    for _ in range(count):
        offset, extent = boxes[which := dice.randrange(len(boxes))]
        axis = dice.randrange(len(shape))
        if extent[axis] < 2:
            continue
        cut = dice.randint(1, extent[axis] - 1)
        boxes[which] = (offset, [*extent[:axis], cut, *extent[axis + 1 :]])
        moved = [*offset[:axis], offset[axis] + cut, *offset[axis + 1 :]]
        boxes.append((moved, [*extent[:axis], extent[axis] - cut, *extent[axis + 1 :]]))
    return boxes


def part_of(dice, whole, count):
    """For each rank, its part of a tensor: a box of a random tiling, a range of it flattened, or all of it."""
    how = dice.choice(["boxes", "flat", "whole"]) if whole.dim() else "whole"
    if how == "whole":
        return [whole] * count
    if how == "flat":
        ends = sorted(dice.randint(0, whole.numel()) for _ in range(count - 1))
        ranges = zip([0, *ends], [*ends, whole.numel()], strict=True)
        return [penstock.FlatSlice(whole.reshape(-1)[a:b].clone(), whole.shape, a) for a, b in ranges]
    boxes = boxes_of(dice, whole.shape, count - 1)
    boxes += [([0] * whole.dim(), [0] * whole.dim())] * (count - len(boxes))
    dice.shuffle(boxes)
    cut = [tuple(slice(a, a + n) for a, n in zip(offset, extent, strict=True)) for offset, extent in boxes]
    return [
        penstock.Slice(whole[box].clone(), whole.shape, offset) for box, (offset, _) in zip(cut, boxes, strict=True)
    ]


def save_parts(folder, states, *, step=1, **options):
    """The folder of a checkpoint for which rank r gave states[r]."""
    errors = []

    def run(ranks):
        try:
            with penstock.CheckpointStore(folder, ranks=ranks, rank_wait_s=30, **options) as store:
                store.save(states[ranks.number], step=step)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(ranks,)) for ranks in penstock.Ranks.of_threads(len(states))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return penstock.CheckpointStore(folder).latest().path


def save(folder, state, count, seed, **options):
    """The folder of a checkpoint of `count` ranks, each with random parts of the state."""

    def of_rank(rank):
        dice = random.Random(seed)
        return of_each(lambda whole: part_of(dice, whole, count)[rank], state)

    return save_parts(folder, [of_rank(rank) for rank in range(count)], **options)


# ---- loaded by processes


def load_stock(rank, cases, count):
    """Loads each (path, state, seed) into tensors and DTensors of random placements: for each the numbers of the leaves
    that are not those of the state."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh = init_device_mesh("cpu", (count,))

    def target(whole, dice):
        filled = torch.full_like(whole, 1)
        if whole.dim() == 0 or dice.random() < 0.3:
            return filled
        placement = dice.choice([Replicate(), *(Shard(d) for d in range(whole.dim()))])
        return distribute_tensor(filled, mesh, [placement], src_data_rank=None)

    def is_wrong(whole, found):
        local, wanted = found, whole
        if isinstance(found, DTensor):
            extent, offset = compute_local_shape_and_global_offset(found.shape, mesh, found.placements)
            wanted = whole[tuple(slice(a, a + n) for a, n in zip(offset, extent, strict=True))]
            local = found.to_local()
        return local.shape != wanted.shape or not torch.equal(bits(local), bits(wanted))

    wrong = []
    for path, state, seed in cases:
        dice = random.Random(seed)
        loaded = of_each(lambda whole, dice=dice: target(whole, dice), state)
        dcp.load(loaded, storage_reader=hf_storage.HuggingFaceStorageReader(path))
        pairs = enumerate(zip(leaves(state), leaves(loaded), strict=True))
        wrong.append([number for number, (whole, found) in pairs if is_wrong(whole, found)])
    return wrong


def wrong_in(cases, tmp_path, count=1):
    """For each case, the numbers of the leaves that some of `count` ranks do not load."""
    results = run_ranks(count, tmp_path / f"ranks-{count}", load_stock, cases, count)
    return [sorted({number for one in own for number in one}) for own in zip(*results, strict=True)]


def test_any_layout_loads_on_any_number_of_ranks(tmp_path):
    cases = []
    for seed in range(12):
        state, shard_bytes = random_state(seed), [64, 1000, 10**9][seed // 2 % 3]
        path = save(tmp_path / f"{seed}", state, 2 + seed % 2, seed, shard_bytes=shard_bytes)
        cases.append((path, state, seed))
    for count in (1, 2, 3):
        assert wrong_in(cases, tmp_path, count) == [[]] * len(cases)


def test_checkpoints_with_linked_shards_load_too(tmp_path):
    state, dice, cases = random_state(1), random.Random(1), []
    for step in range(1, 7):  # a part of the tensors changes at each save, and the layout at the last two
        count, seed = (3, 7) if step < 5 else (2, step)
        path = save(tmp_path / "s", state, count, seed, step=step, keep=10, shard_bytes=300)
        cases.append((path, of_each(torch.clone, state), step))
        for leaf in leaves(state):
            if dice.random() < 0.3 and leaf.numel():
                raw = leaf.reshape(-1).view(torch.uint8)
                raw.copy_(torch.randint(0, 2, raw.shape, dtype=torch.uint8))
    infos = penstock.CheckpointStore(tmp_path / "s").list()
    assert sum(0 < info.linked_shards < info.shards for info in infos) >= 3
    assert wrong_in(cases, tmp_path, count=2) == [[]] * len(cases)


def halves(whole):
    """Two slices of rows."""
    return [penstock.Slice(rows, whole.shape, (i * len(rows), 0)) for i, rows in enumerate(whole.chunk(2))]


def test_shards_that_one_process_wrote_are_linked_and_load(tmp_path):
    state = {"w": torch.arange(400_000.0), "v": torch.arange(24.0).reshape(4, 6)}
    path = penstock.CheckpointStore(tmp_path / "s").save({"w": state["w"]}, step=1).path
    assert "DCP_SHARDING_INFO" not in headers(path)[0][1]["__metadata__"]
    for step in (2, 3):
        path = save_parts(tmp_path / "s", [{"w": state["w"], "v": half} for half in halves(state["v"])], step=step)
    newest = penstock.CheckpointStore(tmp_path / "s").latest()
    assert newest.linked_shards == newest.shards
    assert ["DCP_SHARDING_INFO" in header["__metadata__"] for _, header in headers(path)] == [False, True, True]
    assert wrong_in([(path, state, 0)], tmp_path, count=2) == [[]]


# ---- what the files have


def headers(path):
    """The files of shards, each with its header."""
    out = []
    for file in sorted(Path(path).glob("*.safetensors")):
        raw = file.read_bytes()
        out.append((file, json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])))
    return out


def test_each_name_has_its_place_and_the_index_names_whole_tensors(tmp_path):
    state = random_state(3)
    path = save(tmp_path / "s", state, 3, seed=3)
    names, whole = set(), set()
    for _, header in headers(path):
        metadata = header.pop("__metadata__")
        places = json.loads(metadata["DCP_SHARDING_INFO"])
        assert metadata["format"] == "pt" and places.keys() == header.keys()
        names |= header.keys()
        for name, entry in header.items():
            assert len(places[name]["saved_offsets"]) == len(entry["shape"])
    with penstock.Checkpoint(path) as checkpoint:
        shapes = {name: list(checkpoint[name].shape) for name in checkpoint}
    assert names == shapes.keys()
    for _, header in headers(path):
        whole |= {name for name, entry in header.items() if name != "__metadata__" and entry["shape"] == shapes[name]}
    index = json.loads((Path(path) / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == whole and 0 < len(whole) < len(names)


def rename(path, name, new):
    """Gives a slice another name in the first shard, as a writer that keeps the names of a file apart may."""
    file = headers(path)[0][0]
    raw = file.read_bytes()
    text, data = raw[8 : (end := 8 + struct.unpack("<Q", raw[:8])[0])], raw[end:]
    text = text.replace(f'"{name}":'.encode(), f'"{new}":'.encode())
    text = text.replace(f'\\"{name}\\":'.encode(), f'\\"{new}\\":'.encode())
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_these_tests_see_half_a_tensor_and_a_name_twice(tmp_path):
    state = {"w": torch.arange(24.0).reshape(4, 6), "v": torch.ones(3)}
    for new in ("w@0,0", "v"):
        path = save_parts(tmp_path / new, [{"w": half, "v": state["v"]} for half in halves(state["w"])])
        assert wrong_in([(path, state, 0)], tmp_path) == [[]]
        rename(path, "w", new)
        if new == "v":  # twice in that file
            with pytest.raises(Exception, match="deserializing header: invalid offset for tensor"):
                wrong_in([(path, state, 0)], tmp_path)
        else:  # torch reads the half that it finds, and says nothing
            assert wrong_in([(path, state, 0)], tmp_path) == [[0]]
        assert penstock.Checkpoint(path).verify()


def test_torch_consolidates_the_floats(tmp_path):
    from safetensors.torch import load_file

    torch.manual_seed(0)
    state = {name: torch.randn(5, 7) for name in ("a", "b.w")}
    path = save(tmp_path / "s", state, 3, seed=0)
    (tmp_path / "out").mkdir()
    consolidate.consolidate_safetensors_files(str(path), str(tmp_path / "out"), dict.fromkeys(state, 1))
    found = load_file(tmp_path / "out" / "model-00001-of-00001.safetensors")
    assert found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)
