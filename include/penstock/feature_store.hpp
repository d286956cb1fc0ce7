// SPDX-License-Identifier: Apache-2.0
// Rows of tables that are larger than memory (features of graphs, embeddings), gathered by number.
//
//     penstock::FeatureWriter writer(engine, "igb.features");
//     writer.begin_table({"paper", "F32", {1024}});
//     writer.append(rows);                               // again and again
//     writer.commit();
//
//     auto store = penstock::FeatureStore::open(engine, "igb.features");
//     store.gather(store.table("paper"), ids, out);      // row ids[i] goes to row i of out
//
// A `.npy` is read where it is, too: its first dimension numbers the rows.
#pragma once

#include <penstock/engine.hpp>
#include <penstock/error.hpp>
#include <penstock/file.hpp>
#include <penstock/gpu.hpp>
#include <penstock/progress.hpp>
#include <penstock/row_policy.hpp>
#include <penstock/types.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

/// A table of a feature file.
struct FeatureTable {
    std::string name;
    std::string dtype;                     ///< as name_of(ElementType) has it: "F32"
    std::vector<std::uint64_t> row_shape;  ///< in elements
    std::uint64_t rows = 0;
    std::uint64_t row_bytes = 0;
    std::uint64_t stride_bytes = 0;  ///< from row to row; what is longer than a row is zeros
    std::uint64_t base = 0;          ///< offset of row 0 in the first file, bytes
    /// Mean bytes of the blocks of 512 and 4096 bytes that a row touches: what a device that reads
    /// such blocks moves for it.
    double touched_512 = 0;
    double touched_4096 = 0;
};

/// The description of a feature file or `.npy`.
struct FeatureFile {
    std::string path;
    bool is_npy = false;             ///< read where it is, without checksums
    std::vector<std::string> files;  ///< with the rows; several: striped
    std::uint64_t bytes = 0;         ///< of all files
    std::vector<FeatureTable> tables;
};

/// Reads the header and no row. Throws Error: kDamaged for a file that is cut, changed, or
/// impossible; kInvalidArgument for one that is neither a feature file nor a `.npy`; kUnsupported
/// for a `.npy` whose elements are not plain rows; errors of the system. Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API FeatureFile
inspect_features(const std::shared_ptr<Engine>& engine, const std::string& path,
                 const FileSystem& files = FileSystem::local());

/// A chunk of a table's bytes that does not match its checksum, or could not be read.
struct FeatureProblem {
    std::string table;
    std::string path;          ///< of the file
    std::uint64_t offset = 0;  ///< in the file
    std::uint64_t bytes = 0;
    std::uint64_t row = 0;  ///< the first row with bytes in the chunk
    std::string message;
};

/// Reads all rows from the device and compares them with their checksums. Returns all problems, in
/// the order of the tables and files. Throws what inspect_features() throws, kUnsupported for a
/// `.npy`, which has no checksums, and kCancelled when `progress` says so. Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<FeatureProblem> verify_features(
    const std::shared_ptr<Engine>& engine, const std::string& path, const Progress& progress = {},
    const FileSystem& files = FileSystem::local());

/// A table that is to be written.
struct NewFeatureTable {
    std::string name;                      ///< UTF-8, 1 to 1024 bytes
    std::string dtype;                     ///< "F32", or "float32"
    std::vector<std::uint64_t> row_shape;  ///< in elements; a row has a whole number of bytes
};

struct FeatureWriterOptions {
    /// Folders that rows are striped to, a file in each, 64 KiB at a time; empty: into the file at
    /// `path`, which otherwise has the directory and the checksums. Existing folders, on several
    /// devices.
    std::vector<std::string> folders;
    bool sync = true;  ///< durable when commit() returns
};

