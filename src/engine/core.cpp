// SPDX-License-Identifier: Apache-2.0
#include "engine/core.hpp"

#include "base/align.hpp"
#include "base/assert.hpp"
#include "base/futex.hpp"
#include "engine/check.hpp"
#include "engine/fork.hpp"
#include "engine/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace penstock::engine {

namespace {

constexpr std::uint64_t kInlineExtentsMax = 16;

}  // namespace

Core::Core(const CoreOptions& options, Platform platform)
    : options_(options), platform_(std::move(platform)) {
    if (options.domain.threads) {
        opener_ = std::make_unique<Workers>("penstock-open", 2);
    } else {
        opener_ = std::make_unique<InlineExecutor>();
    }
}

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
    while (!wait_idle(base::kForever)) {
    }
    if (options_.domain.threads) {
        unregister_for_fork(*this);
    }
}

base::Result<Domain*> Core::domain_of(const os::File& file) {
    const std::lock_guard lock(domains_mutex_);
    auto found = domains_.find(file.info().device);
    if (found == domains_.end()) {
        PENSTOCK_TRY(domain, make_domain(file));
        found = domains_.emplace(file.info().device, std::move(domain)).first;
    }
    return found->second.get();
}

// What one device could have may be used up for the next (locked memory, the system's queues), so
// each falls back by itself. Files of another file system than the kernel's take the first backend
// that calls them; where none was allowed, their transfers say so.
base::Result<std::unique_ptr<Domain>> Core::make_domain(const os::File& file) {
    const os::DeviceId device = file.info().device;
    std::size_t first = chosen_;
    if (file.descriptor(os::Lane::kBuffered) < 0) {
        while (first + 1 < platform_.backends.size() &&
               platform_.backends[first].needs_descriptors) {
            ++first;
        }
    }
    std::optional<base::Error> last;
    for (std::size_t i = first; i < platform_.backends.size(); ++i) {
        const BackendEntry& entry = platform_.backends[i];
        auto made = Domain::make(device, options_.domain,
                                 {entry.make, platform_.clock.get(), platform_.make_mover});
        if (made) {
            return made;
        }
        refusals_.push_back(fmt::format("{} for device {}:{}: {}", entry.name, device.major,
                                        device.minor, made.error().message));
        last = std::move(made.error());
    }
    return base::fail(std::move(*last));
}

base::Result<Transfer*> Core::start(TransferSpec spec) {
    PENSTOCK_CHECK(check_transfer(spec));
    // Counted first and looked at then, so that many threads at once do not pass the limit.
    const std::uint32_t before = in_flight_.fetch_add(1);
    if (options_.transfers_max != 0 && before >= options_.transfers_max) {
        in_flight_.fetch_sub(1);
        return base::fail(base::error(
            ErrorCode::kWouldBlock, spec.op == Op::kRead ? "read" : "write",
            fmt::format(
                "{} transfers are in flight, which is the limit (transfers_max); wait for one",
                options_.transfers_max)));
    }
    auto* transfer = new Transfer(*this, spec.op, std::move(spec.files), std::move(spec.extents),
                                  spec.allow_short);
    transfer->paths = std::move(spec.paths);
    transfer->direct = spec.direct;
    transfer->sync = spec.sync;
    transfer->block_bytes = spec.block_bytes;
    transfer->depth_limit = std::move(spec.depth_limit);
    transfer->set_priority(spec.priority);
    transfer->acquire();  // one reference is the caller's, one is ours until finish()
    add_live(*transfer);
    transfer->on_caller = spec.caller_waits;
    if (spec.caller_waits ||
        (transfer->paths.empty() && !may_extend(*transfer, options_.preallocate_bytes_min))) {
        prologue(*transfer);
        return transfer;
    }
    transfer->errand.owner = this;
    transfer->errand.transfer = transfer;
    transfer->errand.run = [](Job& job) {
        auto& errand = static_cast<Transfer::Errand&>(job);
        static_cast<Core*>(errand.owner)->prologue(*errand.transfer);
    };
    opener_->post(transfer->errand);
    return transfer;
}

