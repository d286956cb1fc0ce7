// SPDX-License-Identifier: Apache-2.0
#include "base/of_process.hpp"
#include "base/raise.hpp"
#include "base/text/near.hpp"
#include "base/text/units.hpp"
#include "features/files/chunk_check.hpp"
#include "features/files/opened_features.hpp"
#include "features/gather/device_tier.hpp"
#include "features/gather/gather_request.hpp"
#include "features/gather/memory_tier.hpp"
#include "format/fault.hpp"

#include <penstock/features.hpp>
#include <penstock/memory.hpp>

#include <fmt/format.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

namespace penstock {

namespace features {

namespace {

constexpr RowsAsked kHint{"hint", "ids"};
constexpr RowsAsked kHot{"open features", "hot"};

[[noreturn]] void refuse_call(ErrorCode code, const std::string& message,
                              const std::string& path = {}, const char* operation = "gather") {
    base::raise(base::error(code, operation, message, path));
}

std::uint32_t table_number(const FeatureFile& file, std::string_view name, const char* operation,
                           std::string_view argument) {
    std::vector<std::string_view> known;
    for (const FeatureTable& one : file.tables) {
        if (one.name == name) {
            return static_cast<std::uint32_t>(known.size());
        }
        known.emplace_back(one.name);
    }
    const std::string_view near = base::nearest(name, known);
    refuse_call(ErrorCode::kInvalidArgument,
                fmt::format("{}there is no table {}; {}", argument, format::shown(name),
                            !near.empty()   ? fmt::format("did you mean {}?", format::shown(near))
                            : known.empty() ? "the file has none"
                                            : fmt::format("expected {}", fmt::join(known, ", "))),
                file.path, operation);
}

}  // namespace

struct GatherCounts {
    std::atomic<std::uint64_t> gathers{0};
    std::atomic<std::uint64_t> rows{0};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> rows_hit{0};
    std::atomic<std::uint64_t> rows_on_gpu{0};
    std::atomic<std::uint64_t> rows_read{0};
    std::atomic<std::uint64_t> bytes_read{0};

    void add(std::atomic<std::uint64_t>& count, std::uint64_t by) {
        count.fetch_add(by, std::memory_order_relaxed);
    }
};

}  // namespace features

struct FeatureGather::Pending {
    std::shared_ptr<const features::OpenedFeatures> opened;  ///< names the row of an error
    pid_t process = ::getpid();
    std::mutex mutex;
    std::vector<std::unique_ptr<features::TierGather>> tables;  ///< with rows that may be kept
    std::vector<std::unique_ptr<features::DeviceGather>> gpus;
};

struct FeatureStore::Impl {
    std::shared_ptr<const features::OpenedFeatures> opened;  ///< nullptr: closed
    FeatureFile described;
    features::GatherCounts counts;
    /// Guards `opened`, which close() on another thread lets go of.
    base::OfProcess<std::mutex> mutex{[] { return std::make_shared<std::mutex>(); }};
    std::unique_ptr<base::OfProcess<features::MemoryTier>> tier;  ///< nullptr: none
    std::string memory_text;                                      ///< for describe()
    bool pins_memory = true;                                      ///< for gathers to GPUs
    bool warms_up = false;  ///< all rows come into memory, also those that nobody asks for
    std::int32_t device = 0;
    std::uint64_t device_bytes = 0;
    RowPolicy policy = RowPolicy::kWindow;
    base::OfProcess<features::DeviceTiers> gpus{
        [] { return std::make_shared<features::DeviceTiers>(); }};

