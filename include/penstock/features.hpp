// SPDX-License-Identifier: Apache-2.0
// Features: tables of rows that are larger than memory, their caches, and rows for kernels of a
// GPU.
#pragma once

#include <penstock/device_array.hpp>
#include <penstock/engine.hpp>
#include <penstock/error.hpp>
#include <penstock/file.hpp>
#include <penstock/gpu.hpp>
#include <penstock/graph.hpp>
#include <penstock/types.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace penstock {

// The policy of a row cache: which rows stay in memory.

enum class RowPolicy : std::uint8_t {
    kStatic,  ///< the preloaded rows stay, and the first rows that are read into free memory
    kClock,   ///< recently used rows stay
    kS3Fifo,  ///< rows that were recently used more than once stay
    kWindow,  ///< rows that hints name stay, the soonest first; then the most used rows
};

/// "static", "clock", "s3fifo" or "window".
[[nodiscard]] PENSTOCK_API std::string_view name_of(RowPolicy policy) noexcept;

/// The policy of that name. Throws Error: kInvalidArgument with the valid names.
[[nodiscard]] PENSTOCK_API RowPolicy row_policy(std::string_view name);

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
// A `.npy` is read in place, too: its first dimension numbers the rows.

/// A table of a feature file.
struct FeatureTable {
    std::string name;
    std::string dtype;                     ///< as name_of(ElementType) has it: "F32"
    std::vector<std::uint64_t> row_shape;  ///< in elements
    std::uint64_t rows = 0;
    std::uint64_t row_bytes = 0;
    std::uint64_t stride_bytes = 0;  ///< from row to row; zeros fill the bytes after a row
    std::uint64_t base = 0;          ///< offset of row 0 in the first file, bytes
    /// Mean bytes that a device with blocks of 512 or 4096 bytes moves for a row.
    double touched_512 = 0;
    double touched_4096 = 0;
};

/// The description of a feature file or `.npy`.
struct FeatureFile {
    std::string path;
    /// Differs after each write: random in a feature file; of a `.npy` made from its size and the
    /// time of its last change.
    std::uint64_t id = 0;
    bool is_npy = false;             ///< read in place, without checksums
    std::vector<std::string> files;  ///< with the rows; several if they are striped
    std::uint64_t bytes = 0;         ///< of all files
    std::vector<FeatureTable> tables;
};

/// Reads the header and no row. Throws Error: kDamaged for a truncated, changed or invalid file;
/// kInvalidArgument for one that is neither a feature file nor a `.npy`; kUnsupported for a `.npy`
/// whose elements are not plain rows; errors of the system. Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API FeatureFile
inspect_features(const std::shared_ptr<Engine>& engine, const std::string& path,
                 const FileSystem& files = FileSystem::any());

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
/// the order of the tables and files. Throws as inspect_features(), kUnsupported for a `.npy`,
/// which has no checksums, and kCancelled if `progress` returns false. Blocks; thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<FeatureProblem> verify_features(
    const std::shared_ptr<Engine>& engine, const std::string& path, const Progress& progress = {},
    const FileSystem& files = FileSystem::any());

/// A table that is to be written.
struct NewFeatureTable {
    std::string name = {};                      ///< UTF-8, 1 to 1024 bytes
    std::string dtype = {};                     ///< "F32", or "float32"
    std::vector<std::uint64_t> row_shape = {};  ///< in elements; a row has a whole number of bytes
};

struct FeatureWriterOptions {
    /// Existing folders on several devices: rows are striped over a file in each, 64 KiB at a time,
    /// and the file at `path` has only the directory and the checksums. Empty: the file at `path`
    /// has the rows too.
    std::vector<std::string> folders;
    bool sync = true;  ///< durable when commit() returns
};

/// Writes a feature file completely, atomically and durably, or not at all. Rows are streamed: it
/// holds 8 MiB for each file, and the checksums. Not thread-safe; movable. All calls block and
/// throw Error. After an error it can only be destroyed, which removes the files that it wrote; an
/// existing file at `path` is untouched. In a child of fork() all calls throw kClosed, and it
/// removes nothing.
class PENSTOCK_API FeatureWriter {
public:
    /// kInvalidArgument if `path` cannot be a file or ends in ".npy", which a feature file is not,
    /// or if a folder is missing or repeated.
    FeatureWriter(std::shared_ptr<Engine> engine, const std::string& path,
                  const FeatureWriterOptions& options = {},
                  const FileSystem& files = FileSystem::any());
    FeatureWriter(FeatureWriter&& other) noexcept;
    FeatureWriter& operator=(FeatureWriter&& other) noexcept;
    FeatureWriter(const FeatureWriter&) = delete;
    FeatureWriter& operator=(const FeatureWriter&) = delete;
    ~FeatureWriter();

