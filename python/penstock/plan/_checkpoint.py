# SPDX-License-Identifier: Apache-2.0
"""How large a checkpoint is, how fast it has to be written, and how fast it has to come back."""

from __future__ import annotations

from typing import Any

from penstock._arguments import named
from penstock.plan._answer import Answer
from penstock.plan._ask import text
from penstock.plan._models import ask_of_model


@named
def checkpoint(
    model: str | None = None,
    *,
    config: Any = None,
    optimizer: str = "snia",
    bytes_per_parameter: float | str | None = None,
    tensor: float | str | None = None,
    pipeline: float | str | None = None,
    experts: float | str | None = None,
    expert_tensor: float | str | None = None,
    data: float | str | None = None,
    zero: float | str = 0,
    ranks: float | str | None = None,
    seconds: float | str | None = None,
    interval: float | str | None = None,
    share: float | str | None = None,
    overlapped: bool = False,
    staging: float | str | None = None,
    keep: float | str = 1,
    capacity: float | str | None = None,
    storage: float | str | None = None,
    storage_low: float | str | None = None,
    storage_high: float | str | None = None,
    measure: Any = None,
    tensors: bool = False,
) -> Answer:
    """How large a checkpoint is, what each rank writes of it, and how fast that has to be.

        answer = penstock.plan.checkpoint("175b", interval="2h", share="5%")
        answer["checkpoint_bytes"].value            # 2.45e12
        answer["write_bytes_per_second"].value      # 6.8e9

    model: one of models(), or a number of parameters such as "13B". config: in its place, a Hugging Face config, as for
        model().
    optimizer: one of optimizers(); "snia" is 14 bytes a parameter. bytes_per_parameter: in its place.
    tensor, pipeline, data: ranks that divide each tensor, stages that divide the layers, replicas. zero: ZeRO's stage,
        0 to 3. ranks: all of them, tensor x pipeline x data. experts, expert_tensor: ranks that divide the experts of
        a layer, and each tensor of an expert (as many as tensor); their product divides tensor x data.
    seconds: in which a checkpoint has to be written; or interval, from one to the next, and share, the part of it that
        writing may take (5 %, or all of it where overlapped).
    overlapped: training goes on while a copy in memory is written. staging: bytes/s at which a rank makes that copy.
    keep: checkpoints that are kept. capacity: bytes of all drives, for drive writes a day.
    storage: bytes/s that the storage writes durably; the answer then says whether it is enough. storage_low,
        storage_high: the ends of its interval. measure: in their place, folders that are measured first: a path, a list
        of paths, or a Measure.
    tensors: also a table of the model's tensors.
    Raises ValueError for a number that is out of range, for a name that is not known (with the nearest one), and for
    ranks that do not divide the model (with the reason); for a config what model() raises; with `measure` what
    measure() raises. Thread-safe."""
    return ask_of_model(
        "checkpoint",
        model,
        config,
        optimizer=text("checkpoint", "optimizer", optimizer),
        bytes_per_parameter=bytes_per_parameter,
        tensor=tensor,
        pipeline=pipeline,
        experts=experts,
        expert_tensor=expert_tensor,
        data=data,
        zero=zero,
        ranks=ranks,
        seconds=seconds,
        interval=interval,
        share=share,
        overlapped=overlapped,
        staging=staging,
        keep=keep,
        capacity=capacity,
        measured=measure,
        storage=storage,
        storage_low=storage_low,
        storage_high=storage_high,
        tensors=tensors,
    )


@named
def restore(
    model: str | None = None,
    *,
    config: Any = None,
    optimizer: str = "snia",
    bytes_per_parameter: float | str | None = None,
    seconds: float | str = 300,
    copies: float | str = 1,
    broadcast: bool = False,
    storage: float | str | None = None,
    storage_low: float | str | None = None,
    storage_high: float | str | None = None,
    measure: Any = None,
) -> Answer:
    """How fast a checkpoint has to come back.

        penstock.plan.restore("175b", seconds=300)["read_bytes_per_second"].value               # 8.17e9
        penstock.plan.restore("175b", seconds=300, copies=16)["read_bytes_per_second"].value    # 130.7e9

    model, config, optimizer, bytes_per_parameter: as for checkpoint(); optimizer="weights" for the weights alone.
    seconds: in which the job has to run again.
    copies: replicas that need the whole state. broadcast: one reads it, and sends it to the others over the fabric.
    storage: bytes/s that the storage reads; the answer then says whether it is enough. storage_low, storage_high: the
        ends of its interval. measure: in their place, folders that are measured first: a path, a list of paths, or a
        Measure.
    Raises what checkpoint() raises. Thread-safe."""
    return ask_of_model(
        "restore",
        model,
        config,
        optimizer=text("restore", "optimizer", optimizer),
        bytes_per_parameter=bytes_per_parameter,
        seconds=seconds,
        copies=copies,
        broadcast=broadcast,
        measured=measure,
        storage=storage,
        storage_low=storage_low,
        storage_high=storage_high,
    )
