# SPDX-License-Identifier: Apache-2.0
"""Which programs the sanitizers take: what includes a change, and the others in turn; all where the base is unknown."""

import pathlib
import subprocess

import check_headers
import pytest
import run_tests
import test_choice
import test_parts

TESTS = """
penstock_test(base)
penstock_test(engine ROOMS simulation)
penstock_test(engine/uring)
penstock_test(store ROOMS simulation APART one_test.cpp)
penstock_test(plan)
penstock_test(probe)
penstock_test(cli)
penstock_fake_gpu(cli_test)
"""
FILES = {
    "tests/CMakeLists.txt": TESTS,
    "tests/base/base_test.cpp": '#include "base/text.hpp"\n',
    "tests/engine/engine_test.cpp": '#include "engine/core.hpp"\n#include "support/seeds.hpp"\n',
    "tests/engine/uring/uring_test.cpp": '#include "engine/uring/ring.hpp"\n',
    "tests/store/store_test.cpp": '#include <penstock/store.hpp>\n#include "crash.hpp"\n',
    "tests/store/crash.hpp": '#include "support/seeds.hpp"\n',
    "tests/store/corpus/one.bin": "x",
    "tests/plan/plan_test.cpp": "#include <penstock/plan.hpp>\n",
    "tests/probe/probe_test.cpp": "",
    "tests/cli/cli_test.cpp": "#include <penstock/plan.hpp>\n",
    "tests/fake_gpu/fake.cpp": "",
    "tests/support/seeds.hpp": "",
    "tests/support/seeds.cpp": "",
    "src/base/text.hpp": "",
    "src/base/text.cpp": "",
    "src/engine/core.hpp": "",
    "src/engine/core.cpp": '#include "base/text.hpp"\n',
    "src/engine/page_cache/look.cpp": "",
    "src/engine/uring/ring.hpp": "",
    "src/simulation/disk.hpp": "",
    "src/store/store.cpp": "#include <penstock/store.hpp>\n",
    "include/penstock/store.hpp": "#include <penstock/types.hpp>\n",
    "include/penstock/plan.hpp": "",
    "include/penstock/types.hpp": "",
    "docs/status.md": "nothing yet\n",
    "python/penstock/__init__.py": "",
}


