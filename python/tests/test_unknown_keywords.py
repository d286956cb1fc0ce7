# SPDX-License-Identifier: Apache-2.0
"""A keyword that a call does not have names the nearest one that it has: of every public call, compiled or not."""

import inspect
import re

import penstock
import pytest

FACES = ["penstock.safetensors.torch", "penstock.safetensors.numpy", "penstock.safetensors.flax"]


def compiled_names(function):
    """Of nanobind's, which have no signature that Python knows."""
    if function is penstock.Engine.__init__:
        return [name for name in dir(penstock.EngineOptions) if not name.startswith("_")]
    signature = function.__nb_signature__[0][0]
    inside = signature[signature.index("(") + 1 : signature.rindex(")")]
    return re.findall(r"(\w+): ", re.sub(r"\[[^\[\]]*\]", "", re.sub(r"\[[^\[\]]*\]", "", inside)))


def names_of(function):
    if hasattr(function, "__nb_signature__"):
        names = compiled_names(function)
    else:
        parameters = inspect.signature(function).parameters.values()
        names = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return [name for name in names if name != "self" and not name.startswith("_") and len(name) > 3]


def public_calls():
    for name in penstock.__all__:
        thing = getattr(penstock, name)
        if isinstance(thing, type):
            for method, function in vars(thing).items():
                if (method == "__init__" or not method.startswith("_")) and callable(function):
                    yield f"{name}.{method}", function
        elif callable(thing):
            yield name, thing


# Classes that other calls make: an exception, a tuple, a row of a table.
OTHERS = {"Error", "Cancelled", "Damaged", "EndOfFile", "Unsupported", "WouldBlock"}
OTHERS |= {"CheckpointProblem", "CheckpointTensor", "TensorInfo", "IncompatibleKeys", "SaveOnSigterm", "Unread"}
CALLS = {name: function for name, function in public_calls() if name.partition(".")[0] not in OTHERS}
CALLS = {name: function for name, function in CALLS.items() if names_of(function)}


def check(function, names, self=()):
    for name in names:
        wrong = name[:-2] + name[-1] + name[-2] if name[-1] != name[-2] else name[:-1]
        with pytest.raises(TypeError, match=rf"there is no argument '{wrong}'; did you mean '\w+'\?") as caught:
            function(*self, **{wrong: None})
        assert f"'{name}'" in str(caught.value), (name, str(caught.value))


def test_the_calls_that_people_make_are_there():
    assert {"read", "write_async", "read_rows", "save", "load", "stream", "Engine.__init__", "File.__init__"} <= set(
        CALLS
    )
    assert {"CheckpointStore.save", "CheckpointStore.load", "Engine.read", "empty", "Checkpoint.load"} <= set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_the_nearest_name(name, tmp_path):
    kind, _, method = name.partition(".")
    makes = {
        "Engine": penstock.Engine,
        "File": lambda: penstock.File(tmp_path / "f", "w"),
        "Transfer": lambda: penstock.write_async(tmp_path / "f", b"x"),
        "Future": lambda: penstock.write_async(tmp_path / "f", b"x"),
        "PendingSave": lambda: penstock.save_async({}, tmp_path / "s.pt"),
        "Buffer": lambda: penstock.empty(1),
    }
    names = names_of(CALLS[name])
    if method == "__init__":
        check(getattr(penstock, kind), names)
    else:
        compiled = hasattr(CALLS[name], "__nb_signature__")
        check(CALLS[name], names, (makes[kind]() if compiled else None,) if method else ())


@pytest.mark.parametrize("module", FACES)
def test_of_safetensors(module):
    pytest.importorskip(f"{module.rpartition('.')[2].replace('flax', 'jax')}")
    face = pytest.importorskip(module)
    for name in ("load_file", "load", "save_file", "save"):
        check(getattr(face, name), names_of(getattr(face, name)))
    with pytest.raises(TypeError, match=r"safe_open\(\): there is no argument 'framewrok'; did you mean 'framework'"):
        penstock.safetensors.safe_open("f", framewrok="pt")


def test_what_is_near_nothing_gets_the_names_that_there_are(tmp_path):
    with pytest.raises(TypeError, match=r"CheckpointStore\(\): there is no argument 'xyz'; expected folder, keep, "):
        penstock.CheckpointStore(tmp_path, xyz=1)
    # Inside a call a TypeError stays what it is.
    with pytest.raises(TypeError, match="unexpected keyword argument 'b'"):
        penstock.save({"a": pathlike}, tmp_path / "a.pt", default=lambda value: value(b=1))


def pathlike(a):
    return a
