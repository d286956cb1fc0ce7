# SPDX-License-Identifier: Apache-2.0
"""The `penstock` program: python -m penstock. Commands that are Python themselves are called here; the library's own
program (src/cli) does all others, and lists these in its help."""

import importlib
import sys

from penstock import _core

_PYTHON_COMMANDS = {
    "ds_io": "penstock.deepnvme.ds_io",
    "ds_nvme_tune": "penstock.deepnvme.ds_nvme_tune",
    "report": "penstock.report.__main__",
}


def main() -> int:
    words = sys.argv[1:]
    module = _PYTHON_COMMANDS.get(words[0]) if words else None
    if module:
        return importlib.import_module(module).main(words[1:])
    return _core.cli_main(words)


if __name__ == "__main__":
    sys.exit(main())
