// SPDX-License-Identifier: Apache-2.0
// The engine: reads and writes of memory at offsets of files, at the speed of the device.
//
//     penstock::Engine engine;
//     penstock::File file("weights.bin");
//     engine.read(file, bytes, offset);                    // blocks
//     auto transfer = engine.read_async(file, bytes, 0);   // does not
//     transfer.wait();
#pragma once

#include <penstock/error.hpp>
#include <penstock/file.hpp>
#include <penstock/types.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

namespace engine {
class Core;
class Transfer;
}  // namespace engine

/// All of an engine's settings. An environment variable PENSTOCK_<NAME> (for example
/// PENSTOCK_BACKEND=posix, PENSTOCK_BLOCK_BYTES=512KiB) overrides the default of the option it is
/// named after, and nothing that a program sets itself.
struct EngineOptions {
    /// kAuto: io_uring, else libaio, else POSIX threads; `describe()` says which and why. Another
    /// value forces that backend, and is an error if it is not available; small reads are then not
    /// done inline.
    BackendKind backend = BackendKind::kAuto;
    std::uint32_t block_bytes = 1 << 20;  ///< limit per request; a multiple of 64 KiB
    std::uint32_t queue_depth = 128;      ///< requests at the device, per channel
    std::uint64_t in_flight_bytes = std::uint64_t{16} << 20;  ///< at the device, per channel
    std::uint32_t channels = 1;  ///< per device; more only if one thread cannot keep it busy
    /// Threads per device that copy what the device cannot bring to the caller's memory itself, and
    /// what is in the page cache. They are started when there is work for them. 0: as many as this
    /// process has processors, at least 2 and at most 8.
    std::uint32_t copy_threads = 0;
    /// Blocking transfers up to so many bytes run on the caller's thread if no other transfer is
    /// ahead of them.
    std::uint64_t inline_bytes_max = 64 << 10;
    /// Limit on transfers in flight; beyond it kWouldBlock, or see Engine::try_submit(). 0: no
    /// limit.
    std::uint32_t transfers_max = 0;
    /// Limit of the background class at the device, so that urgent requests wait less.
    std::uint64_t background_bytes = 1280 << 10;
    /// Reads: the cost of a request, as the bytes that the device could move instead. Small extents
    /// and rows that are no further apart are read by one request, whatever their order in the
    /// list, and the bytes between them are dropped. The default is 2 us at 4 GB/s. 0: only
    /// adjoining extents are read together. Writes never touch other bytes than their extents.
    std::uint64_t gap_bytes = 8 << 10;
    /// The policy where both the transfer and the file have CachePolicy::kAuto, also for `load`,
    /// StateFile and checkpoints. See TransferOptions::cache.
    CachePolicy cache = CachePolicy::kAuto;
    /// The path of bytes between files and memory of GPUs. kAuto: directly by cuFile if that is
    /// possible (cufile_conditions()) and a read is not in the page cache, else through pinned
    /// memory of the host. kCuFile: a transfer to or from a file that cuFile cannot serve is an
    /// error (kUnsupported, with the reason). In both cases these go through the host: requests
    /// shorter than 64 KiB, requests not aligned to 4 KiB in file and memory, and requests that
    /// cuFile refuses.
    GpuPath gpu_path = GpuPath::kAuto;
    /// What kAuto takes for a disk and a GPU where cuFile is possible: one row a pair, from the
    /// file of `penstock tune --device`. A pair without a row goes by cuFile.
    std::vector<TunedGpuPath> tuned_gpu_paths = {};
};

/// A transfer with all options; the functions of Engine are short forms of it.
struct TransferRequest {
    bool write = false;
    std::vector<File> files;  ///< the extents refer to these by number; or use `paths`
    /// Opened for this transfer, a few at a time, so there may be more paths than descriptors.
    /// Writes create missing files, and never truncate.
    std::vector<std::string> paths;
    std::vector<Extent> extents;
    std::optional<Rows> rows;  ///< instead of extents, which must then be empty
    TransferOptions options;
    /// An object that the transfer keeps until it is over and its handle is destroyed, for example
    /// the owner of its memory. Any thread may drop the last reference.
    std::shared_ptr<const void> keep = {};
};