/// Writes a feature file: whole, atomic and durable, or not at all. Rows are streamed: it holds 8
/// MiB a file, and the checksums. Not thread-safe; movable. All calls block and throw Error. After
/// an error nothing can be done but to destroy it, which removes what it wrote; the file that was
/// at `path` is untouched. In a child of fork() all calls throw kClosed, and it removes nothing.
class PENSTOCK_API FeatureWriter {
public:
    /// kInvalidArgument if `path` is no file, or a folder is missing or comes twice.
    FeatureWriter(std::shared_ptr<Engine> engine, const std::string& path,
                  const FeatureWriterOptions& options = {},
                  const FileSystem& files = FileSystem::local());
    FeatureWriter(FeatureWriter&& other) noexcept;
    FeatureWriter& operator=(FeatureWriter&& other) noexcept;
    FeatureWriter(const FeatureWriter&) = delete;
    FeatureWriter& operator=(const FeatureWriter&) = delete;
    ~FeatureWriter();

    /// Rows that are appended from now on are of this table. kInvalidArgument for a name that there
    /// is already, an unknown dtype, and rows of no bytes.
    void begin_table(const NewFeatureTable& table);
    /// One row or more, one after the other, without gaps: kInvalidArgument for a part of a row.
    void append(ConstMemory rows);
    /// Puts the file in place; it replaces one that was there. Once. Throws Error; after one of
    /// "sync_folder" the new file is in place, but a power failure may bring the old one back.
    void commit();
    /// Bytes of one row of the current table.
    [[nodiscard]] std::uint64_t row_bytes() const;
    /// Bytes of all rows so far.
    [[nodiscard]] std::uint64_t bytes() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// A file with rows that is to become a table.
struct FeatureSource {
    NewFeatureTable table;  ///< of a `.npy` only the name; dtype and row_shape are its own
    std::string path;       ///< a `.npy`, or raw rows without gaps
    bool is_npy = true;
    std::uint64_t offset = 0;             ///< of raw rows: of row 0, bytes
    std::uint64_t rows_max = UINT64_MAX;  ///< rows that are taken, from row 0 on
};

/// Makes a feature file of other files, with bounded memory. Throws what FeatureWriter and
/// inspect_features() throw, kDamaged for a raw file that ends within a row, and kInvalidArgument
/// where `path` is a source, or ends in ".npy". Blocks.
PENSTOCK_API void import_features(const std::shared_ptr<Engine>& engine, const std::string& path,
                                  std::span<const FeatureSource> sources,
                                  const FeatureWriterOptions& options = {},
                                  const Progress& progress = {},
                                  const FileSystem& files = FileSystem::local());

/// Rows of one table that a gather wants: row ids[i] goes to out[i * row_bytes].
struct FeatureRequest {
    std::uint32_t table = 0;  ///< FeatureStore::table()
    std::span<const std::uint64_t> ids;
    Memory out;  ///< ids.size() * row_bytes; of the host, or of a GPU (device_memory())
};

/// Options of a gather into the memory of a GPU.
struct FeatureGatherOptions {
    /// The rows are put together on this stream, which is of the primary context of the GPU: the
    /// gather begins after what it holds at the call, and what it is given after wait() has
    /// returned finds the rows. Work on other streams, and the host, must wait for this stream. It
    /// must not be destroyed before wait() has returned. nullopt: the legacy default stream, and
    /// wait() also waits for the GPU, so that all streams find the rows.
    std::optional<StreamHandle> stream = std::nullopt;
};

/// Counts since the store was opened; those of memory are of this process.
struct FeatureStats {
    std::uint64_t gathers = 0;
    std::uint64_t rows = 0;          ///< asked for
    std::uint64_t bytes = 0;         ///< of them
    std::uint64_t rows_hit = 0;      ///< came from memory
    std::uint64_t rows_on_gpu = 0;   ///< of these: came from the memory of the GPU they went to
    std::uint64_t rows_read = 0;     ///< from the files; a row that comes twice in a gather twice
    std::uint64_t bytes_read = 0;    ///< of these; Engine::stats() has what the devices moved
    std::uint64_t memory_bytes = 0;  ///< that rows may have, and their tables
    std::uint64_t device_bytes = 0;  ///< of GPUs, that rows may have
    std::uint64_t slots = 0;         ///< rows that fit, in memory of the host and of GPUs
    std::uint64_t admitted = 0;      ///< rows that were read and kept
    std::uint64_t passed_by = 0;     ///< rows that were read and not kept
    std::uint64_t evicted = 0;
    std::uint64_t preloaded = 0;
    std::uint64_t hints = 0;          ///< batches that were taken
    std::uint64_t hints_used = 0;     ///< of these: that were gathered
    std::uint64_t hints_refused = 0;  ///< too many outstanding, or too large
    std::uint64_t hints_dropped = 0;  ///< batches that did not come in time
};

/// A gather under way, or over. Movable. The memory of its rows must stay valid until it is done,
/// even when this handle is dropped: then it goes on, and its error is raised by the next
/// Engine::drain(). done(), wait() and wait_for() also copy the rows that the store keeps, once all
/// are there: change none before one of them has said so. Thread-safe, except for moving and
/// take_transfer().
class PENSTOCK_API FeatureGather {
public:
    FeatureGather() noexcept;
    FeatureGather(FeatureGather&& other) noexcept;
    FeatureGather& operator=(FeatureGather&& other) noexcept;
    FeatureGather(const FeatureGather&) = delete;
    FeatureGather& operator=(const FeatureGather&) = delete;
    ~FeatureGather();

