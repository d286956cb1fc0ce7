// SPDX-License-Identifier: Apache-2.0
// A domain: what shares one device. Its channels (one by default), the threads that copy
// and that do what blocks, and the lent channels of the inline path.
#pragma once

#include "base/clock.hpp"
#include "base/result.hpp"
#include "engine/channel.hpp"
#include "engine/job.hpp"
#include "os/file.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::engine {

struct DomainOptions {
    ChannelOptions channel;
    std::uint32_t channels = 1;
    std::uint32_t copy_threads = 2;
    std::uint32_t blocking_threads = 4;
    /// Requests to devices at once, where they go straight: a call each, which blocks. As many as
    /// the posix backend has.
    std::uint32_t device_callers = 16;
    bool threads = true;  ///< false: the caller turns the channels (a simulation)
};

/// The components of a domain.
struct DomainParts {
    BackendFactory make_backend;
    const base::Clock* clock = nullptr;
    /// Empty: memcpy on the domain's copy threads, and none for devices.
    MakeMover make_mover;
    SlotPool* device_slots = nullptr;   ///< the engine's
    DevicePath* device_path = nullptr;  ///< the engine's, or none
};

class Domain {
public:
    [[nodiscard]] static base::Result<std::unique_ptr<Domain>> make(DeviceId device,
                                                                    const DomainOptions& options,
                                                                    const DomainParts& parts);
    Domain(const Domain&) = delete;
    Domain& operator=(const Domain&) = delete;
    /// All transfers have finished.
    ~Domain();

    [[nodiscard]] DeviceId device() const { return device_; }
    [[nodiscard]] std::uint32_t channel_count() const {
        return static_cast<std::uint32_t>(channels_.size());
    }
    [[nodiscard]] Channel& channel(std::uint32_t index) { return *channels_[index]->channel; }
    [[nodiscard]] const Channel& channel(std::uint32_t index) const {
        return *channels_[index]->channel;
    }
    [[nodiscard]] Executor& blocking() { return *blocking_; }
    /// The cost of a request of this device, in bytes; see Plan::read_over_gaps().
    [[nodiscard]] std::uint64_t gap_bytes() const { return options_.channel.gap_bytes; }

    /// A channel for the caller's own thread, or nothing.
    class LentChannel {
    public:
        LentChannel() = default;
        LentChannel(std::unique_lock<std::mutex> lock, Channel& channel, std::atomic<bool>* at_once)
            : lock_(std::move(lock)), channel_(&channel), at_once_(at_once) {}
        LentChannel(LentChannel&& other) noexcept
            : lock_(std::move(other.lock_)),
              channel_(std::exchange(other.channel_, nullptr)),
              at_once_(std::exchange(other.at_once_, nullptr)) {}
        LentChannel& operator=(LentChannel&&) = delete;
        ~LentChannel() { give_back(); }
        void give_back() noexcept {
            if (at_once_ != nullptr) {
                at_once_->store(false, std::memory_order_release);
            }
            at_once_ = nullptr;
            channel_ = nullptr;
            lock_ = {};
        }
        explicit operator bool() const { return channel_ != nullptr; }
        [[nodiscard]] Channel& channel() { return *channel_; }

    private:
        std::unique_lock<std::mutex> lock_;
        Channel* channel_ = nullptr;
        std::atomic<bool>* at_once_ = nullptr;
    };
    /// Nothing where anything is before it here.
    [[nodiscard]] LentChannel lend_inline();
    /// For a call that is no transfer; `past_transfers`: whatever is before it here.
    [[nodiscard]] LentChannel lend_at_once(bool past_transfers);
    /// Has a thread one of the latter? Those who take one later see what was written before.
    [[nodiscard]] bool any_at_once() const;
    /// Callers that may have a lent channel at once; the next ones' transfers go through the
    /// channels.
    static constexpr std::uint32_t kLendableMax = 256;
    template <typename Visit>
    void for_each_inline_channel(Visit visit) const {
        for (const Lendable& lent : lendable_) {
            if (const Channel* channel = lent.published.load(std::memory_order_acquire)) {
                visit(*channel);
            }
        }
    }

    // fork(), see fork.hpp. More than one may be coming: the first pause() and the last resume()
    // count.
    void pause();
    /// After pause(): until nothing is at the device.
    void wait_quiet();
    void resume();
    void abandon_after_fork();

private:
    struct Member {
        std::unique_ptr<Channel> channel;
        std::thread thread;
        std::atomic<bool> poked{false};  ///< ~Domain will not touch the channel again
    };
    /// Threads take and leave theirs without touching the cache lines of the others.
    struct alignas(64) Lendable {
        std::mutex mutex;
        std::unique_ptr<Channel> channel;
        std::atomic<const Channel*> published{nullptr};
        std::atomic<bool> at_once{false};  ///< its owner is no transfer
    };

    Domain(DeviceId device, const DomainOptions& options, const DomainParts& parts);
    base::Result<void> start_channel();
    base::Result<std::unique_ptr<Channel>> make_channel();
    base::Result<std::unique_ptr<Mover>> make_mover(const MemoryPlace& place,
                                                    const std::function<void()>& wake);
    std::unique_lock<std::mutex> lock_lendable(std::uint32_t& index);
    [[nodiscard]] bool idle() const;
    LentChannel lend(bool at_once);
    [[nodiscard]] std::unique_ptr<Channel> make_inline_channel();

    const DeviceId device_;
    const DomainOptions options_;
    const DomainParts parts_;
    std::unique_ptr<Executor> copy_;
    std::unique_ptr<Executor> blocking_;
    std::unique_ptr<Executor> device_callers_;  ///< make the calls of the device path
    std::vector<std::unique_ptr<Member>> channels_;
    std::array<Lendable, kLendableMax> lendable_;
    std::atomic<std::uint32_t> lendable_used_{1};  ///< those behind have no channel yet
    std::atomic<bool> paused_{false};
    InlineExecutor inline_executor_;
};

}  // namespace penstock::engine
