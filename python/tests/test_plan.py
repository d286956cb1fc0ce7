# SPDX-License-Identifier: Apache-2.0
"""penstock.plan: figures of public talks and benchmarks, formulas that give their value, and what is refused."""

import inspect
import json
import math
import pickle
import subprocess
import sys

import penstock.plan as plan
import pytest
from hypothesis import given, settings, strategies as some
from penstock import _core

MEANING = {"sqrt": math.sqrt, "min": min, "max": max, "ceil": math.ceil, "floor": math.floor}
MANY = some.integers(1, 10**6)
SIZES = some.integers(1, 10**15)
RATES = some.floats(1e-3, 1e9)


def answers():
    yield plan.train("resnet50", accelerators=8)
    yield plan.train("unet3d", preset="storage-2.0", utilisation="90%")
    yield plan.size("resnet50", accelerators=3, memory_bytes="512GiB", hosts=2)
    yield plan.feeds(files="25GB/s", model="unet3d", preset="storage-2.0")
    yield plan.feeds(files=2e9, files_low=1e9, files_high=3e9, writes="1GB/s", checkpoint_bytes="10GB", within="1min")
    yield plan.mix([plan.Job("train", model="flux"), plan.Job("checkpoint", bytes="1GB", every="1h", within=60)])


def check_formulas(answer):
    for figure in answer.figures:
        assert math.isfinite(figure.value) and figure.formula
        assert all(one.source for one in figure.inputs)
        if not figure.formula.startswith("["):
            inputs = {one.name: one.value for one in figure.inputs}
            assert len(inputs) == len(figure.inputs), figure.name
            found = eval(figure.formula, {"__builtins__": {}, **MEANING}, inputs)
            assert found == pytest.approx(figure.value, rel=1e-12, abs=1e-300), figure
            assert set(inputs) == {name for name in inputs if name in figure.formula}, figure


def test_each_formula_gives_its_figure():
    for answer in answers():
        check_formulas(answer)


@given(count=MANY, samples=RATES, bytes_=SIZES, use=some.floats(0.01, 1))
@settings(max_examples=100, deadline=None)
def test_train_is_the_product_of_its_inputs(count, samples, bytes_, use):
    one = {"samples_per_second": samples, "bytes_per_sample": bytes_, "utilisation": use}
    answer = plan.train(accelerators=count, **one)
    check_formulas(answer)
    rate = answer["read_bytes_per_second"].value
    assert rate == pytest.approx(count * samples * bytes_ * use)
    assert plan.train(accelerators=count + 1, **one)["read_bytes_per_second"].value > rate
    assert plan.Answer.from_json(answer.json()) == answer


@given(memory=SIZES, hosts=MANY, batch=MANY, count=MANY, each=some.integers(1, 10**6), sample=some.integers(1, 10**9))
@settings(max_examples=100, deadline=None)
def test_a_data_set_is_as_large_as_both_rules_want(memory, hosts, batch, count, each, sample):
    numbers = {"memory_bytes": memory, "hosts": hosts, "accelerators": count, "samples_per_file": each}
    answer = plan.size(batch=batch, bytes_per_sample=sample, **numbers)
    check_formulas(answer)
    data = answer["data_bytes"].value
    assert data >= 5 * memory * hosts * (1 - 1e-12)
    assert data >= 500 * batch * count * sample * (1 - 1e-12)
    assert answer["cached_share"].value <= 0.2 * (1 + 1e-12)


