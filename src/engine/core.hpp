// SPDX-License-Identifier: Apache-2.0
// The engine behind the public one: it checks what callers ask, routes files to domains, makes
// transfers, and knows which of them run.
//
// Route: a file's device names its domain; a domain is made at the first transfer to it, with the
// first backend of the platform's list that this machine allows. Which was chosen, and why the ones
// before it were not, is kept for describe().
#pragma once

#include "base/clock.hpp"
#include "base/eventfd.hpp"
#include "base/result.hpp"
#include "engine/caller/small_copy.hpp"
#include "engine/check.hpp"
#include "engine/domain.hpp"
#include "engine/layout.hpp"
#include "engine/openers.hpp"
#include "engine/transfer.hpp"
#include "os/file_system.hpp"

#include <penstock/types.hpp>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace penstock::engine {

class DevicePath;

struct CoreOptions {
    DomainOptions domain;
    std::uint64_t inline_bytes_max = 64 << 10;      ///< 0: never on the caller's thread
    std::uint32_t transfers_max = 0;                ///< in flight; 0: no limit
    std::uint64_t preallocate_bytes_min = 4 << 20;  ///< of an extending run; see preallocate()
    CachePolicy cache = CachePolicy::kAuto;         ///< what kAuto means
};

/// The environment of an engine; tests and simulations bring their own.
struct Platform {
    std::shared_ptr<os::FileSystem> file_system;
    std::vector<BackendEntry> backends;  ///< in the order in which they are tried
    std::shared_ptr<const base::Clock> clock;
    MakeMover make_mover = {};                     ///< empty: memcpy for the host, and nothing else
    std::shared_ptr<DevicePath> device_path = {};  ///< or none: see device_path/
    MakeOrder make_order = {};                     ///< empty: there is no memory but the host's
    /// Is memory of devices what its extents say? Asked on the caller's thread; empty: not asked.
    std::function<base::Result<void>(const Extents& extents)> check_devices = {};
    TakeSmallCopy take_small_copy = {};  ///< empty: all of a device's memory is moved by transfers
};

class Core {
public:
    [[nodiscard]] static base::Result<std::shared_ptr<Core>> make(const CoreOptions& options,
                                                                  Platform platform);
    Core(const Core&) = delete;
    Core& operator=(const Core&) = delete;
    /// Waits for every transfer.
    ~Core();

    /// Any thread. The caller owns one reference of what it gets and has to abandon() and release()
    /// it.
    [[nodiscard]] base::Result<Transfer*> start(TransferSpec&& spec);
    /// Whether start() would find a place among `transfers_max`; another thread may take it first.
    [[nodiscard]] bool has_room() const {
        return options_.transfers_max == 0 || running() < options_.transfers_max;
    }
    /// Until it has, or the time is over (false). May return false early.
    [[nodiscard]] bool wait_for_room(base::Nanos timeout);
    /// A small one that a caller waits for, on its thread and without a transfer: its bytes.
    /// Nothing where it takes more than one call of the kernel's, has to wait for others, or
    /// anything is wrong: it is for start() then.
    [[nodiscard]] std::optional<std::uint64_t> read_at_once(os::File& file, Memory into,
                                                            std::uint64_t offset,
                                                            const TransferOptions& options);
    [[nodiscard]] std::optional<std::uint64_t> write_at_once(os::File& file, Memory data,
                                                             std::uint64_t offset,
                                                             const TransferOptions& options);
    /// No more requests of it; it finishes when what is at the device has come back.
    void cancel(Transfer& transfer);
    void set_priority(Transfer& transfer, Priority priority);
    /// Adds 1 to an eventfd, which the caller may close meanwhile, when it has finished (at once
    /// when it has).
    [[nodiscard]] base::Result<void> notify(Transfer& transfer, int eventfd);
    /// How many transfers were started so far.
    [[nodiscard]] std::uint64_t started();
    /// Until the first `count` of them have finished, or the time is over (false). May return
    /// false early. What is started meanwhile does not matter.
    [[nodiscard]] bool wait_for_first(std::uint64_t count, base::Nanos timeout);
    /// From here on start() fails with kClosed.
    void refuse();
    /// The first error of a transfer that was dropped before anybody looked, once.
    [[nodiscard]] std::optional<base::Error> take_unobserved();

    [[nodiscard]] os::FileSystem& file_system() { return *platform_.file_system; }
    [[nodiscard]] const CoreOptions& options() const { return options_; }
    [[nodiscard]] const std::string& backend_name() const { return backend_name_; }
    [[nodiscard]] const std::string& backend_detail() const { return backend_detail_; }
    /// Why backends were not taken, for the engine or for one device.
    [[nodiscard]] std::vector<std::string> refusals() {
        const std::lock_guard lock(domains_mutex_);
        return refusals_;
    }
    /// Transfers that have not finished: none of those that anybody has seen finished is among
    /// them.
    [[nodiscard]] std::uint32_t running() const { return running_.load(); }

    template <typename Visit>
    void for_each_domain(Visit visit) {
        const std::lock_guard lock(domains_mutex_);
        for (const auto& [device, domain] : domains_) {
            visit(*domain);
        }
    }

    /// Or nullptr.
    [[nodiscard]] DevicePath* device_path() { return platform_.device_path.get(); }

    /// Memory that is pinned for devices.
    [[nodiscard]] std::uint64_t device_slot_bytes() { return device_slots_.bytes(); }
    /// The devices whose memory the channels have met.
    [[nodiscard]] std::vector<SlotPool::Use> device_uses() { return device_slots_.uses(); }

