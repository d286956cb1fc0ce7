# SPDX-License-Identifier: Apache-2.0
"""penstock.plan.model, checkpoint, restore, interval and stream: published figures, formulas, and what is refused."""

import inspect
import json
import math
import subprocess
import sys

import penstock
import penstock.plan as plan
import pytest
from hypothesis import given, settings, strategies as some
from test_plan import HOSTILE, NUMBERS, check_formulas

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
TIMES = some.floats(1e-3, 1e7)
COUNTS = some.integers(1, 10**5)
NAMES = some.sampled_from(plan.models())


def answers():
    yield plan.checkpoint("175b", interval="2h", share="5%", capacity="100TB")
    yield plan.checkpoint("llama-3-8b", optimizer="adafactor", tensors=True)
    yield plan.checkpoint("llama-3-8b", optimizer="adam-8bit", overlapped=True, interval="1h", staging="10GB/s")
    yield plan.checkpoint("dlio-llama-405b", tensor=8, pipeline=32, data=2, zero=1, interval="1h", overlapped=True)
    yield plan.checkpoint("llama-3-70b", ranks=64, tensor=8, zero=3, bytes_per_parameter=18, seconds="1min")
    yield plan.restore("175b", copies=16)
    yield plan.restore("175b", copies=16, broadcast=True, optimizer="weights")
    yield plan.interval("6min", mtbf="60d", nodes=512, restore="5min", downtime="10min", interval="1h", simulate=1000)
    yield plan.interval("6min", accelerator_mtbf="50000h", accelerators=16384, mtbf="1d", stall="5s", slowdown="3%")
    yield plan.stream(preset="gen5-8-gds")
    yield plan.stream("8b", rate="3GB/s", resident="8GiB", link="10GB/s", flops=1e13, batch=4, prompt=100, generate=7)


def test_each_formula_gives_its_figure():
    for answer in answers():
        check_formulas(answer)
        assert plan.Answer.from_json(answer.json()) == answer
        assert answer.text() and answer.explain() and answer.markdown()


def test_the_figures_of_the_talk():
    answer = plan.checkpoint("175b", interval="2h")
    assert answer["checkpoint_bytes"].value == 2450e9
    assert answer["write_bytes_per_second"].value == pytest.approx(6.81e9, rel=1e-3)
    once = plan.restore("175b", seconds="5min")
    assert once["read_bytes_per_second"].value == pytest.approx(8.17e9, rel=1e-3)
    each = plan.restore("175b", seconds="5min", copies=16)
    assert each["read_bytes_per_second"].value == pytest.approx(130.7e9, rel=1e-3)
    assert any("five hours" in note for note in each.notes)
    hours = plan.restore("175b", seconds="5h", copies=16)
    assert hours["read_bytes_per_second"].value == pytest.approx(2.178e9, rel=1e-3)


def test_a_config_is_a_path_a_folder_a_mapping_or_an_object(tmp_path):
    class Config:
        def to_dict(self):
            return LLAMA

    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for config in (tmp_path, str(tmp_path / "config.json"), LLAMA, Config()):
        found = plan.model(config=config)
        assert (found.parameters, found.layers, found.assumed) == (8_030_261_248, 32, ())
        assert sum(one.parameters for one in found.tensors) == found.parameters
        assert plan.checkpoint(config=config)["parameters"].value == found.parameters
        assert plan.restore(config=config)["state_bytes"].value == 14 * found.parameters
        assert plan.stream(config=config, rate=1e9)["weights_bytes"].value == 2 * found.parameters


def test_each_name_is_a_model():
    for name in plan.models():
        assert plan.model(name).name == name
        assert plan.checkpoint(name)["parameters"].value == plan.model(name).parameters
    assert {"llama", "mixtral", "bert", "t5"} < set(plan.model_types())
    for optimizer in plan.optimizers():
        whole = optimizer.weights + optimizer.master + optimizer.states
        answer = plan.checkpoint("13b", optimizer=optimizer.name)
        assert answer["checkpoint_bytes"].value == pytest.approx(13e9 * whole)


