# SPDX-License-Identifier: Apache-2.0
"""Sizes, rates and times in words mean the same in every argument and every option, or are refused in all of them.
tests/base/amounts.tsv is the table; the C++ tests of base, plan and cli read it too."""

import contextlib
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import penstock
import penstock.features
import penstock.plan
import pytest
from penstock import _core

TABLE = Path(__file__).parents[2] / "tests" / "base" / "amounts.tsv"
ROWS = [
    (word, *(None if cell == "-" else float(cell) if kind else int(cell) for kind, cell in enumerate(cells.split())))
    for word, cells in re.findall(r'^"(.*)"\t(.*)$', TABLE.read_text(encoding="utf-8"), re.M)
]
KINDS = {"SIZE": 1, "RATE": 2, "TIME": 3}
WORDS = re.compile(r"(\w+): '?(?:int|float) \| str")


def outcome(call, name, value):
    """The type of what is raised, and whether the word was no amount."""
    try:
        done = call(**{name: value})
        close = getattr(done, "close", None)
        if close is not None:
            close()
    except (ValueError, TypeError, OverflowError, MemoryError, OSError, penstock.Error) as error:
        return type(error), "; expected " in str(error) and "such as" in str(error)
    return None, False


def check(call, name, kind, plain_fractions=False):
    """Each word of the table has the outcome of its number, or is refused as no amount."""
    for row in ROWS:
        word, wanted = row[0], row[KINDS[kind]]
        found = outcome(call, name, word)
        if wanted is not None:
            assert found == outcome(call, name, wanted), (name, word)
            assert wanted == 0 or not found[1], (name, word)
        elif not (plain_fractions and re.fullmatch(r"[0-9.e+-]+", word)):
            assert found == (ValueError, True), (name, word)


def test_the_words_of_the_table():
    assert len(ROWS) >= 80
    for word, *wanted in ROWS:
        for parse, value in zip((_core.parse_bytes, _core.parse_rate, _core.parse_seconds), wanted, strict=True):
            if value is None:
                with pytest.raises(ValueError, match=r"(?s)^it: got '.*'; expected "):
                    parse(word, "it")
            else:
                assert parse(word) == pytest.approx(value, rel=1e-15), word


@pytest.fixture(scope="module")
def probes(tmp_path_factory):
    """Calls by the arguments that take words. An argument that is not here fails its test."""
    folder = tmp_path_factory.mktemp("amounts")
    data, table = folder / "data", folder / "rows.features"
    data.write_bytes(bytes(64))
    penstock.FeatureStore.write(table, {"a": np.zeros((4, 16), "float32")}, progress=None)
    engine, memory, ids = penstock.Engine(), bytearray(64), np.arange(4)
    store = penstock.FeatureStore.open(table)
    rows = {"stride": 16, "row_bytes": 16}
    found = {
        "Engine": penstock.Engine,
        "File": lambda **more: penstock.File(data, "a", **more),
        "save": lambda **more: penstock.save({"a": ids}, folder / "a.safetensors.index.json", **more),
        "CheckpointStore": lambda **more: penstock.CheckpointStore(folder / "store", **more),
        "FeatureStore": lambda **more: penstock.FeatureStore(table, **more),
        "FeatureStore.open": lambda **more: penstock.FeatureStore.open(table, **more),
        "Prefetch": lambda **more: penstock.features.Prefetch([], store, **more),
        "plan.Measure": lambda **more: penstock.plan.train(
            "resnet50", accelerators=1, measure=penstock.plan.Measure(folder / "nothing", **more)
        ),
        "plan.measure": lambda **more: penstock.plan.measure(folder / "nothing", **more),
    }
    for name, owner in (("", penstock), ("Engine.", engine)):
        found[name + "read"] = lambda owner=owner, **more: owner.read(data, memory, **more)
        found[name + "write"] = lambda owner=owner, **more: owner.write(data, memory, **more)
        found[name + "read_rows"] = lambda owner=owner, **more: owner.read_rows(data, ids, memory, **rows, **more)
        found[name + "read_async"] = lambda owner=owner, **more: owner.read_async(data, memory, **more).result()
        found[name + "write_async"] = lambda owner=owner, **more: owner.write_async(data, memory, **more).result()
        found[name + "read_rows_async"] = lambda owner=owner, **more: owner.read_rows_async(
            data, ids, memory, **rows, **more
        ).result()
    yield found | of_weights(folder)
    store.close()


def of_weights(folder):
    torch = pytest.importorskip("torch")
    torch.save({}, folder / "nothing.pt")
    model = torch.nn.Linear(8, 8)
    penstock.save(model.state_dict(), folder / "model.safetensors")
    streamed = penstock.stream(torch.nn.Linear(8, 8, device="meta"), folder / "model.safetensors", memory="1MiB")

    def stream(**more):
        device = {"device": "cuda:0"} if "device_memory" in more else {}
        penstock.stream(torch.nn.Linear(8, 8, device="meta"), folder / "model.safetensors", **device, **more)

    return {
        "stream": stream,
        "weights.stream": stream,
        "weights.Streamed.set_memory": streamed.set_memory,
        "weights.plan": lambda **more: penstock.weights.plan(
            folder / "model.safetensors", **{"memory": "1MiB", **more}
        ),
    }


