# SPDX-License-Identifier: Apache-2.0
"""The files of the project: what git tracks or would track, relative to the top."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CPP = (".cpp", ".hpp", ".h", ".cu", ".cuh")


def files(root=ROOT):
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = (Path(name) for name in sorted(set(listed.split("\0"))) if name)
    return [path for path in found if (Path(root) / path).is_file()]


def cpp_files(root=ROOT):
    return [path for path in files(root) if path.suffix in CPP]
