# SPDX-License-Identifier: Apache-2.0
"""The `penstock` program: python -m penstock."""

import sys

from penstock import _core


def main() -> int:
    return _core.cli_main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
