# SPDX-License-Identifier: Apache-2.0
"""`torch.save` as a training script calls it: a final name, no sync, older files removed.

torch_saves.py FOLDER KEPT reads numbers from its input and answers each when that checkpoint is saved."""

import sys
from pathlib import Path

import torch


def main():
    folder, kept = Path(sys.argv[1]), int(sys.argv[2])
    for line in sys.stdin:
        number = int(line)
        generator = torch.Generator().manual_seed(number)
        state = {"number": number, "weight": torch.randn(750_000, generator=generator)}
        torch.save(state, folder / f"checkpoint-{number:04}.pt")
        (folder / f"checkpoint-{number - kept:04}.pt").unlink(missing_ok=True)
        print(number, flush=True)


if __name__ == "__main__":
    main()
