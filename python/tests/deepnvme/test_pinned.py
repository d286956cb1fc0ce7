# SPDX-License-Identifier: Apache-2.0
"""Locked tensors, and what memory they leave behind."""

import gc
import os
import signal
import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from penstock.deepnvme import PinMemoryBuilder, aio_handle, pin_handle  # noqa: E402

PAGE = 4096


def locked_kb():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmLck"))


@pytest.fixture
def can_lock():
    tensor = pin_handle().new_cpu_locked_tensor(PAGE, torch.empty(0, dtype=torch.uint8))
    if locked_kb() == 0:
        pytest.skip("the limit on locked memory (RLIMIT_MEMLOCK) allows nothing here")
    del tensor


@pytest.mark.parametrize("make", [aio_handle, pin_handle])
@pytest.mark.parametrize("dtype", ["uint8", "bool", "float16", "bfloat16", "float32", "int64", "float8_e4m3fn"])
def test_a_locked_tensor(make, dtype):
    handle = make()
    example = torch.ones(3, 4, dtype=getattr(torch, dtype), requires_grad=dtype == "float32")
    tensor = handle.new_cpu_locked_tensor(5000, example)
    assert tensor.shape == (5000,) and tensor.dtype == example.dtype and tensor.is_cpu and tensor.is_contiguous()
    assert not tensor.requires_grad and not tensor._is_view()
    assert tensor.data_ptr() % PAGE == 0
    assert handle.is_pinned(tensor)
    assert handle.free_cpu_locked_tensor(tensor) is True
    assert not handle.is_pinned(tensor)
    assert handle.free_cpu_locked_tensor(tensor) is False


def test_keywords_as_deepnvme_spells_them():
    tensor = aio_handle().new_cpu_locked_tensor(num_elem=10, example_tenosr=torch.empty(0))
    assert aio_handle().is_pinned(buffer=tensor)
    assert aio_handle().free_cpu_locked_tensor(tensor=tensor)
    tensor = pin_handle().new_cpu_locked_tensor(num_elem=10, example_tensor=torch.empty(0))
    assert pin_handle().is_pinned(buffer=tensor)
    assert pin_handle().free_cpu_locked_tensor(locked_tensor=tensor)
    tensor = pin_handle().new_cpu_locked_tensor(10, torch.empty(0))
    assert pin_handle().free_cpu_locked_tensor_by_ptr(address=tensor.data_ptr()) is True
    assert pin_handle().free_cpu_locked_tensor_by_ptr(tensor.data_ptr()) is False


def test_views_are_recognised_and_tensors_are_shared_by_all_handles():
    first, second, pin = aio_handle(), aio_handle(4096, 1), PinMemoryBuilder().load().pin_handle()
    tensor = first.new_cpu_locked_tensor(4096, torch.empty(0))
    for handle in (first, second, pin):
        assert handle.is_pinned(tensor)
        assert handle.is_pinned(torch.narrow(tensor, 0, 1000, 96))
        assert (
            handle.is_pinned(tensor[4095:])
            and handle.is_pinned(tensor[::7])
            and handle.is_pinned(tensor.view(64, 64).t())
        )
        assert not handle.is_pinned(torch.zeros(10)) and not handle.is_pinned(torch.zeros(0))
        assert not handle.is_pinned(torch.zeros(3, device="meta"))
    # A view that begins elsewhere is not the tensor.
    assert second.free_cpu_locked_tensor(tensor[1:]) is False
    assert pin.free_cpu_locked_tensor(tensor.view(64, 64)) is True
    assert first.free_cpu_locked_tensor(tensor) is False
    assert not second.is_pinned(tensor)


def test_what_reaches_past_a_locked_tensor_is_not_pinned():
    tensor = pin_handle().new_cpu_locked_tensor(2 * PAGE, torch.empty(0, dtype=torch.uint8))
    from penstock.deepnvme import _pinned

    begin = tensor.data_ptr()
    assert _pinned._regions.covers(begin, begin + 2 * PAGE)
    assert not _pinned._regions.covers(begin, begin + 2 * PAGE + 1)
    assert not _pinned._regions.covers(begin - 1, begin + 1)


