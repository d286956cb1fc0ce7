// SPDX-License-Identifier: Apache-2.0
// Rows of a table on storage, for code that only finds out while it runs which rows it needs: warps
// of a CUDA kernel, or threads of the host. It requests a row, does something else, and waits with
// a time limit. A CPU thread reads the rows and answers: a RowServer (row_server.hpp). This file
// is CUDA C++ and C++20, and needs no library.
//
//     __global__ void sums(penstock::device::Array<float> rows, const uint64_t* ids, float* out) {
//         auto loading = rows.load_async(ids[blockIdx.x], second);  // all lanes of the warp
//         ...                                                       // something else
//         if (rows.wait(loading, second) == penstock::device::RowStatus::kReady) {
//             const float* row = rows.row(loading);                 // until release()
//             ...
//             rows.release(loading);
//         }
//     }
//
// The protocol. A ring of slots is in memory that both sides can address. Each slot has two words.
// Only one side writes each word, because the atomics of a GPU on memory of the host need not be
// atomic for the CPU:
//
//     asker   4 * lap: free; 4 * lap + 1: taken; 4 * lap + 2: asked; 4 * (lap + 1): given back
//     server  lap: not answered; lap + 1: answered
//
// A slot may be taken for a lap if both words allow it; askers decide by an atomic exchange which
// of them takes it. Any free slot can be used, so a slot that is held for long blocks no asker. An
// asker may give a slot back before it was answered. The slot is then not taken again until the
// server has answered too, so that no read goes to memory of another asker. Each side releases what
// it wrote and acquires what the other side wrote (RingOrders), at system scope.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#include <cuda/atomic>
#define PENSTOCK_DEVICE __host__ __device__
#else
#include <atomic>
#define PENSTOCK_DEVICE
#endif
#if !defined(__CUDA_ARCH__)
#include <chrono>
#include <thread>
#endif

namespace penstock::device {

/// The outcome of a requested row.
enum class RowStatus : std::uint32_t {
    kPending,    ///< requested, not answered yet
    kReady,      ///< there, until release()
    kNoSuchRow,  ///< the table has no such row
    kReadError,  ///< reading failed, also in a second try for this row alone
    kClosed,     ///< the FeatureStore is closed
    kStopped,    ///< the server was stopped, or is in the parent of this fork
    kTimedOut,   ///< the time limit was over: no answer, or no free slot
};

/// The value of a time limit that means no limit.
inline constexpr std::uint64_t kNoLimit = UINT64_MAX;

enum class Order : std::uint32_t { kRelaxed, kAcquire, kRelease };

/// The memory orders of the protocol. Each is needed: tests/features/row_ring_test.cpp weakens one
/// after the other.
struct RingOrders {
    static constexpr Order kAsk = Order::kRelease;       ///< asker: the row's number is there
    static constexpr Order kAsked = Order::kAcquire;     ///< server: it is, and the slot is free
    static constexpr Order kAnswer = Order::kRelease;    ///< server: status and row are there
    static constexpr Order kAnswered = Order::kAcquire;  ///< asker: they are
    static constexpr Order kGiveBack = Order::kRelease;  ///< asker: it reads the row no more
    static constexpr Order kLeft = Order::kAcquire;      ///< next asker: that one has left
    static constexpr Order kServed = Order::kAcquire;    ///< next asker: the server has, too
};

/// The words of a ring in memory that a CPU and a GPU share.
struct SystemWords {
    using Word = std::uint64_t;
    template <typename T>
    using Plain = T;

#if defined(__CUDACC__)
    using Atomic = cuda::atomic_ref<Word, cuda::thread_scope_system>;
    using Orders = cuda::std::memory_order;
    static constexpr Orders kRelaxed = cuda::std::memory_order_relaxed;
    static constexpr Orders kAcquire = cuda::std::memory_order_acquire;
    static constexpr Orders kRelease = cuda::std::memory_order_release;
#else
    using Atomic = std::atomic_ref<Word>;
    using Orders = std::memory_order;
    static constexpr Orders kRelaxed = std::memory_order_relaxed;
    static constexpr Orders kAcquire = std::memory_order_acquire;
    static constexpr Orders kRelease = std::memory_order_release;
#endif

