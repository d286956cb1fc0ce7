# SPDX-License-Identifier: Apache-2.0
"""Every public verb is in the table of the hostile tests, and every row works where nothing is wrong."""

import pytest
import scenes
import verbs


def test_every_public_verb_has_a_row():
    missing = verbs.public_verbs() - verbs.named_verbs() - set(verbs.EXEMPT) - set(verbs.EXEMPT_CLASSES)
    assert not missing, f"no row of tests/hostile/rows_*.py calls: {', '.join(sorted(missing))}"


def test_no_row_names_a_verb_that_is_not_there():
    named = {name for name in verbs.named_verbs() if ":" not in name}
    gone = (named | set(verbs.EXEMPT) | set(verbs.EXEMPT_CLASSES)) - verbs.public_verbs()
    assert not gone, f"not public (any more): {', '.join(sorted(gone))}"


@pytest.mark.parametrize("name", sorted(scenes.ROWS))
def test_row(name, tmp_path):
    scenes.ROWS[name].run(verbs.Box(tmp_path))
