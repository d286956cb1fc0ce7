// SPDX-License-Identifier: Apache-2.0
// The server's thread looks at all slots. Those that are asked are one gather, a request for slots
// that adjoin: their rows go straight to the memory of the slots. Gathers end in any order; each
// answers its slots.
#include "base/of_process.hpp"
#include "base/raise.hpp"
#include "features/serve/ring_memory.hpp"

#include <penstock/features.hpp>

#include <fmt/format.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace penstock {

namespace {

using device::Ring;
using device::RowStatus;
using Seen = Ring<>::Seen;
using RequestSlot = device::RingSlot<device::SystemWords>;
using Head = device::RingHead<device::SystemWords>;

constexpr std::size_t kGathersMax = 8;
constexpr std::uint32_t kSlotsMax = 1U << 16;
/// Looks at the ring before the first sleep.
constexpr std::uint32_t kYields = 50;

[[noreturn]] void refuse(const std::string& message) {
    base::raise(base::error(ErrorCode::kInvalidArgument, "serve_rows", message));
}

RowStatus status_of(const Error& error) {
    switch (error.reason()) {
        case ErrorCode::kClosed:
            return RowStatus::kClosed;
        case ErrorCode::kCancelled:
            return RowStatus::kStopped;
        default:
            return RowStatus::kReadError;
    }
}

}  // namespace

struct RowServer::Impl {
    struct Batch {
        std::vector<std::uint64_t> ids;
        std::vector<std::uint64_t> tickets;
        std::vector<FeatureRequest> requests;
        FeatureGather gather;
    };

    std::shared_ptr<const FeatureStore> store;
    std::uint32_t table;
    std::uint64_t row_bytes;
    std::uint64_t rows;
    RowServerOptions options;
    std::uint64_t rows_at;  ///< of the memory: where the rows of the slots begin
    features::RingMemory memory;
    Ring<> ring;
    const pid_t process = ::getpid();

    std::vector<bool> reading;  ///< of each slot: it was taken and is not answered
    std::array<Batch, kGathersMax> batches;
    std::vector<Batch*> under_way;  ///< the oldest first
    std::vector<Batch*> idle;

    std::atomic<bool> stopping{false};
    std::atomic<std::uint64_t> answered{0};
    std::atomic<std::uint64_t> refused{0};
    std::atomic<std::uint64_t> given_up{0};
    std::atomic<std::uint64_t> gathers{0};
    std::mutex joining;
    std::thread thread;

    Impl(std::shared_ptr<const FeatureStore> its, std::uint32_t number,
         const FeatureTable& described, const RowServerOptions& wanted)
        : store(std::move(its)),
          table(number),
          row_bytes(described.row_bytes),
          rows(described.rows),
          options(wanted),
          rows_at((sizeof(Head) + wanted.slots * sizeof(RequestSlot) + 4095) / 4096 * 4096),
          memory(rows_at + wanted.slots * described.row_bytes, wanted.gpu),
          ring(ring_at(memory.data())) {
        for (Batch& batch : batches) {
            batch.ids.reserve(wanted.slots);
            batch.tickets.reserve(wanted.slots);
            batch.requests.reserve(wanted.slots);
            idle.push_back(&batch);
        }
        under_way.reserve(kGathersMax);
        reading.resize(wanted.slots);
        ring.set_serving(true);
    }

    [[nodiscard]] Ring<> ring_at(std::byte* base) const {
        return {reinterpret_cast<Head*>(base), reinterpret_cast<RequestSlot*>(base + sizeof(Head)),
                static_cast<std::uint32_t>(std::countr_zero(options.slots))};
    }
    [[nodiscard]] std::byte* row_memory(std::uint64_t ticket) const {
        return memory.data() + rows_at + ring.number(ticket) * row_bytes;
    }

    void answer(std::uint64_t ticket, RowStatus status) {
        counted_as(ticket, status).fetch_add(1, std::memory_order_relaxed);
        reading[ring.number(ticket)] = false;
        ring.answer(ticket, status);
    }

    std::atomic<std::uint64_t>& counted_as(std::uint64_t ticket, RowStatus status) {
        if (status == RowStatus::kReady) {
            return answered;
        }
        // Nobody hears of an error on a request that was given up.
        std::uint64_t row = 0;
        return ring.look(ring.number(ticket), row, ticket) == Seen::kGivenUp ? given_up : refused;
    }

