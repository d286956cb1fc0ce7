#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes PTX of the kernels, and checks the PTX that is kept.

    tools/make_ptx.py                        compiles src/kernels/*.cu to src/kernels/ptx/, and examples/cuda/*.cu to
                                             PTX next to them
    tools/make_ptx.py --check                compiles, and compares with what is kept; writes nothing
    tools/make_ptx.py --check elsewhere/x.cu the same of other files, which have no kept PTX: they only have to compile

nvcc comes from PyPI (about 300 MB), into an environment of its own: no CUDA installation is needed, and no GPU. All its
packages are of one release; mixed ones do not compile. `--installed` downloads nothing: exit status 3 where the
environment is not there yet.

PTX is made for sm_75 (Turing) and later. Its `.version` is lowered to 8.0, the one that the oldest driver takes
(CUDA 12.0), and ptxas then assembles it for each architecture from sm_75 to sm_120: PTX that uses a newer instruction
fails here. A file that says `// needs: ld.acquire.sys st.release.sys` must have these instructions in its PTX.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASE = "13.0"
PACKAGES = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl", "nvidia-cuda-runtime")
OLDEST = "compute_75"
PTX_VERSION = "8.0"
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
NOT_INSTALLED = 3


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def toolkit(folder, may_install):
    """The folder with bin/nvcc."""
    found = sorted(folder.glob("lib/python3*/site-packages/nvidia/cu13/bin/nvcc"))
    if not found:
        if not may_install:
            print(f"make_ptx: there is no nvcc in {folder}; tools/make_ptx.py installs it", file=sys.stderr)
            sys.exit(NOT_INSTALLED)
        print(f"make_ptx: installing nvcc {RELEASE} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        wanted = [f"{name}=={RELEASE}.*" for name in PACKAGES]
        run([folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-cache-dir", *wanted])
        found = sorted(folder.glob("lib/python3*/site-packages/nvidia/cu13/bin/nvcc"))
    return found[0].parent.parent


def compiled(home, source):
    """The PTX of a .cu, with the version that the oldest driver takes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.ptx"
        run(
            [home / "bin/nvcc", "-ptx", "-O3", f"-arch={OLDEST}", "-std=c++20", "--Werror=all-warnings"]
            + [f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}", "-o", out, source],
            env={**os.environ, "PATH": f"{home / 'bin'}:{home / 'nvvm/bin'}:{os.environ['PATH']}"},
        )
        text = out.read_text()
    body = text[text.index("\n.version") :]  # the comment above it names the compiler's build
    body = re.sub(r"\n\.version \S+", f"\n.version {PTX_VERSION}", body)
    head = (
        f"// SPDX-License-Identifier: Apache-2.0\n// Made by tools/make_ptx.py with nvcc {RELEASE}; not to be edited.\n"
    )
    return head + re.sub(r"\n\s*\n+", "\n\n", re.sub(r"[ \t]+\n", "\n", body)).rstrip() + "\n"


def missing(source, ptx):
    """The instructions that the file says it needs and that its PTX lacks."""
    found = set(re.findall(r"^\s*(?:@\S+\s+)?([a-z][\w.]*)", ptx, re.MULTILINE))
    wanted = [
        name for line in re.findall(r"^// needs: (.*)$", source.read_text(), re.MULTILINE) for name in line.split()
    ]
    return [name for name in wanted if not any(one == name or one.startswith(name + ".") for one in found)]


def assemble(home, source, ptx):
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "in.ptx"
        text.write_text(ptx)
        for architecture in ARCHITECTURES:
            run([home / "bin/ptxas", f"-arch={architecture}", "-o", Path(folder) / "out.cubin", text])
    print(f"{source.name}: assembled for {', '.join(ARCHITECTURES)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="kernels; by default all that are kept")
    parser.add_argument("--check", action="store_true", help="compare with the PTX that is kept, write nothing")
    parser.add_argument("--installed", action="store_true", help="download nothing")
    parser.add_argument("--environment", type=Path, default=ROOT / f".cache/nvcc-{RELEASE}", help="of nvcc")
    arguments = parser.parse_args()
    kernels = ROOT / "src/kernels"
    # The PTX of the kernels of each folder is kept there.
    keeps = {kernels: kernels / "ptx", ROOT / "examples/cuda": ROOT / "examples/cuda"}
    every = [path for folder in keeps for path in sorted(folder.glob("*.cu"))]
    sources = [path.resolve() for path in arguments.files] or every
    home = toolkit(arguments.environment, not arguments.installed)
    wrong = []
    for source in sources:
        ptx = compiled(home, source)
        wrong += [f"{source.name}: its PTX lacks {name}, which it needs" for name in missing(source, ptx)]
        assemble(home, source, ptx)
        if source.parent not in keeps:
            continue
        kept = keeps[source.parent] / f"{source.stem}.ptx"
        if not arguments.check:
            kept.parent.mkdir(exist_ok=True)
            kept.write_text(ptx)
        elif not kept.exists() or kept.read_text() != ptx:
            wrong.append(f"{source.name}: {kept.relative_to(ROOT)} is not what it compiles to; run tools/make_ptx.py")
    if not arguments.check and not arguments.files:
        names = {source.stem for source in sources}
        for folder in keeps.values():
            for stale in folder.glob("*.ptx"):
                if stale.stem not in names:
                    stale.unlink()
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
