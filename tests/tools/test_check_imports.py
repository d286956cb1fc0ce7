# SPDX-License-Identifier: Apache-2.0
"""The parts of python/penstock import what they may, and no file imports itself through others; each row plants one."""

import check_imports
import pytest
from sources import ROOT


def found(root, files):
    for name, text in files.items():
        path = root / "python" / "penstock" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [f"{path}:{line}: {reason}" for path, line, reason in check_imports.violations(root)]


def test_the_package():
    modules = check_imports.modules(ROOT)
    assert {"penstock", "penstock._state.load", "penstock.weights._stream"} <= modules.keys()
    load = check_imports.imports("penstock._state.load", modules["penstock._state.load"], modules)
    assert {"penstock._base.errors", "penstock._state.into", "penstock._state.rows"} <= load.keys()
    assert list(check_imports.violations(ROOT)) == []


@pytest.mark.parametrize(
    "files",
    [
        {"plan/_a.py": "from penstock.plan import _b\n", "plan/_b.py": "from penstock.plan._a import f\n"},
        {"plan/_a.py": "from . import _b\n", "plan/_b.py": "def f():\n    from ._a import f\n"},
        {"plan/_a.py": "import penstock.plan._b\n", "plan/_b.py": "class A:\n    def f():\n        from . import _a\n"},
        {
            "plan/_a.py": "try:\n    from penstock.plan import _b\nexcept ImportError:\n    pass\n",
            "plan/_b.py": "from ._a import f",
        },
        {"plan/_a.py": "from penstock.plan import _b\n", "plan/_b.py": "import_module('penstock.plan._a')\n"},
    ],
)
def test_a_circle_is_found_and_named(tmp_path, files):
    (reason,) = found(tmp_path, {"plan/__init__.py": "", **files})
    assert reason.endswith("a circle of imports: penstock.plan._a -> penstock.plan._b -> penstock.plan._a")


def test_a_circle_through_the_table_and_three_files_is_found(tmp_path):
    table = {"__init__.py": "from penstock.plan import f\n", "plan/__init__.py": "from penstock.plan._a import f\n"}
    (reason,) = found(tmp_path, {**table, "plan/_a.py": "from penstock._base.b import f\n", "_base/b.py": ""})[:1] or [
        ""
    ]
    assert reason == ""
    (tmp_path / "python" / "penstock" / "lightning.py").write_text("import penstock\n")
    several = found(tmp_path, {"plan/_a.py": "def f():\n    from penstock import lightning\n"})
    assert "python/penstock/plan/_a.py:2: plan imports penstock.lightning" in several[0]
    assert several[1].endswith("penstock -> penstock.plan -> penstock.plan._a -> penstock.lightning -> penstock")
    assert len(several) == 2


@pytest.mark.parametrize("core", check_imports.CORE)
@pytest.mark.parametrize(
    "other", ["deepnvme", "lightning", "safetensors", "weights", "features", "plan", "report", "_measure"]
)
@pytest.mark.parametrize("text", ["from penstock import {}", "def f():\n    import penstock.{}", "from .. import {}"])
def test_the_core_imports_no_adapter_and_no_tool(tmp_path, core, other, text):
    (reason,) = found(tmp_path, {f"{other}.py": "", f"{core}/a.py": text.format(other) + "\n"})
    line = 1 + text.count("\n")
    assert reason.startswith(
        f"python/penstock/{core}/a.py:{line}: {core} imports penstock.{other}; it may import: {core}"
    )


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("_base/a.py", "from penstock._state import save\n", "_base imports penstock._state.save"),
        ("_state/a.py", "from penstock._store import store\n", "_state imports penstock._store.store"),
        ("_state/a.py", "import penstock\n", "_state imports penstock;"),
        ("_state/a.py", "from penstock import save_async\n", "_state imports penstock;"),
        ("_state/__init__.py", "from penstock._state import save\n", "this __init__.py imports penstock._state.save"),
        ("weights/a.py", "from penstock import features\n", "weights imports penstock.features"),
        ("new/a.py", "", "the part new has no row in PARTS"),
    ],
)
def test_each_part_imports_what_it_may(tmp_path, name, text, words):
    others = {"__init__.py": "", "_state/save.py": "", "_store/store.py": "", "features/__init__.py": ""}
    (reason,) = found(tmp_path, {**others, name: text})
    assert words in reason


def test_what_type_checkers_see_and_other_packages_do_not_count(tmp_path):
    text = "import torch, safetensors\nfrom penstock import _core\nfrom penstock._core import Error\n"
    text += (
        "if TYPE_CHECKING:\n    from penstock._store.store import Store\nelse:\n    from penstock._base import log\n"
    )
    files = {
        "__init__.py": "",
        "_store/store.py": "from penstock._state import a\n",
        "_base/log.py": "",
        "_state/a.py": text,
    }
    assert found(tmp_path, files) == []
    (tmp_path / "python/penstock/_base/log.py").write_text("import penstock._state.a\n")
    assert len(found(tmp_path, {})) == 2  # a part, and a circle
