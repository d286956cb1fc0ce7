#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The environment of GPU programs that are not ours: KvikIO, NVIDIA's Python bindings and cuFile.

    tools/gpu_peers.py

makes it in build/gpu-peers, once, and prints the path of its Python. They need a CUDA driver, NVIDIA's or the fake one
of tests/fake_gpu, and no GPU to be installed.
"""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "gpu-peers"
LIST = ROOT / "tools" / "requirements-gpu-peers.txt"


def python():
    """The Python that has them; pip installs them the first time, and when the list has changed."""
    inside = FOLDER / "bin" / "python"
    stamp = FOLDER / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != LIST.read_text():
        venv.create(FOLDER, clear=True, with_pip=True)
        pip = [inside, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps", "--no-cache-dir"]
        subprocess.run([*pip, "-r", LIST], check=True, stdout=sys.stderr)
        stamp.write_text(LIST.read_text())
    return inside


if __name__ == "__main__":
    print(python())
