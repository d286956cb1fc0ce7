# SPDX-License-Identifier: Apache-2.0
"""What the documents show is run: Python as it stands, C++ programs compiled, make targets and links looked up.
test_tasks.py has the pages whose blocks belong together."""

import re
import subprocess

import pages
import pytest
from pages import PAGES, ROOT


def blocks(language):
    """Every fenced block of a language that stands alone, as (id, text)."""
    for page in PAGES:
        if page not in (pages.QUICKSTART, *pages.FRAMEWORKS):
            found = [block.text for block in pages.blocks(page.read_text()) if block.language == language]
            for number, text in enumerate(found, 1):
                yield pytest.param(text, id=f"{page.relative_to(ROOT)}:{number}")


@pytest.mark.parametrize("program", list(blocks("python")))
def test_python_runs(program, tmp_path):
    python = pages.python_with(frozenset(pages.imports(program)))
    run = subprocess.run([python, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


def test_cpp_programs_compile():
    for block in blocks("cpp"):
        if "int main" in block.values[0]:
            argv = ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Werror", f"-I{ROOT / 'include'}", "-x", "c++", "-"]
            run = subprocess.run(argv, input=block.values[0], capture_output=True, text=True)
            assert run.returncode == 0, f"{block.id}: {run.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", page.read_text())
    missing = [t for t in targets if not (page.parent / t).exists()]
    assert missing == []


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set()
    for page in PAGES:
        text = page.read_text()
        named |= set(re.findall(r"`make ([a-z-]+)", text)) | set(re.findall(r"^ *make ([a-z-]+)", text, re.MULTILINE))
    assert named, "the pages name no make target, so this looks in the wrong place"
    assert named <= targets


def test_the_readme_has_three_examples_that_ran_above():
    assert len([b for b in blocks("python") if b.id.startswith("README")]) >= 3