@given(name=NAMES, interval=TIMES, share=some.floats(0.001, 1), keep=COUNTS)
@settings(max_examples=20, deadline=None)
def test_a_checkpoint_that_may_take_longer_needs_less(name, interval, share, keep):
    answer = plan.checkpoint(name, interval=interval, share=share, keep=keep)
    check_formulas(answer)
    rate = answer["write_bytes_per_second"].value
    assert plan.checkpoint(name, interval=interval * 2, share=share)["write_bytes_per_second"].value < rate
    assert plan.checkpoint(name, seconds=interval * share)["write_bytes_per_second"].value == pytest.approx(rate)
    assert answer["room_bytes"].value == pytest.approx((keep + 1) * answer["checkpoint_bytes"].value)
    assert plan.Answer.from_json(answer.json()) == answer


@given(name=NAMES, seconds=TIMES, copies=COUNTS)
@settings(max_examples=20, deadline=None)
def test_a_broadcast_reads_once(name, seconds, copies):
    each = plan.restore(name, seconds=seconds, copies=copies)
    once = plan.restore(name, seconds=seconds, copies=copies, broadcast=True)
    check_formulas(each)
    check_formulas(once)
    assert each["read_bytes_per_second"].value == pytest.approx(copies * once["read_bytes_per_second"].value)
    assert once["fabric_bytes_per_second"].value == pytest.approx((copies - 1) * once["once_bytes_per_second"].value)


@given(
    mtbf=some.floats(1e3, 1e9),
    save=some.floats(1e-3, 1e3),
    stalled=some.floats(0.01, 1),
    slowdown=some.floats(0, 0.9),
    restore=some.floats(0, 1e3),
    factor=some.floats(0.05, 20),
)
@settings(max_examples=30, deadline=None)
def test_no_interval_keeps_more_than_the_best(mtbf, save, stalled, slowdown, restore, factor):
    job = {"save": save, "mtbf": mtbf, "stall": save * stalled, "slowdown": slowdown, "restore": restore}
    answer = plan.interval(**job)
    check_formulas(answer)
    best = answer["interval_seconds"].value
    own = max(best * factor, (1 - slowdown) * save)
    other = plan.interval(**job, interval=own)
    assert other["own_goodput"].value <= answer["goodput"].value * (1 + 1e-12)
    assert all(row[2] <= answer["goodput"].value * (1 + 1e-12) for row in answer.tables[0].rows)
    assert 0 < answer["goodput"].value < 1


@given(rate=some.floats(1e6, 1e12), resident=some.floats(0, 15e9), batch=COUNTS, tokens=COUNTS)
@settings(max_examples=20, deadline=None)
def test_streaming_less_is_never_slower(rate, resident, batch, tokens):
    answer = plan.stream("8b", rate=rate, resident=resident, batch=batch, generate=tokens)
    check_formulas(answer)
    found = answer["tokens_per_second"].value
    assert found == pytest.approx(batch * rate / (16e9 - resident))
    assert plan.stream("8b", rate=rate, resident=resident / 2, batch=batch)["tokens_per_second"].value <= found * (
        1 + 1e-9
    )


@pytest.mark.parametrize(
    "call, given_already, name",
    [
        *((plan.checkpoint, {"model": "7b"}, name) for name in ("bytes_per_parameter", "tensor", "pipeline", "data")),
        *((plan.checkpoint, {"model": "7b"}, name) for name in ("ranks", "seconds", "interval", "keep", "capacity")),
        *((plan.restore, {"model": "7b"}, name) for name in ("bytes_per_parameter", "seconds", "copies")),
        *((plan.interval, {"save": 1}, name) for name in ("mtbf", "accelerator_mtbf")),
        *((plan.interval, {"save": 1, "mtbf": 10}, name) for name in ("nodes", "interval", "simulate")),
        (plan.interval, {"mtbf": 10}, "save"),
        *((plan.stream, {"model": "7b"}, name) for name in ("rate", "link", "flops", "batch", "prompt", "generate")),
    ],
    ids=lambda value: getattr(value, "__name__", str(value))[:20],
)
def test_numbers_are_refused_by_name(call, given_already, name):
    for value in (*HOSTILE[1:], *NUMBERS):
        if value == "8GB/s" and name in ("rate", "link"):
            continue
        with pytest.raises((TypeError, ValueError), match=name):
            call(**given_already, **{name: value})


