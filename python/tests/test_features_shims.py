# SPDX-License-Identifier: Apache-2.0
"""Feature files under the interfaces of others: GIDS's class, and GraphBolt's Feature."""

import inspect

import penstock
import pytest

torch = pytest.importorskip("torch")

from penstock.features import gids, graphbolt  # noqa: E402


@pytest.fixture
def rows():
    torch.manual_seed(1)
    return {"paper": torch.randn(100, 8), "author": torch.randn(40, 8)}


@pytest.fixture
def store(rows, tmp_path):
    penstock.FeatureStore.write(tmp_path / "two.features", rows, progress=None)
    with penstock.FeatureStore.open(tmp_path / "two.features") as store:
        yield store


@pytest.fixture
def papers(rows, tmp_path):
    penstock.FeatureStore.write(tmp_path / "one.features", {"paper": rows["paper"]}, progress=None)
    with penstock.FeatureStore.open(tmp_path / "one.features") as store:
        yield store


class Hinted:
    def __init__(self, store):
        self.store, self.hints = store, []
        self.tables, self.gather = store.tables, store.gather

    def hint(self, ids):
        self.hints.append({name: some.tolist() for name, some in ids.items()})


def test_gids_keeps_and_hints_rows_of_a_file(papers, rows):
    loader = gids.GIDS(cache_dim=8, cache_size=1, window_buffer=True, wb_size=2, path=papers.path)
    left = iter([[torch.arange(50)], [torch.arange(25, 75)], [torch.arange(50)]])
    for ids in (torch.arange(50), torch.arange(25, 75), torch.arange(50)):
        assert torch.equal(loader.fetch_feature(8, left)[1], rows["paper"][ids])
    stats = loader.store.stats()
    assert stats.hints == 3 and stats.rows == 150 and stats.rows_hit > 0 and stats.memory_bytes <= 1_000_000
    loader.store.close()


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("kind", [list, tuple])
def test_gids_gives_each_batch_its_rows(papers, rows, window, kind):
    hinted = Hinted(papers)
    loader = gids.GIDS(cache_dim=8, window_buffer=window, wb_size=3, store=hinted)
    batches = [kind([torch.tensor([i, 99, i]), "seeds"]) for i in range(6)]
    left = iter(batches)
    for number, batch in enumerate(batches):
        found = loader.fetch_feature(5, left, "cpu")
        assert type(found) is kind and len(found) == 3 and torch.equal(found[0], batch[0])
        assert torch.equal(found[2], rows["paper"][batch[0], :5])
        assert len(hinted.hints) == (min(number + 4, 6) if window else 0)
    with pytest.raises(StopIteration):
        loader.fetch_feature(5, left, "cpu")
    assert torch.equal(loader.read_tensor(3, 10), rows["paper"][10:13])


def test_gids_gives_rows_of_several_types(store, rows, capsys):
    loader = gids.GIDS(cache_dim=8, heterograph=True, heterograph_map={"paper": 0, "author": 100}, store=store)
    ids = {"paper": torch.tensor([5, 1]), "author": torch.tensor([], dtype=torch.int64)}
    found = loader.fetch_feature(8, iter([(ids, None)]), "cpu")[2]
    assert torch.equal(found["paper"], rows["paper"][[5, 1]]) and found["author"].shape == (0, 8)
    loader.print_stats()
    assert "rows=2" in capsys.readouterr().out
    for quiet in ("set_required_storage_access", "cpu_backing_buffer", "set_cpu_buffer"):
        assert getattr(loader, quiet)(5.8, 11, 20, 1, 0.95) is None
    assert loader.flush_cache() is None


def test_gids_refuses_what_does_not_fit(store, papers):
    with pytest.raises(ValueError, match="expected a path or a store"):
        gids.GIDS()
    with pytest.raises(ValueError, match="cache_dim: 'paper' has rows of 8 elements, got 1024"):
        gids.GIDS(store=papers)
    with pytest.raises(ValueError, match="heterograph: expected True, for there are 2 tables"):
        gids.GIDS(cache_dim=8, store=store)
    with pytest.raises(TypeError, match="did you mean 'cache_size'"):
        gids.GIDS(cache_szie=3, store=papers)
    with pytest.raises(NotImplementedError, match="written whole"):
        gids.GIDS(cache_dim=8, path=papers.path).store_tensor(torch.ones(1), 0)


def test_gids_takes_no_more_elements_than_a_row_has(papers):
    loader = gids.GIDS(cache_dim=8, store=papers)
    batches = iter([(torch.tensor([1, 2]),)])
    for wrong in (9, 0, -1):
        with pytest.raises(ValueError, match=rf"fetch_feature: dim: expected 1 to 8, got {wrong}"):
            loader.fetch_feature(wrong, batches)
    with pytest.raises(TypeError, match="fetch_feature: dim: expected an integer, got '4'"):
        loader.fetch_feature("4", batches)
    assert loader.fetch_feature(3, batches)[-1].shape == (2, 3)  # no batch was lost
    with pytest.raises(ValueError, match="read_tensor: num: expected 0"):
        loader.read_tensor(-2, 9)


def test_the_arguments_are_those_of_gids():
    """In their order, for calls by place (GIDS at 523836c)."""
    names = list(inspect.signature(gids.GIDS).parameters)
    assert names[:7] == ["page_size", "off", "cache_dim", "num_ele", "num_ssd", "ssd_list", "cache_size"]
    assert names[7:12] == ["ctrl_idx", "window_buffer", "wb_size", "accumulator_flag", "long_type"]
    assert names[12:14] == ["heterograph", "heterograph_map"]


def test_a_feature_of_graphbolt(store, rows):
    feature = graphbolt.Feature(store["paper"])
    ids = torch.tensor([7, 7, 0])
    assert torch.equal(feature.read(ids), rows["paper"][ids]) and torch.equal(feature.read(), rows["paper"])
    stages = list(feature.read_async(ids))
    assert len(stages) == feature.read_async_num_stages(ids.device) == 1
    assert torch.equal(stages[-1].wait(), rows["paper"][ids])
    assert feature.size() == torch.Size([8]) and feature.count() == 100 and feature.metadata() == {}
    with pytest.raises(NotImplementedError, match="a feature file is not changed"):
        feature.update(ids)
    with pytest.raises(ValueError, match="100"):
        feature.read(torch.tensor([100]))
