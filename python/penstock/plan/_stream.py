# SPDX-License-Identifier: Apache-2.0
"""The speed of a model whose weights are read from storage in every pass."""

from __future__ import annotations

from typing import Any

from penstock._base.arguments import named
from penstock.plan._answer import Answer
from penstock.plan._models import ask_of_model


@named
def stream(
    model: str | None = None,
    *,
    config: Any = None,
    preset: str | None = None,
    bytes_per_parameter: float | str | None = None,
    rate: float | str | None = None,
    rate_low: float | str | None = None,
    rate_high: float | str | None = None,
    memory: float | str | None = None,
    memory_device: float | str | None = None,
    kv_host: bool = False,
    kv_bytes_per_element: float | str | None = None,
    kv_bytes_per_token: float | str | None = None,
    resident: float | str = 0,
    resident_device: float | str = 0,
    link: float | str | None = None,
    flops: float | str | None = None,
    batch: float | str | None = None,
    prompt: float | str | None = None,
    generate: float | str | None = None,
    measure: Any = None,
) -> Answer:
    """An upper bound on the tokens a second of a model whose weights do not fit into memory.

        penstock.plan.stream("8b", rate="3GB/s", resident="8GiB", batch=4)["tokens_per_second"].value
        penstock.plan.stream(preset="gen5-8-gds")["share_of_bound"].value       # a published run

    model, config: as for checkpoint(). bytes_per_parameter: of the weights (2).
    rate: bytes/s that storage delivers; rate_low and rate_high: the ends of its interval. measure: instead, folders to
        measure first: a path, a list of paths, or a Measure.
    memory, memory_device: bytes of the host's and of the accelerator's memory. They hold first the keys and values of
        the batch (in the accelerator's memory if it is given; in the host's with kv_host), then as many weights as fit.
        kv_bytes_per_element: 2 for bf16, 1 for fp8. kv_bytes_per_token: instead of the model's.
    resident, resident_device: bytes of weights that stay in the memory of the host
        and of the accelerator. link: bytes/s between them. flops: operations a second of the accelerator.
    batch: concurrent sequences (1). prompt, generate: tokens of each (1, 32).
    preset: a published run; its numbers replace those not given (`penstock plan stream --list` lists them all).
    Raises ValueError for a number out of range and for an unknown name; errors of model() for a config, and of
    measure(). Thread-safe."""
    return ask_of_model("stream", locals())
