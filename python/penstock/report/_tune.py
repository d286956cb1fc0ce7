# SPDX-License-Identifier: Apache-2.0
"""The section of `penstock tune --json`: what was tried, what was chosen, how sure that is, what to paste."""

from __future__ import annotations

from penstock.report._common import environment_table
from penstock.report._model import Section
from penstock.report._read import Document


def section(document: Document) -> Section:
    """The section of one file. ReportError."""
    return Section("tune", document.path, [environment_table(document.root.need("environment"))])
