// SPDX-License-Identifier: Apache-2.0
#include "engine/core.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/futex.hpp"
#include "base/host_memory.hpp"
#include "engine/caller/ways.hpp"
#include "engine/check.hpp"
#include "engine/fork.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace penstock::engine {

namespace {

constexpr base::Nanos kAtOnceTakes = 20'000;
constexpr base::Nanos kAtOnceAsksLatest = 5'000'000;

}  // namespace

Core::Core(const CoreOptions& options, Platform platform)
    : options_(options),
      platform_(std::move(platform)),
      openers_(options.domain.threads, *platform_.clock) {}

base::Result<std::shared_ptr<Core>> Core::make(const CoreOptions& options, Platform platform) {
    const std::shared_ptr<Core> core(new Core(options, std::move(platform)));
    PENSTOCK_CHECK(core->choose_backend());
    if (options.domain.threads) {
        register_for_fork(*core);
    }
    return core;
}

// Tries one after the other; what refused is remembered with its reason.
base::Result<void> Core::choose_backend() {
    std::optional<base::Error> last;
    for (std::size_t i = 0; i < platform_.backends.size(); ++i) {
        auto tried = platform_.backends[i].make({.depth = options_.domain.channel.depth});
        if (tried) {
            chosen_ = i;
            backend_name_ = (*tried)->name();
            backend_detail_ = (*tried)->detail();
            return {};
        }
        refusals_.push_back(platform_.backends[i].name + ": " + tried.error().message);
        last = std::move(tried.error());
    }
    return base::fail(
        last ? std::move(*last)
             : base::error(ErrorCode::kInvalidArgument, "engine", "no backend was given"));
}

Core::~Core() {
    if (dead()) {
        return;
    }
    refuse();
    const std::uint64_t all = started();
    while (!wait_for_first(all, base::kForever)) {
    }
    if (options_.domain.threads) {
        unregister_for_fork(*this);
    }
}

base::Result<Domain*> Core::domain_of(const os::File& file) {
    Domain* const last = last_domain_.load(std::memory_order_acquire);
    if (last != nullptr && last->device() == file.info().device) {
        return last;
    }
    const std::lock_guard lock(domains_mutex_);
    auto found = domains_.find(file.info().device);
    if (found == domains_.end()) {
        PENSTOCK_TRY(domain, make_domain(file));
        found = domains_.emplace(file.info().device, std::move(domain)).first;
    }
    last_domain_.store(found->second.get(), std::memory_order_release);
    return found->second.get();
}

// Each device falls back by itself, because resources that one device had may be used up for the
// next (locked memory, the system's queues). Files of another file system than the kernel's take
// the first backend that calls them; if none was allowed, their transfers report it.
base::Result<std::unique_ptr<Domain>> Core::make_domain(const os::File& file) {
    const DeviceId device = file.info().device;
    std::size_t first = chosen_;
    // On FUSE, io_uring may give wrong bytes (Backend::goes_on_by_itself), and libaio blocks.
    const bool in_user_space = file.info().in_user_space;
    if (in_user_space || file.descriptor(os::IoPath::kBuffered) < 0) {
        while (first + 1 < platform_.backends.size() &&
               platform_.backends[first].needs_descriptors) {
            ++first;
        }
    }
    std::optional<base::Error> last;
    for (std::size_t i = first; i < platform_.backends.size(); ++i) {
        const BackendEntry& entry = platform_.backends[i];
        auto made = Domain::make(device, options_.domain,
                                 {entry.make, platform_.clock.get(), platform_.make_mover,
                                  &device_slots_, platform_.device_path.get()});
        if (made) {
            return made;
        }
        std::string refusal = fmt::format("{} for device {}:{}: {}", entry.name, device.major,
                                          device.minor, made.error().message);
        // Each transfer to such a device asks again, and may hear the same.
        if (std::find(refusals_.begin(), refusals_.end(), refusal) == refusals_.end()) {
            refusals_.push_back(std::move(refusal));
        }
        last = std::move(made.error());
    }
    return base::fail(std::move(*last));
}

