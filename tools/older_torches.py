#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files of older versions of torch, for python/tests/test_older_torches.py.

    tools/older_torches.py 2.0.1 2.6.0      makes those of two versions, and puts them into files.tar.xz
    tools/older_torches.py --check 2.0.1    compares what they have with what the kept ones have

Each version is installed into a temporary folder (one at a time, about 2 GB) and runs
python/tests/older_torch_files/values.py. The wheels of torch link CUDA's libraries, 3 GB more, none of which is called
here: empty libraries stand in for them. Needs gcc, nm and readelf.
"""

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "python" / "tests" / "older_torch_files"
KEPT = FOLDER / "files.tar.xz"
OF_TORCH = re.compile(r"lib(torch|c10|caffe2|gomp|nvfuser|shm)")  # of torch/lib, those that are torch's own
OF_CUDA = re.compile(r"cu|nv|nccl|mpi")
# The symbols of the rest: of C, C++, Python and OpenMP.
OF_OTHERS = re.compile(r"_?Py|_Z|GOMP|omp_")
RUN = """
import os, runpy, sys
sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def output(*argv):
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def stand_ins(torch):
    """Makes what stands in for CUDA's libraries: they have all symbols, and no function does anything."""
    libraries = [path for path in (torch / "lib").glob("*.so*") if OF_TORCH.match(path.name)]
    libraries += torch.glob("_C*.so")
    needed, wanted, defined = set(), set(), set()
    for path in libraries:
        needed |= set(re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-dW", path)))
        for kind, name in re.findall(r"^\S* *([A-Za-z]) ([^\s@]+)", output("nm", "-D", path), re.M):
            (wanted if kind == "U" else defined).add(name)
    needed = {name for name in needed - {path.name for path in libraries} if OF_CUDA.search(name)}
    missing = sorted(name for name in wanted - defined if not OF_OTHERS.match(name))
    missing = [name for name in missing if re.match(r"_*cu|_*nv|_*nccl|_*CU", name)]
    source, empty, stand_in = torch / "stand_in.c", torch / "empty.c", torch / "lib" / "libstand_in.so"
    # 100: no device, for all of the runtime; others say 0.
    source.write_text(
        "".join(f"int {name}(void) {{ return {100 * bool(re.match('cuda[A-Z]', name))}; }}\n" for name in missing)
    )
    empty.write_text("")
    shared = ["gcc", "-w", "-fno-builtin", "-shared", "-fPIC"]
    subprocess.run([*shared, f"-Wl,-soname,{stand_in.name}", "-o", stand_in, source], check=True)
    for name in needed:
        link = [f"-Wl,-soname,{name}", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"]
        subprocess.run([*shared, *link, "-o", torch / "lib" / name, empty, stand_in], check=True)


def made(version, folder):
    """Runs values.py under a version of torch: the folder then has its files."""
    numpy = "1.26.4" if tuple(map(int, version.split(".")[:2])) < (2, 4) else "2.2.6"
    with tempfile.TemporaryDirectory() as packages:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "-q",
            "--no-deps",
            "--no-cache-dir",
        ]
        subprocess.run([*pip, "--target", packages, f"torch=={version}", f"numpy=={numpy}"], check=True)
        stand_ins(Path(packages, "torch"))
        env = os.environ | {"PYTHONPATH": packages, "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run([sys.executable, "-c", RUN, FOLDER / "values.py", folder], check=True, env=env)


def read():
    """The kept files: {version: {name: bytes}}."""
    kept = {}
    if KEPT.exists():
        with tarfile.open(KEPT) as archive:
            for member in archive.getmembers():
                version, name = member.name.split("/")
                kept.setdefault(version, {})[name] = archive.extractfile(member).read()
    return kept


def write(kept):
    with tarfile.open(KEPT, "w:xz", preset=9) as archive:
        for version in sorted(kept, key=lambda text: [int(part) for part in text.split(".")]):
            for name, data in sorted(kept[version].items()):
                member = tarfile.TarInfo(f"{version}/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def differs(files, kept):
    """The files that the kept ones lack or that they lack; else the values that are others."""
    wrong = set(files) ^ set(kept)
    if wrong:
        return sorted(wrong)
    new, old = (json.loads(of["expected.json"]) for of in (files, kept))
    for expected in (new, old):
        # Processors round what they compute in training in their own ways.
        expected["values"]["training"] = dict.fromkeys(expected["values"]["training"])
        # Torch does not set the bytes behind their last elements.
        expected["values"]["objects"] |= {"quint4x2": None, "quint2x4": None}
    values = [(file, name) for file, of in (new["values"] | old["values"]).items() for name in of]
    wrong = [
        f"{file}: {name}" for file, name in values if new["values"][file].get(name) != old["values"][file].get(name)
    ]
    return wrong or [key for key in old if new.get(key) != old[key]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("versions", nargs="+")
    asked = parser.parse_args()
    failed = False
    for version in asked.versions:
        kept = read()
        with tempfile.TemporaryDirectory() as temporary:
            made(version, temporary)
            files = {path.name: path.read_bytes() for path in Path(temporary).iterdir()}
        if asked.check:
            wrong = differs(files, kept.get(version, {}))
            failed = failed or bool(wrong)
            print(f"torch {version}: {'differs in ' + ', '.join(wrong) if wrong else 'as kept'}", flush=True)
        else:
            write(kept | {version: files})
            print(f"torch {version}: {len(files)} files; {KEPT.name} has {KEPT.stat().st_size} bytes", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
