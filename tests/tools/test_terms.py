# SPDX-License-Identifier: Apache-2.0
"""Words that engineers of storage use for many things name one type each, and the glossary stays short."""

import re

import pytest
from sources import ROOT

# The meaning of each is in the table of terms of docs/architecture.md, or at the type.
WORDS = ("Lane", "Part", "Place", "Slot")
TERMS_MAX = 20
DEFINITION = r"^\s*(?:(?:class|struct|enum class) {0}\b(?!;)[^;{{]*\{{|using {0} =)"


def defined_in(word, text):
    return re.findall(DEFINITION.format(word), text, re.MULTILINE)


@pytest.mark.parametrize("word", WORDS)
def test_a_word_names_one_type(word):
    places = [
        path.relative_to(ROOT).as_posix()
        for folder in ("src", "include", "python/src")
        for path in sorted((ROOT / folder).rglob("*.[ch]pp"))
        for _ in defined_in(word, path.read_text())
    ]
    assert len(places) <= 1, places


def test_what_defines_a_type_is_seen():
    assert defined_in("Slot", "struct Slot {\n};\nclass Slot;\n    using Slot = int;\nstruct SlotPool {\n")
    assert len(defined_in("Slot", "class Slot final : public Base {\n    struct Slot : Other {\n")) == 2
    assert not defined_in("Slot", "class Slot;\nfriend struct Slot;\nSlot make();\n")


def test_the_glossary_is_short():
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.split("### Terms", 1)[1].split("\n## ", 1)[0]
    terms = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert 5 < len(terms) <= TERMS_MAX, terms
