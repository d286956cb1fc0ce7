# SPDX-License-Identifier: Apache-2.0
"""The command line of `penstock report`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from penstock.report import ReportError, make_page, render

_EPILOG = """
examples:
  penstock bench /data --block-size 64KiB,1MiB,4MiB --depth 1,4,16 --against fio --json bench.json
  penstock report bench.json -o bench.html
  penstock report bench.json tune.json bars.json -o all.html      a section each, and what can be compared

Files: the JSON of penstock bench, tune, ds_io and ds_nvme_tune (--json FILE) and of python -m benchmarks --json FILE.
The page holds all it needs (plotly.js too, 5 MB): it opens from disk, without a network, and can be sent as it is.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock report",
        description="Makes one HTML page of measurements: pictures, figures, environment, verdicts.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="what --json wrote")
    parser.add_argument("-o", "--output", default="penstock-report.html", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--title", default="Penstock report", help="heading of the page (default: %(default)s)")
    return parser


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise ReportError(f"-o {path}: {error.strerror}; name a file in a folder that can be written") from error
    finally:
        draft.unlink(missing_ok=True)


def main(argv: list[str] | None = None) -> int:
    """The command; its exit status: 0, or 1 when no page could be made."""
    args = _parser().parse_args(argv)
    output = Path(args.output)
    try:
        if any(os.path.realpath(file) == os.path.realpath(output) for file in args.files):
            raise ReportError(f"-o {output} is one of the files to read; name another for the page")
        page = make_page(args.files, args.title)
        _write(output, render(page))
    except ReportError as error:
        print(f"penstock report: {error}", file=sys.stderr)
        return 1
    print(f"{output}: {len(page.charts())} pictures from {len(args.files)} files; open it in any browser")
    return 0


if __name__ == "__main__":
    sys.exit(main())
