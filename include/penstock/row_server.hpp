// SPDX-License-Identifier: Apache-2.0
// Serves rows of a FeatureStore to code that asks for them one at a time: warps of a CUDA kernel,
// or threads of the host (device_array.hpp). CPU-served: a thread of this process takes the
// requests from a ring in memory that both sides can address, reads the rows and answers. Any file
// system, no root, no kernel module.
//
//     auto store = std::make_shared<penstock::FeatureStore>(
//         penstock::FeatureStore::open(engine, "igb.features"));
//     penstock::RowServer server(store, store->table("paper"));
//     const auto rows = server.array<float>();      // give it to threads
//
// Where all ids are known beforehand, FeatureStore::gather() costs less a row.
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
    /// Rows that are asked for or held at once, over all that ask: a power of two up to 65,536.
    /// Memory: slots * (bytes of a row + 128).
    std::uint32_t slots = 1024;
    /// The longest sleep between two looks at the ring while nobody asks: the most that a first row
    /// waits longer, and the CPU time of an idle server. 1 us to 1 s.
    std::chrono::microseconds idle_sleep_max{100};
    /// The GPU whose kernels may ask: the ring is pinned, and mapped for it. -1: threads of the
    /// host alone.
    std::int32_t gpu = -1;
};

/// Counts since the server was made.
struct RowServerStats {
    std::uint64_t rows = 0;      ///< answered with the row
    std::uint64_t refused = 0;   ///< answered with an error, or that the server is stopped
    std::uint64_t given_up = 0;  ///< given up by those who asked, and no row was read
    std::uint64_t batches = 0;   ///< gathers
};

/// A ring and the thread that serves it. Movable. Thread-safe, except for moving and destruction.
///
/// The thread takes the requests that are there as one gather: distinct rows are read once, in the
/// order of the file, and rows that the store keeps in memory are not read. Several gathers are
/// under way at once. Where one fails, its rows are read again one by one, so that an error reaches
/// those who asked for that row alone.
///
/// All that asks must be over (threads joined, kernels finished) before the server is destroyed:
/// the ring is its memory. stop() makes them end. A child of fork() has no server: load_async() and
/// wait() end there with kStopped at once, and requests under way are the parent's.
class PENSTOCK_API RowServer {
public:
    /// Starts the thread. Throws Error: kInvalidArgument for a table that is not there, rows of no
    /// bytes, or options out of range; kOutOfMemory; for a GPU kUnsupported, with the
    /// reason, on a machine without one, and errors of pinning; kSystem where no thread can be
    /// started.
    explicit RowServer(std::shared_ptr<const FeatureStore> store, std::uint32_t table = 0,
                       const RowServerOptions& options = {});
    RowServer(RowServer&& other) noexcept;
    RowServer& operator=(RowServer&& other) noexcept;
    RowServer(const RowServer&) = delete;
    RowServer& operator=(const RowServer&) = delete;
    ~RowServer();

    /// The rows as elements of type T, for threads of the host. Throws kInvalidArgument where a row
    /// is no whole number of them.
    template <typename T>
    [[nodiscard]] device::Array<T> array() const {
        return array_at<T>(ring_view(sizeof(T), false));
    }
    /// The same for kernels on the GPU of the options: its addresses. Throws kInvalidArgument where
    /// the options name none.
    template <typename T>
    [[nodiscard]] device::Array<T> gpu_array() const {
        return array_at<T>(ring_view(sizeof(T), true));
    }
    /// Ends the thread: all that is asked and not answered is told kStopped, as is what is asked
    /// later. Waits for reads under way, which it cancels. Nothing happens the second time.
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
