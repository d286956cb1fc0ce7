# SPDX-License-Identifier: Apache-2.0
"""install() and uninstall(): before and after the import, in every module, for every kind of child, and back again."""

import sysconfig
from pathlib import Path

import pytest

# Checks everything that DeepSpeed asks of its op, through each of its entry points.
CHECK = """
def check():
    import sys, tempfile
    import torch
    import deepspeed.ops.op_builder as builders
    from deepspeed.ops.op_builder import AsyncIOBuilder, GDSBuilder, PinMemoryBuilder, UtilsBuilder
    from deepspeed.ops.op_builder.builder import OpBuilder
    from deepspeed.accelerator import get_accelerator
    import deepspeed.ops
    import penstock
    from penstock import deepnvme

    for name in ("AsyncIOBuilder", "GDSBuilder", "PinMemoryBuilder", "UtilsBuilder"):
        ours = getattr(deepnvme, name)
        for builder in (getattr(builders, name)(), get_accelerator().create_op_builder(name)):
            assert isinstance(builder, OpBuilder)
            assert builder.NAME == builder.name == ours.NAME
            assert builder.load(verbose=False) is ours().load()
            assert builder.is_compatible(verbose=False) is (name != "GDSBuilder" or bool(penstock.gpus()))
        assert issubclass(get_accelerator().get_op_builder(name), OpBuilder)
        assert deepspeed.ops.__compatible_ops__[ours.NAME] is (name != "GDSBuilder" or bool(penstock.gpus()))
    assert deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] is False
    assert deepspeed.ops.__compatible_ops__["deepspeed_not_implemented"] is False
    assert sys._deepspeed_pin_memory_op_module is deepnvme.PinMemoryBuilder().load()

    tensor = torch.arange(1 << 18, dtype=torch.int32)
    with tempfile.NamedTemporaryFile() as file:
        handle = AsyncIOBuilder().load().aio_handle(1 << 20, 8, False, True, 2)
        assert handle.sync_pwrite(tensor, file.name) == 1
        back = handle.new_cpu_locked_tensor(tensor.numel(), tensor)
        assert handle.async_pread(back, file.name) == 0 and handle.wait() == 1
        assert torch.equal(back, tensor)
        assert UtilsBuilder().load().cast_to_byte_tensor(tensor).numel() == tensor.nbytes
        handle.free_cpu_locked_tensor(back)
"""


def test_after_the_import(run_script):
    run_script(
        CHECK
        + """
import deepspeed
from penstock.deepnvme import install
install()
install()
check()
"""
    )


def test_before_the_import(run_script):
    run_script(
        CHECK
        + """
import sys, importlib.util
from penstock.deepnvme import install, installed
assert not installed()
install()
assert installed() and "deepspeed" not in sys.modules and "torch" not in sys.modules
assert importlib.util.find_spec("deepspeed") is not None  # who only asks gets an answer
assert "deepspeed" not in sys.modules
import deepspeed.ops.aio
assert "exec_module" not in vars(deepspeed.__loader__)
check()
"""
    )


@pytest.mark.parametrize("again", ["", "install()"], ids=["by-the-hook", "by-install"])
def test_after_deepspeed_was_imported_anew(run_script, again):
    """What a notebook or a reloading test runner does: thrown out of sys.modules, and imported once more."""
    run_script(
        CHECK
        + """
import sys
def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "deepspeed"]:
        del sys.modules[name]
import torch, deepspeed
from penstock.deepnvme import install, installed, uninstall
install()
check()
"""
        + f"""
for _ in range(2):
    forget()
    import deepspeed
    {again}
    assert installed()
    check()
uninstall()
assert not installed() and not hasattr(sys, "_deepspeed_pin_memory_op_module")
forget()
import deepspeed
from deepspeed.ops.op_builder import AsyncIOBuilder
assert AsyncIOBuilder().is_compatible() is False  # DeepSpeed's own, which finds no compiler here
"""
    )


def test_by_the_environment(run_script):
    """PENSTOCK_DEEPNVME=1 alone, in a program that knows nothing of Penstock."""
    run_script(
        CHECK + "import sys; assert 'penstock.deepnvme' not in sys.modules; check()", env={"PENSTOCK_DEEPNVME": "1"}
    )


