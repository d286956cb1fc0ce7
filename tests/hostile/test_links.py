# SPDX-License-Identifier: Apache-2.0
"""Nothing outside is touched: symbolic links at each name that our code works by, and the decoy stays whole."""

import planted
import pytest
from pool import Folder


@pytest.mark.parametrize("row", sorted(planted.ROWS))
def test_planted_links(pool, row):
    with Folder() as folder:
        answer = pool.server().ask("planted_links", limit_s=60, row=row, folder=folder)
    errors = [value for kind, value in answer["rows"] if kind == "error"]
    assert answer["status"] == 0, f"{answer['status']}\n{''.join(errors)}{answer['said']}"
    defects = [value for kind, value in answer["rows"] if kind == "defect"]
    assert not defects, "the decoy is not what it was:\n" + "\n".join(defects)
    assert any(kind == "planted" and value > 0 for kind, value in answer["rows"])