    /// Begins a table: later rows are appended to it. kInvalidArgument for a name that is already
    /// in use, an unknown dtype, and rows of no bytes.
    void begin_table(const NewFeatureTable& table);
    /// Appends one or more contiguous rows. kInvalidArgument for a part of a row.
    void append(ConstMemory rows);
    /// Puts the file in place of an existing one; call it once. Throws Error. After an error of the
    /// operation "sync_folder" the new file is in place, but a power failure may bring the old one
    /// back.
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
    /// dtype and row_shape are of raw rows. Without a name: that of the tensor, or of the file.
    NewFeatureTable table;
    /// A `.npy`, a `.pt` or `.safetensors` with the tensor, or raw rows without gaps. The content
    /// decides, whatever the name.
    std::string path;
    /// The name of the tensor. Empty: the one named as the table, or the only one.
    std::string tensor = {};
    std::uint64_t offset = 0;             ///< of raw rows: of row 0, bytes
    std::uint64_t rows_max = UINT64_MAX;  ///< limit on the rows to take, from row 0 on
};

/// Makes a feature file from other files, with bounded memory. Throws as FeatureWriter, inspect()
/// and inspect_features(), kDamaged for a raw file that ends within a row, kUnsupported for a
/// tensor whose rows are not contiguous, and kInvalidArgument if `path` is a source. Blocks.
PENSTOCK_API void import_features(const std::shared_ptr<Engine>& engine, const std::string& path,
                                  std::span<const FeatureSource> sources,
                                  const FeatureWriterOptions& options = {},
                                  const Progress& progress = {},
                                  const FileSystem& files = FileSystem::any());

/// Rows of one table that a gather wants: row ids[i] goes to out[i * row_bytes].
struct FeatureRequest {
    std::uint32_t table = 0;  ///< FeatureStore::table()
    std::span<const std::uint64_t> ids;
    Memory out;  ///< ids.size() * row_bytes; of the host, or of a GPU (device_memory())
};

/// Options of a gather into the memory of a GPU.
struct FeatureGatherOptions {
    /// The stream on which the rows are collected, of the primary context of the GPU. The gather
    /// begins after the work that the stream holds at the call. Work that is put on it after wait()
    /// has returned finds the rows. Other streams, and the host, must wait for this stream. It must
    /// not be destroyed before wait() has returned. nullopt: the legacy default stream; wait() then
    /// also waits for the GPU, so that all streams find the rows.
    std::optional<StreamHandle> stream = std::nullopt;
};

/// Counts since the store was opened; those of memory are for this process.
struct FeatureStats {
    std::uint64_t gathers = 0;
    std::uint64_t rows = 0;          ///< requested rows
    std::uint64_t bytes = 0;         ///< of them
    std::uint64_t rows_hit = 0;      ///< rows that came from memory
    std::uint64_t rows_on_gpu = 0;   ///< of these, from the memory of the GPU that they went to
    std::uint64_t rows_read = 0;     ///< from the files; a row repeated in a gather counts twice
    std::uint64_t bytes_read = 0;    ///< of these; Engine::stats() has the bytes of the devices
    std::uint64_t memory_bytes = 0;  ///< limit for rows and their tables
    std::uint64_t device_bytes = 0;  ///< limit for rows in memory of GPUs
    std::uint64_t slots = 0;         ///< rows that fit, in memory of the host and of GPUs
    std::uint64_t admitted = 0;      ///< rows that were read and kept
    std::uint64_t passed_by = 0;     ///< rows that were read and not kept
    std::uint64_t evicted = 0;
    std::uint64_t preloaded = 0;
    std::uint64_t hints = 0;          ///< accepted batches
    std::uint64_t hints_used = 0;     ///< of these, batches that were gathered
    std::uint64_t hints_refused = 0;  ///< too many outstanding, or too large
    std::uint64_t hints_dropped = 0;  ///< batches that were not gathered in time
};

/// A gather, running or finished. Movable. The memory of its rows must stay valid until it is done.
/// If the handle is dropped, the gather continues, and the next Engine::drain() raises its error.
/// When all rows are there, done(), wait() and wait_for() also copy the rows that the store keeps:
/// do not change the rows before one of them has reported the end. Thread-safe, except for moving
/// and take_transfer().
class PENSTOCK_API FeatureGather {
public:
    FeatureGather() noexcept;
    FeatureGather(FeatureGather&& other) noexcept;
    FeatureGather& operator=(FeatureGather&& other) noexcept;
    FeatureGather(const FeatureGather&) = delete;
    FeatureGather& operator=(const FeatureGather&) = delete;
    ~FeatureGather();

