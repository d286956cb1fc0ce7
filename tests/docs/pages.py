# SPDX-License-Identifier: Apache-2.0
"""The pages, their blocks, and the Python that has what a block imports."""

import ast
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
# Their blocks belong together: those of a section of the first, those of a page of the others.
QUICKSTART = ROOT / "docs" / "quickstart.md"
FRAMEWORKS = [ROOT / "docs" / f"{name}.md" for name in ("lightning", "transformers", "accelerate", "plan")]


@dataclass
class Block:
    """A fenced block of a page."""

    language: str
    text: str

    @property
    def file(self):
        """The name that its first line gives it, `# train.py`; empty where it has none."""
        found = re.match(r"(?:#|//) (\w+\.\w+)\n", self.text)
        return found[1] if found else ""


def blocks(text):
    found = re.finditer(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [Block(one[1], one[2]) for one in found]


def imports(program):
    """Modules that a program imports and that do not come with Python."""
    names = set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names)


@lru_cache
def _has(python, module):
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"
    return subprocess.run([python, "-c", look]).returncode == 0


def python_with(modules):
    """The Python that has these modules: this one, or the one that DeepSpeed and transformers are installed in. Skips
    the test, with their names, where neither has them."""
    other = ROOT / ".venv-deepspeed" / "bin" / "python"
    pythons = [sys.executable, *([str(other)] if other.exists() else [])]
    missing = {python: sorted(name for name in modules if not _has(python, name)) for python in pythons}
    for python in pythons:
        if not missing[python]:
            return python
    pytest.skip(f"{', '.join(min(missing.values(), key=len))} is not installed")


def environment(python, folder):
    """Variables of a user whose `python` and `penstock` are these, and whose home is `folder`/home."""
    programs = folder / "programs"
    programs.mkdir()
    for name, words in {"python": "", "python3": "", "penstock": " -m penstock"}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{python}"{words} "$@"\n')
        (programs / name).chmod(0o755)
    (folder / "home").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PIP_"))}
    own = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder / "home")}
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INDEX": "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
    return {**kept, **own, **quiet}


def need_programs(script, names=("fio", "cmake")):
    """Skips the test where a program that a script calls is not installed."""
    for name in names:
        if re.search(rf"(?<![\w.-]){name}(?![\w.-])", script) and not shutil.which(name):
            pytest.skip(f"{name} is not installed")
