# SPDX-License-Identifier: Apache-2.0
"""The size of a checkpoint, and the rates at which it has to be written and read."""

from __future__ import annotations

from typing import Any

from penstock._base.arguments import named
from penstock.plan._answer import Answer
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
    """The size of a checkpoint, the bytes that each rank writes, and the required rate.

        answer = penstock.plan.checkpoint("175b", interval="2h", share="5%")
        answer["checkpoint_bytes"].value            # 2.45e12
        answer["write_bytes_per_second"].value      # 6.8e9

    model: one of models(), or a number of parameters such as "13B". config: instead, a Hugging Face config, as for
        model().
    optimizer: one of optimizers(); "snia" is 14 bytes a parameter. bytes_per_parameter: instead of the optimizer's.
    tensor, pipeline, data: ranks that divide each tensor, stages that divide the layers, replicas. zero: ZeRO's stage,
        0 to 3. ranks: their total number, tensor x pipeline x data. experts: ranks that divide the experts of a layer.
        expert_tensor: ranks that divide each tensor of an expert (default: tensor). Their product divides
        tensor x data.
    seconds: the time in which a checkpoint has to be written. Or interval: from one checkpoint to the next; and share:
        the part of it that writing may take (5 %, or all of it if overlapped).
    overlapped: training continues while a copy in memory is written. staging: bytes/s at which a rank makes that copy.
    keep: the number of checkpoints to keep. capacity: bytes of all drives, for drive writes a day.
    storage: bytes/s that the storage writes durably; the answer then says whether that is enough. storage_low,
        storage_high: the ends of its interval. measure: instead, folders to measure first: a path, a list of paths, or
        a Measure.
    tensors: also gives a table of the model's tensors.
    Raises ValueError for a number out of range, for an unknown name (with the nearest one), and for ranks that do not
    divide the model (with the reason); errors of model() for a config, and of measure(). Thread-safe."""
    return ask_of_model("checkpoint", locals())


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
    """The rate at which a checkpoint has to be read.

        penstock.plan.restore("175b", seconds=300)["read_bytes_per_second"].value               # 8.17e9
        penstock.plan.restore("175b", seconds=300, copies=16)["read_bytes_per_second"].value    # 130.7e9

    model, config, optimizer, bytes_per_parameter: as for checkpoint(); optimizer="weights" for only the weights.
    seconds: the time after which the job has to run again.
    copies: replicas that need the whole state. broadcast: one reads it, and sends it to the others over the fabric.
    storage: bytes/s that the storage reads; the answer then says whether that is enough. storage_low, storage_high: the
        ends of its interval. measure: instead, folders to measure first: a path, a list of paths, or a Measure.
    Raises the same errors as checkpoint(). Thread-safe."""
    return ask_of_model("restore", locals())