    /// Waits. Returns the bytes of all rows. Throws the Error of reading; the contents of the
    /// memory are then undefined, and the store keeps none of these rows.
    std::uint64_t wait();
    /// The same, or nothing when the time is over; the gather continues.
    std::optional<std::uint64_t> wait_for(std::chrono::nanoseconds timeout);
    /// Never throws, and waits for no read.
    [[nodiscard]] bool done() const noexcept;
    void cancel();
    /// Bytes of all rows.
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

    /// Takes the transfer out, for a caller that waits for the reads itself. It is not valid() if
    /// all rows were in memory. When it has ended, call finish() in place of wait().
    [[nodiscard]] Transfer take_transfer() noexcept {
        taken_ = true;
        return std::move(transfer_);
    }
    /// Ends the gather. `failed`: the error of the reads, which it throws with the row concerned.
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
    /// Means, as `ram_bytes`: as much as all rows take, if that is at most a sixteenth of the
    /// memory that this process may still take when the store is opened (available_memory_bytes()),
    /// so that some workers that each open it stay within that memory; otherwise none. All rows
    /// come there in time: blocking gathers read some more than they were asked for. None with
    /// `hot` or `device_bytes` either, and for a `.npy`, whose rows may change in place. Gathers
    /// into memory of GPUs do not use these rows.
    static constexpr std::uint64_t kRamIfSmall = UINT64_MAX;

    /// Memory for rows that stay; the tables share it in the ratio of their sizes. 0: none. Each
    /// process has its own.
    std::uint64_t ram_bytes = 0;
    RowPolicy policy = RowPolicy::kWindow;  ///< which rows stay
    /// Rows that are read when the store is opened, as far as they fit: first into the memory of
    /// the GPU, if `device_bytes` is given, and the others into that of the host. Without any
    /// memory for rows they are kInvalidArgument.
    std::vector<HotRows> hot = {};
    /// Memory of GPU number `device` for rows that stay there, for gathers into its memory; the
    /// tables share it as `ram_bytes`. 0: none. If there is some, hints are for this memory.
    /// Gathers into the memory of GPUs also use the rows that `ram_bytes` keeps on the host, but
    /// add none to them. The first such gather pins them.
    std::uint64_t device_bytes = 0;
    std::int32_t device = 0;
    CachePolicy cache = CachePolicy::kAuto;  ///< of the files' pages
    /// Compares all rows with their checksums before the store is open: reads each file once, from
    /// the device and as fast as it answers, through up to 64 MiB of memory. Damage that comes
    /// later is not found. The first damaged chunk is kDamaged, with its table, file, offset and
    /// row; one that cannot be read is the error of the read.
    bool verify = false;
    Progress progress = {};  ///< for `verify`
};

/// Tables of a feature file, open for gathers. Movable. Thread-safe, except for moving. A child of
/// fork() may use it too; gathers that run during the fork belong to the parent. If the file is
/// replaced meanwhile, the old one is still read; if it is truncated, a gather fails.
class PENSTOCK_API FeatureStore {
public:
    /// Opens the files. Throws as inspect_features(); with `device_bytes` also kUnsupported without
    /// a GPU that runs the kernel, and kOutOfMemory if the GPU does not have that much memory; with
    /// `verify` also kUnsupported for a `.npy`, and kCancelled if `progress` returns false.
    [[nodiscard]] static FeatureStore open(std::shared_ptr<Engine> engine, const std::string& path,
                                           const FeatureStoreOptions& options = {},
                                           const FileSystem& files = FileSystem::any());
    FeatureStore(FeatureStore&& other) noexcept;
    FeatureStore& operator=(FeatureStore&& other) noexcept;
    FeatureStore(const FeatureStore&) = delete;
    FeatureStore& operator=(const FeatureStore&) = delete;
    ~FeatureStore();

    [[nodiscard]] const FeatureFile& file() const;
    [[nodiscard]] const std::vector<FeatureTable>& tables() const { return file().tables; }
    /// The number of a table. kInvalidArgument names the nearest.
    [[nodiscard]] std::uint32_t table(std::string_view name) const;

