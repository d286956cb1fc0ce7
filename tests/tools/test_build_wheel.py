# SPDX-License-Identifier: Apache-2.0
"""How tools/build_wheel.py asks pip for the package."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import build_wheel  # noqa: E402


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """The arguments of each call of pip, by the options of the tool. The wheel is an empty file."""
    monkeypatch.setattr(build_wheel, "ROOT", tmp_path)
    monkeypatch.setattr(build_wheel, "WHEELS", tmp_path / "wheels")
    monkeypatch.setattr(build_wheel, "fingerprint", lambda: "the same")
    calls = []

    def pip(*arguments):
        calls.append(arguments)
        if arguments[0] == "wheel":
            (tmp_path / "wheels" / "penstock-0-py3-none-any.whl").touch()

    monkeypatch.setattr(build_wheel, "pip", pip)

    def ask(*options):
        monkeypatch.setattr(sys, "argv", ["build_wheel.py", *options])
        calls.clear()
        assert build_wheel.main() == 0
        return calls[0]

    return ask


def test_a_quick_build_leaves_its_flags_in_a_tree_of_its_own(asked):
    """CMake keeps flags: the next build in the same tree had them too, and found nothing in ccache."""
    quick = asked("--quick", "--force")
    assert any("CMAKE_CXX_FLAGS" in option for option in quick)
    assert "--config-settings=build-dir=build/quick" in quick
    whole = asked("--force")
    assert not any("CMAKE_CXX_FLAGS" in option or "build-dir" in option for option in whole)