    /// True: there was something.
    bool take() {
        if (idle.empty()) {
            return false;
        }
        bool taken = false;
        Batch& batch = *idle.back();
        batch.ids.clear();
        batch.tickets.clear();
        for (std::uint64_t number = 0; number < ring.size(); ++number) {
            std::uint64_t row = 0;
            std::uint64_t ticket = 0;
            const Seen seen = reading[number] ? Seen::kNothing : ring.look(number, row, ticket);
            taken = taken || seen != Seen::kNothing;
            if (seen == Seen::kGivenUp) {
                answer(ticket, RowStatus::kStopped);
            } else if (seen == Seen::kAsked && row >= rows) {
                answer(ticket, RowStatus::kNoSuchRow);
            } else if (seen == Seen::kAsked) {
                reading[number] = true;
                batch.ids.push_back(row);
                batch.tickets.push_back(ticket);
            }
        }
        if (!batch.ids.empty()) {
            idle.pop_back();
            start(batch);
        }
        return taken;
    }

    void start(Batch& batch) {
        gathers.fetch_add(1, std::memory_order_relaxed);
        batch.requests.clear();
        for (std::size_t begin = 0; begin < batch.ids.size();) {
            const std::uint64_t slot = ring.number(batch.tickets[begin]);
            std::size_t end = begin + 1;
            while (end < batch.ids.size() &&
                   ring.number(batch.tickets[end]) == slot + (end - begin)) {
                ++end;
            }
            batch.requests.push_back(
                {table,
                 std::span(batch.ids).subspan(begin, end - begin),
                 {row_memory(batch.tickets[begin]), (end - begin) * row_bytes}});
            begin = end;
        }
        try {
            batch.gather = store->gather_async(batch.requests);
            under_way.push_back(&batch);
        } catch (const Error& error) {
            end(batch, status_of(error));
        } catch (...) {  // no memory for it
            end(batch, RowStatus::kReadError);
        }
    }

    void end(Batch& batch, RowStatus status) {
        for (std::size_t i = 0; i < batch.ids.size(); ++i) {
            answer(batch.tickets[i], status == RowStatus::kReadError && batch.ids.size() > 1
                                         ? one_row(batch.tickets[i], batch.ids[i])
                                         : status);
        }
        idle.push_back(&batch);
    }
    RowStatus one_row(std::uint64_t ticket, std::uint64_t row) {
        if (stopping) {
            return RowStatus::kStopped;
        }
        try {
            store->gather(table, std::span(&row, 1), {row_memory(ticket), row_bytes});
            return RowStatus::kReady;
        } catch (const Error& error) {
            return status_of(error);
        } catch (...) {
            return RowStatus::kReadError;
        }
    }

    /// True: one at least was over. Waits for the oldest, at most so long.
    bool finish(std::chrono::nanoseconds wait) {
        bool any = false;
        for (std::size_t i = 0; i < under_way.size();) {
            Batch& batch = *under_way[i];
            const std::optional<RowStatus> status =
                outcome(batch.gather, i == 0 ? wait : wait.zero());
            if (!status) {
                ++i;
                continue;
            }
            under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(i));
            end(batch, *status);
            any = true;
        }
        return any;
    }
    static std::optional<RowStatus> outcome(FeatureGather& gather, std::chrono::nanoseconds wait) {
        if (wait == wait.zero() && !gather.done()) {
            return std::nullopt;
        }
        try {
            return gather.wait_for(wait) ? std::optional(RowStatus::kReady) : std::nullopt;
        } catch (const Error& error) {
            return status_of(error);
        } catch (...) {
            return RowStatus::kReadError;
        }
    }

    void serve() {
        using std::chrono::nanoseconds;
        constexpr nanoseconds kLook = std::chrono::microseconds(20);
        std::uint32_t looks = 0;
        nanoseconds sleep = kLook;
        while (!stopping.load(std::memory_order_relaxed)) {
            const bool taken = take();
            if (finish(nanoseconds::zero()) || taken) {
                looks = 0;
                sleep = kLook;
            } else if (!under_way.empty()) {
                finish(kLook);
            } else if (++looks < kYields) {
                std::this_thread::yield();
            } else {
                std::this_thread::sleep_for(std::min<nanoseconds>(sleep, options.idle_sleep_max));
                sleep = std::min<nanoseconds>(sleep * 2, options.idle_sleep_max);
            }
        }
        ring.set_serving(false);
        for (Batch* batch : under_way) {
            batch->gather.cancel();
        }
        while (!under_way.empty()) {
            finish(std::chrono::milliseconds(100));
        }
        for (std::uint64_t number = 0; number < ring.size(); ++number) {
            std::uint64_t row = 0;
            std::uint64_t ticket = 0;
            if (ring.look(number, row, ticket) != Seen::kNothing) {
                answer(ticket, RowStatus::kStopped);
            }
        }
    }

    void stop() noexcept {
        if (process != ::getpid()) {
            return;
        }
        stopping = true;
        const std::lock_guard lock(joining);
        if (thread.joinable()) {
            thread.join();
        }
    }
};

