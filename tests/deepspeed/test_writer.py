# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's FastFileWriter is ours under install(): by its own factory, on the CPU, where its own does not work."""


def test_by_deepspeeds_factory(run_script):
    run_script(
        """
        import os
        import torch
        from deepspeed.runtime.model_checkpointing.constants import CheckpointWriterType
        from deepspeed.runtime.model_checkpointing.writer_factory import CheckpointWriterFactory
        import deepspeed.runtime.model_checkpointing.constants as names
        from penstock import deepnvme

        class Rank:
            world_size, rank, global_rank = 1, 0, 0

        config = {
            names.CHECKPOINT_WRITER_TYPE: CheckpointWriterType.FAST,
            names.CHECKPOINT_IO_BUFFER_SIZE: 1 << 20,
            names.CHECKPOINT_IO_BUFFER_DOUBLE: True,
            names.CHECKPOINT_IO_MULTIPLIER: 1,
            names.CHECKPOINT_IO_STATISTICS: True,
        }
        aio = dict(block_size=1 << 20, queue_depth=8, intra_op_parallelism=1)
        aio |= dict(single_submit=False, overlap_events=True, use_gds=False)
        factory = CheckpointWriterFactory(config, aio, Rank)
        for count in (3_000_000, 1_000_001):  # the second is shorter, over the first
            state = {"weights": torch.randn(count), "step": count}
            writer = factory.create_writer("checkpoint.pt", optimize_dp_state=False)
            assert isinstance(writer, deepnvme.FastFileWriter)
            torch.save(state, writer)
            factory.release_writer()
            back = torch.load("checkpoint.pt")
            assert torch.equal(back["weights"], state["weights"]) and back["step"] == count

        writer = factory.create_writer("part", optimize_dp_state=True)
        tensors = [torch.arange(1000.0), torch.arange(77, dtype=torch.int8)]
        written = writer.save_torch_storage_object_list([(t.untyped_storage(), t.dtype) for t in tensors], True)
        factory.release_writer()
        with open("part-0.1", "rb") as file:
            data = file.read()
        assert written == len(data) == 4000 + 77 + 16
        assert data[8:4008] == bytes(tensors[0].untyped_storage())
        assert data[4016:] == bytes(tensors[1].untyped_storage())
        print("all of it")
        """,
        before=("-m", "penstock.deepnvme"),
        env={"DS_PIN_MEMORY_BACKEND": "native"},
    )


def test_native_pinning(run_script):
    """DS_PIN_MEMORY_BACKEND=native, DeepSpeed's page-locked memory, by our pin_handle."""
    run_script(
        """
        import gc
        import torch
        from deepspeed.accelerator import get_accelerator

        pinned = get_accelerator().pin_memory(torch.arange(10_000))
        assert torch.equal(pinned, torch.arange(10_000)) and get_accelerator().is_pinned(pinned)
        assert get_accelerator().is_pinned(pinned[5:50]) and not get_accelerator().is_pinned(torch.zeros(3))
        from deepspeed.utils.pin_memory import get_native_pinned_memory
        from deepspeed.ops.op_builder import AsyncIOBuilder
        assert AsyncIOBuilder().load().aio_handle().is_pinned(pinned)
        assert get_native_pinned_memory().unpin(pinned) is True
        assert not AsyncIOBuilder().load().aio_handle().is_pinned(pinned)
        again = get_accelerator().pin_memory(torch.arange(10_000))
        del again
        gc.collect()
        assert not get_native_pinned_memory()._ranges
        """,
        before=("-m", "penstock.deepnvme"),
        env={"DS_PIN_MEMORY_BACKEND": "native"},
    )