// A policy that a file was opened with comes before the engine's.
bool Core::is_auto(const TransferSpec& spec) {
    return spec.options.cache == CachePolicy::kAuto &&
           std::all_of(spec.files.begin(), spec.files.end(), [](const auto& file) {
               return !file || file->info().cache == CachePolicy::kAuto;
           });
}

// Allocates everything first, so that a call that throws leaves nothing counted. From add_live() on
// nothing throws: a resource that is missing then ends the transfer, with that as its error.
base::Result<Transfer*> Core::start(TransferSpec&& spec) {
    if (options_.cache != CachePolicy::kAuto && is_auto(spec)) {
        spec.options.cache = options_.cache;
    }
    PENSTOCK_TRY(checked, check_transfer(spec));
    const bool caller_waits = spec.caller_waits;
    if (spec.op == Op::kRead && spec.extents.count() > 1 &&
        options_.domain.channel.gap_bytes != 0) {
        spec.extents.sort();
    }
    TransferPtr transfer;
    if (checked.device_memory) {
        auto devices = std::make_unique<DeviceSide>();
        PENSTOCK_TRY(order, order_of(spec, devices->places));
        devices->order = std::move(order);
        transfer = make_transfer(std::move(spec), checked.total_bytes);
        transfer->devices = std::move(devices);
        // A slot lies in one chunk.
        transfer->block_bytes = transfer->block_bytes == 0
                                    ? SlotPool::kChunkBytes
                                    : std::min(transfer->block_bytes, SlotPool::kChunkBytes);
    } else {
        transfer = make_transfer(std::move(spec), checked.total_bytes);
    }
    if (options_.transfers_max == 0) {
        running_.fetch_add(1);
    } else {
        PENSTOCK_CHECK(admit(transfer->op));
    }
    if (!add_live(*transfer)) {
        running_.fetch_sub(1);
        return base::fail(base::error(ErrorCode::kClosed,
                                      transfer->op == Op::kRead ? "read" : "write",
                                      "the engine is closed and begins nothing new; make another"));
    }
    transfer->share();  // one reference is the caller's, one is ours until finish()
    begin(*transfer, caller_waits);
    return transfer.release();
}

// The order that a transfer of device memory begins after: taken here, on the caller's thread, for
// it is what the streams hold at the call.
base::Result<std::shared_ptr<const MoveOrder>> Core::order_of(const TransferSpec& spec,
                                                              std::vector<MemoryPlace>& devices) {
    std::string first;
    for (std::uint64_t i = 0; i < spec.extents.count(); ++i) {
        const Memory memory = spec.extents[i].memory;
        const MemoryPlace place = place_of(memory);
        if (place.kind == MemoryKind::kHost || memory.bytes == 0 ||
            std::find(devices.begin(), devices.end(), place) != devices.end()) {
            continue;
        }
        if (devices.empty()) {
            first = fmt::format("extent {}", spec.extents.listed(i));
        }
        devices.push_back(place);
    }
    if (devices.empty()) {
        return nullptr;
    }
    const char* const verb = spec.op == Op::kRead ? "read" : "write";
    if (!platform_.make_order) {
        const Memory memory(nullptr, 0, MemoryKind::kDevice, devices.front().device);
        return base::fail(base::not_host_memory(verb, first, memory));
    }
    if (platform_.check_devices) {
        PENSTOCK_CHECK(platform_.check_devices(spec.extents));
    }
    auto made = platform_.make_order(spec.options.streams, devices);
    if (!made) {
        made.error().operation = verb;
        made.error().message = fmt::format("{} has memory of device {}: {}", first,
                                           devices.front().device, made.error().message);
    }
    return made;
}