    /// Bytes of all rows. Throws the Error of reading; then what the memory holds is undefined, and
    /// no row of it is kept in the memory of the store.
    std::uint64_t wait();
    /// The same, or nothing when the time is over; it continues.
    std::optional<std::uint64_t> wait_for(std::chrono::nanoseconds timeout);
    /// Never throws, and waits for no read.
    [[nodiscard]] bool done() const noexcept;
    void cancel();
    /// Bytes of all rows.
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

    /// For a caller that waits for the reads in a way of its own: takes them out. Not valid() where
    /// all rows were in memory. Once they are over, finish() does what wait() would have done.
    [[nodiscard]] Transfer take_transfer() noexcept {
        taken_ = true;
        return std::move(transfer_);
    }
    /// `failed`: the error of the reads; throws it, with the row that it is about.
    void finish(const Error* failed = nullptr);

private:
    friend class FeatureStore;
    struct Pending;
    void settle(bool sound) const noexcept;
    [[nodiscard]] bool wait_for_gpus(std::chrono::nanoseconds limit) const;

    Transfer transfer_;
    std::unique_ptr<Pending> pending_;
    std::uint64_t bytes_ = 0;
    bool taken_ = false;  ///< the transfer is elsewhere
};

/// Rows of a table that are in memory from the beginning, the most used first.
struct HotRows {
    std::string table;  ///< its name
    std::vector<std::uint64_t> ids;
};

struct FeatureStoreOptions {
    /// Memory for rows that stay, which the tables share in the ratio of their sizes; 0: none. Each
    /// process has its own.
    std::uint64_t ram_bytes = 0;
    RowPolicy policy = RowPolicy::kWindow;  ///< which rows stay
    /// Rows that are read when the store is opened, as far as they fit: into the memory of the GPU
    /// first, where `device_bytes` is given, and the others into that of the host. Rows that are
    /// named while there is memory of neither are kInvalidArgument.
    std::vector<HotRows> hot = {};
    /// Memory of GPU number `device` for rows that stay there, for gathers into its memory: shared
    /// and planned as `ram_bytes` is. 0: none. Hints are for this memory where there is some.
    /// Gathers into the memory of GPUs also use the rows that `ram_bytes` keeps on the host, which
    /// are pinned by the first of them, and add none to these.
    std::uint64_t device_bytes = 0;
    std::int32_t device = 0;
    CachePolicy cache = CachePolicy::kAuto;  ///< of the files' pages
};

/// Tables of a feature file, open for gathers. Movable. Thread-safe, except for moving. A
/// child of fork() may use it too; gathers under way at the fork are the parent's. A file that is
/// replaced meanwhile goes on being read as it was; one that is cut is an error of the gather.
class PENSTOCK_API FeatureStore {
public:
    /// Opens the files. Throws what inspect_features() throws; with `device_bytes`, kUnsupported
    /// without a GPU that runs the kernel, and kOutOfMemory where it has not so much memory.
    [[nodiscard]] static FeatureStore open(std::shared_ptr<Engine> engine, const std::string& path,
                                           const FeatureStoreOptions& options = {},
                                           const FileSystem& files = FileSystem::local());
    FeatureStore(FeatureStore&& other) noexcept;
    FeatureStore& operator=(FeatureStore&& other) noexcept;
    FeatureStore(const FeatureStore&) = delete;
    FeatureStore& operator=(const FeatureStore&) = delete;
    ~FeatureStore();

