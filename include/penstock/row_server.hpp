// SPDX-License-Identifier: Apache-2.0
// Serves rows of a FeatureStore to code that requests them one at a time: warps of a CUDA kernel,
// or threads of the host (device_array.hpp). CPU-served: a thread of this process takes the
// requests from a ring in memory that both sides can address, reads the rows and answers. It works
// on any file system, without root and without a kernel module.
//
//     auto store = std::make_shared<penstock::FeatureStore>(
//         penstock::FeatureStore::open(engine, "igb.features"));
//     penstock::RowServer server(store, store->table("paper"));
//     const auto rows = server.array<float>();      // give it to threads
//
// If all ids are known beforehand, FeatureStore::gather() costs less for each row.
#pragma once

#include <penstock/device_array.hpp>
#include <penstock/error.hpp>
#include <penstock/feature_store.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace penstock {

struct RowServerOptions {
    /// Limit on rows that are requested or held, over all requesters: a power of two up to 65,536.
    /// Memory: slots * (bytes of a row + 128).
    std::uint32_t slots = 1024;
    /// The longest sleep between two checks of the ring while there are no requests. A longer sleep
    /// delays the first row by up to that time; a shorter one costs CPU time. 1 us to 1 s.
    std::chrono::microseconds idle_sleep_max{100};
    /// The GPU whose kernels may request rows: the ring is pinned, and mapped for it. -1: only
    /// threads of the host.
    std::int32_t gpu = -1;
};

/// Counts since the server was made.
struct RowServerStats {
    std::uint64_t rows = 0;      ///< requests answered with the row
    std::uint64_t refused = 0;   ///< requests answered with an error, or that the server is stopped
    std::uint64_t given_up = 0;  ///< requests given up by the requester before the row was read
    std::uint64_t batches = 0;   ///< gathers
};

/// A ring and the thread that serves it. Movable. Thread-safe, except for moving and destruction.
///
/// The thread takes all pending requests as one gather: distinct rows are read once, in the order
/// of the file, and rows that the store keeps in memory are not read. Several gathers may run
/// concurrently. If one fails, its rows are read again one by one, so that only the requesters of
/// the bad row get the error.
///
/// All requesters must have ended (threads joined, kernels finished) before the server is
/// destroyed, because it owns the ring. stop() makes them end. A child of fork() has no server:
/// load_async() and wait() return kStopped there at once, and running requests belong to the
/// parent.
class PENSTOCK_API RowServer {
public:
    /// Starts the thread. Throws Error: kInvalidArgument for a table that does not exist, rows of
    /// no bytes, or options out of range; kOutOfMemory; for a GPU kUnsupported, with the reason, on
    /// a machine without one, and errors of pinning; kSystem if no thread can be started.
    explicit RowServer(std::shared_ptr<const FeatureStore> store, std::uint32_t table = 0,
                       const RowServerOptions& options = {});
    RowServer(RowServer&& other) noexcept;
    RowServer& operator=(RowServer&& other) noexcept;
    RowServer(const RowServer&) = delete;
    RowServer& operator=(const RowServer&) = delete;
    ~RowServer();

    /// The rows as elements of type T, for threads of the host. Throws kInvalidArgument if a row is
    /// not a whole number of them.
    template <typename T>
    [[nodiscard]] device::Array<T> array() const {
        return array_at<T>(ring_view(sizeof(T), false));
    }
    /// The same for kernels on the GPU of the options, with its addresses. Throws kInvalidArgument
    /// if the options name no GPU.
    template <typename T>
    [[nodiscard]] device::Array<T> gpu_array() const {
        return array_at<T>(ring_view(sizeof(T), true));
    }
    /// Ends the thread. Unanswered and later requests get kStopped. Cancels running reads and waits
    /// for them. Does nothing the second time.
    void stop() noexcept;
    [[nodiscard]] RowServerStats stats() const;

private:
    struct Impl;
    /// The addresses of the ring for one of the sides.
    struct View {
        device::Ring<> ring;
        const std::byte* memory = nullptr;
        std::uint64_t rows = 0;
        std::uint64_t row_elements = 0;
    };
    template <typename T>
    [[nodiscard]] static device::Array<T> array_at(const View& view) {
        static_assert(std::is_trivially_copyable_v<T>, "rows are plain bytes");
        return {view.ring, reinterpret_cast<const T*>(view.memory), view.rows, view.row_elements};
    }
    [[nodiscard]] View ring_view(std::size_t element_bytes, bool gpu) const;
    [[nodiscard]] Impl& there() const;

    std::shared_ptr<Impl> impl_;
};

}  // namespace penstock
