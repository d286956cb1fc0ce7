# SPDX-License-Identifier: Apache-2.0
"""tools/make_docs.py and tools/reference.py: what is public is in the reference, links lead to pages. The site
itself is made by `make docs`."""

import re
import shutil

import make_docs
import pytest
import reference

ROOT = make_docs.ROOT
STUB = next(filter(None, [make_docs.installed_stub(), *ROOT.glob("build/*/python/_core.pyi")]), None)


def test_every_public_name_of_python_is_in_the_reference():
    if STUB is None:
        pytest.skip("no stub of the compiled part is here: make python")
    page = reference.python_page(ROOT / "python" / "penstock", STUB)
    titles = re.findall(r"^###? `(\w+)", page, re.MULTILINE)
    init = (ROOT / "python" / "penstock" / "__init__.py").read_text()
    public = re.findall(r'^    "(\w+)",$', init[init.index("__all__") :], re.MULTILINE)
    assert len(public) > 30 and set(public) - {"__version__"} <= set(titles)
    assert "### `Engine.read(file, into, offset=0, *, allow_short=False" in page
    for module in reference.MODULES:
        assert f"## penstock.{module}\n" in page
    assert "### `weights.plan(folder, memory, *, rate=None" in page and "### `features.Graph`" in page
    load = page[page.index("### `load(") :]
    assert load.startswith("### `load(f, map_location=None, ") and "*, into=None, names=None, device" in load[:200]
    # The types are those of its overloads, and the text comes once.
    load = load[: load.index("\n### ")]
    assert load.count("```python") == 4 and "-> dict[str, torch.Tensor]" in load and "into: Any" not in load
    assert load.count("Reads a state that penstock.save") == 1
    assert page.count("```") % 2 == 0


def test_every_class_and_function_of_the_headers_is_in_the_reference():
    page = reference.cpp_page(ROOT / "include" / "penstock")
    titles = set(re.findall(r"^### `(\w+)", page, re.MULTILINE))
    for header in (ROOT / "include" / "penstock").glob("*.hpp"):
        text = header.read_text()
        for name in re.findall(r"^(?:class|struct|enum class) (?:PENSTOCK_API )?(\w+)[^;\n]*\{$", text, re.MULTILINE):
            assert name in titles, (header.name, name)
        for name in re.findall(r"^PENSTOCK_API [\w:<>&,* ]+[ &*](\w+)\($", text, re.MULTILINE):
            assert name in titles, (header.name, name)
    assert "private:" not in page and "PENSTOCK_API" not in page and page.count("```") % 2 == 0


def test_code_of_every_page_is_of_its_language():
    """What Sphinx looks at, for which a warning is an error: Pygments knows each token of a block."""
    lexers = pytest.importorskip("pygments.lexers")
    filters = pytest.importorskip("pygments.filters")
    pages = {path: (ROOT / path).read_text() for path in make_docs.pages()}
    pages["cpp_reference.md"] = reference.cpp_page(ROOT / "include" / "penstock")
    if STUB is not None:
        pages["python_reference.md"] = reference.python_page(ROOT / "python" / "penstock", STUB)
    for path, text in pages.items():
        for language, code in re.findall(r"(?ms)^ *```(\w+)\n(.*?)^ *```", text):
            lexer = lexers.get_lexer_by_name(language)
            lexer.add_filter("raiseonerror")
            try:
                list(lexer.get_tokens(code))
            except filters.ErrorToken as error:
                raise AssertionError(f"{path}: {error!r} in a block of {language}:\n{code}") from error


def test_a_table_in_a_comment_is_no_code():
    table = "    train   model; `x`, start\n    other   a thing"
    assert reference._cpp_text(["Kinds:", "", *table.splitlines()]).splitlines()[3] == "```text"
    for code, language in (
        ("    f(1);  // once", "cpp"),
        ('    {\n      "a": 1\n    }', "json"),
        ("    if (x) {\n    }", "cpp"),
    ):
        assert f"```{language}\n" in reference._cpp_text(code.splitlines())


def test_declarations_with_their_comments():
    found = reference._declarations(
        "namespace penstock {\nnamespace os {\nclass File;\n}\n"
        '/// One "{" only.\n/// Two.\nclass A final {\npublic:\n    int a = 0;  // }\n\nprivate:\n    int b_;\n};\n\n'
        "// No comment of the next.\n\nvoid f(int x,\n       int y);\n}  // namespace penstock\nint after;\n"
    )
    names = [reference._name(code) for _, code in found]
    assert names[-2:] == ["A", "f()"] and found[-2][0] == ['One "{" only.', "Two."] and found[-1][0] == []
    assert reference._public_part(found[-2][1]) == "class A final {\npublic:\n    int a = 0;  // }\n};"


def test_links_become_those_of_the_site():
    listed = make_docs.pages()
    text = "[a](docs/python.md#rows) [b](examples/) [c](LICENSE) [d](https://x.org) [e](#here)\n"
    text += "```\n[f](docs/python.md)\n```\n"
    assert make_docs.rewritten(text, "README.md", listed) == (
        "[a](python.md#rows) b [c](files/LICENSE) [d](https://x.org) [e](#here)\n```\n[f](docs/python.md)\n```\n"
    )
    assert make_docs.rewritten("[a](../README.md#install)", "docs/faq.md", listed) == "[a](index.md#install)"


def test_a_page_without_a_place_in_the_contents_is_refused(monkeypatch):
    monkeypatch.setitem(make_docs.PAGES, "Start", [])
    with pytest.raises(ValueError, match=r"docs/\w+.md is not in the contents"):
        make_docs.pages()


def test_dead_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="top"></h1><a href="b.html#x"></a><a href="https://x.org/no"></a><a href="#top">'
    )
    (tmp_path / "b.html").write_text('<p id="x"><img src="gone.png"><a href="a.html#gone"></a><a href="./"></a>')
    assert make_docs.dead_links(tmp_path) == ["b.html: ./", "b.html: a.html#gone", "b.html: gone.png"]
    (tmp_path / "gone.png").touch()
    shutil.copy(tmp_path / "a.html", tmp_path / "index.html")
    assert make_docs.dead_links(tmp_path) == ["b.html: a.html#gone"]