    [[nodiscard]] const FeatureFile& file() const;
    [[nodiscard]] const std::vector<FeatureTable>& tables() const { return file().tables; }
    /// The number of a table. kInvalidArgument names the nearest.
    [[nodiscard]] std::uint32_t table(std::string_view name) const;

    /// Rows of one table. Bytes of them. Blocks. Throws Error: kInvalidArgument for a row that is
    /// not there, which it names, and for `out` of another size; kClosed; errors of reading, after
    /// which what `out` holds is undefined. Distinct rows are read once, in the order of the file.
    /// `out` may be memory of a GPU: rows from the files go there through pinned slots of the
    /// engine, and a kernel brings those that the store keeps; FeatureGatherOptions::stream says
    /// when they are there. Also kUnsupported without a GPU that runs it (Turing or later), and
    /// kInvalidArgument for memory or a stream that is not what it is given as.
    std::uint64_t gather(std::uint32_t table, std::span<const std::uint64_t> ids, Memory out,
                         const FeatureGatherOptions& options = {}) const;
    /// Rows of several tables as one transfer, in memory of the host and of GPUs; with a stream, of
    /// one GPU.
    std::uint64_t gather(std::span<const FeatureRequest> requests,
                         const FeatureGatherOptions& options = {}) const;
    /// The same, without waiting. `ids` are looked at by the call alone.
    [[nodiscard]] FeatureGather gather_async(std::span<const FeatureRequest> requests,
                                             const FeatureGatherOptions& options = {}) const;
    /// The same, for callers that wait immediately: few rows are there when this returns.
    [[nodiscard]] FeatureGather run(std::span<const FeatureRequest> requests,
                                    const FeatureGatherOptions& options = {}) const;

    /// These rows of the table are gathered soon, after those of all hints before: with
    /// RowPolicy::kWindow they stay, or are kept when they come, as far as memory goes. False where
    /// it was not taken: without memory, with another policy, or with too many outstanding. A hint
    /// that is wrong costs reads and nothing else. Throws kInvalidArgument for a row that is not
    /// there.
    bool hint(std::uint32_t table, std::span<const std::uint64_t> ids) const;
    /// Forgets all hints: for a loader that begins again.
    void drop_hints() const;
    [[nodiscard]] FeatureStats stats() const;
    /// Later calls throw kClosed. Gathers under way go on; the files are closed with the last.
    void close();

private:
    struct Impl;
    explicit FeatureStore(std::unique_ptr<Impl> impl);
    [[nodiscard]] Impl& there() const;
    [[nodiscard]] FeatureGather start(std::span<const FeatureRequest> requests,
                                      const FeatureGatherOptions& options, bool caller_waits) const;
    void preload(std::uint32_t table, std::span<const std::uint64_t> ids) const;

    std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