    [[nodiscard]] std::shared_ptr<const features::OpenedFeatures> get(
        const char* operation = "gather") {
        const std::shared_ptr<std::mutex> its = mutex.get();
        const std::lock_guard lock(*its);
        if (opened == nullptr) {
            features::refuse_call(ErrorCode::kClosed, "this FeatureStore is closed; open it again",
                                  described.path, operation);
        }
        return opened;
    }
    /// Also of a closed store. nullptr: no row is kept.
    [[nodiscard]] std::shared_ptr<features::MemoryTier> memory() const {
        return tier == nullptr ? nullptr : tier->get();
    }
    /// nullptr: no row is kept for gathers into the memory of that GPU.
    [[nodiscard]] std::shared_ptr<features::DeviceTier> gpu(
        std::int32_t number, const features::OpenedFeatures& from) const {
        return gpus->get(number, [&](std::shared_ptr<features::PinnedRows>& pinned) {
            const std::uint64_t bytes = number == device ? device_bytes : 0;
            const std::shared_ptr<features::MemoryTier> host = memory();
            if (pinned == nullptr && host != nullptr && host->keeps_rows() && pins_memory) {
                pinned = std::make_shared<features::PinnedRows>(host, from.directory.tables.size(),
                                                                number);
            }
            return bytes == 0 && pinned == nullptr
                       ? nullptr
                       : std::make_shared<features::DeviceTier>(from.directory, number, bytes,
                                                                policy, pinned);
        });
    }
    /// The rows of a table on the GPU of the options; nullptr: none are kept there.
    [[nodiscard]] const features::DeviceTier::Slots* on_gpu(std::uint32_t table) const {
        for (const auto& known : device_bytes == 0 ? decltype(gpus->all())() : gpus->all()) {
            if (known->device() == device && known->of(table).cache != nullptr) {
                return &known->of(table);
            }
        }
        return nullptr;
    }
    void close() {
        const std::shared_ptr<std::mutex> its = mutex.get();
        const std::lock_guard lock(*its);
        opened = nullptr;
    }
};

FeatureGather::FeatureGather() noexcept = default;
FeatureGather::FeatureGather(FeatureGather&& other) noexcept = default;
FeatureGather& FeatureGather::operator=(FeatureGather&& other) noexcept = default;
FeatureGather::~FeatureGather() = default;

std::uint64_t FeatureGather::wait() {
    return *wait_for(std::chrono::nanoseconds::max());
}

std::optional<std::uint64_t> FeatureGather::wait_for(std::chrono::nanoseconds timeout) {
    const auto begin = std::chrono::steady_clock::now();
    if (transfer_.valid()) {
        try {
            if (timeout == std::chrono::nanoseconds::max()) {
                transfer_.wait();
            } else if (!transfer_.wait_for(timeout)) {
                return std::nullopt;
            }
        } catch (const Error& error) {
            finish(&error);
        }
    }
    finish();
    const bool forever = timeout == std::chrono::nanoseconds::max();
    if (!wait_for_gpus(forever ? timeout : timeout - (std::chrono::steady_clock::now() - begin))) {
        return std::nullopt;
    }
    return bytes_;
}

// Those without a stream of the caller's. After finish().
bool FeatureGather::wait_for_gpus(std::chrono::nanoseconds limit) const {
    bool over = true;
    if (pending_ != nullptr && pending_->process == ::getpid()) {
        for (const std::unique_ptr<features::DeviceGather>& gpu : pending_->gpus) {
            over = gpu->wait(limit) && over;
        }
    }
    return over;
}

// All reads are over. Who comes second waits for the first.
void FeatureGather::settle(bool sound) const noexcept {
    if (pending_ == nullptr || pending_->process != ::getpid()) {
        return;  // a child of fork has nothing to keep, and may find the mutex locked for good
    }
    std::shared_ptr<const features::OpenedFeatures> closed;  // after the lock
    const std::lock_guard lock(pending_->mutex);
    for (const std::unique_ptr<features::TierGather>& table : pending_->tables) {
        table->finish(sound);
    }
    pending_->tables.clear();
    for (const std::unique_ptr<features::DeviceGather>& gpu : pending_->gpus) {
        gpu->finish(sound);
    }
    if (sound) {
        closed = std::move(pending_->opened);
    }
}

void FeatureGather::finish(const Error* failed) {
    settle(failed == nullptr);
    if (failed == nullptr) {
        return;
    }
    if (pending_ == nullptr || pending_->opened == nullptr) {
        throw Error(*failed);
    }
    features::raise_with_row(*failed, *pending_->opened);
}

bool FeatureGather::done() const noexcept {
    const bool over = !transfer_.valid() || transfer_.done();
    if (!over || taken_) {
        return over;
    }
    settle(transfer_.status() == TransferStatus::kDone);
    try {
        return wait_for_gpus(std::chrono::nanoseconds(0));
    } catch (...) {
        return true;  // wait() throws it
    }
}

void FeatureGather::cancel() {
    if (transfer_.valid()) {
        transfer_.cancel();
    }
}

FeatureStore::FeatureStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FeatureStore::FeatureStore(FeatureStore&& other) noexcept = default;
FeatureStore& FeatureStore::operator=(FeatureStore&& other) noexcept = default;
FeatureStore::~FeatureStore() = default;

FeatureStore FeatureStore::open(std::shared_ptr<Engine> engine, const std::string& path,
                                const FeatureStoreOptions& options, const FileSystem& files) {
    auto impl = std::make_unique<Impl>();
    auto opened = std::make_shared<features::OpenedFeatures>(
        features::open_features(engine, path, files, options.cache));
    if (options.verify) {
        features::require_sound_chunks(*opened, options.progress);
    }
    impl->described = opened->described;
    impl->opened = opened;
    const features::MemoryChoice memory = features::choose_memory(
        options, opened->directory, opened->described.is_npy, available_memory_bytes());
    impl->memory_text = memory.text;
    impl->pins_memory = !memory.is_default;  // all of it would be taken at once
    impl->warms_up = memory.is_default && memory.bytes != 0;
    if (memory.bytes != 0) {
        impl->tier = std::make_unique<base::OfProcess<features::MemoryTier>>(
            [opened, memory, policy = options.policy] {
                try {
                    return std::make_shared<features::MemoryTier>(opened->directory, memory.bytes,
                                                                  policy);
                } catch (const std::exception&) {  // Error, std::bad_alloc
                    if (!memory.is_default) {
                        throw;
                    }
                }
                return std::make_shared<features::MemoryTier>(opened->directory, 0, policy);
            });
    }
    impl->device = options.device;
    impl->device_bytes = options.device_bytes;
    impl->policy = options.policy;
    if (options.device_bytes != 0) {
        static_cast<void>(impl->gpu(options.device, *opened));
    }
    FeatureStore store(std::move(impl));
    for (const HotRows& rows : options.hot) {
        store.preload(
            features::table_number(store.file(), rows.table, features::kHot.operation, "hot: "),
            rows.ids);
    }
    return store;
}

// As many as fit, in the order of the file as far as a step goes, on the GPU before the host. They
// are read into their slots, which nobody else can have: preload() waits for them.
void FeatureStore::preload(std::uint32_t table, std::span<const std::uint64_t> ids) const {
    constexpr std::size_t kStepRows = 16384;
    const std::shared_ptr<const features::OpenedFeatures> opened = there().get();
    features::check_ids(*opened, table, ids, features::kHot);
    if (!ids.empty() && there().device_bytes == 0 && there().tier == nullptr) {
        features::refuse_call(ErrorCode::kInvalidArgument,
                              "hot: there is no memory for these rows; give ram, such as 4GiB, or "
                              "device_memory",
                              opened->described.path, features::kHot.operation);
    }
    struct RowsKept {
        tier::KeyCache* cache;
        Memory memory;
    };
    std::vector<RowsKept> places;
    if (const auto* const slots = there().on_gpu(table)) {
        places.push_back({slots->cache.get(), slots->memory.memory(0, slots->memory.size())});
    }
    const std::shared_ptr<features::MemoryTier> tier = there().memory();
    if (tier != nullptr && tier->of(table).cache != nullptr) {
        places.push_back({tier->of(table).cache.get(), tier->of(table).memory.bytes()});
    }
    while (!ids.empty() && !places.empty()) {
        const auto step = ids.first(std::min(ids.size(), kStepRows));
        ids = ids.subspan(step.size());
        std::vector<std::uint64_t> left(step.begin(), step.end());
        for (const RowsKept& place : places) {
            std::vector<std::uint64_t> wanted;
            std::vector<std::uint64_t> slots_of;
            std::vector<std::uint64_t> others;
            wanted.reserve(left.size());
            slots_of.reserve(left.size());
            others.reserve(left.size());
            features::PreloadedRows rows(*place.cache, left);
            for (std::size_t i = 0; i < left.size(); ++i) {
                if (rows.is_read(i)) {
                    wanted.push_back(left[i]);
                    slots_of.push_back(rows.slot(i));
                } else {
                    others.push_back(left[i]);
                }
            }
            if (!wanted.empty()) {
                const features::WantedRows one{table, wanted, slots_of, place.memory};
                features::RowReads reads;
                features::make_reads(*opened, std::span(&one, 1), reads);
                try {
                    opened->engine->run(std::move(reads.request)).wait();
                } catch (const Error& error) {
                    features::raise_with_row(error, *opened);
                }
            }
            rows.commit();
            left = std::move(others);
        }
    }
}

// Random rows of a table that fits into memory would be read one by one until the last has come,
// for many epochs. So a gather also reads some of the table in its order, half of what its own
// reads cost: a row that is read by itself costs as much as 8 KiB in a row. An error is of no
// interest here: a gather that asks for the row reports it.
void FeatureStore::warm_up(std::uint32_t table, std::uint64_t rows_read) const noexcept {
    constexpr std::uint64_t kBytesPerRow = 4 << 10;
    constexpr std::uint64_t kBytesMax = 8 << 20;
    const std::uint64_t row_bytes = tables()[table].stride_bytes;
    const std::uint64_t bytes = std::min(rows_read, kBytesMax / kBytesPerRow) * kBytesPerRow;
    const std::shared_ptr<features::MemoryTier> tier = there().memory();
    const features::RowRange rows = tier->take_next(table, bytes / row_bytes);
    try {
        std::vector<std::uint64_t> ids(rows.end - rows.begin);
        std::iota(ids.begin(), ids.end(), rows.begin);
        preload(table, ids);
    } catch (const std::exception&) {  // Error, std::bad_alloc
        static_cast<void>(tier->take_next(table, UINT64_MAX));
    }
}

FeatureStore::Impl& FeatureStore::there() const {
    if (impl_ == nullptr) {
        features::refuse_call(ErrorCode::kInvalidArgument,
                              "this FeatureStore was moved from; use the one it went to");
    }
    return *impl_;
}

const FeatureFile& FeatureStore::file() const {
    return there().described;
}

std::uint32_t FeatureStore::table(std::string_view name) const {
    return features::table_number(file(), name, "table", "");
}

FeatureGather FeatureStore::start(std::span<const FeatureRequest> requests,
                                  const FeatureGatherOptions& options, bool caller_waits) const {
    Impl& impl = there();
    FeatureGather made;
    made.pending_ = std::make_unique<FeatureGather::Pending>();
    made.pending_->opened = impl.get();
    const features::OpenedFeatures& opened = *made.pending_->opened;
    const std::shared_ptr<features::MemoryTier> tier = impl.memory();
    // A .npy of which no row is kept gives the rows of now.
    if (!opened.described.is_npy || tier != nullptr || impl.device_bytes != 0) {
        opened.unchanged->check();
    }
    std::vector<features::WantedRows> wanted;
    for (const FeatureRequest& request : requests) {
        features::check_request(opened, request);
        made.bytes_ += request.out.bytes;
    }
    features::check_stream(opened, requests, options.stream);
    const bool to_gpu = std::any_of(
        requests.begin(), requests.end(),
        [](const FeatureRequest& request) { return request.out.kind == MemoryKind::kDevice; });
    const auto reading = tier == nullptr && !to_gpu ? nullptr : std::make_shared<char>();
    auto& kept = made.pending_->tables;
    auto& gpus = made.pending_->gpus;
    kept.reserve(requests.size());
    const auto gather_of = [&](std::int32_t device) -> features::DeviceGather* {
        for (const auto& known : gpus) {
            if (known->device() == device) {
                return known.get();
            }
        }
        std::shared_ptr<features::DeviceTier> its = impl.gpu(device, opened);
        if (its == nullptr) {
            return nullptr;
        }
        gpus.push_back(
            std::make_unique<features::DeviceGather>(std::move(its), options.stream, reading));
        return gpus.back().get();
    };
    std::uint64_t rows = 0;
    std::uint64_t hits = 0;
    std::uint64_t on_gpu = 0;
    std::uint64_t bytes_read = 0;
    for (const FeatureRequest& request : requests) {
        rows += request.ids.size();
        features::WantedRows one{request.table, request.ids, {}, request.out};
        if (request.ids.empty()) {
            continue;
        }
        if (request.out.kind == MemoryKind::kDevice) {
            if (features::DeviceGather* const gpu = gather_of(request.out.device)) {
                const features::DeviceGather::Reads& reads = gpu->add(request);
                one.ids = reads.ids;
                one.destinations = reads.destinations;
            }
        } else if (tier != nullptr && tier->of(request.table).cache != nullptr) {
            kept.push_back(std::make_unique<features::TierGather>(tier, request, reading));
            one.ids = kept.back()->ids();
            one.destinations = kept.back()->destinations();
            hits += kept.back()->hits();
        }
        if (!one.ids.empty()) {
            bytes_read += one.ids.size() * opened.directory.tables[one.table].row_bytes;
            wanted.push_back(one);
        }
    }
    if (!wanted.empty()) {
        features::RowReads reads;
        features::make_reads(opened, wanted, reads);
        reads.request.keep = reading;
        if (options.stream) {
            reads.request.options.streams.push_back(*options.stream);
        }
        made.transfer_ = caller_waits ? opened.engine->run(std::move(reads.request))
                                      : opened.engine->submit(std::move(reads.request));
    }
    // After the reads were asked for, which would wait for what the stream holds.
    try {
        for (const auto& gpu : gpus) {
            gpu->launch();
            hits += gpu->hits();
            on_gpu += gpu->kept();
        }
    } catch (...) {
        if (made.transfer_.valid()) {
            made.cancel();
            try {
                made.transfer_.wait();
            } catch (const Error&) {  // as was asked for
            }
        }
        throw;
    }
    for (const auto& its : kept) {
        if (caller_waits && impl.warms_up && !its->ids().empty()) {
            warm_up(its->table(), its->ids().size());
        }
    }
    features::GatherCounts& counts = impl.counts;
    counts.add(counts.gathers, 1);
    counts.add(counts.rows, rows);
    counts.add(counts.bytes, made.bytes_);
    counts.add(counts.rows_hit, hits);
    counts.add(counts.rows_on_gpu, on_gpu);
    counts.add(counts.rows_read, rows - hits);
    counts.add(counts.bytes_read, bytes_read);
    return made;
}

std::uint64_t FeatureStore::gather(std::uint32_t table, std::span<const std::uint64_t> ids,
                                   Memory out, const FeatureGatherOptions& options) const {
    const FeatureRequest request{table, ids, out};
    return gather(std::span(&request, 1), options);
}

std::uint64_t FeatureStore::gather(std::span<const FeatureRequest> requests,
                                   const FeatureGatherOptions& options) const {
    return start(requests, options, true).wait();
}

FeatureGather FeatureStore::gather_async(std::span<const FeatureRequest> requests,
                                         const FeatureGatherOptions& options) const {
    return start(requests, options, false);
}

FeatureGather FeatureStore::run(std::span<const FeatureRequest> requests,
                                const FeatureGatherOptions& options) const {
    return start(requests, options, true);
}

bool FeatureStore::hint(std::uint32_t table, std::span<const std::uint64_t> ids) const {
    features::check_ids(*there().get(features::kHint.operation), table, ids, features::kHint);
    if (const auto* const slots = there().on_gpu(table)) {
        return slots->cache->hint(ids) != tier::kNoHint;
    }
    const std::shared_ptr<features::MemoryTier> tier = there().memory();
    return tier != nullptr && tier->of(table).cache != nullptr &&
           tier->of(table).cache->hint(ids) != tier::kNoHint;
}

void FeatureStore::drop_hints() const {
    const std::shared_ptr<features::MemoryTier> tier = there().memory();
    for (std::uint32_t table = 0; tier != nullptr && table < tables().size(); ++table) {
        if (tier->of(table).cache != nullptr) {
            tier->of(table).cache->drop_hints();
        }
    }
    for (std::uint32_t table = 0; table < tables().size(); ++table) {
        if (const auto* const slots = there().on_gpu(table)) {
            slots->cache->drop_hints();
        }
    }
}

FeatureStats FeatureStore::stats() const {
    const features::GatherCounts& counts = there().counts;
    FeatureStats out{.gathers = counts.gathers.load(),
                     .rows = counts.rows.load(),
                     .bytes = counts.bytes.load(),
                     .rows_hit = counts.rows_hit.load(),
                     .rows_on_gpu = counts.rows_on_gpu.load(),
                     .rows_read = counts.rows_read.load(),
                     .bytes_read = counts.bytes_read.load()};
    if (const auto tier = there().memory()) {
        tier->add_stats(out);
    }
    for (const auto& gpu : there().gpus->all()) {
        gpu->reap();
        gpu->add_stats(out);
    }
    return out;
}

std::string FeatureStore::describe() const {
    const FeatureFile& its = there().described;
    std::string text = fmt::format("'{}': {} {} in {} of files; {}", its.path, its.tables.size(),
                                   its.tables.size() == 1 ? "table" : "tables",
                                   base::format_bytes(its.bytes), there().memory_text);
    if (there().device_bytes != 0) {
        text += fmt::format("; rows stay in up to {} of memory of GPU {}",
                            base::format_bytes(there().device_bytes), there().device);
    }
    return text;
}

void FeatureStore::close() {
    if (impl_ != nullptr) {
        impl_->close();
    }
}

}  // namespace penstock