    template <Order order>
    PENSTOCK_DEVICE static std::uint64_t load(Word& word) {
        return Atomic(word).load(order == Order::kAcquire ? kAcquire : kRelaxed);
    }
    template <Order order>
    PENSTOCK_DEVICE static void store(Word& word, std::uint64_t value) {
        Atomic(word).store(value, order == Order::kRelease ? kRelease : kRelaxed);
    }
    /// A relaxed exchange. Only askers use it, on their own words.
    PENSTOCK_DEVICE static bool exchange(Word& word, std::uint64_t from, std::uint64_t to) {
        return Atomic(word).compare_exchange_strong(from, to, kRelaxed, kRelaxed);
    }
};

/// Each side writes to its own cache line.
template <typename Words>
struct RingSlot {
    alignas(64) typename Words::Word asker{};
    typename Words::template Plain<std::uint64_t> row{};  ///< that is asked for
    alignas(64) typename Words::Word server{};
    typename Words::template Plain<std::uint32_t> status{};  ///< a RowStatus
};

template <typename Words>
struct RingHead {
    alignas(64) typename Words::Word hint{};     ///< where a free slot may be; only for askers
    alignas(64) typename Words::Word serving{};  ///< 1 while there is a server, then 0
};

/// The protocol over words of any kind. Only tests use other `Orders`.
template <typename Words = SystemWords, typename Orders = RingOrders>
struct Ring {
    RingHead<Words>* head = nullptr;
    RingSlot<Words>* slots = nullptr;
    std::uint32_t slot_bits = 0;  ///< there are 2^slot_bits slots

    /// The number of slots that try_ask() checks.
    static constexpr std::uint64_t kLooks = 16;

    /// The server's view of a slot.
    enum class Seen : std::uint32_t { kNothing, kAsked, kGivenUp };

    [[nodiscard]] PENSTOCK_DEVICE std::uint64_t size() const {
        return std::uint64_t{1} << slot_bits;
    }
    /// The slot of a ticket, which is lap * size() + number.
    [[nodiscard]] PENSTOCK_DEVICE std::uint64_t number(std::uint64_t ticket) const {
        return ticket & (size() - 1);
    }
    [[nodiscard]] PENSTOCK_DEVICE std::uint64_t lap(std::uint64_t ticket) const {
        return ticket >> slot_bits;
    }
    [[nodiscard]] PENSTOCK_DEVICE RingSlot<Words>& slot(std::uint64_t ticket) const {
        return slots[number(ticket)];
    }

    // Askers.

    /// False if none of the next slots is free; the next call checks other slots.
    PENSTOCK_DEVICE bool try_ask(std::uint64_t row, std::uint64_t& ticket) const {
        const std::uint64_t first = Words::template load<Order::kRelaxed>(head->hint);
        for (std::uint64_t i = 0; i < kLooks && i < size(); ++i) {
            RingSlot<Words>& its = slot(first + i);
            const std::uint64_t lap = Words::template load<Orders::kServed>(its.server);
            if (Words::template load<Orders::kLeft>(its.asker) != 4 * lap ||
                !Words::exchange(its.asker, 4 * lap, 4 * lap + 1)) {
                continue;
            }
            Words::template store<Order::kRelaxed>(head->hint, first + i + 1);
            its.row = row;
            Words::template store<Orders::kAsk>(its.asker, 4 * lap + 2);
            ticket = lap << slot_bits | number(first + i);
            return true;
        }
        Words::template store<Order::kRelaxed>(head->hint, first + kLooks);
        return false;
    }
    /// kPending, or the answer of the server; then the row is there until give_back().
    [[nodiscard]] PENSTOCK_DEVICE RowStatus answered(std::uint64_t ticket) const {
        RingSlot<Words>& its = slot(ticket);
        if (Words::template load<Orders::kAnswered>(its.server) != lap(ticket) + 1) {
            return RowStatus::kPending;
        }
        return static_cast<RowStatus>(static_cast<std::uint32_t>(its.status));
    }
    /// The asker does not use the slot any more. May be called before it was answered.
    PENSTOCK_DEVICE void give_back(std::uint64_t ticket) const {
        Words::template store<Orders::kGiveBack>(slot(ticket).asker, 4 * (lap(ticket) + 1));
    }
    [[nodiscard]] PENSTOCK_DEVICE bool serving() const {
        return Words::template load<Order::kRelaxed>(head->serving) == 1;
    }