def test_pth_does_nothing_unasked(run):
    """Without the variable, no start of Python loads anything of Penstock's; the file is in the wheel."""
    for value in (None, "0", ""):
        run("-c", "import sys; assert not any('penstock' in m for m in sys.modules)", env={"PENSTOCK_DEEPNVME": value})
    import penstock

    assert (Path(penstock.__file__).parents[1] / "penstock_deepnvme.pth").is_file()
    assert sysconfig.get_path("purelib") != str(Path(penstock.__file__).parents[1])  # read through addsitedir


def test_modules_that_had_imported_them(run_script):
    """On the CPU two of the four are DeepSpeed's placeholder, which other names keep."""
    run_script(
        CHECK
        + """
import sys, types
import deepspeed
user = types.ModuleType("user")
exec('''
from deepspeed.ops.op_builder import AsyncIOBuilder as Theirs, UtilsBuilder, GDSBuilder, EvoformerAttnBuilder
from deepspeed.io import FastFileWriter as Writer
''', vars(user))
sys.modules["user"] = user
before = dict(vars(user))
from penstock import deepnvme
deepnvme.install()
check()
assert user.UtilsBuilder().load() is deepnvme.UtilsBuilder().load()
assert user.GDSBuilder().load() is deepnvme.GDSBuilder().load()
assert user.Theirs().load() is deepnvme.AsyncIOBuilder().load() and user.Theirs is before["Theirs"]
assert user.EvoformerAttnBuilder is before["EvoformerAttnBuilder"]
assert issubclass(user.Writer, deepnvme.FastFileWriter)
import deepspeed.runtime.model_checkpointing.writer_factory as later
assert issubclass(later.FastFileWriter, deepnvme.FastFileWriter)
from deepspeed.io.base_file_writer import BaseFileWriter
assert issubclass(later.FastFileWriter, BaseFileWriter)
deepnvme.uninstall()
assert vars(user) == before
assert later.FastFileWriter is before["Writer"]
from deepspeed.ops.op_builder import NotImplementedBuilder
assert user.UtilsBuilder is NotImplementedBuilder
"""
    )


SNAPSHOT = """
def snapshot():
    "Everything that is bound in DeepSpeed's modules, classes, caches, accelerator, and the environment."
    import os, sys
    import deepspeed.accelerator
    found = {"environment": dict(os.environ), "path": list(sys.meta_path)}
    found["sys"] = getattr(sys, "_deepspeed_pin_memory_op_module", None)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "deepspeed":
            for key, value in list(vars(module).items()):
                found[name, key] = id(value)
                if isinstance(value, type) and value.__module__.startswith("deepspeed"):
                    found.update({(name, key, k): id(v) for k, v in vars(value).items() if callable(v)})
                if isinstance(value, dict) and key != "__builtins__":
                    found.update({(name, key, k): id(v) for k, v in value.items() if isinstance(k, str)})
    from deepspeed.ops.op_builder.builder import OpBuilder
    found["loaded"] = dict(OpBuilder._loaded_ops)
    found["accelerator"] = dict(vars(deepspeed.accelerator.get_accelerator()))
    return found
"""


@pytest.mark.parametrize("asked", [False, True], ids=["ops-not-probed", "ops-probed"])
def test_uninstall_puts_everything_back(run_script, asked):
    run_script(
        CHECK
        + SNAPSHOT
        + f"""
import sys
import deepspeed, deepspeed.io, deepspeed.ops.op_builder.all_ops, deepspeed.io.base_file_writer
import deepspeed.runtime.model_checkpointing.writer_factory
{"deepspeed.ops.__compatible_ops__" if asked else ""}
import penstock.deepnvme._install as ours
before = snapshot()
for _ in range(2):
    ours.install()
    assert snapshot() != before
    check()
    ours.uninstall()
    after = snapshot()
    assert after == before, {{key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}}
assert not ours.installed()
ours.uninstall()
assert not hasattr(sys, "_deepspeed_pin_memory_op_module")
"""
    )


def test_uninstall_before_the_import(run_script):
    run_script(
        """
import os, sys
from penstock.deepnvme import install, installed, uninstall
os.environ["PENSTOCK_DEEPNVME"] = "0"
finders = list(sys.meta_path)
install()
assert os.environ["PENSTOCK_DEEPNVME"] == "1"
uninstall()
assert os.environ["PENSTOCK_DEEPNVME"] == "0" and sys.meta_path == finders and not installed()
from deepspeed.ops.op_builder import AsyncIOBuilder
assert AsyncIOBuilder().is_compatible() is False  # DeepSpeed's own, which finds no compiler here
"""
    )