// Most have no paths, no limit and nothing to keep: a move of nothing costs more than to look.
Core::TransferPtr Core::make_transfer(TransferSpec&& spec, std::uint64_t total_bytes) {
    TransferPtr transfer(new Transfer(*this, spec.op, std::move(spec.files),
                                      std::move(spec.extents), total_bytes,
                                      spec.options.allow_short));
    if (!spec.paths.empty()) {
        transfer->paths = std::move(spec.paths);
    }
    transfer->cache = spec.options.cache;
    transfer->sync = spec.options.sync;
    transfer->block_bytes = spec.options.block_bytes;
    if (spec.options.depth_limit.handle() != nullptr) {
        transfer->depth_limit = spec.options.depth_limit.handle();
    }
    if (spec.keep != nullptr) {
        transfer->keep = std::move(spec.keep);
    }
    transfer->group = spec.options.group;
    transfer->small_write =
        spec.op == Op::kWrite && spec.caller_waits && transfer->cache == CachePolicy::kAuto &&
        ways::is_small_write(total_bytes, transfer->extents.count(), transfer->sync,
                             options_.domain.channel.block_bytes);
    transfer->set_priority(spec.options.priority);
    make_windows(*transfer);
    return transfer;
}

// Counts only what is let in: who waits for room must not take a refused one for a transfer that
// will end and wake it.
base::Result<void> Core::admit(Op op) {
    std::uint32_t before = running_.load();
    while (before < options_.transfers_max) {
        if (running_.compare_exchange_weak(before, before + 1)) {
            return {};
        }
    }
    return base::fail(base::error(
        ErrorCode::kWouldBlock, op == Op::kRead ? "read" : "write",
        fmt::format("{} transfers are in flight, which is the limit (transfers_max); wait for one",
                    options_.transfers_max)));
}

void Core::cancel(Transfer& transfer) {
    if (dead()) {
        return;
    }
    transfer.cancel();
    poke(transfer);
    // Those that wait for room to open more files have nothing to wait for.
    if (!transfer.paths.empty()) {
        auto waiting = Descriptors::of_process().drop(&transfer);
        while (RoomWaiter* waiter = waiting.pop_front()) {
            window_done(static_cast<Window&>(*waiter));
        }
    }
}

void Core::set_priority(Transfer& transfer, Priority priority) {
    transfer.set_priority(priority);
    if (!dead()) {
        poke(transfer);
    }
}

// In the child of a fork, where nobody may hold the lock of the copies, all have finished.
base::Result<void> Core::notify(Transfer& transfer, int eventfd) {
    if (transfer.finished()) {
        base::add_one(eventfd);
        return {};
    }
    PENSTOCK_TRY(copy, eventfds_.copy_of(eventfd));
    transfer.notify(std::move(copy));
    return {};
}

// Takes the lock for a transfer of paths, whose parts are laid out again and again.
void Core::poke(Transfer& transfer) {
    std::unique_lock<std::mutex> lock;
    if (!transfer.paths.empty()) {
        lock = std::unique_lock(transfer.windows_mutex);
    } else if (!transfer.linked()) {
        return;
    }
    const auto poke_parts = [](const Window& window) {
        for (const Part& part : window.parts) {
            part.channel->poke();
        }
    };
    poke_parts(transfer.first_window);
    for (const auto& window : transfer.more_windows) {
        poke_parts(*window);
    }
}

// False when the engine is closed. The number of started transfers, read after refuse(), counts all
// of them.
bool Core::add_live(Transfer& transfer) noexcept {
    const std::lock_guard lock(live_mutex_);
    if (refusing_.load(std::memory_order_relaxed)) {
        return false;
    }
    transfer.number = ++started_;
    transfer.live_next = newest_;
    (newest_ == nullptr ? oldest_ : newest_->live_previous) = &transfer;
    newest_ = &transfer;
    return true;
}

// Runs before its waiters know: they may then start the next transfer, even at the limit.
void Core::finishing(Transfer& /*transfer*/) noexcept {
    running_.fetch_sub(1);
}

void Core::finished(Transfer& transfer) noexcept {
    const std::lock_guard lock(live_mutex_);
    Transfer* const newer = transfer.live_previous;
    Transfer* const older = transfer.live_next;
    (newer == nullptr ? newest_ : newer->live_next) = older;
    (older == nullptr ? oldest_ : older->live_previous) = newer;
    if (older == nullptr && drainers_ != 0) {
        oldest_went_.fetch_add(1);
        base::futex_wake_all(oldest_went_);
    }
    if (room_waiters_ != 0) {
        room_came_.fetch_add(1);
        base::futex_wake_all(room_came_);
    }
}

