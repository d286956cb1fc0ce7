# SPDX-License-Identifier: Apache-2.0
"""Every row of the table of verbs works where nothing is wrong."""

import pytest
import scenes
import verbs


@pytest.mark.parametrize("name", sorted(scenes.ROWS))
def test_row(name, tmp_path):
    scenes.ROWS[name].run(verbs.Box(tmp_path))
