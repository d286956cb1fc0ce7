# SPDX-License-Identifier: Apache-2.0
"""`penstock weights bench` before anything runs: its words, its model's shapes, its table."""

import importlib.util

import penstock
import pytest

torch = pytest.importorskip("torch")

from penstock._measure import models, tool, weights_bench, weights_model  # noqa: E402

HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "llama3-8"], "--preset llama3-8: did you mean llama3-8b?"),
        (["--preset", "gpt2"], "expected one of llama3.2-1b"),
        (["--tokens", "0"], "--tokens 0: at least 1"),
        (["--rounds", "0"], "--rounds 0: at least 1"),
        (["--memory", "much"], "--memory: got 'much'"),
        (["--max-bytes", "-1"], "--max-bytes: got '-1'"),
        (["--dir", "/nowhere"], "--dir /nowhere: no folder that can be written"),
        (["/tmp", "--dir", "/tmp"], "one folder is measured; give one"),
        (["--json", "/nowhere/x"], "--json /nowhere/x: its folder is not there"),
    ],
)
def test_wrong_words_are_named_before_any_work(words, message, capsys):
    try:
        status = weights_bench.main(words)
    except SystemExit as ended:  # of argparse
        status = ended.code
    assert status == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(HAS_TRANSFORMERS, reason="transformers is installed")
def test_without_transformers_it_says_what_to_install(tmp_path, capsys):
    assert weights_bench.main([str(tmp_path)]) == 2
    assert "transformers is not installed: pip install transformers" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(HAS_TRANSFORMERS, reason="transformers is installed")
def test_the_shards_have_a_layer_each_and_every_shape(tmp_path, monkeypatch):
    model = models.Model("tiny", 32, 12, 100, 64, key_value=16)

    class Config:
        def save_pretrained(self, folder):
            pass

    monkeypatch.setattr(weights_model, "config_of", lambda preset, model: Config())
    steps = []
    total = weights_model.make("tiny", model, tmp_path, steps.append)
    assert total == model.parameters() * 2 and len(steps) == 15
    infos = {info.name: info for info in penstock.inspect(tmp_path / "model.safetensors.index.json")}
    assert {name: tuple(info.shape) for name, info in infos.items()} == dict(model.shapes())
    of_layer = {info.path for name, info in infos.items() if ".layers.11." in name}
    assert len(of_layer) == 1 and not of_layer & {info.path for name, info in infos.items() if ".layers.1." in name}


def test_the_table_fits_a_terminal():
    bench = weights_bench._Bench("folder", 1 << 30, 4, tool.Progress())
    for side, seconds in {"penstock": 61.728, "map": 123.456, "accelerate": 240.125}.items():
        once = {
            "first_token_s": 1234.5,
            "token_s": [seconds, 1.5 * seconds],
            "words": [1, 2],
            "peak_bytes": 123_456_000_000,
        }
        bench.figures[side] = [once, once]
    lines = weights_bench._table(bench, tool.Colour(None))
    assert len(lines) == 5 and max(map(len, lines)) <= 80
    assert lines[2].startswith("penstock ") and " ████ " in lines[2] and "1.00x" in lines[2]
    assert " ██   " in lines[3] and "2.00x" in lines[3]
    assert bench.different() == []
    bench.figures["map"] = [{**once, "words": [1, 3]}]
    assert bench.different() == ["map"]