@pytest.mark.parametrize("call", [plan.model, plan.checkpoint, plan.restore, plan.stream])
def test_models_are_refused(call, tmp_path):
    more = {"rate": 1e9} if call is plan.stream else {}
    for value in (*HOSTILE[1:], 3, "llama-3-70c", "\0", "\ud800", "-3b", "nan", "1e400b", "x" * 100_000):
        with pytest.raises((TypeError, ValueError), match="model"):
            call(value, **more)
    for value in (True, [], 3, b"x", object(), LLAMA | {"x": object()}, dict):
        with pytest.raises((TypeError, ValueError), match="config"):
            call(config=value, **more)
    with pytest.raises((TypeError, ValueError), match="model"):
        call("7b", config=LLAMA, **more)
    with pytest.raises(FileNotFoundError):
        call(config=tmp_path / "missing.json", **more)
    with pytest.raises(ValueError, match=r"hidden_size is -1; expected a whole number"):
        call(config=LLAMA | {"hidden_size": -1}, **more)
    for wrong in ("LlamaForCausalLM", 3, True, {}):
        with pytest.raises(ValueError, match="architectures is no list"):
            call(config=LLAMA | {"architectures": wrong}, **more)
    for text in (b"", b"\xff", b"[" * 10_000, b'{"model_type": "llama", ', b'{"a": 1, "a": 2}'):
        (tmp_path / "config.json").write_bytes(text)
        with pytest.raises(ValueError, match="not JSON|not UTF-8|it is a list|comes twice"):
            call(config=tmp_path, **more)
    (tmp_path / "config.json").write_bytes(b" " * (17 << 20))
    with pytest.raises(ValueError, match="16 MiB"):
        call(config=tmp_path, **more)


def test_a_type_that_nobody_knows_names_the_nearest(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(penstock.Unsupported, match="did you mean llama"):
        plan.model(config=LLAMA | {"model_type": "lama"})


def test_what_is_missing_is_said():
    short = {key: value for key, value in LLAMA.items() if key != "intermediate_size"}
    assert any(
        "intermediate_size is not in the file; 11008 was assumed" in line for line in plan.model(config=short).assumed
    )
    assert any("intermediate_size" in note for note in plan.checkpoint(config=short).notes)


def test_ranks_that_do_not_divide_are_named():
    for options, words in (
        ({"tensor": 7}, "tensor: got 7"),
        ({"pipeline": 81}, "pipeline: got 81"),
        ({"tensor": 8, "pipeline": 16, "ranks": 1000}, "896 or 1024"),
        ({"pipeline": 2, "zero": 3}, "zero: got 3 with pipeline 2"),
        ({"zero": 4}, "zero: got 4"),
    ):
        with pytest.raises(ValueError, match=words):
            plan.checkpoint("llama-3-70b", **options)


def test_a_simulation_is_the_same_for_a_seed():
    options = {"mtbf": "1d", "simulate": 100_000}
    first = plan.interval("6min", **options, seed=7)
    assert first == plan.interval("6min", **options, seed=7)
    assert first["simulated_goodput"].value != plan.interval("6min", **options, seed=8)["simulated_goodput"].value
    assert first["simulated_goodput"].value == pytest.approx(first["goodput"].value, rel=0.005)
    parts = ("goodput", "lost", "saving", "restoring")
    assert math.fsum(first[f"simulated_{part}"].value for part in parts) == pytest.approx(1)


def run(*words, **more):
    return subprocess.run([sys.executable, "-m", "penstock", "plan", *words], capture_output=True, text=True, **more)


def test_the_command_line_says_the_same(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    answer = plan.checkpoint(config=LLAMA, optimizer="adam", data=8, zero=3)
    words = ("checkpoint", "--optimizer", "adam", "--data", "8", "--zero", "3")
    assert run(*words, str(tmp_path / "config.json")).stdout == answer.text()
    assert run(*words, "-", input=json.dumps(LLAMA)).stdout == answer.text()
    assert run("interval", "--save", "60s", "--mtbf", "1d").stdout == plan.interval(60, mtbf=86400).text()
    assert run("restore", "--model", "175b").stdout == plan.restore("175b").text()
    assert "gen5-8-gds" in run("stream", "--list").stdout
    for wrong in (("checkpoint",), ("restore", "--model", "x"), ("interval",), ("stream", "--model", "7b")):
        said = run(*wrong)
        assert said.returncode == 2 and said.stderr and not said.stdout, said


@pytest.mark.parametrize(
    "call", [plan.model, plan.checkpoint, plan.restore, plan.interval, plan.stream], ids=lambda call: call.__name__
)
def test_a_keyword_that_is_not_known_names_the_nearest(call):
    for name in inspect.signature(call).parameters:
        with pytest.raises(TypeError, match=rf"there is no argument '{name}x'; did you mean"):
            call(**{f"{name}x": 1})
