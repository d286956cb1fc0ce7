# SPDX-License-Identifier: Apache-2.0
"""stream() from several folders: shards spread over them, copies, and copies of some."""

import shutil

import penstock
import pytest

torch = pytest.importorskip("torch")


def made():
    return torch.nn.Sequential(*(torch.nn.Linear(200, 200) for _ in range(6))).eval()


@pytest.fixture
def folders(tmp_path):
    torch.manual_seed(1)
    model = made()
    (tmp_path / "a").mkdir()
    penstock.save(model.state_dict(), tmp_path / "a" / "model.safetensors.index.json", shard_bytes=400_000)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    x = torch.ones(1, 200)
    with torch.no_grad():
        return tmp_path / "a", tmp_path / "b", x, model(x)


def streamed(folders, memory=500_000):
    with torch.device("meta"):
        model = made()
    return penstock.stream(model, folders, memory=memory)


def check(model, x, expected):
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(model(x), expected)
    return model.stream_stats()


def test_copies_are_read_at_once(folders):
    first, second, x, expected = folders
    stats = check(streamed([first, str(second)]), x, expected)
    assert [folder.path for folder in stats.folders] == [str(first), str(second)]
    assert all(folder.bytes_read and folder.bytes_per_second for folder in stats.folders)
    assert sum(folder.bytes_read for folder in stats.folders) == stats.bytes_read
    assert penstock.weights.plan([first, second], 500_000, rate="measured").rate > 0


def test_shards_may_be_spread_and_some_copied(folders):
    first, second, x, expected = folders
    shards = sorted(path.name for path in first.glob("*.safetensors"))
    assert len(shards) > 2
    (first / shards[0]).unlink()
    (second / shards[1]).unlink()
    model = streamed((first, second))
    check(model, x, expected)
    model.unstream()
    assert torch.equal(model(x), expected)


def test_copies_that_differ_are_refused_by_name(folders):
    first, second, _, _ = folders
    shard = sorted(second.glob("*.safetensors"))[1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-20_000] + bytes(20_000))
    with pytest.raises(ValueError, match=f"'{shard}' differs from its copy '{first / shard.name}' in the 4096 bytes"):
        streamed([first, second])
    shard.write_bytes(whole + b"more")
    with pytest.raises(ValueError, match=f"{shard}.*{first / shard.name}|{first / shard.name}.*{shard}"):
        streamed([first, second])
    shard.unlink()
    (first / shard.name).unlink()
    with pytest.raises(ValueError, match=f"'{shard.name}' is in none of the folders"):
        streamed([first, second])
    with pytest.raises(ValueError, match="stream: folder: got an empty list"):
        streamed([])
