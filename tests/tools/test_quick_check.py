# SPDX-License-Identifier: Apache-2.0
"""`make check` runs the tests of what changed, and no others."""

from pathlib import Path

import quick_check
import test_choice


def test_each_file_of_a_room_has_its_program():
    for program, (name, _) in test_choice.programs().items():
        for folder in ("src", "tests"):
            assert quick_check.programs_of([f"{folder}/{name}/one.cpp"]) == [program]
    assert quick_check.programs_of(["src/store/keep/removal.cpp", "README.md"]) == ["store_test"]
    assert quick_check.programs_of(["src/engine/uring/ring.cpp", "src/engine/core.cpp"]) == [
        "engine_test",
        "engine_uring_test",
    ]
    assert quick_check.programs_of(["docs/store.md", "tools/build.py"]) == []


def test_a_module_has_the_tests_that_are_named_after_it():
    found = [path.name for path in quick_check.python_tests_of(["python/penstock/_state/load.py"])]
    assert {"test_load_into.py", "test_state_load.py"} <= set(found)
    assert quick_check.python_tests_of(["tools/quick_check.py"]) == [Path("tests/tools/test_quick_check.py")]
    assert quick_check.python_tests_of(["python/tests/test_files.py"]) == [Path("python/tests/test_files.py")]
    assert quick_check.python_tests_of(["python/tests/test_gone.py", "tests/deepspeed/test_stream.py"]) == []


def test_checks_come_last_and_tests_after_their_build():
    names = [
        name for name, _, _ in quick_check.commands(["src/store/keep/removal.cpp", "python/penstock/_state/load.py"])
    ]
    assert names[:2] == ["build store_test", "store_test"]
    assert names.index("wheel") < names.index("pytest") < names.index("check_layers")