void Core::unobserved(base::Error&& error) noexcept {
    const std::lock_guard lock(live_mutex_);
    if (!unobserved_) {
        unobserved_ = std::move(error);
    }
}

std::optional<base::Error> Core::take_unobserved() {
    const std::lock_guard lock(live_mutex_);
    return std::exchange(unobserved_, std::nullopt);
}

std::uint64_t Core::started() {
    const std::lock_guard lock(live_mutex_);
    return started_;
}

void Core::refuse() {
    const std::lock_guard lock(live_mutex_);
    refusing_.store(true);
}

// Nobody counts what is moved at once. Once that is refused, it is waited for as well: a thread
// that took a path before showed that, and then looked whether it is refused. Few take longer than
// a copy; one whose disk does not answer is asked for more and more rarely.
bool Core::wait_for_first(std::uint64_t count, base::Nanos timeout) {
    base::Nanos pause = kAtOnceTakes;
    while (refusing_.load() && any_at_once()) {
        pause = std::min({pause, kAtOnceAsksLatest, timeout});
        if (pause <= 0) {
            return false;
        }
        std::this_thread::sleep_for(std::chrono::nanoseconds(pause));
        timeout -= pause;
        pause *= 2;
    }
    std::unique_lock lock(live_mutex_);
    const auto over = [&] { return oldest_ == nullptr || oldest_->number > count; };
    if (!over()) {
        ++drainers_;
        const std::uint32_t seen = oldest_went_.load();
        lock.unlock();
        base::futex_wait(oldest_went_, seen, timeout);
        lock.lock();
        --drainers_;
    }
    return over();
}

bool Core::any_at_once() {
    bool any = false;
    for_each_domain([&](const Domain& domain) { any |= domain.any_at_once(); });
    return any;
}

// finishing() makes room before finished() looks for waiters under the lock.
bool Core::wait_for_room(base::Nanos timeout) {
    std::unique_lock lock(live_mutex_);
    if (!has_room()) {
        ++room_waiters_;
        const std::uint32_t seen = room_came_.load();
        lock.unlock();
        base::futex_wait(room_came_, seen, timeout);
        lock.lock();
        --room_waiters_;
    }
    return has_room();
}

// First everything comes to rest, then the lock is taken: what comes to rest may need it. Devices
// that were met meanwhile come to rest in the next round; none is ever forgotten, so their number
// tells.
void Core::rest_and_lock_domains() {
    std::size_t resting = 0;
    while (true) {
        domains_mutex_.lock();
        std::vector<Domain*> all;
        for (const auto& [device, domain] : domains_) {
            all.push_back(domain.get());
        }
        if (all.size() == resting) {
            return;
        }
        domains_mutex_.unlock();
        for (Domain* domain : all) {
            domain->pause();
        }
        for (Domain* domain : all) {
            domain->wait_quiet();
        }
        resting = all.size();
    }
}

void Core::come_to_rest() {
    rest_and_lock_domains();
    domains_mutex_.unlock();
}

void Core::resume() {
    const std::lock_guard lock(domains_mutex_);
    for (const auto& [device, domain] : domains_) {
        domain->resume();
    }
}

void Core::before_fork() {
    rest_and_lock_domains();
    live_mutex_.lock();
    openers_.before_fork();
}

void Core::after_fork_in_parent() {
    openers_.after_fork();
    live_mutex_.unlock();
    domains_mutex_.unlock();
}

void Core::after_fork_in_child() {
    for (Transfer* transfer = newest_; transfer != nullptr; transfer = transfer->live_next) {
        transfer->end_after_fork();
    }
    for (const auto& [device, domain] : domains_) {
        domain->abandon_after_fork();
    }
    openers_.after_fork();
    dead_.store(true, std::memory_order_release);
    // For handles that the child releases.
    live_mutex_.unlock();
    domains_mutex_.unlock();
}

}  // namespace penstock::engine
