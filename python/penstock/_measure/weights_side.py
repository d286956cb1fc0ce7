# SPDX-License-Identifier: Apache-2.0
"""One side of `penstock weights bench` in a separate process:
`python -m penstock._measure.weights_side SIDE FOLDER MEMORY TOKENS OFFLOAD`. Prints one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

_PROMPT = 8


def _status(field: str) -> int:
    """The bytes in a line of /proc/self/status; 0 if there is no such line."""
    with open("/proc/self/status", encoding="ascii") as lines:
        found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) << 10 if found else 0


def _loaded(side: str, folder: str, memory: int, offload: str) -> Any:
    import transformers

    if side == "penstock":
        import penstock

        return penstock.stream(None, folder, memory=memory)
    if side == "none":  # measures the process without weights
        import torch

        import penstock  # noqa: F401

        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    options: dict[str, Any] = {}
    if side == "accelerate":
        options = {"device_map": {"": "disk"}, "offload_folder": offload}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", **options).eval()


def run(side: str, folder: str, memory: int, tokens: int, offload: str) -> dict[str, Any]:
    """Seconds to the first token, and for each of the next `tokens` ones; the generated words."""
    import torch

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))  # leaves one processor for reading
    start = time.perf_counter()
    model = _loaded(side, folder, memory, offload)
    if side == "none":
        return {"own_bytes": _status("VmHWM") - _status("RssFile")}
    words = torch.arange(_PROMPT).reshape(1, _PROMPT)
    seconds, chosen, cache = [], [], None
    with torch.no_grad():
        for _ in range(tokens + 1):
            out = model(input_ids=words, past_key_values=cache, use_cache=True)
            cache, words = out.past_key_values, out.logits[:, -1:].argmax(-1)
            chosen.append(words.item())
            seconds.append(time.perf_counter() - start)
    read = None
    if side == "penstock":
        read = model.stream_stats().plan["read_bytes"]
    return {
        "first_token_s": seconds[0],
        "token_s": [after - before for before, after in zip(seconds, seconds[1:], strict=False)],
        "words": chosen,
        "peak_bytes": _status("VmHWM"),
        "read_bytes": read,
    }


def main(words: list[str]) -> int:
    side, folder, memory, tokens, offload = words
    output = os.dup(1)
    os.dup2(2, 1)  # libraries print to stdout
    found = run(side, folder, int(memory), int(tokens), offload)
    os.write(output, (json.dumps(found) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
