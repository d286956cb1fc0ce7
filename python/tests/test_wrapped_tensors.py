# SPDX-License-Identifier: Apache-2.0
"""Tensors that wrap others and have no memory of their own: torch's DTensor, which FSDP2 and tensor parallelism make of
parameters."""

import penstock
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor")


@pytest.fixture(scope="module")
def mesh():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture
def wrapped(mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    return lambda tensor: distribute_tensor(tensor, mesh, [Shard(0)])


def state_of(wrapped):
    return {"w": wrapped(torch.arange(64.0).view(8, 8)), "b": wrapped(torch.ones(8))}


@pytest.mark.parametrize(
    ("verb", "name"), [("save", "x.safetensors"), ("save", "x.safetensors.index.json"), ("save_async", "x.safetensors")]
)
def test_a_save_of_tensors_names_the_wrapped_one(tmp_path, wrapped, verb, name):
    with pytest.raises(
        ValueError, match=r"state\['w'\] is a .*DTensor, which has no memory of its own; give the tensor"
    ):
        getattr(penstock, verb)(state_of(wrapped), tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    whole = {name: tensor.full_tensor() for name, tensor in state_of(wrapped).items()}
    penstock.save(whole, tmp_path / name)
    assert torch.equal(penstock.load(tmp_path / name)["w"], whole["w"])


def test_the_drop_in_for_safetensors_refuses_them(tmp_path, wrapped):
    import penstock.safetensors.torch as drop_in

    for save in (drop_in.save, lambda state: drop_in.save_file(state, tmp_path / "x.safetensors")):
        with pytest.raises(RuntimeError, match=r"state\['w'\] is a .*DTensor"):
            save(state_of(wrapped))


@pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
def test_loads_into_them_are_refused(tmp_path, wrapped, name):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.b = (torch.nn.Parameter(tensor) for tensor in state_of(wrapped).values())

    penstock.save({"w": torch.zeros(8, 8), "b": torch.zeros(8)}, tmp_path / name)
    model = Model()
    for load in (
        lambda: penstock.load(tmp_path / name, into=model.state_dict()),
        lambda: penstock.load_into(model, tmp_path / name),
    ):
        with pytest.raises(ValueError, match=r"\['w'\] is a .*DTensor, which has no memory of its own"):
            load()
    assert model.b.full_tensor().sum() == 8


def test_numbers_of_rows_in_them_are_refused(tmp_path, wrapped):
    penstock.save({"table": torch.arange(64.0).view(8, 8)}, tmp_path / "x.safetensors")
    rows = penstock.TensorRows(tmp_path / "x.safetensors", "table")
    numbers = wrapped(torch.arange(4))
    with pytest.raises(ValueError, match="ids: this .*DTensor has no memory of its own"):
        rows.gather(numbers)
    assert rows.gather(numbers.full_tensor()).nbytes == 4 * 8 * 4


def test_a_step_overlap_saves_what_its_function_makes_of_them(tmp_path, wrapped):
    weight = torch.nn.Parameter(wrapped(torch.ones(8, 8)))
    optimizer = torch.optim.AdamW([weight])
    store = penstock.CheckpointStore(tmp_path / "store", keep=1)
    with penstock.StepOverlap(store, optimizer, lambda: {"w": weight.full_tensor()}):
        for _ in range(3):
            weight.full_tensor().sum().backward()
            optimizer.step()
    assert torch.equal(store.load()["w"], weight.full_tensor())