    /// Gathers rows of one table. Returns their bytes. Blocks. Distinct rows are read once, in the
    /// order of the file. Throws Error: kInvalidArgument with the row if it does not exist, and for
    /// `out` of another size; kClosed; errors of reading: the contents of `out` are then undefined.
    /// `out` may be memory of a GPU: rows from the files go there through pinned slots of the
    /// engine, and a kernel copies those that the store keeps; see FeatureGatherOptions::stream for
    /// when they are there. Also throws kUnsupported without a GPU that runs the kernel (Turing or
    /// later), and kInvalidArgument for memory or a stream of another kind than claimed.
    std::uint64_t gather(std::uint32_t table, std::span<const std::uint64_t> ids, Memory out,
                         const FeatureGatherOptions& options = {}) const;
    /// Gathers rows of several tables in one transfer, into memory of the host and of GPUs; with a
    /// stream, of one GPU.
    std::uint64_t gather(std::span<const FeatureRequest> requests,
                         const FeatureGatherOptions& options = {}) const;
    /// The same, without waiting. `ids` are used only during the call.
    [[nodiscard]] FeatureGather gather_async(std::span<const FeatureRequest> requests,
                                             const FeatureGatherOptions& options = {}) const;
    /// The same, for callers that wait immediately: a small gather is done when this returns.
    [[nodiscard]] FeatureGather run(std::span<const FeatureRequest> requests,
                                    const FeatureGatherOptions& options = {}) const;

    /// Announces rows of a table that are gathered soon, after those of all earlier hints. With
    /// RowPolicy::kWindow they stay in memory, or are kept when they are read, as far as memory
    /// allows. False if the hint was not accepted: without memory, with another policy, or with too
    /// many outstanding. A wrong hint only costs reads. Throws kInvalidArgument for an invalid row.
    bool hint(std::uint32_t table, std::span<const std::uint64_t> ids) const;
    /// Drops all hints, for a loader that begins again.
    void drop_hints() const;
    [[nodiscard]] FeatureStats stats() const;
    /// For people: which rows stay in memory, and why.
    [[nodiscard]] std::string describe() const;
    /// Later calls throw kClosed. Running gathers continue; the files are closed with the last one.
    void close();

private:
    struct Impl;
    explicit FeatureStore(std::unique_ptr<Impl> impl);
    [[nodiscard]] Impl& there() const;
    [[nodiscard]] FeatureGather start(std::span<const FeatureRequest> requests,
                                      const FeatureGatherOptions& options, bool caller_waits) const;
    void preload(std::uint32_t table, std::span<const std::uint64_t> ids) const;
    void warm_up(std::uint32_t table, std::uint64_t rows_read) const noexcept;

    std::unique_ptr<Impl> impl_;
};

// Simulates a row cache: the reads that it would save for the rows that a run gathers. It runs the
// policies of the cache itself, and bounds to compare them with. Nothing is read.
//
//     penstock::RowTrace trace;
//     trace.add(batch);  // each batch
//     const penstock::RowSimulator simulator(trace);
//     const auto window = simulator.run("window", {.slots = 100'000});
//     const auto bound = simulator.run("belady", {.slots = 100'000});

/// The rows of several batches.
struct PENSTOCK_API RowTrace {
    std::vector<std::uint64_t> ids;
    std::vector<std::uint64_t> ends;  ///< batch i ends before ids[ends[i]]

    void add(std::span<const std::uint64_t> batch);
    [[nodiscard]] std::span<const std::uint64_t> batch(std::uint64_t i) const;
};

struct RowSimulationOptions {
    std::uint64_t slots = 0;    ///< rows that the cache has room for; at most 2^30
    std::uint32_t window = 8;   ///< batches that are hinted ahead, 0 to 30; only for "window"
    std::uint64_t warm_up = 0;  ///< batches at the beginning that are not counted
    /// Rows that are in memory before the first batch, the most used first; as many as fit.
    std::span<const std::uint64_t> hot = {};
};

/// The result of a simulation. A row that is repeated in a batch counts once.
struct RowSimulation {
    std::uint64_t batches = 0;    ///< counted batches
    std::uint64_t rows = 0;       ///< rows of these batches
    std::uint64_t rows_read = 0;  ///< rows of these that were not in memory
    std::uint64_t preloaded = 0;  ///< rows that were read before the first batch
    [[nodiscard]] double hit_rate() const {
        return rows == 0 ? 0 : 1 - static_cast<double>(rows_read) / static_cast<double>(rows);
    }
};

