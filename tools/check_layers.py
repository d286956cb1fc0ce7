#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may include whom: the floors of docs/architecture.md, section 2, held by a test.

    tools/check_layers.py [--root DIR]

A room is a folder of src/; its floor and its exceptions are in ROOMS below. The rules:
  1. A room includes itself and rooms on lower floors, nothing else; a few rooms know less (ROOMS names what they may).
  2. A backend (engine/uring ...) knows engine and lower floors, never another backend.
  3. Floors 5 and up reach the engine and GPUs only through <penstock/...>, as a user would.
  4. A public header includes the standard library and other public headers: no third party, nothing of src/. What
     only nvcc compiles may include CUDA's own (CUDA_HEADERS).
  5. Third-party headers only where THIRD_PARTY allows them, so that each stays replaceable.
  6. A binding (python/src) includes <penstock/...>, its own headers, and of src/ the rooms of BINDING_ROOMS and the
     files of BINDING_FILES. Of nanobind it takes no converters (<nanobind/stl/...>): its own cannot end the process.
  7. A folder of src/ has at most 30 files of its own (engine 50): beyond that it is more than one room.
  8. Above the API only stream/ has transfers under way: what moves many bytes is a source of its pump, which knows
     windows, lanes, limits, progress and the end. FEEDERS names the files that do it themselves.
  9. One file chooses the file system of a path (api/file.cpp): all others ask FileSystem::any().
