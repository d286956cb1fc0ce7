# SPDX-License-Identifier: Apache-2.0
"""Runs a Python program with its torch.distributed.checkpoint on Penstock: python -m penstock.dcp script.py args..."""

from __future__ import annotations

import os
import runpy
import sys

_USAGE = "python -m penstock.dcp [--] script.py [ARGS...]   or   [-m MODULE] [ARGS...]"
_HELP = f"""\
usage: {_USAGE}

Runs script.py (or MODULE) with penstock.dcp in the place of torch.distributed.checkpoint's save, async_save, load,
FileSystemWriter and FileSystemReader. The program is not changed.

    torchrun --nproc-per-node=8 -m penstock.dcp train.py --config train.toml

The same from within a program, before it imports what uses them:  import penstock.dcp; penstock.dcp.install()

The exit status is the program's; 2 when there is nothing to run.
"""


def main(arguments: list[str]) -> None:
    if arguments[:1] in (["-h"], ["--help"]):
        print(_HELP, end="")
        return
    is_module = arguments[:1] == ["-m"]
    arguments = arguments[1:] if is_module or arguments[:1] == ["--"] else arguments
    if not arguments or (not is_module and arguments[0].startswith("-")):
        asked = f"{arguments[0]} is no option; " if arguments else ""
        print(f"penstock.dcp: {asked}name what to run: {_USAGE}", file=sys.stderr)
        sys.exit(2)
    if not is_module and not os.path.exists(arguments[0]):
        print(f"penstock.dcp: cannot open {arguments[0]!r}: there is no such file", file=sys.stderr)
        sys.exit(2)

    from penstock.dcp import install

    install()
    sys.argv[:] = arguments
    if is_module:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