/// One read or write, running or finished. Movable. Thread-safe, except for moving. Its memory must
/// stay valid until it is done. If the handle is dropped, the transfer continues, and the next
/// Engine::drain() raises its error. If the memory maps a file that is truncated meanwhile, the
/// transfer fails (EFAULT) if the kernel moves the bytes. If the engine copies them (unaligned
/// bytes, and small extents that are read together), the result is SIGBUS.
class PENSTOCK_API Transfer {
public:
    Transfer() = default;
    Transfer(Transfer&& other) noexcept;
    Transfer& operator=(Transfer&& other) noexcept;
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;
    ~Transfer();

    /// Waits. Returns the bytes moved. Throws the Error of the transfer.
    std::uint64_t wait();
    /// The same, or nothing when the time is over; the transfer continues.
    std::optional<std::uint64_t> wait_for(std::chrono::nanoseconds timeout);
    /// Never throws, never blocks.
    [[nodiscard]] bool done() const noexcept;
    [[nodiscard]] TransferStatus status() const noexcept;
    /// Submits no more requests and waits for those at the device; wait() then throws kCancelled.
    /// The memory of a read and the extent of a write are undefined. Does nothing after its end.
    void cancel();
    /// May be called while it runs; does nothing after its end. Throws kInvalidArgument for an
    /// invalid priority.
    void set_priority(Priority priority);
    /// Bytes of one extent: fewer than requested only with allow_short. Valid when it is done.
    [[nodiscard]] std::uint64_t extent_bytes(std::size_t index) const;
    /// The total of requested bytes.
    [[nodiscard]] std::uint64_t total_bytes() const noexcept;
    /// Makes a stream of a GPU wait for the copies of the transfer. Work that is put on the stream
    /// after this call finds the bytes of a read, and may change the memory of a write, also before
    /// the transfer is over. The host waits only until all copies are queued on the GPU: a write
    /// that fits into the slots does not wait for the disk, and the last copies of a read run while
    /// the host continues. The host waits for the end, as in wait(), if the transfer has no GPU
    /// memory, may be short or uses cuFile, or if the driver refuses an event.
    /// wait() reports later errors. After a failed transfer, a stream that joined it continues and
    /// reads undefined bytes. Throws the Error of a transfer that has already failed, and
    /// kInvalidArgument for an invalid stream and for one that captures a CUDA graph.
    void join(StreamHandle stream);
    /// As join(); false if the time is over first: then nothing was put on the stream.
    [[nodiscard]] bool join_for(StreamHandle stream, std::chrono::nanoseconds timeout);
    /// Adds 1 to an eventfd when it is done (immediately if it is already): for event loops. The
    /// caller may close the descriptor at any time. Throws kInvalidArgument if it is not an
    /// eventfd, kSystem if there is no descriptor left.
    void notify(int eventfd);
    [[nodiscard]] bool valid() const noexcept { return transfer_ != nullptr; }

private:
    friend class Engine;
    friend class TransferGroup;
    Transfer(const std::shared_ptr<engine::Core>& core, engine::Transfer* transfer) noexcept;
    void reset() noexcept;
    std::uint64_t result();

    std::weak_ptr<engine::Core> core_;  ///< expires with its Engine, which waits for all transfers
    engine::Transfer* transfer_ = nullptr;
};

/// Requests that took longer than the limit of the previous bucket, and at most `upper_ns`.
struct LatencyBucket {
    std::int64_t upper_ns = 0;
    std::uint64_t requests = 0;
};

/// Percentiles of the requests' time at the device, in nanoseconds (to within 12 %). They do not
/// include calls that the page cache served on the caller's thread.
struct LatencyStats {
    std::int64_t p50 = 0;
    std::int64_t p90 = 0;
    std::int64_t p99 = 0;
    std::int64_t p999 = 0;
    std::int64_t max = 0;
    std::vector<LatencyBucket> histogram;  ///< rising, without the empty ones; eight an octave
};

