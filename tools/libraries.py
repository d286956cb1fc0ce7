#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The environment of libraries that are given streamed models: diffusers, sentence-transformers, lm_eval.

    tools/libraries.py

makes it in build/libraries, once, over .venv-deepspeed, which has transformers, accelerate and PEFT, and prints the
path of its Python.
"""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "libraries"
LIST = ROOT / "tools" / "requirements-libraries.txt"


def packages(python):
    """The folder of the packages of an environment."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def python():
    """The Python that has them; pip installs them the first time, and when the list has changed."""
    inside = FOLDER / "bin" / "python"
    stamp = FOLDER / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != LIST.read_text():
        venv.create(FOLDER, clear=True, with_pip=True)
        under = packages(ROOT / ".venv-deepspeed" / "bin" / "python")
        Path(packages(inside), "under.pth").write_text(f"import site; site.addsitedir({under!r})\n")
        pip = [inside, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps", "--no-cache-dir"]
        subprocess.run([*pip, "-r", LIST], check=True, stdout=sys.stderr)
        stamp.write_text(LIST.read_text())
    return inside


if __name__ == "__main__":
    print(python())
