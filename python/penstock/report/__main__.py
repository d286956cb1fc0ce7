# SPDX-License-Identifier: Apache-2.0
"""The command line of `penstock report`."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import stat
import sys
from pathlib import Path

from penstock._measure.tool import HelpText
from penstock.report import ReportError, make_page, render, render_svg

_EPILOG = """
examples:
  penstock bench /data --block-size 64KiB,1MiB,4MiB --depth 1,4,16 --against fio --json bench.json
  penstock report bench.json -o bench.html
  penstock report bench.json --svg bench.svg                      its bars alone, for a README
  penstock report bench.json --svg light.svg --svg-dark dark.svg  the same, for <picture> with prefers-color-scheme
  penstock report bench.json tune.json bars.json -o all.html      a section each, and what can be compared

Files: the JSON that these commands write with --json FILE: penstock bench, bench --shapes, bench gnn, tune, ds_io,
ds_nvme_tune, checkpoint bench and plan, and python -m benchmarks.
The page contains all it needs (plotly.js too, 5 MB). It opens from disk without a network, and can be sent as one file.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock report",
        description="Makes one HTML page of measurements: charts, figures, environment, verdicts.",
        epilog=_EPILOG,
        formatter_class=HelpText,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="what --json wrote")
    parser.add_argument("-o", "--output", default="penstock-report.html", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--title", default="Penstock report", help="heading of the page (default: %(default)s)")
    parser.add_argument("--svg", metavar="FILE", help="the bars alone, as a small picture for a README, and no page")
    parser.add_argument("--svg-dark", metavar="FILE", help="the same on a dark ground; --svg is then on a light one")
    return parser


def _shown(path: str) -> str:
    """A name to print, also if it is not valid text."""
    return os.fsencode(path).decode("utf-8", "replace")


def _target(output: str) -> Path:
    """The file to write: the target of symbolic links. ReportError if it cannot be written."""
    try:
        mode = os.stat(output).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG  # the file, or the target of the link, is created
    except (OSError, ValueError) as error:
        raise ReportError(f"-o {_shown(output)}: {getattr(error, 'strerror', None) or error}; name a file") from error
    if not output or not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no ordinary file"
        raise ReportError(f"-o {_shown(output) or repr(output)}: that is {kind if output else 'no name'}; name a file")
    return Path(os.path.realpath(output))


def _write(output: str, text: str) -> None:
    """Writes the file completely or not at all."""
    path = _target(output)
    draft = path.with_name(f".{path.name[:200]}.{secrets.token_hex(8)}.tmp")
    made = False
    try:
        with draft.open("x", encoding="utf-8") as file:  # a new file: never an existing one, never through a link
            made = True
            file.write(text)
        draft.replace(path)
        made = False
    except OSError as error:
        told = f"{error.strerror}; name a file in a folder that can be written"
        raise ReportError(f"-o {_shown(output)}: {told}") from error
    finally:
        if made:
            with contextlib.suppress(OSError):
                draft.unlink()


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit status: 0, or 1 if no page could be made."""
    args = _parser().parse_args(argv)
    light = "light" if args.svg_dark is not None else "auto"
    pictures = [(path, theme) for path, theme in ((args.svg, light), (args.svg_dark, "dark")) if path is not None]
    outputs = [path for path, _ in pictures] or [args.output]
    try:
        for output in outputs:
            target = _target(output)  # checked before the work
            if any(os.path.realpath(file) == str(target) for file in args.files):
                raise ReportError(f"-o {_shown(output)} is one of the files to read; name another for the page")
        page = make_page(args.files, args.title)
        for path, theme in pictures:
            _write(path, render_svg(page, theme))
        if not pictures:
            _write(args.output, render(page))
    except ReportError as error:
        print(f"penstock report: {error}", file=sys.stderr)
        return 1
    if pictures:
        print(f"{', '.join(map(_shown, outputs))}: the bars of {len(args.files)} file{'s' * (len(args.files) > 1)}")
        return 0
    told = f"{len(page.charts())} pictures from {len(args.files)} files"
    print(f"{_shown(args.output)}: {told}; open it in any browser")
    return 0


if __name__ == "__main__":
    sys.exit(main())
