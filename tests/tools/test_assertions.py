# SPDX-License-Identifier: Apache-2.0
"""Rooms that guard bytes, memory and devices check their own state: PENSTOCK_ASSERT stays on in release builds.

A function is a body in braces, in a namespace or a class, whose head has parentheses: counted in the text without
comments, strings and lines of the preprocessor. Lambdas and initializers do not count. An assertion in a header counts
once, as the function that it is in."""

import re

import check_types
import pytest
from sources import ROOT

# Functions for each assertion, at most.
ROOMS = {"device": 20, "memory": 20, "os": 20, "store": 20, "tier": 20}

MARK = re.compile(r"[{};]|\b(?:public|private|protected):(?!:)")
SCOPE = re.compile(r"\b(?:namespace|class|struct|union|enum)\b[^()]*$|\bextern\s+$")


def functions(text):
    """How many functions a file defines."""
    text = check_types.NOT_CODE.sub(lambda found: " " * (found[0].count("\n") or 1), text)
    text = check_types.PREPROCESSOR.sub("", text)
    found, scopes, begin = 0, [], 0
    for mark in MARK.finditer(text):
        head, begin = text[begin : mark.start()], mark.end()
        if mark[0] == "{":
            outside = all(scopes)
            is_scope = outside and bool(SCOPE.search(re.sub(r"\balignas\([^)]*\)", "", head)))
            scopes.append(is_scope)
            # A comma goes on with the initializers of a constructor.
            is_body = "(" in head and head.count("(") == head.count(")") and not head.lstrip().startswith(",")
            found += outside and not is_scope and is_body
        elif mark[0] == "}" and scopes:
            scopes.pop()
    return found


def counted(room):
    texts = [path.read_text() for path in (ROOT / "src" / room).rglob("*") if path.suffix in (".cpp", ".hpp")]
    return sum(map(functions, texts)), sum(text.count("PENSTOCK_ASSERT(") for text in texts)


@pytest.mark.parametrize("room", [room for room in ROOMS if (ROOT / "src" / room).is_dir()])
def test_a_room_has_its_assertions(room):
    defined, asserted = counted(room)
    assert defined > 20 and asserted * ROOMS[room] >= defined, f"{defined} functions, {asserted} assertions"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("namespace a {\nint f() { return 1; }\n}", 1),
        ("class A {\npublic:\n    A() : x_{1}, y_(2) {}\n    int g() const { auto h = [] { return 1; }; }\n};", 2),
        ("void f(int a = {});\nint x{3};\nint y = g({1, 2});", 0),
        ('// void f() {}\nconst char* t = "void f() {}";\n#define F() {}\n', 0),
        ("enum class E { kA };\nstruct alignas(64) S { int a = 0; };", 0),
        ("template <typename T>\nT f(T t) {\n  if (t) { }\n}", 1),
        ('extern "C" {\nvoid f() { }\n}', 1),
        ("auto f() -> int { return 1; }\nbool operator()(int a) const noexcept override { return a; }", 2),
    ],
)
def test_functions_are_counted(text, expected):
    assert functions(text) == expected