/// The policies of RowSimulator. Those of RowPolicy are run by the cache itself, in sets. In the
/// others any row can be in any slot: "fifo" (evicts the oldest), "lru", "s3fifo_whole" (Yang et
/// al., SOSP 2023) and "belady". "belady" evicts the row whose next use is the latest, and does not
/// keep a row that is used later than all others. No policy reads fewer rows than that ("A study of
/// replacement algorithms for a virtual-storage computer", 1966), unless rows are preloaded.
[[nodiscard]] PENSTOCK_API std::span<const std::string_view> row_simulation_policies() noexcept;

/// Runs policies over one trace. Only the constructor reads the trace. Copies share its internal
/// form: 12 bytes for each id, and 8 more for each row. Thread-safe.
class PENSTOCK_API RowSimulator {
public:
    /// Throws Error: kInvalidArgument for a trace whose `ends` are not in order, and for 2^32
    /// different rows.
    explicit RowSimulator(const RowTrace& trace);
    /// Throws Error: kInvalidArgument for an unknown policy, for more than 2^30 slots, and for a
    /// window above 30. Only computes.
    [[nodiscard]] RowSimulation run(std::string_view policy,
                                    const RowSimulationOptions& options) const;

private:
    struct Impl;
    std::shared_ptr<const Impl> impl_;
};

/// Reads a trace. A .npy file has ids of int32, int64, uint32 or uint64. With two dimensions each
/// row is a batch. With one dimension each `batch` ids are a batch; the last one may be shorter. In
/// any other file each batch is the number of its ids, and then the ids, all as little-endian
/// integers of 64 bits. Throws Error: kInvalidArgument for a file in neither form (a number that
/// exceeds the file, a negative id), and for ids in one dimension without `batch`; errors of
/// reading. Any thread; blocks.
[[nodiscard]] PENSTOCK_API RowTrace read_row_trace(Engine& engine, const std::string& path,
                                                   std::uint64_t batch = 0);

// The rows that are used most, found before or without a run, to have them in memory from the
// beginning.
//
//     const auto heat = penstock::expected_visits(graph, {10, 5, 5}, {.batch = 1024});
//     const auto hot = penstock::hottest_rows(heat, 100'000);

/// Returns for each node the number of edges that begin at it. A neighbourhood samples a node by
/// its edges, so this is a measure of its use. Reads all edges. Throws kInvalidArgument for an edge
/// of a node that does not exist. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<double> out_degrees(const Graph& graph);
/// The same for several types of nodes: a list for each, over all relations of the sampler.
[[nodiscard]] PENSTOCK_API std::vector<std::vector<double>> out_degrees(
    const NeighborSampler& sampler);

struct ExpectedVisitsOptions {
    std::uint64_t batch = 1024;                 ///< seeds of a batch
    std::span<const std::uint64_t> seeds = {};  ///< nodes that batches are drawn from; empty: all
};

/// Returns for each node the expected number of times that a batch samples it. Seeds are equally
/// likely. A node that is reached with probability p passes p * min(1, fan-out / degree) on to each
/// of its neighbours, hop by hop. Probabilities are added, up to 1 in a hop. (Kaler et al.,
/// "Communication-efficient graph neural networks with probabilistic neighborhood expansion
/// analysis and caching", MLSys 2023, multiply the complements instead.) `fanouts`: one for each
/// hop, -1 for all. Reads all edges once for each hop. Throws kInvalidArgument for a graph whose
/// edges do not begin and end at the same nodes, for a fan-out below -1 and for a seed that does
/// not exist. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<double> expected_visits(
    const Graph& graph, std::span<const std::int64_t> fanouts,
    const ExpectedVisitsOptions& options = {});

/// The same for nodes and edges of several types: for each type the visits by batches of this
/// sampler, with its fan-outs. Probabilities of a node are added over all relations. `seeds`: the
/// nodes that batches are drawn from, `batch` of each type that is there; empty: all nodes of all
/// types. The sampler's `replace` and `disjoint` make no difference. Reads all edges once for each
/// hop. Throws kInvalidArgument for a seed of a type or a node that does not exist. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<std::vector<double>> expected_visits(
    const NeighborSampler& sampler, std::span<const SeedNodes> seeds = {},
    std::uint64_t batch = 1024);

/// Returns for each of `rows` rows the number of batches of the trace that have it. Throws
/// kInvalidArgument for a row beyond them. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<double> batch_counts(const RowTrace& trace,
                                                            std::uint64_t rows);

/// At most `count` rows with the highest heat above 0, the highest first; of equal ones the lower
/// number first. Thread-safe.
[[nodiscard]] PENSTOCK_API std::vector<std::uint64_t> hottest_rows(std::span<const double> heat,
                                                                   std::uint64_t count);

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