Each violation is one line, with the reason. Exit status 1 when there is one.
"""

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Room:
    floor: int
    may: tuple = ()  # same-floor rooms that it may know after all
    only: tuple = None  # where set: these and nothing else


ROOMS = {
    "base": Room(1),
    "kernels": Room(1, only=()),
    "os": Room(2),
    "memory": Room(2, may=("os",)),
    "engine": Room(3),
    "engine/uring": Room(3, may=("engine",)),
    "engine/aio": Room(3, may=("engine",)),
    "engine/posix": Room(3, may=("engine",)),
    "api": Room(4, may=("format", "device")),
    "device": Room(4),
    "tensor": Room(4, only=("base",)),
    "format": Room(4, only=("base", "tensor")),
    "ranks": Room(4),
    "simulation": Room(4),
    "stream": Room(5),
    "tier": Room(5, may=("stream",)),
    "graph": Room(5),
    "plan": Room(5, only=("base", "tensor", "format")),
    "state": Room(6),
    "store": Room(7),
    "weights": Room(7),
    "features": Room(7),
    "dataset": Room(7),
    "workload": Room(8, may=("probe", "report")),
    "probe": Room(8),
    "report": Room(8, may=("probe",)),
    "cli": Room(8, may=("probe", "report", "workload")),
}
# Rooms that floors 5 and up must use through <penstock/...>.
BEHIND_THE_API = (
    "engine",
    "engine/uring",
    "engine/aio",
    "engine/posix",
    "simulation",
    "api",
    "device",
    "os",
    "memory",
)
# The command line asks the machine itself (doctor).
BEHIND_THE_API_EXCEPT = {"cli": ("os",), "report": ("os",)}

THIRD_PARTY = {
    "liburing": ("engine/uring", "os"),
    "fmt": None,  # anywhere in src/
    "tl": None,
    "xxhash.h": ("stream",),
    "nlohmann": ("cli", "report", "workload"),
    "CLI": ("cli",),
    "nanobind": (),
}
# Rooms below the public API that a binding may use. A need for another room belongs into the API, for C++ programs too;
# an exception is a file with its reason.
BINDING_ROOMS = ("base", "tensor", "format", "stream", "state", "store")
BINDING_FILES = {
    "api/option_table.hpp": "arguments and help of Engine() are made of the table",
    "report/output_file.hpp": "commands that are Python write their JSON by the rules of the others",
    "cli/run.hpp": "the command line is in the wheel",
    "memory/block.hpp": "DeepNVMe's locked tensors have their memory from it",
    "memory/fresh_memory.hpp": "tensors that load() makes have their memory from it",
}
BINDING_PARTIES = ("nanobind", "fmt", "tl")
FOLDER_FILES_MAX = 30
# The engine's own folder is one machine: its parts know each other.
FOLDER_FILES_MAX_EXCEPT = {"engine": 50}
# Verbs that return a transfer. A blocking read or write of a few bytes is no feeding.
FEEDS = re.compile(
    r"\b(?:read_async|write_async|try_submit|try_run|run_read|run_write)\("
    r"|\b[eE]ngine_?(?:\(\))?(?:\.|->)(?:submit|run)\("
)
FEEDERS = {
    "features/files/block_writer.cpp": "two blocks a file, filled as rows come from the caller",
    "features/gather/feature_store.cpp": "one transfer a gather, of rows that the engine brings into order",
    "weights/read/sources.cpp": "a transfer a unit, which the layer that needs it waits for",
    "weights/read/read_speed.cpp": "measures raw transfers",
    "weights/read/tensor_rows.cpp": "one transfer a call, of rows that the engine brings into order",
    "probe/job.cpp": "measures raw transfers",
    "cli/tune/slice.cpp": "measures raw transfers",
    "cli/doctor/path.cpp": "probes with one transfer",
}

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<([^>]+)>|"([^"]+)")')


def room_of(path):
    """The room of a path relative to src/: its longest folder that is a room."""
    parts = path.split("/")[:-1]
    for length in range(len(parts), 0, -1):
        name = "/".join(parts[:length])
        if name in ROOMS:
            return name
    return None


def includes(path):
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) or match.group(2), match.group(1) is None


def third_party(name):
    """The third party that an include belongs to, or None."""
    head = name.split("/")[0]
    if head in THIRD_PARTY:
        return head
    return "liburing" if head == "liburing.h" else None


def why_not(room, other):
    """Why `room` must not include from `other`; None when it may."""
    if other == room:
        return None
    here, there = ROOMS[room], ROOMS[other]
    if here.only is not None:
        if other in here.only:
            return None
        return f"{room} is pure: it may know {' and '.join(here.only) or 'nothing'}, testable and fuzzable alone"
    if here.floor >= 5 and other in BEHIND_THE_API and other not in BEHIND_THE_API_EXCEPT.get(room, ()):
        return (
            f"floor {here.floor} reaches {other} only through <penstock/...>, as any user would; "
            "what it cannot do with that, users cannot either, and then the API is what to change"
        )
    if there.floor < here.floor or other in here.may:
        return None
    if room.startswith("engine/") and other.startswith("engine/"):
        return "a backend knows engine's backend interface, never another backend; share through engine or below"
    if there.floor == here.floor:
        return f"{room} and {other} are on one floor ({here.floor}) and; share through a lower floor"
    return f"{room} is on floor {here.floor} and must not know {other} on floor {there.floor}: dependencies go down"


def check_feeding(relative, path):
    if relative in FEEDERS or relative.startswith("stream/"):
        return
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if FEEDS.search(line):
            yield number, "only stream/ has transfers under way: make it a source of stream::Pump (stream/pump.hpp)"


def check_choice(path):
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if "FileSystem::local()" in line:
            yield number, "the file system follows from the path: ask FileSystem::any(), which api/file.cpp makes"


def check_source(root, path):
    relative = path.relative_to(root / "src").as_posix()
    room = room_of(relative)
    if room is None:
        yield (
            1,
            "it is in no room; add the room to ROOMS in tools/check_layers.py and to docs/architecture.md",
        )
        return
    if relative != "api/file.cpp":
        yield from check_choice(path)
    if ROOMS[room].floor >= 5:
        yield from check_feeding(relative, path)
    for number, name, quoted in includes(path):
        party = third_party(name)
        if party:
            allowed = THIRD_PARTY[party]
            if allowed is not None and room not in allowed:
                yield (
                    number,
                    f"<{name}>: {party} belongs in {' and '.join(allowed) or 'no room'}, so that it stays replaceable",
                )
        elif quoted:
            other = room_of(name)
            if not (root / "src" / name).is_file():
                yield number, f'"{name}" is not a path from src/; write #include "room/file.hpp"'
            elif other is None:
                yield number, f'"{name}" is in no room'
            else:
                reason = why_not(room, other)
                if reason:
                    yield number, f'"{name}": {reason}'
        elif name.startswith("penstock/") and ROOMS[room].floor < 4 and name not in SHARED_TYPES:
            yield (
                number,
                (
                    f"<{name}>: {room} is below the public API and must not know it "
                    f"(only {', '.join(f'<{n}>' for n in sorted(SHARED_TYPES))})"
                ),
            )


# Plain types of the public API that the floors below it use as they are, instead of a copy each.
SHARED_TYPES = {
    "penstock/types.hpp",
    "penstock/tensor.hpp",
    "penstock/error.hpp",
    "penstock/version.hpp",
}


# Headers of the CUDA toolkit that a public header may include where nvcc compiles it: the compiler brings them.
CUDA_HEADERS = {"penstock/device_array.hpp": ("cuda/atomic",)}


def check_public(root, path):
    yield from check_choice(path)
    its_cuda = CUDA_HEADERS.get(path.relative_to(root / "include").as_posix(), ())
    for number, name, quoted in includes(path):
        if name in its_cuda and not quoted:
            continue
        if quoted:
            yield (
                number,
                f'"{name}": a public header includes public headers as <penstock/...> and nothing of src/',
            )
        elif third_party(name):
            yield (
                number,
                f"<{name}>: a public header names no third-party type; users need not have it",
            )
        elif name.startswith("penstock/") and not (root / "include" / name).is_file():
            yield number, f"<{name}> is not there"
        elif "/" in name and not name.startswith("penstock/"):
            yield (
                number,
                f"<{name}>: a public header includes the standard library and <penstock/...> only",
            )


def check_binding(root, path):
    yield from check_choice(path)
    for number, name, quoted in includes(path):
        party = third_party(name)
        if party and party not in BINDING_PARTIES:
            yield number, f"<{name}>: a binding has no {party}; it adapts what src/ does with it"
        elif name.startswith("nanobind/stl/"):
            yield (
                number,
                f"<{name}>: its converters of arguments are noexcept and allocate, so that the process ends where "
                "memory runs out; python/src/casters.hpp and arguments.hpp are in their place",
            )
        elif quoted and not (path.parent / name).is_file():
            room = room_of(name)
            if not (root / "src" / name).is_file():
                yield number, f'"{name}" is neither in python/src nor a path from src/'
            elif room not in BINDING_ROOMS and name not in BINDING_FILES:
                yield (
                    number,
                    f'"{name}": a binding reaches {room} only through <penstock/...>, as a C++ program would; '
                    "an exception is a row of BINDING_FILES with its reason",
                )


def check_folders(root):
    for folder in sorted(path for path in (root / "src").rglob("*") if path.is_dir()):
        files = sum(1 for path in folder.iterdir() if path.is_file())
        most = FOLDER_FILES_MAX_EXCEPT.get(folder.relative_to(root / "src").as_posix(), FOLDER_FILES_MAX)
        if files > most:
            yield folder, 0, f"{files} files of its own; more than {most} are more than one room: split it"


def violations(root):
    """(file, line, reason) of everything that is wrong below root."""
    for path, line, reason in check_folders(root):
        yield path.relative_to(root), line, reason
    for folder, check in (("src", check_source), ("include", check_public), ("python/src", check_binding)):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".hpp", ".cpp", ".h", ".cu", ".cuh"):
                for line, reason in check(root, path):
                    yield path.relative_to(root), line, reason


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    found = list(violations(root))
    for path, line, reason in found:
        print(f"{path}:{line}: {reason}")
    if found:
        print(f"{len(found)} places go against docs/architecture.md, section 2")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
