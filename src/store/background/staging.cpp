// SPDX-License-Identifier: Apache-2.0
#include "store/background/staging.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/raise.hpp"
#include "base/text/units.hpp"
#include "stream/copy_threads.hpp"

#include <penstock/memory.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <list>
#include <mutex>
#include <utility>

namespace penstock::store {

namespace {

constexpr std::uint64_t kUnitBytes = 4 * base::kMiB;        // work of one thread at a time
constexpr std::uint64_t kStreamFromBytes = 8 * base::kMiB;  // less is likely read from the cache
constexpr std::uint64_t kAreaStepBytes = 2 * base::kMiB;    // a huge page
constexpr std::uint64_t kPageFromBytes = 64 * base::kKiB;   // pieces of this size and more begin on
                                                            // a page
constexpr std::uint64_t kPieceAlign = 64;
constexpr std::size_t kAreasMax = 4;  // kept: a few sizes in turns, or saves in flight

// Offsets of the pieces in the area, and the end after them. Large pieces begin on pages, so that a
// device reads them where they are.
std::vector<std::uint64_t> places_of(Pieces pieces) {
    std::vector<std::uint64_t> places;
    places.reserve(pieces.size() + 1);
    std::uint64_t at = 0;
    for (const auto& piece : pieces) {
        at = base::align_up(at, piece.bytes >= kPageFromBytes ? base::kPageBytes : kPieceAlign);
        places.push_back(at);
        at += piece.bytes;
    }
    places.push_back(at);
    return places;
}

// Counts in huge pages. The address space is a power of two, so that a state that grows a little
// needs no new area; untouched pages cost nothing.
std::uint64_t rounded(std::uint64_t bytes) {
    return std::max(kAreaStepBytes, base::align_up(bytes, kAreaStepBytes));
}

}  // namespace

struct Area {
    Buffer buffer;
    std::uint64_t touched_bytes = 0;  ///< the most that was ever used of it
    PinnedMemory pinned;              ///< from its beginning on; let go before the memory
};
// A list of one area while a copy uses it: it returns to the list of kept areas without an
// allocation.
using Areas = std::list<Area>;

namespace {

// The copy as a job for threads: unit i is [i, i + 1) * kUnitBytes of the area. Pieces of GPUs are
// left out.
class CopyJob {
public:
    CopyJob(Pieces pieces, const std::vector<std::uint64_t>& places, std::byte* area)
        : pieces_(pieces), places_(places), area_(area) {}

    [[nodiscard]] std::size_t units() const {
        return static_cast<std::size_t>((places_.back() + kUnitBytes - 1) / kUnitBytes);
    }

    void copy(std::size_t unit) const {
        const std::uint64_t begin = unit * kUnitBytes;
        const std::uint64_t end = begin + kUnitBytes;
        // The last piece that begins at or before `begin`.
        auto i = static_cast<std::size_t>(
            std::upper_bound(places_.begin(), places_.end() - 1, begin) - places_.begin());
        i = i == 0 ? 0 : i - 1;
        for (; i < pieces_.size() && places_[i] < end; ++i) {
            const std::uint64_t from = std::max(begin, places_[i]);
            const std::uint64_t to = std::min(end, places_[i] + pieces_[i].bytes);
            if (from >= to || pieces_[i].kind != MemoryKind::kHost) {
                continue;
            }
            const std::byte* source = pieces_[i].data + (from - places_[i]);
            if (places_.back() >= kStreamFromBytes && to - from >= base::kPageBytes) {
                stream::copy_streaming(area_ + from, source, to - from);
            } else {
                std::memcpy(area_ + from, source, to - from);
            }
        }
    }

private:
    Pieces pieces_;
    const std::vector<std::uint64_t>& places_;
    std::byte* area_;
};

std::vector<MemoryCopy> gpu_copies(Pieces pieces, const std::vector<std::uint64_t>& places,
                                   std::byte* area) {
    std::vector<MemoryCopy> out;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (pieces[i].kind != MemoryKind::kHost && pieces[i].bytes != 0) {
            out.push_back({{area + places[i], pieces[i].bytes}, pieces[i]});
        }
    }
    return out;
}

// Empty, or why it could not be pinned: the copies are made all the same.
std::string pin(Area& area, std::uint64_t bytes, std::int32_t device) {
    if (area.pinned.size() >= bytes) {
        return {};
    }
    area.pinned = {};
    try {
        area.pinned = PinnedMemory(area.buffer.bytes().first(bytes), device);
    } catch (const Error& error) {
        return fmt::format("the copy from the GPU was slower than it could be: {}", error.what());
    }
    return {};
}

}  // namespace

struct Staging::Impl {
    Impl(std::uint64_t budget, unsigned threads)
        : budget_bytes(budget),
          copiers(threads),
          pool({.kept_bytes_max = 0, .touch = false, .keep_on_fork = false}) {}

    // Takes an area of that size when the budget has room for it.
    Areas take(std::uint64_t bytes, std::chrono::nanoseconds timeout) {
        Areas dropped;  // freed after the unlock
        Areas area(1);
        std::unique_lock<std::mutex> lock(mutex);
        if (!room.wait_for(lock, timeout, [&] { return used_bytes + bytes <= budget_bytes; })) {
            return {};
        }
        auto best = kept.end();
        for (auto it = kept.begin(); it != kept.end(); ++it) {
            // Pages that were used once stay touched, and count.
            const std::uint64_t cost = std::max(bytes, it->touched_bytes);
            if (it->buffer.size() >= bytes && cost <= 2 * bytes &&
                used_bytes + cost <= budget_bytes &&
                (best == kept.end() || it->buffer.size() < best->buffer.size())) {
                best = it;
            }
        }
        if (best != kept.end()) {
            area.swap(dropped);
            area.splice(area.end(), kept, best);
        }
        Area& taken = area.front();
        taken.touched_bytes = std::max(taken.touched_bytes, bytes);
        used_bytes += taken.touched_bytes;
        PENSTOCK_ASSERT(used_bytes <= budget_bytes);
        while (!kept.empty() && used_bytes + kept_bytes_locked() > budget_bytes) {
            dropped.splice(dropped.end(), kept, kept.begin());
        }
        return area;
    }

