# SPDX-License-Identifier: Apache-2.0
"""The layer check must fail for every rule it has: each row is a tree that breaks one."""

import check_layers
import pytest
from sources import ROOT


def tree(root, **contents):
    """Writes files, given as path=text."""
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def reasons(root):
    return [(path.as_posix(), line, reason) for path, line, reason in check_layers.violations(root)]


BREAKS = [
    ("src/base/a.hpp", "os/b.hpp", "dependencies go down"),
    ("src/os/a.hpp", "memory/b.hpp", "on one floor"),
    ("src/engine/a.cpp", "engine/uring/b.hpp", "on one floor"),
    ("src/engine/uring/a.cpp", "engine/aio/b.hpp", "never another backend"),
    ("src/engine/posix/a.cpp", "api/b.hpp", "dependencies go down"),
    ("src/device/a.cpp", "ranks/b.hpp", "on one floor"),
    ("src/format/a.cpp", "engine/b.hpp", "is pure"),
    ("src/format/a.cpp", "os/b.hpp", "is pure"),
    ("src/tensor/a.cpp", "memory/b.hpp", "is pure"),
    ("src/store/a.cpp", "engine/b.hpp", "only through <penstock/...>"),
    ("src/stream/a.cpp", "state/b.hpp", "dependencies go down"),
    ("src/state/a.cpp", "store/b.hpp", "dependencies go down"),
    ("src/weights/a.cpp", "store/b.hpp", "on one floor"),
    ("src/weights/a.cpp", "os/b.hpp", "only through <penstock/...>"),
    ("src/cli/a.cpp", "engine/uring/b.hpp", "only through <penstock/...>"),
    ("src/features/a.cpp", "device/cuda/b.hpp", "only through <penstock/...>"),
    ("src/stream/a.cpp", "device/b.hpp", "only through <penstock/...>"),
    ("src/probe/a.cpp", "device/mover/b.hpp", "only through <penstock/...>"),
    ("src/dataset/a.cpp", "weights/b.hpp", "on one floor"),
    ("src/weights/a.cpp", "cli/b.hpp", "dependencies go down"),
]


@pytest.mark.parametrize("file, included, reason", BREAKS)
def test_a_wrong_include_is_found_and_explained(tmp_path, file, included, reason):
    tree(tmp_path, **{file: f'#pragma once\n#include "{included}"\n', f"src/{included}": "#pragma once\n"})
    ((path, line, text),) = reasons(tmp_path)
    assert (path, line) == (file, 2)
    assert reason in text


ALLOWED = [
    ("src/os/a.hpp", "base/b.hpp"),
    ("src/memory/a.hpp", "os/b.hpp"),
    ("src/engine/uring/a.cpp", "engine/b.hpp"),
    ("src/engine/uring/a.cpp", "engine/uring/b.hpp"),
    ("src/api/a.cpp", "engine/uring/b.hpp"),
    ("src/format/a.cpp", "tensor/b.hpp"),
    ("src/cli/a.cpp", "plan/b.hpp"),
    ("src/cli/a.cpp", "os/b.hpp"),
    ("src/state/a.cpp", "format/b.hpp"),
    ("src/weights/a.cpp", "state/b.hpp"),
    ("src/store/a.cpp", "stream/b.hpp"),
]


@pytest.mark.parametrize("file, included", ALLOWED)
def test_a_right_include_is_let_through(tmp_path, file, included):
    tree(tmp_path, **{file: f'#include "{included}"\n#include <vector>\n', f"src/{included}": "#pragma once\n"})
    assert reasons(tmp_path) == []


def test_the_extension_takes_no_converter_of_nanobind(tmp_path):
    text = "#include <nanobind/nanobind.h>\n#include <nanobind/stl/vector.h>\n"
    tree(tmp_path, **{"python/src/a.cpp": text})
    ((path, line, reason),) = reasons(tmp_path)
    assert (path, line) == ("python/src/a.cpp", 2)
    assert "arguments.hpp" in reason


@pytest.mark.parametrize(
    "line, reason",
    [
        ("#include <fmt/format.h>", "no third-party type"),
        ("#include <tl/expected.hpp>", "no third-party type"),
        ("#include <liburing.h>", "no third-party type"),
        ('#include "base/result.hpp"', "nothing of src/"),
        ("#include <penstock/absent.hpp>", "is not there"),
        ("#include <boost/any.hpp>", "standard library"),
    ],
)
def test_a_public_header_stays_clean(tmp_path, line, reason):
    tree(tmp_path, **{"include/penstock/a.hpp": f"#pragma once\n{line}\n#include <string>\n"})
    ((_, number, text),) = reasons(tmp_path)
    assert number == 2
    assert reason in text


def test_third_parties_stay_in_their_rooms(tmp_path):
    tree(
        tmp_path,
        **{
            "src/engine/a.cpp": "#include <liburing.h>\n",
            "src/engine/uring/a.cpp": "#include <liburing.h>\n",
            "src/base/a.cpp": "#include <CLI/CLI.hpp>\n#include <fmt/format.h>\n",
        },
    )
    assert [(path, line) for path, line, _ in reasons(tmp_path)] == [("src/base/a.cpp", 1), ("src/engine/a.cpp", 1)]