    // The server, one thread.

    /// The state of a slot, by its number. kAsked lasts until the slot is answered, or given up.
    PENSTOCK_DEVICE Seen look(std::uint64_t slot_number, std::uint64_t& row,
                              std::uint64_t& ticket) const {
        RingSlot<Words>& its = slots[slot_number];
        const std::uint64_t its_lap = Words::template load<Order::kRelaxed>(its.server);
        const std::uint64_t seen = Words::template load<Orders::kAsked>(its.asker);
        ticket = its_lap << slot_bits | slot_number;
        if (seen == 4 * its_lap + 2) {
            row = its.row;
            return Seen::kAsked;
        }
        return seen == 4 * (its_lap + 1) ? Seen::kGivenUp : Seen::kNothing;
    }
    /// Answers a ticket: once for each that was not kNothing, in any order.
    PENSTOCK_DEVICE void answer(std::uint64_t ticket, RowStatus status) const {
        RingSlot<Words>& its = slot(ticket);
        its.status = static_cast<std::uint32_t>(status);
        Words::template store<Orders::kAnswer>(its.server, lap(ticket) + 1);
    }
    PENSTOCK_DEVICE void set_serving(bool serves) const {
        Words::template store<Order::kRelaxed>(head->serving, serves ? 1 : 0);
    }
};

/// The lanes that make a request together: on a GPU the 32 lanes of a warp, which all make each
/// call at the same time; on the host one thread.
struct Lanes {
    PENSTOCK_DEVICE static bool lead() {
#if defined(__CUDA_ARCH__)
        unsigned int lane = 0;
        asm("mov.u32 %0, %%laneid;" : "=r"(lane));
        return lane == 0;
#else
        return true;
#endif
    }
    /// The value of the leading lane, with everything that this lane has acquired.
    PENSTOCK_DEVICE static std::uint64_t from_lead(std::uint64_t value) {
#if defined(__CUDA_ARCH__)
        const auto given = static_cast<unsigned long long>(value);
        value = static_cast<std::uint64_t>(__shfl_sync(0xffffffffU, given, 0));
        __syncwarp();
#endif
        return value;
    }
    PENSTOCK_DEVICE static RowStatus from_lead(RowStatus status) {
        return static_cast<RowStatus>(from_lead(static_cast<std::uint64_t>(status)));
    }
    PENSTOCK_DEVICE static void together() {
#if defined(__CUDA_ARCH__)
        __syncwarp();
#endif
    }
};

/// A wait that polls with growing pauses until its time is over.
class Polling {
public:
    PENSTOCK_DEVICE explicit Polling(std::uint64_t limit_ns) : limit_(limit_ns), start_(now()) {}
    /// The number of pauses so far.
    [[nodiscard]] PENSTOCK_DEVICE std::uint32_t pauses() const { return pauses_; }
    /// False: the time is over.
    PENSTOCK_DEVICE bool pause() {
        if (limit_ != kNoLimit && now() - start_ >= limit_) {
            return false;
        }
        ++pauses_;
#if defined(__CUDA_ARCH__)
        __nanosleep(pauses_ < 64 ? pauses_ * 64 : 4096);
#else
        if (pauses_ < 4) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(pauses_ < 32 ? 20 : 200));
        }
#endif
        return true;
    }

private:
    PENSTOCK_DEVICE static std::uint64_t now() {
#if defined(__CUDA_ARCH__)
        unsigned long long ns = 0;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
        return ns;
#else
        return static_cast<std::uint64_t>(
            std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
#endif
    }

    std::uint64_t limit_;
    std::uint64_t start_;
    std::uint32_t pauses_ = 0;
};

/// A requested row. A plain value; its slot is in use from load_async() to release(), or to a
/// wait() that does not return kReady.
struct Loading {
    std::uint64_t ticket = 0;
    RowStatus status = RowStatus::kStopped;
    bool holds_slot = false;
};

