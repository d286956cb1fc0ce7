// SPDX-License-Identifier: Apache-2.0
// Locked memory for penstock.deepnvme: of exactly the size that was asked for, and the system's
// again with its last user. empty() takes from pools, which round sizes up and keep what comes
// back; users that count locked bytes by the tensor expect neither.
#include "base/raise.hpp"
#include "bind.hpp"
#include "borrowed_memory.hpp"
#include "buffer_object.hpp"
#include "memory/block.hpp"

#include <sys/mman.h>

#include <memory>
#include <utility>

namespace penstock::python {

namespace {

BufferObject locked_memory(std::uint64_t bytes) {
    auto block = std::make_shared<memory::Block>();
    {
        const nb::gil_scoped_release nogil;
        *block = base::unwrap(memory::Block::make(bytes, {.touch = true, .lock = true}));
    }
    BufferObject out;
    out.type = &byte_type();
    out.data = block->data();
    out.bytes = bytes;
    out.shape = {static_cast<std::int64_t>(bytes)};
    out.strides_bytes = {1};
    out.pinned = block->locked();
    out.pinned_reason = block->locked() ? "" : block->shortfall();
    out.owner = std::move(block);
    return out;
}

// The memory stays: views of it may live on.
void unlock(BufferObject& buffer) {
    if (!std::exchange(buffer.pinned, false)) {
        return;
    }
    buffer.pinned_reason = "it was freed: the memory is there until its last view is gone";
    const nb::gil_scoped_release nogil;
    static_cast<void>(::munlock(buffer.data, buffer.bytes));
}

}  // namespace

void bind_deepnvme(nb::module_& m) {
    m.def("locked_memory", locked_memory, nb::arg("bytes"),
          "A Buffer of so many bytes, 1 or more: on pages of its own, touched, locked where the "
          "limit allows it\n"
          "(else `pinned` is False and `pinned_reason` says why), given back with its last user.");
    m.def("unlock", unlock, nb::arg("buffer"),
          "Takes the lock off a Buffer of locked_memory(). Its memory goes on working.");
    m.def(
        "movable_bytes",
        [](nb::handle data) { return borrow_anywhere(data, "data", false, std::nullopt).bytes; },
        nb::arg("data").none(), nb::sig("def movable_bytes(data: typing.Any) -> int"),
        "Bytes that write() would move of this tensor or array, or the exception that it would "
        "raise; private.");
}

}  // namespace penstock::python
