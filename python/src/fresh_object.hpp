// SPDX-License-Identifier: Apache-2.0
// Memory of a load, of which tensors are made.
#pragma once

#include "base/raise.hpp"
#include "bind.hpp"
#include "buffer_object.hpp"
#include "memory/fresh_memory.hpp"

#include <memory>
#include <utility>
#include <vector>

namespace penstock::python {

class FreshObject {
public:
    FreshObject(const std::vector<memory::Stretch>& stretches, bool of_small_load)
        : memory_(memory_for(stretches, of_small_load)) {}
    [[nodiscard]] std::byte* address(std::size_t stretch) const { return memory_.address(stretch); }
    [[nodiscard]] bool faulted_in() const { return memory_.faulted_in(); }
    // The Buffer that keeps it, and where the stretch begins in that.
    std::pair<nb::object, std::uint64_t> part(std::size_t stretch) {
        const memory::FreshMemory::SharePlace& place = memory_.place(stretch);
        if (!last_.is_valid() || place.part != last_part_) {  // many small ones share one
            last_part_ = place.part;
            BufferObject out;
            out.type = &byte_type();
            if (place.part) {
                out.data = place.part->bytes().data();
                out.bytes = place.part->bytes().size();
            }
            out.shape = {static_cast<std::int64_t>(out.bytes)};
            out.strides_bytes = {1};
            out.pinned_reason = "it was not asked for";
            out.owner = place.part;
            last_ = nb::cast(std::move(out));
        }
        return {last_, place.offset};
    }

private:
    static memory::FreshMemory memory_for(const std::vector<memory::Stretch>& stretches,
                                          bool of_small_load) {
        auto made = memory::FreshMemory::make(stretches, of_small_load);
        if (!made && made.error().code == ErrorCode::kOutOfMemory) {
            made.error().message += "; load a part by `names`, or with mmap=True";
        }
        return base::unwrap(std::move(made));
    }

    memory::FreshMemory memory_;
    std::shared_ptr<memory::FreshMemory::Share> last_part_;
    nb::object last_;
};

}  // namespace penstock::python