def test_a_file_outside_every_room_and_a_path_that_is_not_from_src_are_found(tmp_path):
    tree(tmp_path, **{"src/attic/a.cpp": "\n", "src/base/a.cpp": '#include "b.hpp"\n', "src/base/b.hpp": "\n"})
    found = {path: text for path, _, text in reasons(tmp_path)}
    assert "in no room" in found["src/attic/a.cpp"]
    assert "not a path from src/" in found["src/base/a.cpp"]


def test_below_the_public_api_only_its_plain_types_are_known(tmp_path):
    tree(
        tmp_path,
        **{
            "include/penstock/types.hpp": "#pragma once\n",
            "include/penstock/engine.hpp": "#pragma once\n",
            "src/engine/a.cpp": "#include <penstock/types.hpp>\n#include <penstock/engine.hpp>\n",
        },
    )
    ((_, line, text),) = reasons(tmp_path)
    assert line == 2
    assert "below the public API" in text


@pytest.mark.parametrize(
    "line, reason",
    [
        ('#include "engine/b.hpp"', "only through <penstock/...>"),
        ('#include "os/b.hpp"', "only through <penstock/...>"),
        ('#include "api/b.hpp"', "BINDING_FILES"),
        ('#include "cli/b.hpp"', "only through <penstock/...>"),
        ('#include "absent.hpp"', "neither in python/src nor"),
        ("#include <liburing.h>", "a binding has no liburing"),
        ("#include <nlohmann/json.hpp>", "a binding has no nlohmann"),
    ],
)
def test_a_binding_knows_few_rooms(tmp_path, line, reason):
    rooms = {f"src/{room}/b.hpp": "#pragma once\n" for room in ("engine", "os", "api", "cli")}
    tree(tmp_path, **rooms, **{"python/src/a.cpp": f"{line}\n"})
    ((path, number, text),) = reasons(tmp_path)
    assert (path, number) == ("python/src/a.cpp", 1)
    assert reason in text


def test_a_binding_knows_its_own_headers_the_floors_of_files_and_what_is_listed(tmp_path):
    known = ["base/b.hpp", "state/b.hpp", "store/b.hpp", *check_layers.BINDING_FILES]
    lines = [f'#include "{name}"' for name in [*known, "mine.hpp"]] + ["#include <nanobind/nanobind.h>"]
    headers = {f"src/{name}": "#pragma once\n" for name in known}
    tree(tmp_path, **headers, **{"python/src/mine.hpp": "", "python/src/a.cpp": "\n".join(lines) + "\n"})
    assert reasons(tmp_path) == []
    assert all(reason for reason in check_layers.BINDING_FILES.values())


def test_a_folder_has_at_most_30_files_of_its_own_and_the_engine_50(tmp_path):
    tree(tmp_path, **{f"src/base/a{number}.hpp": "#pragma once\n" for number in range(30)})
    tree(tmp_path, **{f"src/engine/a{number}.hpp": "#pragma once\n" for number in range(49)})
    tree(tmp_path, **{"src/engine/a.hpp": "#pragma once\n"})
    assert reasons(tmp_path) == []
    tree(tmp_path, **{"src/base/one_more.cpp": ""})
    ((path, _, text),) = reasons(tmp_path)
    assert path == "src/base"
    assert "31 files of its own" in text


def test_this_project_holds_its_own_floors():
    assert reasons(ROOT) == []


FEEDING = [
    "auto t = engine.read_async(file, into);",
    "engine_.write_async(file, data).wait();",
    "if (auto t = options.engine->try_submit(request)) {",
    "return engine->run(std::move(request));",
    "engine_.submit(std::move(request));",
]


@pytest.mark.parametrize("line", FEEDING)
def test_transfers_are_fed_by_stream_alone(tmp_path, line):
    tree(tmp_path, **{path: f"{line}\n" for path in ("src/store/a.cpp", "src/stream/a.cpp", "src/probe/job.cpp")})
    ((path, _, text),) = reasons(tmp_path)
    assert path == "src/store/a.cpp"
    assert "stream::Pump" in text


def test_a_blocking_read_of_a_text_feeds_nothing(tmp_path):
    assert not reasons(tree(tmp_path, **{"src/store/a.cpp": "engine.read(file, bytes); pump_.run(*this, 1);\n"}))


@pytest.mark.parametrize("file", ["src/store/a.cpp", "src/cli/a.cpp", "include/penstock/a.hpp", "python/src/a.cpp"])
def test_one_file_alone_chooses_the_file_system(file, tmp_path):
    text = "auto a = FileSystem::any();\nvoid f(const FileSystem& files = FileSystem::local());\n"
    ((path, line, reason),) = reasons(tree(tmp_path, **{file: text, "src/api/file.cpp": text}))
    assert (path, line) == (file, 2) and "FileSystem::any()" in reason