// All that may block before the first request. Ends in parts that are linked, or in finish().
void Core::prologue(Transfer& transfer) {
    base::Result<void> ready = open_files(transfer);
    if (ready && run_inline(transfer)) {
        return;
    }
    if (ready) {
        ready = preallocate(transfer);
    }
    if (ready) {
        ready = lay_out_and_link(transfer);
    }
    if (!ready) {
        transfer.fail(std::move(ready.error()));
        transfer.finish();
    }
}

base::Result<void> Core::open_files(Transfer& transfer) {
    os::OpenOptions how;
    how.access = transfer.op == Op::kRead ? Access::kRead : Access::kWrite;
    how.create = transfer.op == Op::kWrite;
    how.direct = transfer.direct;
    for (const std::string& path : transfer.paths) {
        PENSTOCK_TRY(file, platform_.file_system->open(path, how));
        transfer.files.push_back(std::move(file));
    }
    return {};
}

// A run that extends its file gets its room first: extending writes wait for each other, and a full
// disk is better met now. That a file system cannot is normal.
base::Result<void> Core::preallocate(Transfer& transfer) {
    if (!may_extend(transfer, options_.preallocate_bytes_min)) {
        return {};
    }
    for (const FileRange& range : extending_runs(transfer, options_.preallocate_bytes_min)) {
        os::File& file = *transfer.files[range.file];
        PENSTOCK_TRY(size, file.size());
        file.note_size(size);
        if (range.end <= size) {
            continue;
        }
        const std::uint64_t begin = std::max(range.begin, size);
        auto made = file.preallocate(begin, range.end - begin);
        if (!made && made.error().code != ErrorCode::kUnsupported) {
            return made;
        }
        if (made) {
            file.note_size(range.end);
        }
    }
    return {};
}

// A small blocking transfer with nothing before it is done here and now: a hop to another thread
// and back costs more than the read.
bool Core::run_inline(Transfer& transfer) {
    if (!transfer.on_caller || !options_.domain.threads ||
        transfer.total_bytes > options_.inline_bytes_max ||
        transfer.extents.count() > kInlineExtentsMax || transfer.files.size() != 1) {
        return false;
    }
    auto domain = domain_of(*transfer.files.front());
    if (!domain) {
        return false;
    }
    auto lane = (*domain)->take_inline_lane();
    if (!lane) {
        return false;
    }
    transfer.parts.resize(1);
    transfer.block_bytes = 0;  // not rounded to the device's blocks yet, and of no use here
    Part& part = transfer.parts.front();
    part.transfer = &transfer;
    part.channel = &lane->channel();
    part.plan =
        Plan(transfer.extents, transfer.files, transfer.op, {}, {transfer.extents.count(), 0});
    // The extra reference keeps it alive to the end of this loop.
    transfer.acquire();
    transfer.expect_parts(1);
    lane->channel().link(part);
    while (!transfer.finished()) {
        lane->channel().turn(false);
    }
    transfer.release();
    return true;
}

base::Result<void> Core::lay_out_and_link(Transfer& transfer) {
    std::vector<Domain*> domains;
    for (const auto& file : transfer.files) {
        PENSTOCK_TRY(domain, domain_of(*file));
        const auto found = std::find(domains.begin(), domains.end(), domain);
        transfer.groups.push_back(static_cast<std::uint32_t>(found - domains.begin()));
        if (found == domains.end()) {
            domains.push_back(domain);
        }
    }
    lay_out(transfer, domains);
    transfer.on_caller = false;
    // The last part that is done may end the transfer, so nothing of it is read after the last
    // link.
    const std::size_t count = transfer.parts.size();
    Part* const parts = transfer.parts.data();
    transfer.expect_parts(static_cast<std::uint32_t>(count));
    if (count == 0) {
        parts_done(transfer);
        return {};
    }
    for (std::size_t i = 0; i < count; ++i) {
        parts[i].channel->link(parts[i]);
    }
    return {};
}

void Core::parts_done(Transfer& transfer) {
    const bool durable = transfer.sync && !transfer.stopped();
    if (transfer.files.empty() || (!durable && transfer.paths.empty())) {
        transfer.finish();
        return;
    }
    auto domain = domain_of(*transfer.files.front());
    if (transfer.on_caller || !domain) {
        epilogue(transfer);
        return;
    }
    transfer.errand.owner = this;
    transfer.errand.transfer = &transfer;
    transfer.errand.run = [](Job& job) {
        auto& errand = static_cast<Transfer::Errand&>(job);
        static_cast<Core*>(errand.owner)->epilogue(*errand.transfer);
    };
    (*domain)->blocking().post(transfer.errand);
}