/// Counters since the engine was made; take differences for an interval.
struct EngineStats {
    std::uint64_t bytes_read = 0;  ///< from the devices
    std::uint64_t bytes_written = 0;
    std::uint64_t bytes_cached = 0;  ///< read from the page cache; in no other count
    /// Lookups of the page cache: calls of cachestat(2), or probes of one byte if that is refused.
    std::uint64_t cache_questions = 0;
    std::uint64_t requests = 0;
    std::uint64_t inline_requests = 0;  ///< of them, on callers' threads
    /// Requests with memory that is registered with io_uring: buffers of a MemoryPool and the
    /// engine's own memory, after repeated use.
    std::uint64_t registered_requests = 0;
    std::uint64_t registered_bytes = 0;  ///< of such memory now, counted for each channel
    std::uint64_t retries = 0;
    std::uint64_t slot_requests = 0;    ///< through aligned memory of the engine
    std::uint64_t edge_requests = 0;    ///< ends of writes and small writes, through the page cache
    std::uint64_t copied_bytes = 0;     ///< by the CPU, between that memory and the callers'
    std::uint64_t cufile_requests = 0;  ///< directly between files and GPUs
    std::uint64_t cufile_bytes = 0;     ///< moved by them
    std::uint64_t cufile_refusals = 0;  ///< of them, those that continued through host memory
    std::uint64_t gpu_copied_bytes = 0;  ///< by GPU copy engines, between that memory and GPUs
    std::uint64_t gpu_pinned_bytes = 0;  ///< of that memory now: pinned for GPUs
    std::uint64_t system_calls = 0;      ///< of the backends' submission and completion
    std::uint32_t running = 0;           ///< transfers
    LatencyStats latency;
};

/// The configuration that runs, and why.
struct EngineDescription {
    std::string backend;                ///< "io_uring", "libaio", "posix"
    std::string detail;                 ///< flags and fallbacks that are in use
    std::vector<std::string> refusals;  ///< why the preferred backends were not used
    struct Device {
        DeviceId id;
        std::uint32_t channels = 0;
        std::string backend;
        /// Why no more memory is registered (EngineStats::registered_bytes); or empty.
        std::string memory_refused;
    };
    std::vector<Device> devices;
    /// A GPU whose memory the engine has moved bytes to or from.
    struct OfGpu {
        std::int32_t number = 0;             ///< as in "cuda:0"
        std::string way;                     ///< the path of the bytes
        std::uint32_t channels = 0;          ///< channels that move them
        std::uint64_t pinned_bytes = 0;      ///< of the slots that these share, now
        std::uint64_t pinned_bytes_max = 0;  ///< limit for these
    };
    std::vector<OfGpu> gpus;  ///< GPUs that transfers have used; all GPUs: penstock::gpus()
    /// Whether this kernel can report which parts of a file are in the page cache, and what `auto`
    /// does if it cannot. For one file: FileInfo::page_cache.
    std::string page_cache;
    /// Whether cuFile is used, its path, and its last refusal; or the reason why not, for each disk
    /// and GPU that transfers have used.
    std::string cufile;
    EngineOptions options;
    /// A few lines for people.
    [[nodiscard]] PENSTOCK_API std::string text() const;
};

/// Moves bytes between files and memory. Thread-safe. Costs nothing while idle; the first transfer
/// to a device makes its threads and rings. It also works in the child of a fork(), where the first
/// thread that uses it sets it up again.
class PENSTOCK_API Engine {
public:
    explicit Engine(const EngineOptions& options = default_options());
    /// Uses another file system than this machine's.
    Engine(const EngineOptions& options, const FileSystem& file_system);
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;
    /// Refuses new transfers, as close() does, and waits for earlier ones, without a time limit and
    /// without reporting errors.
    ~Engine();

    /// The defaults, overridden by the environment. Throws kInvalidArgument for an invalid value.
    [[nodiscard]] static EngineOptions default_options();

    // Blocking. Return the bytes moved.
    std::uint64_t read(const File& file, Memory into, std::uint64_t offset = 0,
                       const TransferOptions& options = {});
    std::uint64_t read(const std::string& path, Memory into, std::uint64_t offset = 0,
                       const TransferOptions& options = {});
    std::uint64_t write(const File& file, ConstMemory data, std::uint64_t offset = 0,
                        const TransferOptions& options = {});
    std::uint64_t write(const std::string& path, ConstMemory data, std::uint64_t offset = 0,
                        const TransferOptions& options = {});

    // Not blocking. Wrong arguments throw here; errors of the system are reported by the transfer.
    [[nodiscard]] Transfer read_async(const File& file, Memory into, std::uint64_t offset = 0,
                                      const TransferOptions& options = {});
    [[nodiscard]] Transfer read_async(const std::string& path, Memory into,
                                      std::uint64_t offset = 0,
                                      const TransferOptions& options = {});
    [[nodiscard]] Transfer write_async(const File& file, ConstMemory data, std::uint64_t offset = 0,
                                       const TransferOptions& options = {});
    [[nodiscard]] Transfer write_async(const std::string& path, ConstMemory data,
                                       std::uint64_t offset = 0,
                                       const TransferOptions& options = {});

