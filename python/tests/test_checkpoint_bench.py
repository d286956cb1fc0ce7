# SPDX-License-Identifier: Apache-2.0
"""`penstock checkpoint bench`: the models' true shapes, what is left out where they do not fit, honest figures."""

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

import penstock.report.__main__ as report_command  # noqa: E402
from penstock._measure import (  # noqa: E402
    checkpoint_bench as bench,  # noqa: E402
    gnn_bench,
    host_memory,
    models,
    shapes_bench,
    sides,
    storage,
    tool,
    turns,
    weights_bench,
)

# As their publishers give them.
PARAMETERS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "phi3-mini": 3_821_079_552,
    "llama3.2-1b": 1_235_814_400,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-7b": 7_615_616_512,
}
TINY = models.Model("tiny", 32, 4, 100, 64, key_value=16)


@pytest.mark.parametrize("name", models.MODELS)
def test_a_model_has_as_many_parameters_as_its_publisher_says(name):
    assert models.MODELS[name].parameters() == PARAMETERS[name]


def test_what_does_not_fit_loses_blocks_and_then_rows_and_says_so():
    model, per = models.MODELS["gpt2-xl"], models.bytes_a_parameter("full", "bf16")
    assert per == 14 and models.bytes_a_parameter("full", "fp32") == 12
    assert models.bytes_a_parameter("weights", "bf16") == 2
    whole, said = models.fit(model, per, 1 << 60)
    assert whole is model and said == ""
    for limit in (8 << 30, 3 << 30):
        cut, said = models.fit(model, per, limit)
        assert f"the first {cut.blocks} of 48 blocks" in said and 1 <= cut.blocks < 48
        assert cut.parameters() * per <= limit < models.replace(cut, blocks=cut.blocks + 1).parameters() * per
        assert set(cut.shapes()) <= set(model.shapes())
    cut, said = models.fit(model, per, 700 << 20)
    assert cut.blocks == 1 and cut.vocabulary < model.vocabulary and "rows of the embedding" in said
    assert cut.parameters() * per <= 700 << 20
    with pytest.raises(ValueError, match="more than 1000"):
        models.fit(model, per, 1000)


@pytest.mark.parametrize(("state", "dtype"), [("full", "bf16"), ("full", "fp32"), ("weights", "bf16")])
def test_a_state_has_the_bytes_that_were_said(state, dtype):
    made = models.make_state(TINY.shapes(), state, dtype)
    tensors = dict(models.tensors_of(made))
    steps = [tensor for name, tensor in tensors.items() if name.endswith(".step")]
    expected = TINY.parameters() * models.bytes_a_parameter(state, dtype)
    assert sum(t.nbytes for t in tensors.values()) - sum(t.nbytes for t in steps) == expected
    assert made["model"]["lm_head.weight"].dtype == (torch.bfloat16 if dtype == "bf16" else torch.float32)
    assert ("master" in made) == (state == "full" and dtype == "bf16")


def run(*words, folder):
    return bench.main([*words, "--model", "gpt2", "--state", "weights", "--max-bytes", "16M", "--dir", str(folder)])


def test_every_side_is_measured_and_nothing_is_left(tmp_path, capsys):
    json_file = tmp_path / "out.json"
    folder = tmp_path / "disk"
    folder.mkdir()
    peers = ["torch"] + [name for name, missing in bench._installed().items() if not missing and name != "torch"]
    assert run("--rounds", "2", "--against", ",".join(peers), "--json", str(json_file), folder=folder) == 0
    out = capsys.readouterr().out
    document = json.loads(json_file.read_text())
    figures = {(f["side"], f["verb"]): f for f in document["figures"]}
    for side in [side for peer in peers for side in sides.PEERS[peer]] + sides.OURS:
        for title, verb in ((side.title, "save"), (side.load_title, "load")):
            assert len(figures[title, verb]["seconds"]) == 2
            assert title in out
    assert ("penstock save_async", "stall") in figures
    assert ("fio write" in out) == ("fio" in peers)
    assert "rows of the embedding" in out and document["left_out"] in out
    assert document["bytes"] <= 16 << 20
    assert list(folder.iterdir()) == []


def test_no_side_pays_for_the_page_faults_of_a_host(tmp_path, monkeypatch):
    state, done = models.make_state(TINY.shapes(), "weights", "bf16"), []

    def noted(side):
        def note(verb, call):
            return lambda *words: (done.append(verb), call(*words))[1]

        return dataclasses.replace(side, save=note("save", side.save), load=note("load", side.load))

    monkeypatch.setattr(sides, "OURS", [noted(side) for side in sides.OURS])
    monkeypatch.setitem(sides.PEERS, "torch", [noted(sides.TORCH)])
    monkeypatch.setattr(turns.host_memory, "back_memory", done.append)
    made = turns.Bench(state, str(tmp_path), ["save", "load"], ["torch"], lambda text: None)
    made.run(2)
    done = done[2 * 4 :]  # what warmed up before
    assert done == [made.bytes, "save", made.bytes, "load"] * 8


