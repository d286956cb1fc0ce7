# SPDX-License-Identifier: Apache-2.0
"""The `penstock` program: python -m penstock. Commands that are Python themselves are called here; the library's own
program (src/cli) does all others, and lists these in its help."""

import importlib
import sys

from penstock import _core

_PYTHON_COMMANDS = {
    ("checkpoint", "bench"): "penstock._measure.checkpoint_bench",
    ("ds_io",): "penstock.deepnvme.ds_io",
    ("ds_nvme_tune",): "penstock.deepnvme.ds_nvme_tune",
    ("report",): "penstock.report.__main__",
}


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == ["bench"] and "--shapes" in words:
        return importlib.import_module("penstock._measure.shapes_bench").main(words[1:])
    for command, module in _PYTHON_COMMANDS.items():
        if tuple(words[: len(command)]) == command:
            return importlib.import_module(module).main(words[len(command) :])
    return _core.cli_main(words)


if __name__ == "__main__":
    sys.exit(main())