    /// Submits many extents over many files on several devices as one transfer. Extents that are
    /// consecutive both in the list and in the file are combined, so list them in the order of the
    /// files. A read sorts small extents itself (EngineOptions::gap_bytes).
    [[nodiscard]] Transfer submit(TransferRequest request);
    /// The same, for callers that wait immediately: small transfers are done when this returns.
    [[nodiscard]] Transfer run(TransferRequest request);
    /// The same for one extent of one open file, without a TransferRequest.
    [[nodiscard]] Transfer run_read(const File& file, Memory into, std::uint64_t offset = 0,
                                    const TransferOptions& options = {});
    [[nodiscard]] Transfer run_write(const File& file, ConstMemory data, std::uint64_t offset = 0,
                                     const TransferOptions& options = {});
    /// Tries a read of at most `inline_bytes_max`, or a write of at most `block_bytes`, by one
    /// system call, on this thread and without a Transfer. This is possible for a read of bytes
    /// that are likely cached, for an aligned read of other bytes while no transfer is at the
    /// device, and for a write that goes through the page cache. read() and write() try it first.
    /// Returns the bytes, or nothing if it is not possible or failed: the memory of a read is then
    /// undefined; call read() or write(), which does it or throws the error. drain() does not wait
    /// for it, close() does.
    std::optional<std::uint64_t> try_read_at_once(const File& file, Memory into,
                                                  std::uint64_t offset = 0,
                                                  const TransferOptions& options = {});
    std::optional<std::uint64_t> try_write_at_once(const File& file, ConstMemory data,
                                                   std::uint64_t offset = 0,
                                                   const TransferOptions& options = {});
    /// As submit() and run(), but they return nothing instead of throwing kWouldBlock if
    /// `transfers_max` transfers are in flight. The request is copied, so it can be tried again.
    /// Throws the other errors of submit().
    [[nodiscard]] std::optional<Transfer> try_submit(const TransferRequest& request);
    [[nodiscard]] std::optional<Transfer> try_run(const TransferRequest& request);
    /// Waits until fewer than `transfers_max` transfers are in flight, or the time is over (false).
    /// Another thread may submit a transfer first. Returns true immediately if there is no limit.
    bool wait_for_room(std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max());

    /// Waits until all earlier transfers are done, or the time is over (false). Then throws the
    /// first error of a transfer that was dropped before its end was checked. Transfers that other
    /// threads submit meanwhile are not waited for.
    bool drain(std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max());
    /// The number of transfers so far; 0 in the child of a fork until its first transfer.
    [[nodiscard]] std::uint64_t submitted() const;
    /// drain() for the first `transfers` transfers, for callers that wait in slices.
    bool drain_first(std::uint64_t transfers, std::chrono::nanoseconds timeout);
    /// Makes every later transfer throw kClosed, and waits for earlier ones, as drain() does, or
    /// until the time is over (false): call it again to continue waiting. Threads and rings are
    /// freed with the Engine. A concurrent call of another thread is either waited for or refused.
    bool close(std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max());
    [[nodiscard]] bool closed() const noexcept;
    /// Running transfers; 0 in the child of a fork until its first transfer.
    [[nodiscard]] std::uint32_t running() const noexcept;
    [[nodiscard]] EngineStats stats() const;
    [[nodiscard]] EngineDescription describe() const;
    [[nodiscard]] const EngineOptions& options() const noexcept;

private:
    struct Impl;
    std::optional<Transfer> try_start(const TransferRequest& request, bool caller_waits);

    std::unique_ptr<Impl> impl_;
};

/// Does the waiting of fork() in advance. fork() waits for requests at the devices of all engines
/// of the process, which may take too long for a thread that holds a lock. After this call the
/// engines are idle until this thread forks, or calls end_fork() instead. Other threads may submit
/// transfers meanwhile, which wait, and may fork. Python does this at each os.fork(), without the
/// GIL.
PENSTOCK_API void prepare_fork();
PENSTOCK_API void end_fork();

