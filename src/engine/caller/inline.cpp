// SPDX-License-Identifier: Apache-2.0
// What is read and written on the thread of the caller, or of the one that opens a file: on a lent
// channel of the domain, which is a channel that no other thread has meanwhile.
#include "engine/caller/ways.hpp"
#include "engine/core.hpp"
#include "engine/layout.hpp"

#include <chrono>
#include <thread>

namespace penstock::engine {

namespace {

constexpr std::chrono::microseconds kNothingToDo{50};

Plan plan_of(const Transfer& transfer, ExtentRange range) {
    return {transfer.extents, transfer.files, transfer.op, {range.begin, 0}, {range.end, 0}};
}

}  // namespace

// A small blocking transfer of the host's memory with nothing before it is done here and now: a hop
// to another thread and back costs more than the read.
bool Core::run_inline(Window& window) {
    Transfer& transfer = *window.transfer;
    if (!options_.domain.threads || options_.inline_bytes_max == 0) {
        return false;
    }
    if (transfer.devices != nullptr) {
        return read_small_of_device(window);
    }
    if (transfer.op == Op::kRead && transfer.cache == CachePolicy::kAuto && copy_cached(window)) {
        return true;
    }
    if (transfer.files.size() != 1 || transfer.files.front() == nullptr) {
        return false;
    }
    const os::FileInfo& info = transfer.files.front()->info();
    const bool copied = transfer.small_write && (info.asks_cache || !info.geometry.direct);
    if ((!copied && transfer.total_bytes > options_.inline_bytes_max) ||
        transfer.extents.count() >
            (copied ? ways::kInlineCachedExtentsMax : ways::kInlineExtentsMax)) {
        return false;
    }
    auto domain = domain_of(*transfer.files.front());
    if (!domain) {
        return false;
    }
    auto lent = (*domain)->lend_inline();
    if (!lent) {
        return false;
    }
    const ExtentRange range{0, transfer.extents.count()};
    Part part{.transfer = &transfer,
              .window = &window,
              .channel = &lent.channel(),
              .plan = plan_of(transfer, range)};
    set_up(part, **domain, range);
    turn_here(window, part);
    lent.give_back();  // a fork waits for lent channels, and not for syncs
    parts_are_through(window);
    return true;
}

// Reads and closes a file that was just opened, where it is small and nothing is before it at its
// device. False: it goes the way of the others.
bool Core::read_small(Window& window, std::uint32_t index) {
    Transfer& transfer = *window.transfer;
    auto& file = transfer.files[index];
    if (!file->info().small || !options_.domain.threads || transfer.devices != nullptr ||
        transfer.depth_limit || !transfer.in_order) {
        return false;
    }
    const ExtentRange range = extents_of_file(transfer, index);
    std::uint64_t bytes = 0;
    for (std::uint64_t i = range.begin; i < range.end; ++i) {
        bytes += transfer.extents[i].memory.bytes;
    }
    if (bytes > options_.inline_bytes_max || range.end - range.begin > ways::kInlineExtentsMax) {
        return false;
    }
    auto domain = domain_of(*file);
    auto lent = domain ? (*domain)->lend_inline() : Domain::LentChannel();
    if (!lent) {
        return false;
    }
    Part part{.transfer = &transfer,
              .window = &window,
              .channel = &lent.channel(),
              .plan = plan_of(transfer, range)};
    set_up(part, **domain, range);
    turn_here(window, part);
    window.on_caller = false;
    lent.give_back();
    static_cast<void>(base::as_result("close", [&] { return file->close(); }));
    file.reset();
    transfer.groups[index] = Transfer::kThrough;
    return true;
}

// The part that does a range of the extents on the caller's lent channel.
void Core::set_up(Part& part, const Domain& domain, ExtentRange range) {
    const Transfer& transfer = *part.transfer;
    if (transfer.allow_short) {
        part.plan.allow_short();
    }
    if (transfer.small_write) {
        part.plan.write_through_cache();
    }
    part.consult_cache(part.channel->counters(), true);
    if (transfer.op == Op::kRead && range.end - range.begin > 1) {
        part.plan.read_over_gaps(domain.gap_bytes());
    }
}

// The part is not among the window's: those are poked, and a lent channel never sleeps.
void Core::turn_here(Window& window, Part& part) noexcept {
    Channel& channel = *part.channel;
    window.parts_left.store(1, std::memory_order_relaxed);
    window.on_caller = true;
    channel.link(part);
    while (window.parts_left.load(std::memory_order_relaxed) != 0) {
        if (!channel.turn(false)) {  // a request waits before it is tried again
            std::this_thread::sleep_for(kNothingToDo);
        }
    }
}

}  // namespace penstock::engine
