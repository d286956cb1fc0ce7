# SPDX-License-Identifier: Apache-2.0
"""penstock.features.simulate(): the policies over the rows that batches ask for."""

import numpy as np
import pytest
from penstock.features import simulate

ROWS, SLOTS = 2000, 128


def batches_of(seed, count=40, size=150):
    """Some rows far more often than others, and some several times in a batch."""
    some = np.random.default_rng(seed)
    return [(some.zipf(1.3, size) * 7919) % ROWS for _ in range(count)]


def read_by_lru(batches, slots):
    held, read = {}, 0
    for batch in batches:
        ids = list(dict.fromkeys(batch.tolist()))
        missed = [i for i in ids if i not in held]
        for i in ids:
            if i in held:
                held[i] = held.pop(i)
        for i in missed:
            if len(held) == slots:
                del held[next(iter(held))]
            held[i] = True
        read += len(missed)
    return read


@pytest.mark.parametrize("seed", range(5))
def test_no_policy_reads_less_than_belady_and_lru_is_lru(seed):
    batches = batches_of(seed)
    found = simulate(batches, SLOTS)
    assert set(found) == {"static", "clock", "s3fifo", "window", "fifo", "lru", "s3fifo_whole", "belady"}
    wanted = sum(len(set(batch.tolist())) for batch in batches)
    for one in found.values():
        assert (one.batches, one.rows, one.preloaded) == (len(batches), wanted, 0)
        assert found["belady"].rows_read <= one.rows_read <= wanted
        assert one.hit_rate == pytest.approx(1 - one.rows_read / wanted)
    assert found["lru"].rows_read == read_by_lru(batches, SLOTS)


def test_the_trace_comes_in_any_shape_and_from_files(tmp_path):
    batches = batches_of(3, count=10, size=100)
    wanted = simulate(batches, SLOTS, ["window", "belady"], window=4)
    assert list(wanted) == ["window", "belady"]
    np.save(tmp_path / "two.npy", np.stack(batches))
    np.save(tmp_path / "one.npy", np.concatenate(batches).astype("u4"))
    plain = np.concatenate([np.concatenate(([len(ids)], ids)) for ids in batches]).astype("<u8")
    (tmp_path / "plain").write_bytes(plain.tobytes())
    for trace, more in (
        (np.stack(batches), {}),
        ([ids.tolist() for ids in batches], {}),
        ((ids.astype("i4")[::1] for ids in batches), {}),
        (tmp_path / "two.npy", {}),
        (str(tmp_path / "one.npy"), {"batch": 100}),
        (tmp_path / "plain", {}),
    ):
        assert simulate(trace, SLOTS, ("window", "belady"), window=4, **more) == wanted


def test_hints_hot_rows_and_the_beginning_count():
    batches = batches_of(1)
    often = np.bincount(np.concatenate(batches), minlength=ROWS).argsort()[::-1]
    cold = simulate(batches, SLOTS, ["window"])["window"]
    assert cold.rows_read < simulate(batches, SLOTS, ["window"], window=0)["window"].rows_read
    hot = simulate(batches, SLOTS, ["window"], hot=often)["window"]
    assert 0 < hot.preloaded <= SLOTS and hot.rows_read < cold.rows_read
    later = simulate(batches, SLOTS, ["window"], warm_up=10)["window"]
    assert later.batches == len(batches) - 10 and later.rows < cold.rows
    assert simulate([], SLOTS)["window"].hit_rate == 0 and simulate(batches, 0)["lru"].hit_rate == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([[1]], 5, ["windw"]), ValueError, "did you mean 'window'?"),
        (([[1]], 5, "window"), TypeError, r"simulate: policies: expected a list of names, got .*; give \[name\]"),
        (([[-1]], 5), ValueError, r"trace\[0\]"),
        (([[0.5]], 5), TypeError, "trace"),
        (([1], 5), TypeError, "trace"),
        (([[1]], -5), ValueError, "slots"),
        (([[1]], 1 << 31), ValueError, "slots: got 2147483648; expected at most"),
        ((None, 5), TypeError, "trace: expected batches of ids, or a path, got None"),
        (("/none/trace.npy", 5), FileNotFoundError, "trace.npy"),
    ],
)
def test_what_is_no_trace_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        simulate(*arguments)


def test_a_window_past_30_is_refused():
    for window in (31, 1 << 40):
        with pytest.raises(ValueError, match="window: got"):
            simulate([[1]], 5, window=window)
