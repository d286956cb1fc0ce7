# SPDX-License-Identifier: Apache-2.0
"""Runs programs with the real DeepSpeed, in processes of their own, on a PATH without a compiler.

To be run by .venv-deepspeed's Python: tools/run_tests.py --only deepspeed.
"""

import json
import os
import subprocess
import sys
import textwrap

import pytest


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """What the programs get: nothing on PATH, so nothing to compile with; DeepSpeed on the CPU, and quiet."""
    nothing = tmp_path_factory.mktemp("empty-path")
    kept = {name: value for name, value in os.environ.items() if name not in ("PENSTOCK_DEEPNVME", "CXX", "CC")}
    return {
        "OMP_NUM_THREADS": "2",
        **kept,
        "PATH": str(nothing),
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(tmp_path_factory.mktemp("no-extensions")),
        "PYTHONWARNINGS": "ignore::FutureWarning",
    }


class Program:
    def __init__(self, arguments, done):
        self.arguments = arguments
        self.status = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    @property
    def result(self):
        """The JSON of its last line."""
        return json.loads(self.out.splitlines()[-1])

    def __repr__(self):
        return f"{self.arguments}\nexit status {self.status}\n{self.out[-3000:]}\n{self.err[-6000:]}"


@pytest.fixture
def run(environment, tmp_path):
    """Runs Python with arguments to its end, which has to be a good one unless `status` says otherwise."""

    def start(*arguments, status=0, timeout_s=120, **options):
        env = {**environment, **options.pop("env", {})}
        env = {name: value for name, value in env.items() if value is not None}
        arguments = [sys.executable, *map(str, arguments)]
        done = subprocess.run(
            arguments,
            env=env,
            cwd=options.pop("cwd", tmp_path),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        program = Program(arguments, done)
        assert program.status == status, program
        return program

    return start


@pytest.fixture
def run_script(run, tmp_path):
    """The same for the text of a script; `before` are arguments before its name."""

    def start(text, *arguments, before=(), **options):
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(text))
        return run(*before, path, *arguments, **options)

    return start