@given(
    some.lists(
        some.builds(
            plan.Job,
            some.sampled_from(["restore", "inference"]),
            bytes=SIZES,
            copies=some.integers(1, 100),
            within=some.floats(0.1, 1000),
            start=some.floats(0, 5000),
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=100, deadline=None)
def test_a_mix_is_between_its_largest_job_and_all_at_once(jobs):
    answer = plan.mix(jobs, length=6000)
    check_formulas(answer)
    rates = [job.bytes * job.copies / job.within for job in jobs]
    peak = answer["peak_bytes_per_second"].value
    assert max(rates) * (1 - 1e-9) <= peak <= sum(rates) * (1 + 1e-9)
    assert answer["mean_bytes_per_second"].value <= peak * (1 + 1e-9)
    assert answer["read_bytes"].value == pytest.approx(sum(job.bytes * job.copies for job in jobs), rel=1e-6)


@given(rate=SIZES, below=some.floats(0.1, 1), above=some.floats(1, 10), count=MANY, size=SIZES)
@settings(max_examples=100, deadline=None)
def test_what_is_fed_is_the_inverse_of_what_is_read(rate, below, above, count, size):
    job = {"samples_per_second": count, "bytes_per_sample": size}
    fed = plan.feeds(files=rate, files_low=rate * below, files_high=rate * above, **job)
    check_formulas(fed)
    assert fed["accelerators"].value == pytest.approx(rate / (count * size))
    if below < 1 or above > 1:
        ends = fed["accelerators_low"].value, fed["accelerators_high"].value
        assert ends[0] <= fed["accelerators"].value <= ends[1]


@pytest.mark.parametrize(
    "name", ["files", "samples", "writes", "files_low", "bytes_per_sample", "checkpoint_bytes", "within"]
)
@pytest.mark.parametrize("value", [[], b"8", True, "nan", -1, 0, "5Gb/s", "\ud800"], ids=repr)
def test_feeds_refuses_by_name(name, value):
    with pytest.raises((TypeError, ValueError), match=name):
        plan.feeds(**{"files": 1e9, "writes": 1e9, name: value})


def test_words_have_units():
    same = {plan.train("bert", bytes_per_sample=size)["read_bytes_per_second"].value for size in (2048, "2KiB", 2048.0)}
    assert len(same) == 1
    numpy = pytest.importorskip("numpy")
    assert plan.train("bert", accelerators=numpy.int64(8)) == plan.train("bert", accelerators=8)


def test_answers_are_values():
    for answer in answers():
        assert pickle.loads(pickle.dumps(answer)) == answer
        assert plan.Answer.from_json(answer.json()) == answer
        assert answer.text() and answer.explain() and answer.markdown()
    with pytest.raises(KeyError, match="did you mean 'read_bytes_per_second'"):
        plan.train("bert")["read_byte_per_second"]


HOSTILE = [None, True, [], {}, object(), b"8", 1j]
NUMBERS = [
    "nan",
    "inf",
    -1,
    0,
    float("nan"),
    float("inf"),
    -0.0,
    1e400,
    10**400,
    "8GB/s",
    "",
    "x" * 10_000,
    "\0",
    "\ud800",
]


@pytest.mark.parametrize("name", ["accelerators", "utilisation", "samples_per_second", "bytes_per_sample"])
@pytest.mark.parametrize("value", [*HOSTILE[1:], *NUMBERS], ids=lambda value: repr(value)[:20])
def test_train_refuses_by_name(name, value):
    with pytest.raises((TypeError, ValueError), match=name):
        plan.train("resnet50", **{name: value})


@pytest.mark.parametrize("value", [*HOSTILE, *NUMBERS], ids=lambda value: repr(value)[:20])
def test_size_refuses_by_name(value):
    with pytest.raises((TypeError, ValueError), match="memory"):
        plan.size("unet3d", memory_bytes=value)


@pytest.mark.parametrize("call", [plan.train, plan.size])
@pytest.mark.parametrize("name", ["model", "preset", "accelerator"])
@pytest.mark.parametrize("value", [*HOSTILE[1:], 3, "resnet", "\0", "\ud800"], ids=repr)
def test_names_are_refused(call, name, value):
    options = {"model": "unet3d", **({"memory_bytes": "1TB"} if call is plan.size else {}), name: value}
    with pytest.raises((TypeError, ValueError), match=name):
        call(**options)


@pytest.mark.parametrize("jobs", [*HOSTILE, 3, [3], [{}], [{3: 4}], {"jobs": 3}, {"job": []}], ids=repr)
def test_mixes_are_refused(jobs):
    with pytest.raises((TypeError, ValueError), match="plan mix"):
        plan.mix(jobs)


@pytest.mark.parametrize("member", [f for f in inspect.signature(plan.Job).parameters if f not in ("kind", "name")])
@pytest.mark.parametrize("value", [[], b"8", "\ud800", -1, "nan"], ids=repr)
def test_jobs_are_refused_by_number_and_member(member, value):
    with pytest.raises((TypeError, ValueError), match=rf"job 1.*{member}"):
        plan.mix([{"kind": "train", "model": "bert", **{member: value}}])


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "3", '{"verb": 3}', "[" * 10_000, '{"figures": [{"inputs": 3}]}'], ids=lambda t: t[:12]
)
def test_an_answer_is_not_made_of_other_json(text):
    with pytest.raises(ValueError, match="from_json"):
        plan.Answer.from_json(text)
    with pytest.raises(TypeError, match="from_json"):
        plan.Answer.from_json(text.encode())


