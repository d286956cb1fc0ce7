# SPDX-License-Identifier: Apache-2.0
"""The failing calls and allocations of some rows, by hand: what is wrong is printed at once.

python tests/hostile ROW... [--malloc] [--level LEVEL] [--only KIND ERRNO once|persists N]
"""

import argparse
import errno
import subprocess
import sys
import tempfile
from pathlib import Path

import scenes
from pool import Folder, Server, compiled
from test_faults import LIMIT_S, run_row


class Alone:
    def __init__(self, server):
        self._server = server

    def server(self):
        return self._server


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(sorted(scenes.ROWS)))
    parser.add_argument("--malloc", action="store_true", help="allocations instead of calls")
    parser.add_argument("--level", default="quick", choices=("quick", "ci", "all"))
    parser.add_argument("--only", nargs=4, metavar=("KIND", "ERRNO", "HOW", "N"), help="one case, as it is printed")
    args = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        server = Server(compiled(Path(folder)))
        for name in args.rows or sorted(scenes.ROWS):
            if args.only:
                kind, number, how, n = args.only
                only = [kind, getattr(errno, number), how == "persists", int(n)]
                with Folder() as place:
                    arguments = {"row": name, "folder": place, "level": "quick", "malloc": False, "only": only}
                    answer = server.ask("faults", limit_s=LIMIT_S, **arguments)
                defects = [value for kind, value in answer["rows"] if kind in ("defect", "error")]
                if answer["status"] != 0:
                    defects.append((answer["hung"], answer["status"], answer["said"]))
                cases = 1
            else:
                cases, defects = run_row(Alone(server), name, args.malloc, args.level)
            print(f"{name}: {cases} cases, {len(defects)} defects", flush=True)
            for defect in defects:
                print(*defect if isinstance(defect, (list, tuple)) else [defect], sep="\n", flush=True)
            wrong += len(defects)
        server.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))