/// The rows of a table, CPU-served. A plain value that is passed to a kernel or a thread; it is
/// valid as long as its RowServer exists. Thread-safe, but two threads must not use one Loading. On
/// a GPU all 32 lanes of a warp make each call together, with the same arguments; each gets the
/// same result.
///
/// The ring needs as many slots as rows that are held or requested at the same time, over all
/// requesters. With fewer, requesters that hold rows and wait for another row may wait for one
/// another until their time is over.
template <typename T>
class Array {
public:
    Array() = default;
    /// Made by RowServer::array(). `memory`: the rows of the slots.
    PENSTOCK_DEVICE Array(const Ring<>& ring, const T* memory, std::uint64_t rows,
                          std::uint64_t row_elements)
        : ring_(ring), memory_(memory), rows_(rows), row_elements_(row_elements) {}

    [[nodiscard]] PENSTOCK_DEVICE std::uint64_t rows() const { return rows_; }
    [[nodiscard]] PENSTOCK_DEVICE std::uint64_t row_elements() const { return row_elements_; }

    [[nodiscard]] PENSTOCK_DEVICE const Ring<>& ring() const { return ring_; }

    /// Requests a row and does not wait for it. Waits for a free slot, at most `limit_ns`
    /// nanoseconds (0: tries once). If the row cannot be requested, wait() reports it.
    [[nodiscard]] PENSTOCK_DEVICE Loading load_async(std::uint64_t row,
                                                     std::uint64_t limit_ns) const {
        Loading loading;
        if (row >= rows_) {
            loading.status = RowStatus::kNoSuchRow;
            return loading;
        }
        RowStatus status = RowStatus::kPending;
        if (Lanes::lead()) {
            Polling polling(limit_ns);
            while (!ring_.try_ask(row, loading.ticket)) {
                if (!ring_.serving()) {
                    status = RowStatus::kStopped;
                    break;
                }
                if (!polling.pause()) {
                    status = RowStatus::kTimedOut;
                    break;
                }
            }
        }
        loading.status = Lanes::from_lead(status);
        loading.ticket = Lanes::from_lead(loading.ticket);
        loading.holds_slot = loading.status == RowStatus::kPending;
        return loading;
    }
    /// Waits for the row, at most `limit_ns` nanoseconds (0: checks once). kReady: row() is valid
    /// until release(). Any other result ends this loading: its slot is given back.
    PENSTOCK_DEVICE RowStatus wait(Loading& loading, std::uint64_t limit_ns) const {
        if (loading.status != RowStatus::kPending) {
            return loading.status;
        }
        RowStatus status = RowStatus::kPending;
        if (Lanes::lead()) {
            Polling polling(limit_ns);
            while ((status = ring_.answered(loading.ticket)) == RowStatus::kPending) {
                // Reads the answer again after a stop, so that an earlier one is not missed.
                if (polling.pauses() % 8 == 0 && !ring_.serving()) {
                    status = ring_.answered(loading.ticket);
                    status = status == RowStatus::kPending ? RowStatus::kStopped : status;
                    break;
                }
                if (!polling.pause()) {
                    status = RowStatus::kTimedOut;
                    break;
                }
            }
        }
        loading.status = Lanes::from_lead(status);
        if (loading.status != RowStatus::kReady) {
            leave(loading);
        }
        return loading.status;
    }
    /// True if wait() would not wait.
    [[nodiscard]] PENSTOCK_DEVICE bool done(const Loading& loading) const {
        std::uint64_t over = 1;
        if (loading.status == RowStatus::kPending && Lanes::lead()) {
            over = ring_.answered(loading.ticket) == RowStatus::kPending && ring_.serving() ? 0 : 1;
        }
        return Lanes::from_lead(over) != 0;
    }
    /// The row: row_elements() elements. Valid after wait() has returned kReady, until release().
    [[nodiscard]] PENSTOCK_DEVICE const T* row(const Loading& loading) const {
        return memory_ + ring_.number(loading.ticket) * row_elements_;
    }
    /// Releases the row; gives up a row that is not there yet. May be called again.
    PENSTOCK_DEVICE void release(Loading& loading) const {
        leave(loading);
        loading.status = RowStatus::kStopped;
    }

private:
    PENSTOCK_DEVICE void leave(Loading& loading) const {
        Lanes::together();  // waits until the other lanes have read the row
        if (loading.holds_slot && Lanes::lead()) {
            ring_.give_back(loading.ticket);
        }
        loading.holds_slot = false;
    }

    Ring<> ring_;
    const T* memory_ = nullptr;
    std::uint64_t rows_ = 0;
    std::uint64_t row_elements_ = 0;
};

}  // namespace penstock::device
