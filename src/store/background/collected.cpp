// SPDX-License-Identifier: Apache-2.0
#include "store/background/collected.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/raise.hpp"
#include "base/text/units.hpp"
#include "format/fault.hpp"
#include "state/streamed/arrivals.hpp"

#include <penstock/memory.hpp>

#include <fmt/format.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace penstock::store {

namespace {

constexpr std::uint64_t kOwnAreaFromBytes = 8 * base::kMiB;  // smaller ones share an area
constexpr std::uint64_t kBlockBytes = 32 * base::kMiB;       // that small ones are gathered in
constexpr std::uint64_t kSmallAlign = 64;
constexpr std::uint64_t kTensorBytes = 2048;  // of what is kept of a tensor, but for its bytes

class Collector {
public:
    Collector(BackgroundSaver& saver, const TensorStream& stream, Changing changing,
              const BackgroundSaver::Wait& wait)
        : saver_(saver),
          wait_(wait),
          options_{.changing = changing},
          arrivals_(stream, options_, true, ""),
          pool_({.kept_bytes_max = 0, .touch = false, .keep_on_fork = false}) {}

    Collected run() {
        while (const auto arrival = arrivals_.next()) {
            if (::getpid() != process_) {  // the child of a fork has none of the copies
                base::raise(base::error(ErrorCode::kInvalidArgument, "save",
                                        "the iterator forked this process, which has no copies of "
                                        "the tensors that came before; save in the parent"));
            }
            add(arrival->tensor);
        }
        end_block();
        return std::move(out_);
    }

private:
    void add(const StateTensor& tensor) {
        count(kTensorBytes + tensor.name.size(), tensor);
        out_.tensors.push_back(tensor);
        out_.tensors.back().is_copy = true;
        const std::uint64_t bytes = tensor.data.bytes;
        if (bytes >= kOwnAreaFromBytes) {
            const ConstMemory copy = stage(tensor.data, tensor);
            arrivals_.check_copy(tensor, copy.span());
            out_.tensors.back().data = copy;
            return;
        }
        std::uint64_t at = base::align_up(block_bytes_, kSmallAlign);
        if (at + bytes > kBlockBytes) {
            end_block();
            at = 0;
        }
        if (block_.size() == 0) {
            block_ = pool_.take(kBlockBytes);
        }
        PENSTOCK_ASSERT(at + bytes <= block_.size());  // the copy stays within it
        if (bytes != 0) {
            arrivals_.copy(tensor, block_.data() + at);
        }
        block_bytes_ = at + bytes;
        in_block_.emplace_back(out_.tensors.size() - 1, at);
    }

    // Stages the small ones together.
    void end_block() {
        if (in_block_.empty()) {
            return;
        }
        const StateTensor& last = out_.tensors[in_block_.back().first];
        const ConstMemory copy = block_bytes_ == 0
                                     ? ConstMemory()
                                     : stage(ConstMemory(block_.data(), block_bytes_), last);
        for (const auto& [number, at] : in_block_) {
            StateTensor& tensor = out_.tensors[number];
            PENSTOCK_ASSERT(at + tensor.data.bytes <= block_bytes_);
            tensor.data = {tensor.data.bytes == 0 ? nullptr : copy.data + at, tensor.data.bytes};
        }
        in_block_.clear();
        block_bytes_ = 0;
    }

    ConstMemory stage(const ConstMemory& memory, const StateTensor& tensor) {
        const Pieces pieces(&memory, 1);
        count(Staging::area_bytes(pieces), tensor);
        std::optional<StagedCopy> made;
        wait_([&](std::chrono::nanoseconds time) {
            const bool alone = saver_.queue()->in_flight() == 0;
            saver_.sweep();
            made = saver_.staging().copy(pieces, alone ? kLastLook : time);
            return made.has_value() || alone;
        });
        if (!made) {
            refuse(tensor, "other saves of iterators hold the rest of it; let them end first");
        }
        const std::span<const std::byte> piece = made->pieces().front();
        out_.copies.push_back(std::move(*made));
        return {piece.data(), piece.size()};
    }

    void count(std::uint64_t bytes, const StateTensor& tensor) {
        used_bytes_ += bytes;
        if (used_bytes_ > saver_.staging().budget_bytes()) {
            refuse(tensor,
                   "penstock.save() of an iterator to a file holds one tensor at a time; or give "
                   "more host_memory");
        }
    }

    [[noreturn]] void refuse(const StateTensor& tensor, const char* what_to_do) const {
        base::raise(base::error(
            ErrorCode::kOutOfMemory, "save",
            fmt::format("tensor {}, number {} of the iterator: copies of its tensors may take {} "
                        "(host_memory), and this one has no room, so nothing was saved; {}",
                        format::shown(tensor.name), out_.tensors.size(),
                        base::format_bytes(saver_.staging().budget_bytes()), what_to_do)));
    }

    const pid_t process_ = ::getpid();
    BackgroundSaver& saver_;
    const BackgroundSaver::Wait& wait_;
    const SaveFileOptions options_;
    state::Arrivals arrivals_;
    MemoryPool pool_;
    Buffer block_;
    std::uint64_t block_bytes_ = 0;
    std::vector<std::pair<std::size_t, std::uint64_t>> in_block_;  // (number, offset)
    std::uint64_t used_bytes_ = 0;
    Collected out_;
};

}  // namespace

Collected collect(BackgroundSaver& saver, const TensorStream& stream, Changing changing,
                  const BackgroundSaver::Wait& wait) {
    return Collector(saver, stream, changing, wait).run();
}

}  // namespace penstock::store