def test_memory_is_backed_and_given_back():
    before = resident_bytes()
    host_memory.back_memory(64 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 >= before + (32 << 20)
    assert resident_bytes() < before + (32 << 20)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_a_side_saves_what_it_loads(tmp_path):
    state = models.make_state(TINY.shapes(), "full", "bf16")
    flat = dict(models.tensors_of(state))
    for side in [*sides.OURS, sides.TORCH]:
        path = str(tmp_path / side.suffix)
        side.save(flat if side.flat else state, path)
        storage.make_cold(path)
        loaded = dict(models.tensors_of(side.load(path)))
        assert loaded.keys() == flat.keys()
        assert all(torch.equal(loaded[name], flat[name]) for name in flat)


def test_a_side_that_gives_back_other_bits_is_found(tmp_path, monkeypatch, capsys):
    def load(path):
        state = torch.load(path)
        for tensor in state.get("model", {}).values():
            tensor.view(torch.int16).view(-1)[5] ^= 1
        return state

    wrong = sides.Side("torch.save + fsync", "a torch that errs", sides.TORCH.save, load, "wrong.pt")
    monkeypatch.setitem(sides.PEERS, "torch", [wrong])
    assert run("--against", "torch", "--what", "load", folder=tmp_path) == 1
    assert "a torch that errs: model.wte.weight is not what was saved" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "gpt5"], "--model gpt5: choose one of gpt2"),
        (["--against", "tape"], "--against tape: expected one of torch, safetensors, fio"),
        (["--what", "burn"], "--what burn: expected one of save, load, async"),
        (["--rounds", "0"], "--rounds 0: at least 1"),
        (["--dir", "/nowhere"], "--dir /nowhere: no folder that can be written"),
        (["--json", "/nowhere/x"], "--json /nowhere/x: its folder is not there"),
        (["/tmp", "--dir", "/tmp"], "one folder is measured; give one"),
    ],
)
def test_wrong_words_are_told_before_any_work(words, said, capsys):
    assert bench.main(words) == 2
    assert said in capsys.readouterr().err


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "penstock checkpoint bench --model llama3-8b" in out and "durable" in out


@pytest.mark.parametrize(
    "command", [bench, gnn_bench, shapes_bench, weights_bench, report_command], ids=lambda module: module.__name__
)
def test_help_fits_a_terminal(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = command._parser().format_help().splitlines()
    assert [line for line in lines if len(line) > 80 and not line.startswith("  penstock ")] == []
    assert not any(line.startswith("  penstock ") and "  " in line[2:] for line in lines if len(line) > 80)


def test_help_explains_a_long_command_below_it():
    text = (
        "examples:\n  penstock report a.json b.json  both\n  penstock report a.json         one\n\nA line\nand another."
    )
    shown = tool.parser("x", "", text)
    filled = shown._get_formatter()._fill_text(text, 36, "").splitlines()
    assert filled[1:3] == ["  penstock report a.json b.json", "      both"]
    assert filled[3:] == ["  penstock report a.json         one", "", "A line and another."]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(number, tmp_path):
    words = ["checkpoint", "bench", "--model", "gpt2", "--max-bytes", "200M", "--rounds", "100", "--dir", str(tmp_path)]
    words += ["--against", "torch"]
    process = subprocess.Popen([sys.executable, "-m", "penstock", *words], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any(tmp_path.glob("*/state.*")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert "the files that it made are removed" in err
    assert list(tmp_path.iterdir()) == []


def test_the_table_fits_a_terminal_and_has_bars():
    class Measured:
        bytes = 123_456_789_012
        figures = {
            f"{verb} {title}": sides_figures(title, verb, seconds)
            for verb in ("save", "load", "stall")
            for title, seconds in {"penstock .safetensors": 123.456, "penstock .pt": 61.728, "fio read": 234.5}.items()
        }

    lines = bench._table(Measured(), tool.Colour(None))
    assert len(lines) == 15 and max(map(len, lines)) <= 80
    assert lines[1].startswith("durable save ") and lines[3].startswith("penstock .pt ")
    assert " ████ " in lines[3] and " ██   " in lines[2] and "2.00x" in lines[2]


def sides_figures(title, verb, seconds):
    return turns.Figures(title, verb, [seconds, seconds * 1.5, seconds * 0.5], [2.5, 2.5, 2.5])
