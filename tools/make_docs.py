#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the site of the documents in build/docs/html: README.md, docs/*.md, and the pages of reference.

    tools/make_docs.py [--stub FILE]

Sphinx reads the pages as they are in the repository (MyST), with every warning an error; then every link and picture of
the site is looked up in it. The first time pip installs Sphinx into build/docs/environment; nothing else asks the
network. The stub of the compiled part is that of the installed package.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import reference  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "docs"
PAGES = {
    "Start": [
        "docs/quickstart.md",
        "docs/python.md",
        "docs/checkpoint.md",
        "docs/ranks.md",
        "docs/dcp.md",
        "docs/deepnvme.md",
        "docs/lightning.md",
        "docs/transformers.md",
        "docs/accelerate.md",
        "docs/weights.md",
        "docs/features.md",
        "docs/gpu.md",
        "docs/faq.md",
    ],
    "Measure": [
        "docs/plan.md",
        "docs/shapes.md",
        "docs/tune.md",
        "docs/report.md",
        "docs/page_cache.md",
        "docs/comparison.md",
    ],
    "Reference": ["python_reference.md", "cpp_reference.md", "docs/formats.md"],
    "Inside": [
        "docs/architecture.md",
        "docs/internals/transfer.md",
        "docs/internals/small_requests.md",
        "docs/internals/file_system.md",
        "docs/internals/saves.md",
        "docs/internals/gpu_memory.md",
        "docs/internals/errors.md",
        "docs/internals/testing.md",
        "docs/internals/bars.md",
        "docs/power_cut.md",
        "docs/status.md",
        "docs/dependencies.md",
        "benchmarks/README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
    ],
}


def page_name(path):
    """The page of a file of the repository: README.md is the first."""
    return {"README.md": "index.md", "benchmarks/README.md": "benchmarks.md"}.get(path, Path(path).name)


def pages():
    """Files of the repository that are pages. ValueError where one of docs/ has no place in the contents."""
    listed = ["README.md", *(page for group in PAGES.values() for page in group if not page.endswith("_reference.md"))]
    for path in sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("docs/internals/*.md")]):
        name = path.relative_to(ROOT).as_posix()
        if name not in listed:
            raise ValueError(f"{name} is not in the contents of the site: add it to PAGES of tools/make_docs.py")
    return listed


def rewritten(text, path, listed):
    """The text of a page with links as they are on the site: other pages, else the file, which is put next to them."""
    folder = os.path.dirname(path)

    def link(found):
        target, _, anchor = found[2].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        file = os.path.normpath(os.path.join(folder, target))
        if file in listed:
            return f"{found[1]}({page_name(file)}{'#' + anchor if anchor else ''})"
        if (ROOT / file).is_dir():
            return found[1].strip("[]")
        return f"{found[1]}(files/{file})"

    # Code is left alone: in Python `[f](x)` is no link.
    parts = re.split(r"(?ms)(^```.*?^```)", text)
    return "".join(
        part if part.startswith("```") else re.sub(r"(\[[^\]]*\])\(([^)\s]+)\)", link, part) for part in parts
    )


def contents():
    lines = []
    for title, group in PAGES.items():
        lines += ["", "```{toctree}", ":hidden:", f":caption: {title}", ""]
        lines += [page_name(page).removesuffix(".md") for page in group] + ["```"]
    return "\n".join(lines) + "\n"


def write_sources(folder, package, stub):
    """All pages into `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    listed = pages()
    for path in listed:
        text = rewritten((ROOT / path).read_text(), path, listed)
        for file in re.findall(r"\]\(files/([^)#]+)\)", text):
            (folder / "files" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / "files" / file)
        (folder / page_name(path)).write_text(text + (contents() if path == "README.md" else ""))
    (folder / "python_reference.md").write_text(reference.python_page(package, stub))
    (folder / "cpp_reference.md").write_text(reference.cpp_page(ROOT / "include" / "penstock"))


class _Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.targets, self.ids = [], set()

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids.update(filter(None, (found.get("id"), found.get("name"))))
        self.targets += [found[key] for key in ("href", "src", "srcset") if found.get(key)]


def dead_links(html):
    """`page: target` of each link of a folder of pages that leads nowhere in it. The network is not asked."""
    read = {}
    for path in Path(html).rglob("*.html"):
        links = _Links()
        links.feed(path.read_text())
        read[path.resolve()] = links
    dead = []
    for path, links in read.items():
        for target in links.targets:
            if re.match(r"[a-z]+:|//", target):
                continue
            file, _, anchor = target.split("?")[0].partition("#")
            other = (path.parent / file).resolve() if file else path
            other = other / "index.html" if other.is_dir() else other
            if not other.exists() or (anchor and other in read and anchor not in read[other].ids):
                dead.append(f"{path.name}: {target}")
    return sorted(set(dead))


SETTINGS = {
    "project": "Penstock",
    "html_title": "Penstock",
    "html_theme": "furo",
    "html_show_copyright": "0",
    "html_copy_source": "0",
    "extensions": "myst_parser",
    "myst_heading_anchors": "4",
    "pygments_style": "friendly",
}


def environment():
    """The environment with Sphinx, made where it is not there. CalledProcessError."""
    folder = BUILD / "environment"
    wanted = (ROOT / "tools" / "requirements-docs.txt").read_text()
    stamp = folder / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        print("installing what the site is made with", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [folder / "bin/python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        subprocess.run([*pip, "-r", ROOT / "tools" / "requirements-docs.txt"], check=True)
        stamp.write_text(wanted)
    return folder


def build(source, html):
    """Sphinx. Every warning is an error: CalledProcessError."""
    shutil.rmtree(html, ignore_errors=True)
    settings = [word for key, value in SETTINGS.items() for word in ("-D", f"{key}={value}")]
    program = [environment() / "bin/sphinx-build", "-q", "-W", "--keep-going", "-C", "-E", "-d", BUILD / "trees"]
    subprocess.run([*program, *settings, source, html], check=True)


def installed_stub():
    package = importlib.util.find_spec("penstock")
    found = Path(package.origin).with_name("_core.pyi") if package and package.origin else None
    return found if found and found.exists() else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--stub", type=Path, default=installed_stub(), help="_core.pyi (default: of the installed package)"
    )
    args = parser.parse_args()
    if args.stub is None or not args.stub.exists():
        parser.error(f"--stub {args.stub}: the stub of the compiled part is not there: make python")
    write_sources(BUILD / "source", ROOT / "python" / "penstock", args.stub)
    build(BUILD / "source", BUILD / "html")
    if (ROOT / "docs" / "images").exists():  # README.md names them by this path
        shutil.copytree(ROOT / "docs" / "images", BUILD / "html" / "docs" / "images")
    dead = dead_links(BUILD / "html")
    for one in dead:
        print(f"leads nowhere: {one}", file=sys.stderr)
    print(f"{len(list((BUILD / 'html').glob('*.html')))} pages in {BUILD.relative_to(ROOT)}/html: open index.html")
    return 1 if dead else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"make docs: {Path(error.cmd[0]).name} ended with {error.returncode} (above)")
