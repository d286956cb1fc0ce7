#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One name, one type: no two files define different types under one qualified name, which C++ leaves undefined and no
compiler reports (the linker keeps one of each inline function).

    tools/check_types.py [--root DIR]

Types in unnamed namespaces, in classes and in functions are a file's own and do not count.
"""

import argparse
import re
import sys
from collections import defaultdict
from pathlib import Path

FOLDERS = ("src", "include", "python/src")
# Comments, raw strings, strings, characters: none of what is in them is code. A digit separator is no character.
NOT_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/|R\"([^(\s]*)\(.*?\)\1\"|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.S
)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.M)
TOKEN = re.compile(
    r"(?P<open>\bnamespace\b(?P<space>[\w\s:]*)\{)"
    r"|(?P<type>\b(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+(?:alignas\([^)]*\)\s*|PENSTOCK_\w+\s+)?"
    r"(?P<name>\w+(?:::\w+)*)\s*(?:final\s*)?(?::(?!:)[^;{()]*)?\{)"
    r"|(?P<brace>[{}])"
)


def types(text):
    """(qualified name, line) of each type that a file defines in a named namespace."""
    text = NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    text = PREPROCESSOR.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    scopes = []  # a name for a namespace; None for an unnamed one and for all else that has braces
    for found in TOKEN.finditer(text):
        if found["brace"] == "}":
            if scopes:
                scopes.pop()
        elif found["brace"] == "{":
            scopes.append(None)
        elif found["open"]:
            scopes.append(found["space"].strip() or None)
        else:
            if None not in scopes:
                yield "::".join([*scopes, found["name"]]), text.count("\n", 0, found.start("name")) + 1
            scopes.append(None)


def violations(root):
    """(file, line, reason) of each type whose name another file has defined."""
    places = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".hpp", ".cpp"):
                for name, line in types(path.read_text(errors="replace")):
                    places[name].append((path.relative_to(root), line))
    for name, found in sorted(places.items()):
        for path, line in found[1:]:
            first, at = found[0]
            yield path, line, f"{name} is also defined in {first}:{at}; rename one, or put both in unnamed namespaces"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    found = list(violations(parser.parse_args().root))
    for path, line, reason in found:
        print(f"{path}:{line}: {reason}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
