# SPDX-License-Identifier: Apache-2.0
"""A stranger does what docs/quickstart.md and the pages on frameworks say, literally and in an empty folder: files are
saved under their names, programs and commands run in their order, and they print what the page shows."""

import doctest
import re
import shutil
import subprocess
import sys

import pages
import pytest
from pages import ROOT

TASKS = [
    *(
        pytest.param(text, id=text.partition("\n")[0])
        for text in re.split(r"(?m)^## ", pages.QUICKSTART.read_text())[1:]
    ),
    *(pytest.param(page.read_text(), id=page.stem) for page in pages.FRAMEWORKS),
]
MATCHES = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def wheel():
    """For this Python."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    found = [path for folder in ("wheels", "dist") for path in (ROOT / "build" / folder).glob(f"*-{tag}-*.whl")]
    return found[0] if found else pytest.skip("no wheel is built: make python")


def install_library(home):
    """What README.md says for C++."""
    build = ROOT / "build" / "release"
    if not (build / "src" / "libpenstock.so").exists():
        pytest.skip("the library is not built: tools/build.py release")
    subprocess.run(["cmake", "--install", build, "--prefix", home / "penstock"], check=True, capture_output=True)


def run(block, python, folder, env):
    words = [python, "-c", block.text] if block.language == "python" else ["bash", "-ec", block.text]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{block.text}\nended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_done_from_its_page_alone(task, tmp_path):
    steps = pages.blocks(task)
    script = "".join(step.text for step in steps if step.language == "sh")
    programs = [step.text for step in steps if step.language == "python"]
    own = {step.file.removesuffix(".py") for step in steps}
    pages.need_programs(script)
    python = pages.python_with(frozenset({"penstock"}.union(*map(pages.imports, programs)) - own))
    env = pages.environment(python, tmp_path)
    folder = tmp_path / "empty"
    folder.mkdir()
    if ".whl" in script:
        shutil.copy(wheel(), folder)
    if "cmake" in script:
        install_library(tmp_path / "home")
    printed = ""
    for step in steps:
        if step.language == "text":
            assert doctest.OutputChecker().check_output(step.text, printed, MATCHES), printed
        elif step.file:
            (folder / step.file).write_text(step.text)
        elif step.language in ("python", "sh"):
            printed = run(step, python, folder, env)


def test_the_quickstart_has_ten_tasks_that_say_what_to_expect():
    tasks = [task.values[0] for task in TASKS if task.id not in [page.stem for page in pages.FRAMEWORKS]]
    assert len(tasks) == 10
    for task in tasks:
        assert re.search(r"^Takes .*\d|^Takes half a minute", task, re.MULTILINE) and "Expect" in task, task[:80]
        assert "text" in [block.language for block in pages.blocks(task)], task[:80]