JOBS = {"title": "a", "length": "4h", "jobs": [{"kind": "train", "model": "resnet50", "accelerators": 64}]}
YAML = "title: a\nlength: 4h\njobs:\n  - {kind: train, model: resnet50, accelerators: 64}\n"


def run(*words):
    return subprocess.run([sys.executable, "-m", "penstock", "plan", *words], capture_output=True, text=True)


def test_jobs_come_from_files(tmp_path):
    (tmp_path / "jobs.json").write_text(json.dumps(JOBS))
    answer = plan.mix(tmp_path / "jobs.json")
    assert answer == plan.mix(JOBS)
    assert run("mix", str(tmp_path / "jobs.json")).stdout == answer.text()
    pytest.importorskip("yaml")
    (tmp_path / "jobs.yaml").write_text(YAML)
    assert plan.mix(tmp_path / "jobs.yaml") == answer
    assert run("mix", str(tmp_path / "jobs.yaml")).stdout == answer.text()
    assert run("mix", f"--jobs={tmp_path / 'jobs.yaml'}").stdout == answer.text()
    assert run("mix", "--jobs", str(tmp_path / "jobs.yaml")).stdout == answer.text()
    (tmp_path / "wrong.yml").write_text("jobs: [")
    with pytest.raises(ValueError, match=r"wrong\.yml.*expected YAML"):
        plan.mix(tmp_path / "wrong.yml")
    assert run("mix", str(tmp_path / "wrong.yml")).returncode == 2
    (tmp_path / "code.yaml").write_text("jobs: !!python/object/apply:os.system [exit]")
    with pytest.raises(ValueError, match=r"code\.yaml"):
        plan.mix(tmp_path / "code.yaml")


