# SPDX-License-Identifier: Apache-2.0
"""The runner is imported from the checkout, not installed."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
