// SPDX-License-Identifier: Apache-2.0
#include "engine/domain.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <future>
#include <system_error>

namespace penstock::engine {

namespace {

// The backend of the inline path: what is pushed is done in enter(), on the caller's thread, with
// blocking calls.
class SyncBackend final : public Backend {
public:
    [[nodiscard]] const char* name() const override { return "inline"; }
    [[nodiscard]] std::string detail() const override { return "blocking calls, caller's thread"; }
    [[nodiscard]] bool takes_buffered() const override { return true; }
    void push(Request& request) override { pushed_.push_back(request); }
    void enter(std::uint32_t /*want*/, base::Nanos /*timeout*/) override {
        while (Request* request = pushed_.pop_front()) {
            request->result =
                request->op == Op::kRead
                    ? request->file->read_at(request->io, request->offset, request->pieces)
                    : request->file->write_at(request->io, request->offset, request->pieces);
            done_.push_back(*request);
        }
    }
    std::size_t reap(std::span<Request*> done) override {
        std::size_t count = 0;
        while (count < done.size() && !done_.empty()) {
            done[count++] = done_.pop_front();
        }
        return count;
    }
    void wake() override {}

private:
    base::Fifo<Request> pushed_;
    base::Fifo<Request> done_;
};

// An inline transfer is at most a few requests of at most 64 KiB and what alignment adds.
constexpr ChannelOptions inline_options(const ChannelOptions& options) {
    ChannelOptions small = options;
    small.depth = 8;
    small.slots = {.large_bytes = options.block_bytes,
                   .large_count = 1,
                   .small_bytes = 16 << 10,
                   .small_count = 8};
    return small;
}

}  // namespace

Domain::Domain(DeviceId device, const DomainOptions& options, const DomainParts& parts)
    : device_(device), options_(options), parts_(parts) {
    if (options.threads) {
        copy_ = std::make_unique<Workers>("penstock-copy", options.copy_threads);
        blocking_ = std::make_unique<Workers>("penstock-block", options.blocking_threads);
        device_callers_ = std::make_unique<Workers>("penstock-gpu", options.device_callers);
    } else {
        copy_ = std::make_unique<InlineExecutor>();
        blocking_ = std::make_unique<InlineExecutor>();
        device_callers_ = std::make_unique<InlineExecutor>();
    }
}

base::Result<std::unique_ptr<Domain>> Domain::make(DeviceId device, const DomainOptions& options,
                                                   const DomainParts& parts) {
    std::unique_ptr<Domain> domain(new Domain(device, options, parts));
    domain->channels_.reserve(options.channels);  // so that a channel that has started gets in
    for (std::uint32_t i = 0; i < options.channels; ++i) {
        PENSTOCK_CHECK(domain->start_channel());
    }
    return domain;
}

base::Result<std::unique_ptr<Channel>> Domain::make_channel() {
    PENSTOCK_TRY(backend, parts_.make_backend({.depth = options_.channel.depth}));
    const auto make = [this](const MemoryPlace& place, const std::function<void()>& wake) {
        return make_mover(place, wake);
    };
    auto channel = std::make_unique<Channel>(options_.channel, std::move(backend), make, *blocking_,
                                             *copy_, *parts_.clock, parts_.device_slots);
    if (parts_.device_path != nullptr) {
        channel->use_device_path(*parts_.device_path, *device_callers_);
    }
    return channel;
}

base::Result<std::unique_ptr<Mover>> Domain::make_mover(const MemoryPlace& place,
                                                        const std::function<void()>& wake) {
    std::unique_ptr<Mover> mover;
    if (parts_.make_mover) {
        PENSTOCK_TRY(made, parts_.make_mover(place, wake));
        mover = std::move(made);
    }
    if (mover == nullptr && place.kind != MemoryKind::kHost) {
        return base::fail(base::error(
            ErrorCode::kUnsupported, "reach a device",
            fmt::format("this engine has no way to memory of device {}; copy it to the host first",
                        place.device)));
    }
    return mover == nullptr ? std::make_unique<HostMover>(copy_.get(), wake) : std::move(mover);
}

// The backend is made on the thread that will use it: io_uring's single-issuer mode wants that.
base::Result<void> Domain::start_channel() {
    auto member = std::make_unique<Member>();
    if (!options_.threads) {
        PENSTOCK_TRY(channel, make_channel());
        member->channel = std::move(channel);
        channels_.push_back(std::move(member));
        return {};
    }
    std::promise<base::Result<void>> made;
    auto ready = made.get_future();
    try {
        member->thread = std::thread([this, self = member.get(), &made] {
            ::pthread_setname_np(::pthread_self(), "penstock-io");
            auto channel = base::as_result("start a channel", [this] { return make_channel(); });
            if (!channel) {
                made.set_value(base::fail(std::move(channel.error())));
                return;
            }
            self->channel = std::move(*channel);
            Channel& loop = *self->channel;
            made.set_value({});
            while (!loop.may_end()) {
                loop.turn(true);
            }
            // The ring is this thread's alone, also at its end: what it still has out comes back to
            // nobody else. Not before ~Domain is through with poking it.
            self->poked.wait(false);
            self->channel.reset();
        });
    } catch (const std::system_error& e) {
        return base::fail(base::refused_thread(e, "start a channel's thread"));
    }
    auto result = ready.get();
    if (!result) {
        member->thread.join();
        return result;
    }
    channels_.push_back(std::move(member));
    return {};
}

Domain::~Domain() {
    // A worker tells its channel of the last move or write, and only then wakes it: it may be at
    // that still when the transfer has long finished. So the workers end before the channels.
    copy_.reset();
    blocking_.reset();
    device_callers_.reset();
    for (const auto& member : channels_) {
        if (member->thread.joinable()) {
            member->channel->stop();
            member->poked.store(true);
            member->poked.notify_one();
            member->thread.join();
        }
    }
}

bool Domain::idle() const {
    return std::all_of(channels_.begin(), channels_.end(),
                       [](const auto& member) { return member->channel->linked_parts() == 0; });
}

Domain::LentChannel Domain::lend_inline() {
    return idle() ? lend(false) : LentChannel();
}

Domain::LentChannel Domain::lend_at_once(bool past_transfers) {
    return past_transfers || idle() ? lend(true) : LentChannel();
}

bool Domain::any_at_once() const {
    return std::any_of(lendable_.begin(), lendable_.end(),
                       [](const Lendable& lent) { return lent.at_once.load(); });
}

Domain::LentChannel Domain::lend(bool at_once) {
    std::uint32_t index = 0;
    std::unique_lock lock = lock_lendable(index);
    if (!lock || paused_.load()) {
        return {};
    }
    Lendable& lent = lendable_[index];
    if (!lent.channel) {
        lent.channel = make_inline_channel();
        lent.published.store(lent.channel.get(), std::memory_order_release);
    }
    if (at_once) {
        lent.at_once.store(true);
    }
    return {std::move(lock), *lent.channel, at_once ? &lent.at_once : nullptr};
}

// There are as many lent channels as callers have ever wanted one at once. A thread tries the one
// that it had last, which nobody else wants when all have settled.
std::unique_lock<std::mutex> Domain::lock_lendable(std::uint32_t& index) {
    static thread_local std::uint32_t mine = 0;
    const std::uint32_t used = lendable_used_.load(std::memory_order_relaxed);
    const std::uint32_t first = mine < used ? mine : 0;
    for (std::uint32_t tried = 0; tried < kLendableMax; ++tried) {
        index = tried < used ? first + tried : tried;
        index -= tried < used && index >= used ? used : 0;
        std::unique_lock lock(lendable_[index].mutex, std::try_to_lock);
        if (lock) {
            mine = index;
            if (index >= used) {
                lendable_used_.store(index + 1, std::memory_order_relaxed);
            }
            return lock;
        }
    }
    return {};
}

std::unique_ptr<Channel> Domain::make_inline_channel() {
    return std::make_unique<Channel>(
        inline_options(options_.channel), std::make_unique<SyncBackend>(),
        [](const MemoryPlace& /*host*/, const std::function<void()>& wake) {
            return std::make_unique<HostMover>(nullptr, wake);
        },
        inline_executor_, inline_executor_, *parts_.clock);
}

void Domain::pause() {
    paused_.store(true);
    for (const auto& member : channels_) {
        member->channel->pause();
    }
}

void Domain::wait_quiet() {
    // A thread that takes a lent channel from here on sees that it is paused.
    for (Lendable& lent : lendable_) {
        const std::lock_guard lock(lent.mutex);
    }
    for (const auto& member : channels_) {
        while (!member->channel->device_quiet()) {
            member->channel->wait_device_quiet(100'000'000);
        }
    }
    // Buffered ends that run hold the gate of their file; those that wait go on waiting, and so do
    // not wait for the syncs that run before them. Copies may run on: a fork does not mind.
    blocking_->pause();
    device_callers_->pause();
}

void Domain::resume() {
    blocking_->resume();
    device_callers_->resume();
    for (const auto& member : channels_) {
        member->channel->resume();
    }
    paused_.store(false);
}

// The threads are not there; nor is this ever destroyed, which would wait for them.
void Domain::abandon_after_fork() {
    for (const auto& member : channels_) {
        member->channel->abandon_after_fork();
    }
}

}  // namespace penstock::engine