RowServer::RowServer(std::shared_ptr<const FeatureStore> store, std::uint32_t table,
                     const RowServerOptions& options) {
    using std::chrono::microseconds;
    if (store == nullptr) {
        refuse("there is no FeatureStore; give one that is open");
    }
    const std::vector<FeatureTable>& tables = store->tables();
    if (table >= tables.size()) {
        refuse(fmt::format("there is no table {}; the file has {}", table, tables.size()));
    }
    if (tables[table].row_bytes == 0) {
        refuse(fmt::format("rows of table {} have no bytes; serve another table", table));
    }
    if (!std::has_single_bit(options.slots) || options.slots > kSlotsMax) {
        refuse(fmt::format("slots is {}; expected a power of two from 1 to {}", options.slots,
                           kSlotsMax));
    }
    if (options.idle_sleep_max < microseconds(1) ||
        options.idle_sleep_max > std::chrono::seconds(1)) {
        refuse(fmt::format("idle_sleep_max is {} us; expected 1 to 1,000,000",
                           options.idle_sleep_max.count()));
    }
    impl_ = std::make_shared<Impl>(std::move(store), table, tables[table], options);
    try {
        impl_->thread = std::thread([&impl = *impl_] { impl.serve(); });
    } catch (const std::system_error& error) {
        base::raise(base::refused_thread(error, "serve_rows"));
    }
}

RowServer::RowServer(RowServer&& other) noexcept = default;

RowServer& RowServer::operator=(RowServer&& other) noexcept {
    if (this != &other) {
        const RowServer old(std::move(*this));
        impl_ = std::move(other.impl_);
    }
    return *this;
}

// A child of fork has no such thread, and nothing of the parent's gathers is its own.
RowServer::~RowServer() {
    if (impl_ == nullptr) {
        return;
    }
    if (impl_->process != ::getpid()) {
        base::leave_to_parent(std::move(impl_));
        return;
    }
    impl_->stop();
}

RowServer::Impl& RowServer::there() const {
    if (impl_ == nullptr) {
        refuse("this RowServer was moved from; use the one it went to");
    }
    return *impl_;
}

void RowServer::stop() noexcept {
    if (impl_ != nullptr) {
        impl_->stop();
    }
}

RowServer::View RowServer::ring_view(std::size_t element_bytes, bool gpu) const {
    const Impl& impl = there();
    if (impl.row_bytes % element_bytes != 0) {
        refuse(
            fmt::format("a row has {} bytes, which is no whole number of elements of {}; ask for "
                        "a type whose size divides it",
                        impl.row_bytes, element_bytes));
    }
    if (gpu && impl.memory.gpu_data() == nullptr) {
        refuse("the ring is not mapped for a GPU; set RowServerOptions::gpu");
    }
    std::byte* const base = gpu ? impl.memory.gpu_data() : impl.memory.data();
    return {impl.ring_at(base), base + impl.rows_at, impl.rows, impl.row_bytes / element_bytes};
}

RowServerStats RowServer::stats() const {
    const Impl& impl = there();
    return {.rows = impl.answered.load(),
            .refused = impl.refused.load(),
            .given_up = impl.given_up.load(),
            .batches = impl.gathers.load()};
}

}  // namespace penstock