def git(root, *words):
    more = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *more, *words], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with FILES in it, and one commit."""
    monkeypatch.delenv("PENSTOCK_BASE", raising=False)
    test_choice.programs.cache_clear()
    test_choice.included.cache_clear()
    root = tmp_path / "r"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "-q")
    commit(root)
    yield root
    test_choice.programs.cache_clear()
    test_choice.included.cache_clear()


def commit(root):
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", "more")
    return git(root, "rev-parse", "HEAD")


def last_run(root, hash):
    (root / "docs" / "status.md").write_text(f"The last `.ci/run` that passed was of commit `{hash}`.\n")


@pytest.mark.parametrize(
    "path, programs",
    [
        ("src/base/text.hpp", "base engine"),
        ("src/base/text.cpp", "base engine"),  # its header is included
        ("src/engine/core.cpp", "engine"),
        ("src/engine/page_cache/look.cpp", "engine"),
        ("src/engine/uring/ring.hpp", "engine_uring"),
        ("src/simulation/disk.hpp", "engine store"),  # named in ROOMS
        ("tests/support/seeds.cpp", "engine store"),
        ("include/penstock/types.hpp", "store"),
        ("include/penstock/plan.hpp", "cli plan"),
        ("tests/store/corpus/one.bin", "store"),
        ("tests/store/gone_test.cpp", "store"),
        ("src/store/gone.cpp", "store"),
        ("tests/fake_gpu/fake.cpp", "cli"),
        ("docs/status.md", ""),
        ("python/penstock/__init__.py", ""),
        ("tests/tools/test_it.py", ""),
        ("README.md", ""),
        ("tests/CMakeLists.txt", "base cli engine engine_uring plan probe store"),
        ("cmake/PenstockRoom.cmake", "base cli engine engine_uring plan probe store"),
        ("something/new.cpp", "base cli engine engine_uring plan probe store"),
    ],
)
def test_a_change_touches_what_includes_it(repository, path, programs):
    found = test_choice.touched_by([path], repository)
    assert found & set(test_choice.programs(repository)) == {f"{name}_test" for name in programs.split()}


def test_without_a_base_all_programs_are_taken(repository):
    choice = test_choice.choose(root=repository)
    assert len(choice.programs) == 7 and not choice.left_out and "no base is known" in str(choice)
    last_run(repository, "1" * 40)  # of another history
    choice = test_choice.choose(root=repository)
    assert len(choice.programs) == 7 and "is not in the history of HEAD" in str(choice)
    shallow = repository.parent / "shallow"
    last_run(repository, git(repository, "rev-parse", "HEAD"))
    commit(repository)
    git(repository.parent, "clone", "-q", "--depth", "1", f"file://{repository}", str(shallow))
    assert test_choice.find_base(shallow)[0] is None


def test_the_base_is_the_last_run_that_passed(repository):
    base = git(repository, "rev-parse", "HEAD")
    last_run(repository, base)
    (repository / "src/engine/uring/ring.hpp").write_text("// changed\n")
    commit(repository)
    choice = test_choice.choose(root=repository)
    assert (choice.base, choice.touched) == (base, ("engine_uring_test",))
    assert sorted({*choice.touched, *choice.turn, *choice.left_out}) == sorted(test_choice.programs(repository))
    assert len(choice.turn) in (1, 2) and len(choice.touched + choice.turn + choice.left_out) == 7
    assert base[:12] in str(choice) and "engine_uring_test; in turn: " in str(choice)
    # In a clone, as CI makes it, it is the same.
    clone = repository.parent / "clone"
    git(repository.parent, "clone", "-q", str(repository), str(clone))
    assert str(test_choice.choose(root=clone)) == str(choice)
    # A change that nobody has committed counts.
    (repository / "src/simulation/disk.hpp").write_text("// changed\n")
    assert test_choice.choose(root=repository).touched == ("engine_test", "engine_uring_test", "store_test")


def test_of_more_than_half_those_whose_own_files_changed_are_taken_and_half_of_the_others(repository):
    last_run(repository, git(repository, "rev-parse", "HEAD"))
    for name in ("include/penstock/plan.hpp", "src/simulation/disk.hpp", "tests/probe/probe_test.cpp"):
        (repository / name).write_text("// changed\n")
    seen = set()
    for _ in range(12):
        commit(repository)
        choice = test_choice.choose(root=repository)
        assert choice.touched == ("engine_test", "probe_test", "store_test") and "more than half" in str(choice)
        assert len(choice.turn) == len(choice.left_out) == 2
        seen |= {*choice.turn}
        # Also of a sanitizer that takes few of them.
        few = test_choice.choose(["base_test", "plan_test", "probe_test"], repository)
        assert few.touched == ("probe_test",) and len(few.turn) == 1
    assert len(seen) == 4


def test_a_branch_is_compared_with_the_main_one(repository):
    left = git(repository, "rev-parse", "HEAD")
    clone = repository.parent / "clone"
    git(repository.parent, "clone", "-q", str(repository), str(clone))
    git(clone, "checkout", "-q", "-b", "mine")
    (clone / "src/engine/uring/ring.hpp").write_text("// changed\n")
    commit(clone)
    choice = test_choice.choose(root=clone)
    assert (choice.base, choice.touched) == (left, ("engine_uring_test",))


def test_a_service_may_name_the_base(repository, monkeypatch):
    first = git(repository, "rev-parse", "HEAD")
    (repository / "src/engine/uring/ring.hpp").write_text("// changed\n")
    commit(repository)
    monkeypatch.setenv("PENSTOCK_BASE", first)
    assert test_choice.choose(root=repository).touched == ("engine_uring_test",)
    monkeypatch.setenv("PENSTOCK_BASE", "2" * 40)
    assert not test_choice.choose(root=repository).left_out


def test_every_program_has_its_turn(repository):
    last_run(repository, git(repository, "rev-parse", "HEAD"))
    seen = set()
    for _ in range(80):
        commit(repository)
        seen |= set(test_choice.choose(root=repository).turn)
    assert seen == set(test_choice.programs(repository))


def test_every_program_of_the_project_is_known():
    test_choice.programs.cache_clear()
    every = test_choice.programs()
    folders = {path.parent for path in (test_parts.ROOT / "tests").rglob("*_test.cpp")}
    assert {test_parts.ROOT / "tests" / name for name, _ in every.values()} == folders
    assert set(test_parts.ENGINE_TESTS) <= set(every)
    for program in every:
        assert len(test_choice.reach(test_parts.ROOT, program)) > 3, program
    assert "suite_test" in test_choice.touched_by(["src/engine/core.cpp"])


def test_the_parts_of_ci_say_what_they_leave_out_and_those_of_test_long_leave_out_nothing(monkeypatch):
    made = test_choice.Choice("b", "these include what changed", ("api_test",), ("base_test",), ("os_test",))
    monkeypatch.setattr(test_parts.test_choice, "choose", lambda among: made)
    test_parts.choice.cache_clear()
    parts = {part.name: part for part in test_parts.parts("ci")}
    for name in ("asan-ubsan", "tsan"):
        build, _ = parts[name].steps
        assert build.gate and build.argv()[0][1][-2:] == ["api_test", "base_test"]
        assert "2 of 3 programs" in str(parts[name].about())
    test_parts.choice.cache_clear()
    parts = {part.name: part for part in test_parts.parts("long")}
    assert parts["asan-ubsan"].about is None and parts["asan-ubsan"].steps[0].argv[-1] == "asan-ubsan"


def test_headers_whose_includes_changed_compile_alone_again(repository, capsys):
    jobs = [(pathlib.Path(name), []) for name in FILES if name.endswith(".hpp")]
    assert check_headers.only_changed(repository, jobs) == jobs and "no base is known" in capsys.readouterr().out
    last_run(repository, git(repository, "rev-parse", "HEAD"))
    assert check_headers.only_changed(repository, jobs) == []
    (repository / "include/penstock/types.hpp").write_text("// changed\n")
    (repository / "src/base/text.cpp").write_text("// changed: no header includes it\n")
    names = [path.name for path, _ in check_headers.only_changed(repository, jobs)]
    assert sorted(names) == ["store.hpp", "types.hpp"]


def test_the_smoke_test_runs_where_the_set_up_or_the_package_changed_and_in_turn(repository):
    why = lambda: test_choice.why_not_now(test_parts.SMOKE, repository)  # noqa: E731
    assert why() is None  # no base is known
    last_run(repository, git(repository, "rev-parse", "HEAD"))
    turns = []
    for _ in range(30):
        commit(repository)
        turns.append(why() is None)
    assert any(turns) and not all(turns)
    while why() is None:
        commit(repository)
    assert "nothing that it tries has changed" in why()
    for name in ("python/penstock/__init__.py", "tests/CMakeLists.txt"):
        (repository / name).write_text("# changed\n")
        assert why() is None
        (repository / name).write_text(FILES[name])
        assert why() is not None


def test_a_part_that_need_not_run_is_named_in_the_last_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(run_tests, "LOGS", tmp_path)
    runner = run_tests.Runner(1.0)
    runner.run_part(test_parts.Part("part", 1, [], skips=lambda: "nothing changed"))
    assert runner.late == ["part: not run: nothing changed"] and str(runner.total).startswith("0 passed, 0 failed")
