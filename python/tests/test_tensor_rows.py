# SPDX-License-Identifier: Apache-2.0
"""penstock.TensorRows: an embedding that is cut into several tensors and shards, gathered by row."""

import importlib.util
import os

import numpy as np
import penstock
import pytest

torch = pytest.importorskip("torch")

NAMES = ["embed.2", "embed.0", "embed.1"]


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(1)
    state = {f"embed.{i}": torch.randn(rows, 24).to(torch.bfloat16) for i, rows in enumerate((200, 1, 300))}
    state |= {"wide": torch.ones(3, 25), "number": torch.tensor(1.0), "numbers": torch.arange(40.0).reshape(10, 2, 2)}
    path = tmp_path / "model.safetensors.index.json"
    penstock.save(state, path, shard_bytes=10_000)
    return tmp_path, state, torch.cat([state[name] for name in NAMES])


def test_rows_are_those_of_the_tensors_one_after_the_other(saved):
    folder, _, whole = saved
    with penstock.TensorRows(folder, NAMES) as rows:
        assert (rows.shape, rows.dtype) == ((501, 24), "bfloat16")
        ids = torch.randint(0, 501, (7, 11))
        assert torch.equal(rows.gather(ids), whole[ids])
        out = torch.empty(77, 24, dtype=torch.bfloat16)
        assert rows.gather(ids.reshape(-1).to(torch.int32), out) is out and torch.equal(out, whole[ids.reshape(-1)])
        out.zero_()
        assert rows.gather_async(ids, out).result() == out.nbytes and torch.equal(out, whole[ids.reshape(-1)])
        assert torch.equal(rows.gather(torch.empty(0, dtype=torch.int64)), whole[:0])
        if importlib.util.find_spec("ml_dtypes") is None:
            with pytest.raises(TypeError, match="NumPy has no bfloat16; give `out`"):
                rows.gather([1, 2])
        else:
            found = rows.gather([1, 2])
            assert found.dtype.name == "bfloat16"
            assert np.array_equal(found.view(np.int16), whole[1:3].view(torch.int16).numpy())


def test_one_name_and_numpy(saved):
    folder, state, _ = saved
    rows = penstock.TensorRows(folder / "model.safetensors.index.json", "numbers")
    found = rows.gather(np.array([9, 0, 9]))
    assert isinstance(found, np.ndarray) and np.array_equal(found, state["numbers"].numpy()[[9, 0, 9]])
    assert rows.gather([3]).shape == (1, 2, 2)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(rows.gather([3]), state["numbers"].numpy()[[3]]) else 1)
    assert os.waitpid(child, 0)[1] == 0
    rows.close()
    with pytest.raises(ValueError, match="these rows are closed"):
        rows.gather([0])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["embed.0", "embed.3"], "'embed.3' is in none of the .*; did you mean"),
        (["embed.0", "wide"], r"'wide' is F32 with rows of shape \[25\], and 'embed.0' is BF16"),
        ("number", "'number' has no dimensions"),
        ([], "expected 1 tensor or more"),
    ],
)
def test_tensors_that_are_no_table_are_refused(saved, names, message):
    with pytest.raises(ValueError, match=message):
        penstock.TensorRows(saved[0], names)


def test_rows_that_are_not_there_are_refused(saved):
    rows = penstock.TensorRows(saved[0], "embed.0")
    with pytest.raises(ValueError, match=r"ids\[1\]: 200 is no row; there are 200"):
        rows.gather(torch.tensor([0, 200]))
    with pytest.raises(ValueError, match=r"ids\[0\]: -1"):
        rows.gather(torch.tensor([-1]))
    with pytest.raises(ValueError, match="expected 1 rows of 48 bytes"):
        rows.gather(torch.tensor([0]), torch.empty(2, 24, dtype=torch.bfloat16))
