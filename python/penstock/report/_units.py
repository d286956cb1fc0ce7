# SPDX-License-Identifier: Apache-2.0
"""Formats numbers for people."""

from __future__ import annotations


def size_text(size: float) -> str:
    """`4 KiB`, `1 MiB`, `96 KiB`, `1000 B`: binary units if the number is whole, else three digits."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size:.0f} B"


def rate_text(bytes_per_s: float) -> str:
    """Three digits of 10^9 bytes a second, without the unit."""
    return figure_text(bytes_per_s / 1e9)


def figure_text(value: float) -> str:
    """Three digits."""
    if value == 0:
        return "0"
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def time_text(nanoseconds: float) -> str:
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= factor:
            return f"{figure_text(nanoseconds / factor)} {unit}"
    return f"{nanoseconds:.0f} ns"


def count_text(value: float) -> str:
    """812, 15.2 k, 1.21 M"""
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    return f"{value / 1e3:.3g} k" if value >= 1e4 else f"{value:.0f}"
