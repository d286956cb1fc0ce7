# SPDX-License-Identifier: Apache-2.0
"""Runs a Python program with DeepSpeed on Penstock's engine: python -m penstock.deepnvme script.py args..."""

from __future__ import annotations

import importlib.machinery
import io
import os
import runpy
import sys
import types

_USAGE = "python -m penstock.deepnvme [--] script.py [ARGS...]   or   [-m MODULE] [ARGS...]"
_HELP = f"""\
usage: {_USAGE}

Runs script.py (or MODULE) as `python` would, with every file that DeepSpeed's async_io op would read or write going
through Penstock instead. The program is not changed, nothing is compiled, and libaio is not needed.

    python -m penstock.deepnvme train.py --deepspeed_config ds.json
    python -m penstock.deepnvme -m torch.distributed.run --nproc-per-node=2 train.py
    python -m penstock.deepnvme -m deepspeed.launcher.runner train.py

Its child processes have it too (spawn, forkserver, torchrun, the DeepSpeed launcher on this machine): the variable
PENSTOCK_DEEPNVME=1 is in their environment. Setting it yourself does the same without this command. For other machines,
put it into their environment; the DeepSpeed launcher passes on what stands in .deepspeed_env.

The same from within a program:  import penstock.deepnvme; penstock.deepnvme.install()
To see that it is so:            print(penstock.default_engine().stats())

The exit status is the program's; 2 when there is nothing to run.
"""

_OF_THE_VERSION: dict[str, object] = {"__annotations__": {}, "__cached__": None}


def main(arguments: list[str]) -> None:
    if arguments[:1] in (["-h"], ["--help"]):
        print(_HELP, end="")
        return
    if arguments[:1] == ["-m"]:
        kind, arguments = "-m", arguments[1:]
    else:
        kind, arguments = "script", arguments[1:] if arguments[:1] == ["--"] else arguments
    if not arguments or (kind == "script" and arguments[0].startswith("-")):
        asked = f"{arguments[0]} is no option; " if arguments else ""
        print(f"penstock.deepnvme: {asked}name what to run: {_USAGE}", file=sys.stderr)
        sys.exit(2)

    from penstock.deepnvme import install

    install()
    sys.argv[:] = arguments
    if kind == "-m":
        _run_module(arguments[0])
    else:
        _run_script(arguments[0])


def _new_main() -> types.ModuleType:
    """A new __main__ module for the program, in place of ours."""
    module = types.ModuleType("__main__")
    # The version of Python decides which of these names a program has; ours has the same.
    vars(module).update({name: value for name, value in _OF_THE_VERSION.items() if name in globals()})
    vars(module)["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:  # multiprocessing was imported before: what it pickles is of the program
        sys.modules["__mp_main__"] = module
    return module


def _run_module(name: str) -> None:
    _new_main()
    runpy._run_module_as_main(name)  # what `python -m` itself calls; it sets argv[0]


def _run_script(path: str) -> None:
    if not os.path.exists(path):
        print(f"penstock.deepnvme: cannot open {path!r}: there is no such file", file=sys.stderr)
        sys.exit(2)
    if os.path.isdir(path) or path.endswith((".zip", ".pyz", ".pyc")):
        runpy.run_path(path, run_name="__main__")  # runs a folder or archive with a __main__.py, or byte code
        return
    try:
        # The file may be a pipe (`<(...)`, /dev/stdin), which can be read only once.
        with io.open_code(os.path.abspath(path)) as file:
            source = file.read()
    except OSError as error:
        print(f"penstock.deepnvme: cannot open {path!r}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    # As the interpreter sets it up; multiprocessing finds the script again by __file__ and the missing __spec__.
    module = _new_main()
    vars(module).update(__file__=path, __loader__=importlib.machinery.SourceFileLoader("__main__", path))
    exec(compile(source, path, "exec", dont_inherit=True), vars(module))


if __name__ == "__main__":
    main(sys.argv[1:])