def test_what_has_no_memory_of_its_own_is_not_pinned():
    for tensor in (
        torch.eye(4).to_sparse(),
        torch.eye(4).to_sparse_csr(),
        torch.ones(4, dtype=torch.complex64).conj(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.empty(4, device="meta"),
    ):
        assert pin_handle().is_pinned(tensor) is False


def test_no_elements_too_few_and_too_many():
    handle = aio_handle()
    empty = handle.new_cpu_locked_tensor(0, torch.empty(0, dtype=torch.int16))
    assert empty.shape == (0,) and empty.dtype == torch.int16
    assert handle.free_cpu_locked_tensor(empty) is False
    with pytest.raises(ValueError, match="num_elem"):
        handle.new_cpu_locked_tensor(-1, torch.empty(0))
    for count in (1 << 45, 1 << 80):
        with pytest.raises(MemoryError):
            handle.new_cpu_locked_tensor(count, torch.empty(0))
    with pytest.raises(TypeError, match="example"):
        handle.new_cpu_locked_tensor(3, "float32")
    with pytest.raises(TypeError):
        handle.new_cpu_locked_tensor(3.5, torch.empty(0))


def test_a_view_outlives_the_freed_tensor(tmp_path):
    handle = aio_handle()
    tensor = handle.new_cpu_locked_tensor(4 << 20, torch.empty(0, dtype=torch.uint8))
    tensor.fill_(7)
    view = tensor[1 << 20 : 2 << 20]
    assert handle.free_cpu_locked_tensor(tensor)
    del tensor
    gc.collect()
    others = [torch.zeros(4 << 20, dtype=torch.uint8) for _ in range(4)]
    assert bool((view == 7).all()) and not any(bool(o.any()) for o in others)
    assert handle.sync_pwrite(view, str(tmp_path / "f")) == 1
    assert (tmp_path / "f").read_bytes() == b"\7" * (1 << 20)


def test_locked_memory_is_exact_and_given_back(can_lock):
    handle = aio_handle()
    gc.collect()
    before = locked_kb()
    # Sizes that are no powers of two, so that rounding up would show.
    tensors = [handle.new_cpu_locked_tensor(5 * (1 << 20) + 1, torch.empty(0, dtype=torch.uint8)) for _ in range(8)]
    assert locked_kb() - before == 8 * (5 * 1024 + 4)
    for tensor in tensors[:4]:
        assert handle.free_cpu_locked_tensor(tensor)
    assert locked_kb() - before == 4 * (5 * 1024 + 4)  # at once, though the tensors are still there
    view = tensors[7][5:10]
    del tensor, tensors  # the others are dropped without being freed
    gc.collect()
    assert locked_kb() - before == 5 * 1024 + 4
    del view
    gc.collect()
    assert locked_kb() == before


def test_an_address_that_is_used_again():
    handle = aio_handle()
    for _ in range(50):
        tensor = handle.new_cpu_locked_tensor(100_000, torch.empty(0))
        address = tensor.data_ptr()
        assert handle.is_pinned(tensor)
        del tensor
    assert pin_handle().free_cpu_locked_tensor_by_ptr(address) is False


def test_many_threads_pin_and_free():
    handle, failures = aio_handle(), []

    def work(seed):
        try:
            for i in range(100):
                tensor = handle.new_cpu_locked_tensor(1000 + seed * 100 + i, torch.empty(0))
                tensor.fill_(seed)
                assert handle.is_pinned(tensor[10:])
                assert bool((tensor == seed).all())
                if i % 2:
                    assert handle.free_cpu_locked_tensor(tensor)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_finalizers_that_free_and_wait_at_any_moment_do_not_hang(run_script):
    out = run_script(
        """
        import gc, weakref
        import torch
        from penstock.deepnvme import aio_handle, pin_handle
        handle, pin, freed = aio_handle(), pin_handle(), []
        def end(address):
            freed.append(pin.free_cpu_locked_tensor_by_ptr(address))
            handle.wait()
        class Owner:
            def __init__(self):
                self.tensor = pin.new_cpu_locked_tensor(1000, torch.empty(0))
                self.me = self  # so that only the garbage collector ends it
                weakref.finalize(self, end, self.tensor.data_ptr())
        gc.set_threshold(1, 1, 1)
        for i in range(300):
            owner = Owner()
            assert pin.is_pinned(owner.tensor)
            handle.async_pwrite(owner.tensor, "f")
            handle.wait()
            del owner
        gc.collect()
        print(len(freed) == 300, handle.wait())
        """,
        timeout_s=60,
    )
    assert out == "True 0\n"


SMALL_LIMIT = """
    import logging, os, resource, sys
    import torch
    from penstock.deepnvme import aio_handle, pin_handle
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))
    if os.geteuid() == 0:  # root may lock what it likes
        os.chmod(".", 0o777)
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    handle = aio_handle(1 << 20, 8, False, True, 1)
    tensors = [handle.new_cpu_locked_tensor(16 << 20, torch.empty(0, dtype=torch.uint8)) for _ in range(3)]
    tensors[0].fill_(5)
    assert handle.is_pinned(tensors[0])
    assert handle.sync_pwrite(tensors[0], "f") == 1
    plain = torch.zeros(16 << 20, dtype=torch.uint8)
    assert handle.sync_pread(plain, "f") == 1 and handle.sync_pwrite(plain, "g") == 1
    assert bool((plain == 5).all())
    assert handle.free_cpu_locked_tensor(tensors[0]) and pin_handle().free_cpu_locked_tensor(tensors[1])
    print("works")
    sys.stdout.flush()
    os._exit(os.system(f"{sys.executable} -m penstock doctor . > doctor.txt 2>&1") and 0)
"""


def test_a_small_limit_on_locked_memory_is_told_once_and_all_works(run_script, tmp_path):
    out = run_script(SMALL_LIMIT).splitlines()
    assert out[-1] == "works"
    assert len(out) == 2, out
    assert "RLIMIT_MEMLOCK" in out[0] and "ulimit -l unlimited" in out[0] and "reported once" in out[0]
    assert "memlock" in (tmp_path / "doctor.txt").read_text().lower()


def test_a_child_of_a_fork_uses_the_tensors():
    tensor = pin_handle().new_cpu_locked_tensor(1 << 20, torch.empty(0, dtype=torch.uint8))
    tensor.fill_(3)
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # nobody else would end it
        # Little of it: torch's own threads do not survive a fork.
        fine = tensor[-9:].tolist() == [3] * 9 and pin_handle().is_pinned(tensor)
        fine = fine and pin_handle().free_cpu_locked_tensor(tensor)
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert pin_handle().free_cpu_locked_tensor(tensor)
