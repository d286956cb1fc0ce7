# SPDX-License-Identifier: Apache-2.0
"""One qualified name is one type over all files; each row is a tree with two files."""

import check_types
import pytest
from sources import ROOT


def found(root, *texts):
    for number, text in enumerate(texts):
        path = root / "src" / "room" / f"{number}.hpp"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [reason for _, _, reason in check_types.violations(root)]


ENUM = "namespace a::b {\nenum class Verdict : int { kOk };\n}"
STRUCT = "namespace a {\nnamespace b {\nstruct Verdict {\n int kind = 0;\n};\n}\n}"


@pytest.mark.parametrize(
    "first, second, name",
    [
        (ENUM, STRUCT, "a::b::Verdict"),
        (STRUCT, STRUCT, "a::b::Verdict"),
        ("class A final : public B {};", "struct PENSTOCK_API A {};", "A"),
        ("namespace a { inline int f() { return 1; }\nunion U { int i; }; }", "namespace a { struct U {}; }", "a::U"),
        ("namespace a { struct A::Impl {}; }", "namespace a { class A::Impl : B {}; }", "a::A::Impl"),
        ("// {\nconst char* kText = \"{\";\nchar c = '{';\nstruct A {};", "#define X {\nstruct A {};", "A"),
        ("int n = 1'000'000;\nstruct A {};", 'auto t = R"({{")";\nstruct A {};', "A"),
    ],
)
def test_two_types_of_one_name_are_found(tmp_path, first, second, name):
    (reason,) = found(tmp_path, first, second)
    assert reason.startswith(f"{name} is also defined in src/room/0.hpp:")


@pytest.mark.parametrize(
    "first, second",
    [
        (STRUCT, STRUCT.replace("Verdict", "Severity")),
        (STRUCT, "namespace a::c { struct Verdict {}; }"),
        (STRUCT, "namespace a::b { struct Verdict; enum class Verdict : int; void f(struct Verdict*); }"),
        (STRUCT, "namespace a::b { namespace { struct Verdict {}; } }"),
        (STRUCT, "namespace a::b { class Other { struct Verdict {}; }; }"),
        (STRUCT, "namespace a::b { void f() { struct Verdict {}; } }"),
        (STRUCT, "// struct Verdict {\n/* struct Verdict { */"),
        ("struct A { struct Impl; };\nstruct A::Impl {};", "struct B {};\nstruct B::Impl {};"),
    ],
)
def test_what_is_another_type_or_none_is_let_through(tmp_path, first, second):
    assert found(tmp_path, first, second) == []


def test_this_project_has_one_type_a_name():
    assert list(check_types.violations(ROOT)) == []
    names = {name for path in (ROOT / "src").rglob("*.hpp") for name, _ in check_types.types(path.read_text())}
    assert {"penstock::engine::Channel", "penstock::cli::GoalVerdict", "penstock::base::Fifo"} <= names