    // Oldest first.
    void put(Areas area) noexcept {
        Areas dropped;
        {
            const std::lock_guard<std::mutex> guard(mutex);
            for (const Area& each : area) {
                PENSTOCK_ASSERT(used_bytes >= each.touched_bytes);
                used_bytes -= each.touched_bytes;
            }
            kept.splice(kept.end(), area);
            kept.remove_if([](const Area& each) { return each.buffer.size() == 0; });
            while (!kept.empty() &&
                   (kept.size() > kAreasMax || used_bytes + kept_bytes_locked() > budget_bytes)) {
                dropped.splice(dropped.end(), kept, kept.begin());
            }
        }
        room.notify_all();
    }

    [[nodiscard]] std::uint64_t kept_bytes_locked() const {
        std::uint64_t total = 0;
        for (const Area& area : kept) {
            total += area.touched_bytes;
        }
        return total;
    }

    const pid_t process = ::getpid();
    const std::uint64_t budget_bytes;
    stream::CopyThreads copiers;
    MemoryPool pool;

    std::mutex mutex;
    std::condition_variable room;
    std::uint64_t used_bytes = 0;
    Areas kept;
};

// Gives the area back; in the child of a fork it does nothing, as the memory was not inherited.
struct StagedCopy::Hold {
    explicit Hold(std::shared_ptr<Staging::Impl> owner) : impl(std::move(owner)) {}
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() {
        if (impl->process == ::getpid()) {
            impl->put(std::move(area));
        } else {
            base::leave_to_parent(std::move(impl));
        }
    }
    std::shared_ptr<Staging::Impl> impl;
    Areas area;
};

StagedCopy::StagedCopy() = default;
StagedCopy::StagedCopy(StagedCopy&& other) noexcept = default;
StagedCopy& StagedCopy::operator=(StagedCopy&& other) noexcept = default;
StagedCopy::~StagedCopy() = default;

Staging::Staging(const StagingOptions& options)
    : budget_bytes_(options.budget_bytes != 0 ? options.budget_bytes : default_budget_bytes()),
      impl_([bytes = budget_bytes_, threads = options.threads] {
          return std::make_shared<Impl>(bytes, threads);
      }) {}

Staging::~Staging() = default;

std::optional<StagedCopy> Staging::copy(Pieces pieces, std::chrono::nanoseconds timeout,
                                        std::span<const StreamHandle> streams) {
    const std::vector<std::uint64_t> places = places_of(pieces);
    const std::uint64_t bytes = rounded(places.back());
    if (bytes > budget_bytes_) {
        base::raise(base::error(
            ErrorCode::kOutOfMemory, "stage a save",
            fmt::format("a copy of the tensors takes {}, and host_memory is {}; give it more, save "
                        "with copy=False, or save() in place of save_async()",
                        base::format_bytes(bytes), base::format_bytes(budget_bytes_))));
    }
    const std::shared_ptr<Impl>& own = impl_.get();
    StagedCopy copy;
    copy.hold_ = std::make_unique<StagedCopy::Hold>(own);
    copy.hold_->area = own->take(bytes, timeout);
    if (copy.hold_->area.empty()) {
        return std::nullopt;
    }
    Buffer& buffer = copy.hold_->area.front().buffer;
    if (buffer.size() == 0) {
        buffer = own->pool.take(std::bit_ceil(bytes));
    }
    PENSTOCK_ASSERT(buffer.size() >= places.back());
    const std::vector<MemoryCopy> of_gpus = gpu_copies(pieces, places, buffer.data());
    if (!of_gpus.empty()) {
        copy.note_ = pin(copy.hold_->area.front(), bytes, of_gpus.front().from.device);
    }
    // The GPUs' copies run while threads make the others.
    const CopyJob job(pieces, places, buffer.data());
    const std::size_t first = of_gpus.empty() ? 0 : 1;
    const std::size_t units = of_gpus.size() == pieces.size() ? 0 : job.units();
    std::exception_ptr failure;
    own->copiers.run(first + units, [&](std::size_t unit) {
        if (unit >= first) {
            job.copy(unit - first);
            return;
        }
        try {
            copy_memory(of_gpus, streams);
        } catch (...) {
            failure = std::current_exception();
        }
    });
    if (failure) {
        std::rethrow_exception(failure);
    }
    copy.pieces_.reserve(pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        copy.pieces_.emplace_back(buffer.data() + places[i], pieces[i].bytes);
    }
    return copy;
}

std::uint64_t Staging::area_bytes(Pieces pieces) {
    return rounded(places_of(pieces).back());
}

std::uint64_t Staging::default_budget_bytes() {
    return usable_memory_bytes() / 2;
}

std::uint64_t Staging::used_bytes() const {
    const std::lock_guard<std::mutex> guard(impl_->mutex);
    return impl_->used_bytes;
}

std::uint64_t Staging::kept_bytes() const {
    const std::lock_guard<std::mutex> guard(impl_->mutex);
    return impl_->kept_bytes_locked();
}

}  // namespace penstock::store
