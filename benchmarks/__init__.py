# SPDX-License-Identifier: Apache-2.0
"""Penstock's benchmark runner: `python -m benchmarks --help`."""