CHILDREN = (
    CHECK
    + """
def child(queue):
    try:
        check()
        queue.put("ours")
    except BaseException as error:
        queue.put(repr(error))
        raise

def main():
    import multiprocessing, sys
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    said = queue.get(timeout=90)
    process.join()
    assert said == "ours", said
"""
)


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_children(run_script, method):
    """A child that does not run install() itself has it: the call stands behind `if __name__ == '__main__'`."""
    run_script(
        CHILDREN
        + "if __name__ == '__main__':\n    import penstock.deepnvme\n    penstock.deepnvme.install()\n    main()\n",
        method,
    )


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_of_the_runner(run_script, method):
    run_script(CHILDREN + "if __name__ == '__main__':\n    main()\n", method, before=("-m", "penstock.deepnvme"))


def test_subprocess(run_script):
    run_script(
        CHECK
        + """
import subprocess, sys
if len(sys.argv) == 1:
    import penstock.deepnvme
    penstock.deepnvme.install()
    subprocess.run([sys.executable, __file__, "child"], check=True)
else:
    check()
"""
    )


def test_children_after_uninstall_run_their_own(run_script):
    run_script(
        """
import subprocess, sys
from penstock.deepnvme import install, uninstall
install()
uninstall()
program = "import sys; assert not any('penstock' in m for m in sys.modules)"
subprocess.run([sys.executable, "-c", program], check=True)
"""
    )


def test_shared_memory_op_is_not_built(run_script):
    """A process group without a compiler: DeepSpeed alone fails there, before any I/O."""
    program = """
import os, socket
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
import deepspeed
deepspeed.init_distributed(dist_backend="gloo")
print("initialised")
"""
    alone = run_script(program, status=1)
    assert "initialised" not in alone.out
    ours = run_script(program, before=("-m", "penstock.deepnvme"))
    assert "initialised" in ours.out


def test_another_version_is_told(run_script):
    done = run_script(
        """
import warnings
import deepspeed
deepspeed.__version__ = "9.9.9"
from penstock.deepnvme import install
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    install()
print([str(w.message) for w in caught if "9.9.9" in str(w.message)])
"""
    )
    assert "DeepSpeed 9.9.9 is not one of those" in done.out and "0.19.8" in done.out


@pytest.mark.parametrize(
    "remove",
    [
        ("deepspeed.ops.op_builder", "AsyncIOBuilder"),
        ("deepspeed.ops.op_builder.builder", "OpBuilder"),
        ("deepspeed.ops", "_probe_compatible_ops"),
        ("deepspeed.io", "FastFileWriter"),
    ],
    ids=lambda place: ".".join(place),
)
def test_a_missing_place_is_named(run_script, remove):
    """And nothing is left changed: half of it would be worse than none."""
    module, name = remove
    run_script(
        SNAPSHOT
        + f"""
import importlib, os
import deepspeed, deepspeed.io, deepspeed.io.base_file_writer
module = importlib.import_module({module!r})
kept = getattr(module, {name!r})
delattr(module, {name!r})
from penstock.deepnvme import install, installed, uninstall
from penstock.deepnvme._install import InstallError
try:
    before = None if {name!r} == "OpBuilder" else snapshot()
    install()
except InstallError as error:
    assert "{module}.{name}" in str(error) and "0.19.8" in str(error), error
else:
    raise AssertionError("no error")
assert not installed() and "PENSTOCK_DEEPNVME" not in os.environ
assert before is None or snapshot() == before
setattr(module, {name!r}, kept)
install()
assert installed()
"""
    )


def test_a_missing_place_at_the_import(run_script):
    """Installed before: then it is the import that fails, rather than run on another engine than was asked for."""
    run_script(
        """
import sys
from penstock.deepnvme import install
import penstock.deepnvme._install as ours
ours._BUILDERS["NoSuchBuilder"] = "async_io"
from penstock.deepnvme import _builders
_builders.NoSuchBuilder = _builders.AsyncIOBuilder
install()
try:
    import deepspeed
except ours.InstallError as error:
    assert "NoSuchBuilder" in str(error)
else:
    raise AssertionError("no error")
assert "deepspeed" not in sys.modules
"""
    )