@pytest.mark.parametrize(
    "text, words",
    [
        ('{"jobs": [{"kind": "restore", "bytes": 1, "bytes": 2, "within": 1}]}', "'bytes' .* comes twice"),
        ('{"jobs": [], "jobs": []}', "'jobs' .* comes twice"),
        ('{"job": []}', "expected a mapping with 'jobs'"),
        ("null", "expected a mapping with 'jobs'"),
        ("3", "expected a mapping with 'jobs'"),
        ("", "expected JSON"),
        ("[" * 1_000_000, "expected JSON"),
    ],
)
def test_a_file_of_jobs_that_lies_is_refused(tmp_path, text, words):
    (tmp_path / "jobs.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        plan.mix(tmp_path / "jobs.json")
    if text and not text.startswith("["):
        pytest.importorskip("yaml")
        (tmp_path / "jobs.yaml").write_text(text)
        with pytest.raises(ValueError, match=words):
            plan.mix(tmp_path / "jobs.yaml")


def test_anchors_and_aliases_are_read_and_do_no_harm(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "jobs.yaml"
    job = "{kind: restore, bytes: 36GB, within: 1min}"
    path.write_text(f"jobs: [&a {job}, *a]\n")
    assert plan.mix(path)["peak_bytes_per_second"].value == 1.2e9
    for text in ("jobs: &b [*b]", "jobs: [&c {kind: restore, bytes: *c}]", "[" * 100_000):
        path.write_text(text)
        with pytest.raises((TypeError, ValueError), match="plan mix"):
            plan.mix(path)
    laugh = "".join(f"x{i}: &x{i} [{', '.join(f'*x{i - 1}' if i else 'x' for _ in range(9))}]\n" for i in range(12))
    path.write_text(f"{laugh}jobs: *x11\n")
    with pytest.raises((TypeError, ValueError), match="plan mix"):
        plan.mix(path)


def test_yaml_without_its_package_is_an_error_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "jobs.yaml").write_text(YAML)
    with pytest.raises(ImportError, match="pip install pyyaml"):
        plan.mix(tmp_path / "jobs.yaml")


def test_the_command_line_says_the_same(tmp_path):
    said = run("train", "--model", "resnet50", "--accelerators", "8", "--json", str(tmp_path / "a.json"))
    answer = plan.train("resnet50", accelerators=8)
    assert said.stdout == answer.text()
    found = json.loads((tmp_path / "a.json").read_text())
    assert found.pop("command")[:3] == ["penstock", "plan", "train"]
    assert plan.Answer.from_json(json.dumps(found)) == answer


@pytest.mark.parametrize("call", [plan.train, plan.size, plan.mix, plan.feeds])
def test_a_keyword_that_is_not_known_names_the_nearest(call):
    for name in inspect.signature(call).parameters:
        wrong = name + "x"
        with pytest.raises(TypeError, match=rf"there is no argument '{wrong}'; did you mean"):
            call(**{wrong: 1})


LEAST = {
    plan.train: {"model": "resnet50"},
    plan.size: {"model": "unet3d", "memory_bytes": "512GiB"},
    plan.feeds: {"files": "25GB/s", "model": "unet3d"},
    plan.interval: {"save": "60s", "mtbf": "50000h"},
    plan.checkpoint: {"model": "13B", "seconds": "60"},
    plan.restore: {"model": "13B"},
    plan.stream: {"model": "8b", "rate": "3GB/s"},
}


@pytest.mark.parametrize("call", LEAST)
def test_the_functions_have_the_options_of_the_table_and_its_defaults(call):
    verb, least = call.__name__, LEAST[call]
    with pytest.raises(ValueError, match="expected ") as error:
        _core.plan_ask(verb, [("?", "")])
    table = set(str(error.value).rpartition("expected ")[2].split(", "))
    assert table - {"list"} == inspect.signature(call).parameters.keys() - {"measure"}
    of_table = plan.Answer.from_json(_core.plan_ask(verb, list(least.items())))
    assert [(one.name, one.value) for one in call(**least).figures] == [
        (one.name, one.value) for one in of_table.figures
    ]


def test_an_answer_has_its_figures_by_name():
    answer = plan.checkpoint("13B", seconds=60)
    assert "write_bytes_per_second" in answer and "bytes" not in answer and 0 not in answer
    assert list(answer) == [figure.name for figure in answer.figures]


def test_flags_may_be_those_of_numpy():
    np = pytest.importorskip("numpy")
    asked = [plan.checkpoint("13B", interval="2h", overlapped=flag) for flag in (True, np.True_)]
    assert asked[0] == asked[1]
    with pytest.raises(ValueError, match="seconds: got 'true'"):
        plan.checkpoint("13B", seconds=np.True_)


def test_measure_names_itself():
    for wrong, error in [({"paths": None}, TypeError), ({"paths": "x", "seconds": float("nan")}, ValueError)]:
        with pytest.raises(error, match=r"^plan measure: "):
            plan.measure(**wrong)
