# SPDX-License-Identifier: Apache-2.0
"""python -m penstock.deepnvme: the program runs as under `python`."""

import os
import subprocess
import sys

import pytest

RUNNER = ("-m", "penstock.deepnvme")

SHOW = """
import json, os, sys
module = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv,
    "name": __name__,
    "file": __file__,
    "first": os.path.realpath(sys.path[0]),
    "is_main": vars(module) is globals(),
    "names": sorted(globals()),
    "spec": getattr(__spec__, "name", None),
    "package": __package__,
}))
"""


def test_help(run):
    done = run(*RUNNER, "--help")
    assert (
        "usage: python -m penstock.deepnvme" in done.out and "torchrun" in done.out and "PENSTOCK_DEEPNVME" in done.out
    )


@pytest.mark.parametrize("arguments", [(), ("-m",), ("--no-such",)])
def test_nothing_to_run(run, arguments):
    assert "name what to run" in run(*RUNNER, *arguments, status=2).err


def test_no_such_script(run):
    assert "no such file" in run(*RUNNER, "nowhere.py", status=2).err


def test_script_as_under_python(run_script):
    arguments = ("--help", "-m", "x y", "--")
    theirs = run_script(SHOW, *arguments).result
    assert run_script(SHOW, *arguments, before=RUNNER).result == theirs
    assert run_script(SHOW, *arguments, before=(*RUNNER, "--")).result == theirs


@pytest.mark.parametrize("way", ["pipe", "stdin", "fifo"])
def test_script_that_is_no_file(environment, tmp_path, way):
    """`<(...)` and /dev/stdin, as python runs them: what can be read once."""
    text = "import sys; print(__name__, __file__ == sys.argv[0], sys.argv[1:])"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = {"pipe": f"<(echo '{text}')", "stdin": "/dev/stdin", "fifo": str(fifo)}[way]
    feed = f"echo '{text}' " + {"pipe": ">/dev/null;", "stdin": "|", "fifo": f"> {fifo} &"}[way]
    said = []
    for runner in ((), RUNNER):
        command = f"{feed} {sys.executable} {' '.join(runner)} {script} 1 2"
        done = subprocess.run(
            ["/bin/bash", "-c", command], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done
        said.append(done.stdout)
    assert said == ["__main__ True ['1', '2']\n"] * 2


def test_module_as_under_python(run, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text(SHOW)
    theirs = run("-m", "package.part", "--flag", "1").result
    assert run(*RUNNER, "-m", "package.part", "--flag", "1").result == theirs


def test_folder_with_a_main(run, tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("import sys; print(__name__, sys.argv[1:])")
    assert run(*RUNNER, "app", "1").out == "__main__ ['1']\n"


@pytest.mark.parametrize(
    "text, status",
    [("pass", 0), ("raise SystemExit(3)", 3), ("raise ValueError('broken')", 1), ("import os; os._exit(7)", 7)],
)
def test_exit_status(run_script, text, status):
    done = run_script(text, before=RUNNER, status=status)
    assert ("ValueError: broken" in done.err) == ("broken" in text)


def test_pickled_by_main(run_script):
    """Functions of the script go to spawned children and back, as under python."""
    run_script(
        """
        import multiprocessing

        class Thing:
            pass

        def work(number):
            thing = Thing()
            thing.number = number + 1
            return thing

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                assert [t.number for t in pool.map(work, [1, 2, 3])] == [2, 3, 4]
        """,
        before=RUNNER,
    )


def test_future_flags_are_the_scripts_own(run_script):
    """The runner's `from __future__ import annotations` is not the script's."""
    run_script("def f(x: 1 + 1): pass\nassert f.__annotations__ == {'x': 2}\n", before=RUNNER)


def test_deepspeeds_own_ds_io(run, tmp_path, environment):
    """Its command, unchanged, which does its I/O in spawned processes."""
    from pathlib import Path

    ds_io = Path(sys.executable).parent / "ds_io"
    for way in ([], ["--read"]):
        arguments = ("--folder", tmp_path, "--io_size", "8M", "--loops", "2", "--multi_process", "2", "--validate")
        env = {"PATH": f"{environment['PATH']}:/usr/bin:/bin", "CXX": "/no/compiler", "CC": "/no/compiler"}
        done = run(*RUNNER, ds_io, *arguments, *way, env=env)
        kind = "Read" if way else "Write"
        assert f"E2E {kind} Speed = " in done.out
        files = sorted(p for p in tmp_path.iterdir() if p.name.startswith(f"_aio_{kind.lower()}_"))
        assert len(files) >= 2 and all(p.stat().st_size == 8 << 20 for p in files), files
