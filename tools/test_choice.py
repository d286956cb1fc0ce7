#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which test programs the sanitizers build and run in `.ci/run`: those that include what changed, and some others.

    tools/test_choice.py [--base COMMIT]     says what it would take, and why

All of them take longer than everything else together, and most changes touch a few rooms. `make test-long` and
`tools/run_tests.py --only asan-ubsan` take all.

The base of a change is the first of these that is known and is an ancestor of HEAD:

1. the commit that $PENSTOCK_BASE names: a service that knows it says so;
2. where HEAD is not on the main branch of `origin`, the commit that it left it at;
3. the commit of the last whole run that passed, which docs/status.md names. It is in the repository, so a clone of the
   main branch has it. What was committed after that run counts as changed.

No base: all programs. Otherwise those that include what changed, and a part of the others, by turns: the hash of the
commit picks one part of ROTATION. If more than half include what changed (a public header, a CMake file), it is those
whose own rooms or tests changed, and half of the others by turns.
"""

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from check_layers import ROOMS, includes  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
ROTATION = 4
ROTATION_OF_MANY = 2  # where more than half include what changed
LAST_RUN = re.compile(r"commit `([0-9a-f]{40})`")
SOURCES = (".cpp", ".hpp", ".h", ".cu", ".cuh")
# Files of the whole build: a change in one touches all.
EVERYTHING = re.compile(r"CMakeLists\.txt$|\.cmake$|^cmake/|^CMakePresets\.json$|^tools/(apt-packages\.txt|build\.py)$")
# No test program is made of these.
NOTHING = re.compile(
    r"^(docs|python|benchmarks|fuzz|tools|\.ci)/|^tests/.*\.py$|\.md$|^[^/]+$|^examples/.*\.(py|sh|txt)$"
)
# Rooms that a program tests without naming them in tests/CMakeLists.txt: the suite runs every backend.
ALSO = {"suite": ("engine", "engine/uring", "engine/aio", "engine/posix", "os", "memory", "device")}


@dataclass(frozen=True)
class Choice:
    base: str  # a hash, or None
    why: str  # a sentence
    touched: tuple  # programs that include what changed
    turn: tuple  # others whose turn it is
    left_out: tuple

    @property
    def programs(self):
        return sorted(self.touched + self.turn)

    def short(self):
        total = len(self.programs) + len(self.left_out)
        return f"{len(self.programs)} of {total} programs; make test-long takes all"

    def __str__(self):
        total = len(self.programs) + len(self.left_out)
        if not self.left_out:
            return f"all {total} programs: {self.why}"
        turn = f"; in turn: {' '.join(self.turn)}; not this time: {' '.join(self.left_out)}"
        return f"{len(self.programs)} of {total} programs: {self.why}: {' '.join(self.touched) or 'none'}{turn}"


def git(*words, root=None):
    """What git prints; None where it fails."""
    done = subprocess.run(["git", "-C", root or ROOT, *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def is_ancestor(commit, root=None):
    return git("merge-base", "--is-ancestor", commit, "HEAD", root=root) is not None


def find_base(root=None):
    """(hash of the base, where it is from); (None, why not)."""
    root = root or ROOT
    head = git("rev-parse", "HEAD", root=root)
    if head is None:
        return None, "this is no clone of a repository"
    named = os.environ.get("PENSTOCK_BASE")
    if named:
        commit = git("rev-parse", "--verify", "--quiet", f"{named}^{{commit}}", root=root)
        if commit and is_ancestor(commit, root):
            return commit, "the base that $PENSTOCK_BASE names"
        return None, f"$PENSTOCK_BASE is {named}, which is not in the history of HEAD"
    left = git("merge-base", "HEAD", "origin/HEAD", root=root) or git("merge-base", "HEAD", "origin/main", root=root)
    if left and left != head:
        return left, "where HEAD left the main branch of origin"
    status = Path(root) / "docs" / "status.md"
    found = LAST_RUN.search(status.read_text()) if status.exists() else None
    if not found:
        return None, "docs/status.md names no commit of a whole run that passed"
    if not is_ancestor(found[1], root):
        return None, f"the commit of the last whole run, {found[1][:12]}, is not in the history of HEAD"
    return found[1], "the last whole run that passed"


def changed_files(base, root=None):
    """Paths that differ between the base and the working tree, new files too; None where git cannot say."""
    root = root or ROOT
    differ = git("diff", "--name-only", "--no-renames", base, root=root)
    new = git("ls-files", "--others", "--exclude-standard", root=root)
    return None if differ is None or new is None else sorted({*differ.split("\n"), *new.split("\n")} - {""})


@lru_cache
def programs(root=ROOT):
    """{program: (its folder in tests/, rooms that it is made of)}, as tests/CMakeLists.txt has them."""
    text = (root / "tests" / "CMakeLists.txt").read_text()
    found = {}
    for name, rest in re.findall(r"penstock_test\((\S+?)((?:\s[^)]*)?)\)", text):
        named = re.search(r"\bROOMS ((?:(?!APART|LIBS)\S+\s*)+)", rest)
        rooms = [name, *(named[1].split() if named else []), *ALSO.get(name, ())]
        if (root / "tests" / name).is_dir():
            found[name.replace("/", "_") + "_test"] = (name, tuple(rooms))
    for name in re.findall(r"add_subdirectory\((\S+)\)", text):
        if f"{name}_test" in (root / "tests" / name / "CMakeLists.txt").read_text():
            found[f"{name}_test"] = (name, ("kernels",))
    return found


def fakes(root=ROOT):
    """The programs that open the fake drivers of tests/fake_gpu."""
    text = (root / "tests" / "CMakeLists.txt").read_text()
    return {*re.findall(r"penstock_fake_gpu\((\w+_test)\)", text), "device_conformance_test"}


def own_files(root, name, rooms):
    """The files that a program is made of: its tests, and those of its rooms."""
    for folder in (root / "tests" / name, *(root / "src" / room for room in rooms)):
        for path in folder.rglob("*") if folder.is_dir() else ():
            # engine/uring is a room of its own, with tests of its own; engine/page_cache is a part of engine.
            inner = f"{folder.name}/{path.relative_to(folder).parts[0]}"
            if path.is_file() and inner not in ROOMS:
                yield path


@cache
def included(root, path):
    """The files that a file includes, as far as they are in the repository, and the .cpp of each header."""
    found = set()
    for _, name, _ in includes(path):
        for folder in (path.parent, root / "src", root / "include", root / "tests", root / "examples"):
            there = folder / name
            if there.is_file():
                found.add(Path(os.path.normpath(there)))
                twin = there.with_suffix(".cpp")
                if twin.is_file():
                    found.add(Path(os.path.normpath(twin)))
                break
    return frozenset(found)


def reach(root, program):
    """Everything that a program includes: its own files, and what they include, as paths from the root."""
    name, rooms = programs(root)[program]
    left, seen = list(own_files(root, name, rooms)), set()
    while left:
        path = left.pop()
        if path in seen:
            continue
        seen.add(path)
        if path.suffix in SOURCES:
            left += included(root, path)
    return {path.relative_to(root).as_posix() for path in seen}


def touched_by(changed, root=ROOT):
    """The programs that include one of these files; all of them where a file is of everything, or of nothing known."""
    every = programs(root)
    reached = {program: reach(root, program) for program in every}
    found = set()
    for path in changed:
        if EVERYTHING.search(path):
            return set(every)
        if path.startswith("tests/fake_gpu/"):
            found |= fakes(root)
            continue
        including = {program for program in every if path in reached[program]}
        folder = next((p for p, (name, _) in every.items() if path.startswith(f"tests/{name}/")), None)
        if not including and folder:
            including = {folder}  # a file that is gone, or that a test opens
        if not including and path.startswith(("src/", "include/", "tests/", "examples/")):
            including = of_a_file_that_nobody_includes(path, every)
        if not including and not NOTHING.search(path):
            return set(every)
        found |= including
    return found & set(every)


def of_a_file_that_nobody_includes(path, every):
    """A file that is gone, or that is compiled into a room and included nowhere: the programs of that room."""
    if path.startswith("src/"):
        return {
            program for program, (_, rooms) in every.items() if any(path.startswith(f"src/{room}/") for room in rooms)
        }
    return set()


def own_of(changed, root=ROOT):
    """The programs whose tests, or rooms, have one of these files."""
    return {
        program
        for program, (name, rooms) in programs(root).items()
        for folder in (f"tests/{name}/", *(f"src/{room}/" for room in rooms))
        if any(path.startswith(folder) for path in changed)
    }


def choose(among=None, root=ROOT):
    """The Choice for HEAD, among these programs (default: all)."""
    among = sorted(set(among or programs(root)) & set(programs(root)))
    base, told = find_base(root)
    changed = changed_files(base, root) if base else None
    if changed is None:
        return Choice(None, f"no base is known ({told})", tuple(among), (), ())
    touched = touched_by(changed, root)
    since = f"{base[:12]}, {told}"
    why, rotation = f"these include what changed since {since}", ROTATION
    # Half of all programs, whatever this sanitizer takes of them: the answer is one for the whole run.
    if len(touched) > len(programs(root)) / 2:
        touched, rotation = own_of(changed, root), ROTATION_OF_MANY
        why = f"more than half include what changed since {since}; it is in the rooms or tests of these"
    others = [program for program in among if program not in touched]
    turn = int(git("rev-parse", "HEAD", root=root)[:8], 16) % rotation
    return Choice(
        base,
        why,
        tuple(program for program in among if program in touched),
        tuple(others[turn::rotation]),
        tuple(program for i, program in enumerate(others) if i % rotation != turn),
    )


def why_not_now(pattern, root=ROOT):
    """Why a part that proves only what these files say need not run: none of them has changed, and it is not its turn.
    None where it has to run."""
    base, told = find_base(root)
    changed = changed_files(base, root) if base else None
    if changed is None or any(re.search(pattern, path) for path in changed):
        return None
    if int(git("rev-parse", "HEAD", root=root)[:8], 16) % ROTATION == 0:
        return None
    return f"nothing that it tries has changed since {base[:12]}, {told}, and it is not its turn"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", metavar="COMMIT", help="as $PENSTOCK_BASE")
    args = parser.parse_args()
    if args.base:
        os.environ["PENSTOCK_BASE"] = args.base
    print(choose())
    return 0


if __name__ == "__main__":
    sys.exit(main())