def arguments():
    """(name of a call, argument) of everything public whose type says that it takes a number or a word."""
    found = set()
    for module in (penstock, penstock.plan, penstock.features, importlib.import_module("penstock.weights")):
        for name, one in inspect.getmembers(module):
            if name.startswith("_") or inspect.ismodule(one):
                continue
            prefix = module.__name__.removeprefix("penstock").removeprefix(".").replace("features", "")
            name = f"{prefix}.{name}" if prefix else name
            calls = {name: one}
            if inspect.isclass(one):
                own = [key for key in dir(one) if not key.startswith("_")]
                calls = {f"{name}.{key}": getattr(one, key) for key in own}
                calls[name] = one.__init__
            for call, function in calls.items():
                text = str(getattr(function, "__nb_signature__", ""))
                with contextlib.suppress(TypeError, ValueError):
                    text = text or str(inspect.signature(function))
                found |= {(call, argument) for argument in WORDS.findall(text)}
    return sorted(found)


# Arguments that take a number or another word, and those of plan's questions, which have tests of their own.
OTHERS = {("weights.plan", "compute_s"), ("weights.Streamed.set_memory", "device_memory")}  # it needs a GPU
RATES = {("weights.plan", "rate")}
QUESTIONS = ("plan.train", "plan.size", "plan.checkpoint", "plan.restore", "plan.feeds", "plan.interval", "plan.stream")
OF_JOBS = {"bytes": "SIZE", "write_bytes": "SIZE", "start": "TIME", "every": "TIME", "within": "TIME", "length": "TIME"}


def of_calls():
    for call, argument in arguments():
        if (call, argument) not in OTHERS and call not in (*QUESTIONS, "plan.mix", "plan.Job"):
            if call != "plan.measure" or argument in ("seconds", "size"):
                yield call, argument


def test_the_arguments_are_found():
    found = arguments()
    assert {("Engine", "block_bytes"), ("stream", "memory"), ("save", "shard_bytes"), ("File", "buffer")} <= set(found)
    assert len(list(of_calls())) >= 30


@pytest.mark.parametrize(("call", "argument"), list(of_calls()))
def test_an_argument_takes_the_words_of_the_table(probes, call, argument):
    kind = "RATE" if (call, argument) in RATES else "TIME" if argument == "seconds" else "SIZE"
    check(probes[call], argument, kind)


def of_questions():
    """The options of `penstock plan`, with the kind that its help prints."""
    for verb in (name.removeprefix("plan.") for name in QUESTIONS):
        words = [sys.executable, "-m", "penstock", "plan", verb, "--help"]
        text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        for flag, kind in re.findall(r"--([a-z-]+) (SIZE|RATE|TIME)\b", text):
            if not flag.startswith("measure-"):
                yield verb, flag.replace("-", "_"), kind


def test_the_questions_of_plan_take_the_words_of_the_table():
    found = list(of_questions())
    assert len(found) >= 35
    for verb, name, kind in found:
        call = getattr(penstock.plan, verb)
        empty = inspect.Parameter.empty
        parameters = inspect.signature(call).parameters.items()
        given = {one: 1 for one, what in parameters if what.default is empty and one not in ("model", "save", name)}
        given |= {one: "8b" if one == "model" else None for one, _ in parameters if one in ("model", "save")}
        check(lambda call=call, given=given, **more: call(**{**given, **more}), name, kind, plain_fractions=True)


@pytest.mark.parametrize(("name", "kind"), list(OF_JOBS.items()))
def test_the_jobs_of_a_mix_take_the_words_of_the_table(name, kind):
    def mixed(**more):
        penstock.plan.mix([penstock.plan.Job("checkpoint", **{"bytes": "1GB", "every": "1h", "within": 60, **more})])

    check(mixed, name, kind, plain_fractions=True)


COMMANDS = ("checkpoint_bench", "gnn_bench", "shapes_bench", "weights_bench")


def of_commands():
    """The options of the commands that are Python, by the metavar that their help prints."""
    for name in (*COMMANDS, "ds_io", "ds_nvme_tune"):
        module = importlib.import_module(f"penstock.{'_measure' if name in COMMANDS else 'deepnvme'}.{name}")
        parser = module._parser() if name in COMMANDS else module.make_parser()
        for action in parser._actions:
            if action.metavar in KINDS:
                yield name, parser, action


def test_the_commands_take_the_words_of_the_table():
    tool = importlib.import_module("penstock._measure.tool")
    found = list(of_commands())
    assert len(found) >= 10
    for name, parser, action in found:
        flag = action.option_strings[0]
        for row in ROWS:
            word, wanted = row[0], row[KINDS[action.metavar]]
            try:
                given = [f"{flag}={word}", *(["--io_size=1"] if name == "ds_io" and flag != "--io_size" else [])]
                given += ["--nvme_dir=."] if name == "ds_nvme_tune" else []
                value = getattr(parser.parse_args(given), action.dest)
                value = tool.parse_size(flag, value) if name.startswith("ds_") else value
                assert value == wanted, (name, flag, word)
            except (SystemExit, tool.WrongArguments):  # the number may be out of its range
                assert wanted is None or not 1 <= wanted <= (86_400 if flag == "--seconds" else (1 << 60) - 1)


def of_file(path, name, value):
    path.write_text(json.dumps({name: value}))
    return penstock.Engine(options=path)


@pytest.mark.parametrize("name", [argument for call, argument in arguments() if call == "Engine"])
def test_a_file_of_options_and_the_environment_take_the_words_of_the_table(name, tmp_path, monkeypatch):
    def of_environment(value):
        monkeypatch.setenv(f"PENSTOCK_{name.upper()}", str(value))
        try:
            return penstock.Engine()
        finally:
            monkeypatch.delenv(f"PENSTOCK_{name.upper()}")

    for word, wanted, *_ in ROWS:
        for make in (of_environment, lambda value: of_file(tmp_path / "options.json", name, value)):
            if make is of_environment and not word.strip():
                continue  # an empty variable is one that is not set
            found = outcome(make, "value", word)
            expected = (ValueError, False) if wanted is None else outcome(make, "value", wanted)
            assert found == expected, (name, word)
