# SPDX-License-Identifier: Apache-2.0
"""The `penstock` program: python -m penstock. Commands that are written in Python are called here. The program in C++
(src/cli) runs all others, and lists these in its help."""

import importlib
import os
import sys

from penstock import _core

_PYTHON_COMMANDS = {
    ("bench", "gnn"): "penstock._measure.gnn_bench",
    ("checkpoint", "bench"): "penstock._measure.checkpoint_bench",
    ("ds_io",): "penstock.deepnvme.ds_io",
    ("ds_nvme_tune",): "penstock.deepnvme.ds_nvme_tune",
    ("report",): "penstock.report.__main__",
    ("weights", "bench"): "penstock._measure.weights_bench",
}


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == ["bench"] and "--shapes" in words:
        return importlib.import_module("penstock._measure.shapes_bench").main(words[1:])
    for command, module in _PYTHON_COMMANDS.items():
        if tuple(words[: len(command)]) == command:
            return importlib.import_module(module).main(words[len(command) :])
    if words[:2] == ["plan", "mix"] and any(word.lower().endswith((".yaml", ".yml")) for word in words[2:]):
        return _mix_of_yaml(words)
    return _core.cli_main(words)


def _mix_of_yaml(words: list[str]) -> int:
    """Converts each YAML file to JSON in memory, because the program reads jobs in JSON."""
    mix = importlib.import_module("penstock.plan._mix")
    files = []
    try:
        for place, word in enumerate(words):
            if word.lower().endswith((".yaml", ".yml")) and words[place - 1] != "--json" and "--json=" not in word:
                files.append(os.memfd_create("penstock-jobs"))
                path = word.removeprefix("--jobs=")
                text = mix.json_of_yaml(path).encode()
                with os.fdopen(os.dup(files[-1]), "wb") as file:
                    file.write(text)
                words[place] = word.removesuffix(path) + f"/proc/self/fd/{files[-1]}"
        return _core.cli_main(words)
    except (ImportError, OSError, TypeError, ValueError) as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 2
    finally:
        for file in files:
            os.close(file)


if __name__ == "__main__":
    sys.exit(main())