    /// In the child of a fork this core is dead: its threads are not there.
    [[nodiscard]] bool dead() const { return dead_.load(std::memory_order_acquire); }

    // fork(): see fork.cpp
    /// Until nothing is at a device; draws nothing more until resume().
    void come_to_rest();
    void resume();
    /// come_to_rest(), and takes the locks that the child needs.
    void before_fork();
    void after_fork_in_parent();
    void after_fork_in_child();

    // Reports of transfers. Nothing here throws: a transfer ends, whatever memory is left.
    /// Every part of a window is quiet; on the thread that found it so. The last window must end in
    /// Transfer::finish().
    void parts_done(Window& window) noexcept;
    /// It is about to finish: its waiters do not know it yet.
    void finishing(Transfer& transfer) noexcept;
    /// It has finished; on the thread that finished it.
    void finished(Transfer& transfer) noexcept;
    /// An error that nobody will ever ask for: its handle was dropped.
    void unobserved(base::Error&& error) noexcept;

private:
    Core(const CoreOptions& options, Platform platform);
    base::Result<void> choose_backend();
    base::Result<Domain*> domain_of(const os::File& file);
    base::Result<std::unique_ptr<Domain>> make_domain(const os::File& file);

    struct Release {
        void operator()(Transfer* transfer) const { transfer->release(); }
    };
    using TransferPtr = std::unique_ptr<Transfer, Release>;

    base::Result<std::shared_ptr<const MoveOrder>> order_of(const TransferSpec& spec,
                                                            std::vector<MemoryPlace>& devices);
    [[nodiscard]] TransferPtr make_transfer(TransferSpec&& spec, std::uint64_t total_bytes);
    [[nodiscard]] static bool is_auto(const TransferSpec& spec);
    base::Result<void> admit(Op op);
    bool add_live(Transfer& transfer) noexcept;
    void rest_and_lock_domains();

    // The life of a window: see windows.cpp. What throws nothing there is noexcept.
    void make_windows(Transfer& transfer);
    void begin(Transfer& transfer, bool caller_waits) noexcept;
    base::Result<void> begin_open(Window& window, bool caller_waits);
    void next_files(Window& window, bool on_caller) noexcept;
    void room_taken(Window& window) noexcept;
    void post_opening(Window& window, Executor& opener) noexcept;
    void open_files(Window& window) noexcept;
    void opened(Window& window, base::Result<void> result) noexcept;
    base::Result<bool> open_some(Window& window, Executor*& next_opener);
    base::Result<bool> open_file(Window& window, std::uint32_t index);
    [[nodiscard]] bool room_was_reserved(const Window& window) const;
    base::Result<void> extend_files(Window& window);
    base::Result<void> preallocate(Window& window, std::uint32_t group, bool reserves);
    void preallocate_by_device(Window& window) noexcept;
    void move_files(Window& window) noexcept;
    enum class AtOnce : std::uint8_t { kNone, kCached, kInMemory, kDirect };
    [[nodiscard]] std::unique_ptr<SmallCopy> small_copy(const Memory& memory,
                                                        const TransferOptions& options) const;
    [[nodiscard]] AtOnce way_at_once(os::File& file, Memory into, std::uint64_t offset,
                                     const TransferOptions& options) const;
    [[nodiscard]] Domain::LentChannel lent_at_once(const os::File& file, bool past_transfers);
    [[nodiscard]] bool any_at_once();
    /// What was read of it last was in the page cache.
    static bool is_warm(const std::shared_ptr<os::File>& file) {
        return file != nullptr && (file->info().in_memory ||
                                   (file->info().asks_cache && file->cache_history().warm()));
    }
    bool run_inline(Window& window);
    bool copy_cached(Window& window);
    bool read_small_of_device(Window& window);
    bool read_small(Window& window, std::uint32_t index);
    static void set_up(Part& part, const Domain& domain, ExtentRange range);
    static void turn_here(Window& window, Part& part) noexcept;
    base::Result<void> find_domains(Window& window);
    base::Result<void> lay_out_and_link(Window& window);
    void settle(Window& window) noexcept;
    void settle_files(Window& window, std::uint32_t group) noexcept;
    void failed(Window& window, base::Error error) noexcept;
    void window_done(Window& window) noexcept;
    void parts_are_through(Window& window) noexcept;
    template <void (Core::*step)(Window&) noexcept>
    void post(Window& window, Executor& executor) noexcept;
    static void poke(Transfer& transfer);

    const CoreOptions options_;
    Platform platform_;
    std::size_t chosen_ = 0;
    std::string backend_name_;
    std::string backend_detail_;

    std::atomic<std::uint32_t> running_{0};
    std::mutex live_mutex_;  ///< of what follows; before the threads, which use it to the last
    Transfer* newest_ = nullptr;
    Transfer* oldest_ = nullptr;
    std::uint64_t started_ = 0;
    std::atomic<bool> refusing_{false};
    std::uint32_t drainers_ = 0;
    std::uint32_t room_waiters_ = 0;
    std::atomic<std::uint32_t> oldest_went_{0};  ///< changes when the oldest does: drainers sleep
    std::atomic<std::uint32_t> room_came_{0};    ///< changes when any does, for who waits for room
    std::optional<base::Error> unobserved_;
    std::atomic<bool> dead_{false};

    SlotPool device_slots_;  ///< before the domains, which have some of it
    std::mutex domains_mutex_;
    std::vector<std::string> refusals_;
    std::map<DeviceId, std::unique_ptr<Domain>> domains_;
    std::atomic<Domain*> last_domain_{nullptr};  ///< most callers stay with one; none ever goes
    Openers openers_;
    base::EventfdCopies eventfds_;
};

}  // namespace penstock::engine