// Several transfers; one thread takes them in the order in which they end.
//
//     penstock::TransferGroup group;
//     for (auto& block : blocks) {
//         group.add(engine.read_async(file, block.memory, block.offset));
//     }
//     while (auto ended = group.wait_any()) {
//         ended->transfer.wait();         // bytes, or its error; does not block
//         use(blocks[ended->number]);
//     }

/// Running transfers of one or several engines. One thread at a time may use a group, except for
/// wake(). In the child of a fork() the parent's transfers end as cancelled.
class PENSTOCK_API TransferGroup {
public:
    /// A finished transfer, and the number that add() gave it.
    struct Ended {
        std::uint64_t number = 0;
        Transfer transfer;
    };

    TransferGroup();
    TransferGroup(const TransferGroup&) = delete;
    TransferGroup& operator=(const TransferGroup&) = delete;
    /// Cancels, and waits until the memory of all transfers is no longer in use. Errors of these
    /// transfers are dropped.
    ~TransferGroup();

    /// Adds a transfer, which may have ended. Numbers count from 0 in the order of the calls.
    /// Throws kInvalidArgument for an empty handle, and std::bad_alloc: the transfer has then been
    /// cancelled and waited for.
    std::uint64_t add(Transfer transfer);
    /// The first transfer to end of those that were not returned yet, also if it failed. Nothing if
    /// the group is empty, after `timeout`, or after wake(). Errors of a transfer are thrown by its
    /// own Transfer::wait().
    [[nodiscard]] std::optional<Ended> wait_any(
        std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max());
    /// Transfers that were added and not returned.
    [[nodiscard]] std::size_t size() const noexcept;
    [[nodiscard]] bool empty() const noexcept { return size() == 0; }
    /// Cancels all of them; wait_any() returns each.
    void cancel();
    /// Ends the running wait_any(), or else the next one that would wait. Any thread.
    void wake() noexcept;

private:
    struct State;
    std::shared_ptr<State> state_;
};

// Engine options kept in a file, as `penstock tune -o FILE` writes it:
//
//     {
//       "about": "penstock tune of /mnt/nvme, 2026-11-21T17:05:00Z",
//       "backend": "auto",
//       "block_bytes": 4194304,
//       "queue_depth": 16,
//       "in_flight_bytes": "64MiB",
//       "channels": 1
//     }
//
// JSON. The keys are the members of EngineOptions, all optional, and `about`, a text that is
// ignored. Numbers are integers; sizes may also be words with a unit.

/// The options of a file. An option that it omits has the value of its environment variable or its
/// default, as in Engine::default_options(); an option that it names overrides the environment.
/// Throws Error: kInvalidArgument for text that is no such file, an unknown key, a wrong type or a
/// value that is not allowed (with file, key, value and the allowed values), kSystem if it cannot
/// be read.
[[nodiscard]] PENSTOCK_API EngineOptions load_options(const std::string& path);

/// "auto", "io_uring" (or "uring"), "libaio" (or "aio") and "posix"; nothing for another word.
[[nodiscard]] PENSTOCK_API std::optional<BackendKind> backend_named(std::string_view word);

/// "auto", "io_uring", "libaio" or "posix"; "" for any other value.
[[nodiscard]] PENSTOCK_API const char* name_of(BackendKind backend);

/// "auto", "bounce" and "cufile"; nothing for another word.
[[nodiscard]] PENSTOCK_API std::optional<GpuPath> gpu_path_named(std::string_view word);

/// The name of a path; "" for any other value.
[[nodiscard]] PENSTOCK_API const char* name_of(GpuPath path);

/// Pairs of a disk and a GPU with their path, as "259:1 0000:3b:00.0 bounce", with commas between;
/// nothing for another text. Paths are "bounce" and "cufile". An empty text has no pairs.
[[nodiscard]] PENSTOCK_API std::optional<std::vector<TunedGpuPath>> gpu_paths_in(
    std::string_view text);

/// The text that gpu_paths_in() reads.
[[nodiscard]] PENSTOCK_API std::string text_of(const std::vector<TunedGpuPath>& paths);

/// "auto", "cached", "direct" and "required"; nothing for another word.
[[nodiscard]] PENSTOCK_API std::optional<CachePolicy> cache_policy_named(std::string_view word);

/// The name of a policy; "" for any other value.
[[nodiscard]] PENSTOCK_API const char* name_of(CachePolicy policy);

}  // namespace penstock