// What blocks after the last request: durability, and closing what was opened for this transfer.
void Core::epilogue(Transfer& transfer) {
    if (transfer.sync && !transfer.stopped()) {
        for (const auto& file : transfer.files) {
            if (auto synced = file->sync(); !synced) {
                transfer.fail(std::move(synced.error()));
            }
        }
    }
    if (!transfer.paths.empty()) {
        for (const auto& file : transfer.files) {
            if (auto closed = file->close(); !closed && transfer.op == Op::kWrite) {
                transfer.fail(std::move(closed.error()));
            }
        }
    }
    transfer.finish();
}

void Core::cancel(Transfer& transfer) {
    transfer.cancel();
    if (transfer.linked()) {
        for (const Part& part : transfer.parts) {
            part.channel->poke();
        }
    }
}

void Core::set_priority(Transfer& transfer, Priority priority) {
    transfer.set_priority(priority);
    if (transfer.linked()) {
        for (const Part& part : transfer.parts) {
            part.channel->poke();
        }
    }
}

void Core::add_live(Transfer& transfer) {
    running_.fetch_add(1);
    const std::lock_guard lock(live_mutex_);
    transfer.live_next = live_;
    if (live_ != nullptr) {
        live_->live_previous = &transfer;
    }
    live_ = &transfer;
}

// Before its waiters know: whoever has waited may start the next, also at the limit.
void Core::finishing(Transfer& /*transfer*/) {
    in_flight_.fetch_sub(1);
}

void Core::finished(Transfer& transfer) {
    {
        const std::lock_guard lock(live_mutex_);
        Transfer*& before =
            transfer.live_previous == nullptr ? live_ : transfer.live_previous->live_next;
        before = transfer.live_next;
        if (transfer.live_next != nullptr) {
            transfer.live_next->live_previous = transfer.live_previous;
        }
    }
    if (running_.fetch_sub(1) == 1 && idle_waiters_.load() != 0) {
        base::futex_wake_all(running_);
    }
}

void Core::unobserved(const base::Error& error) {
    const std::lock_guard lock(live_mutex_);
    if (!unobserved_) {
        unobserved_ = error;
    }
}

std::optional<base::Error> Core::take_unobserved() {
    const std::lock_guard lock(live_mutex_);
    return std::exchange(unobserved_, std::nullopt);
}

bool Core::wait_idle(base::Nanos timeout) {
    idle_waiters_.fetch_add(1);
    const std::uint32_t seen = running_.load();
    if (seen != 0) {
        base::futex_wait(running_, seen, timeout);
    }
    idle_waiters_.fetch_sub(1);
    return running_.load() == 0;
}

// First everything is brought to rest, then the locks are taken: what comes to rest may need them.
void Core::before_fork() {
    static_cast<Workers&>(*opener_).pause();
    std::set<Domain*> paused;
    while (true) {
        Domain* next = nullptr;
        domains_mutex_.lock();
        for (const auto& [device, domain] : domains_) {
            next = paused.contains(domain.get()) ? next : domain.get();
        }
        if (next == nullptr) {
            break;
        }
        domains_mutex_.unlock();
        next->pause();
        paused.insert(next);
    }
    live_mutex_.lock();
}

void Core::after_fork_in_parent() {
    live_mutex_.unlock();
    for (const auto& [device, domain] : domains_) {
        domain->resume();
    }
    domains_mutex_.unlock();
    static_cast<Workers&>(*opener_).resume();
}

void Core::after_fork_in_child() {
    for (Transfer* transfer = live_; transfer != nullptr; transfer = transfer->live_next) {
        transfer->end_after_fork();
    }
    for (const auto& [device, domain] : domains_) {
        domain->abandon_after_fork();
    }
    static_cast<Workers&>(*opener_).abandon_after_fork();
    dead_.store(true, std::memory_order_release);
    // For handles that the child lets go of.
    live_mutex_.unlock();
    domains_mutex_.unlock();
}

}  // namespace penstock::engine
