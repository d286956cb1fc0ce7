// SPDX-License-Identifier: Apache-2.0
#include "base/near.hpp"
#include "base/of_process.hpp"
#include "base/raise.hpp"
#include "features/gather_request.hpp"
#include "features/memory_tier.hpp"
#include "features/opened_features.hpp"
#include "format/fault.hpp"

#include <penstock/feature_store.hpp>

#include <fmt/format.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace penstock {

namespace features {

namespace {

[[noreturn]] void refuse_call(ErrorCode code, const std::string& message,
                              const std::string& path = {}) {
    base::raise(base::error(code, "gather", message, path));
}

}  // namespace

struct GatherCounts {
    std::atomic<std::uint64_t> gathers{0};
    std::atomic<std::uint64_t> rows{0};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> rows_hit{0};
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
};

struct FeatureStore::Impl {
    std::shared_ptr<const features::OpenedFeatures> opened;  ///< nullptr: closed
    FeatureFile described;
    features::GatherCounts counts;
    /// Guards `opened`, which close() on another thread lets go of.
    base::OfProcess<std::mutex> mutex{[] { return std::make_shared<std::mutex>(); }};
    std::unique_ptr<base::OfProcess<features::MemoryTier>> tier;  ///< nullptr: none

    [[nodiscard]] std::shared_ptr<const features::OpenedFeatures> get() {
        const std::shared_ptr<std::mutex> its = mutex.get();
        const std::lock_guard lock(*its);
        if (opened == nullptr) {
            features::refuse_call(ErrorCode::kClosed, "this FeatureStore is closed; open it again",
                                  described.path);
        }
        return opened;
    }
    /// Also of a closed store. nullptr: no row is kept.
    [[nodiscard]] std::shared_ptr<features::MemoryTier> memory() const {
        return tier == nullptr ? nullptr : tier->get();
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
    return bytes_;
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
    if (sound) {
        closed = std::move(pending_->opened);
    }
}

void FeatureGather::finish(const Error* failed) {
    settle(failed == nullptr);
    if (failed == nullptr) {
        return;
    }
    const std::string row =
        pending_ == nullptr || pending_->opened == nullptr || failed->offset() == kNoOffset
            ? std::string()
            : features::row_name(*pending_->opened, failed->path(), failed->offset());
    if (row.empty()) {
        throw Error(*failed);
    }
    // The engine's message has the row's number within its part, or none.
    if (failed->reason() == ErrorCode::kSystem) {
        base::raise(base::system_error(failed->system_errno(), failed->operation(), failed->path(),
                                       failed->offset(), "this is " + row));
    }
    if (failed->reason() == ErrorCode::kEndOfFile) {
        base::raise(base::error(ErrorCode::kEndOfFile, failed->operation(),
                                fmt::format("the file ends within {} or before it, so it was cut "
                                            "while it was open; write it again, or take a copy",
                                            row),
                                failed->path(), failed->offset()));
    }
    throw Error(failed->reason(), failed->system_errno(), failed->operation(), failed->path(),
                failed->offset(), fmt::format("{} ({})", failed->what(), row));
}

bool FeatureGather::done() const noexcept {
    const bool over = !transfer_.valid() || transfer_.done();
    if (over && !taken_) {
        settle(transfer_.status() == TransferStatus::kDone);
    }
    return over;
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
    impl->described = opened->described;
    impl->opened = opened;
    if (options.ram_bytes != 0) {
        impl->tier = std::make_unique<base::OfProcess<features::MemoryTier>>(
            [opened, bytes = options.ram_bytes, policy = options.policy] {
                return std::make_shared<features::MemoryTier>(opened->directory, bytes, policy);
            });
    }
    FeatureStore store(std::move(impl));
    for (const HotRows& rows : options.hot) {
        store.preload(store.table(rows.table), rows.ids);
    }
    return store;
}

// As many as fit, in the order of the file as far as a step goes. They are read into their slots,
// which nobody else can have: preload() waits for them.
void FeatureStore::preload(std::uint32_t table, std::span<const std::uint64_t> ids) const {
    constexpr std::size_t kStepRows = 16384;
    const std::shared_ptr<const features::OpenedFeatures> opened = there().get();
    features::check_ids(*opened, table, ids);
    const std::shared_ptr<features::MemoryTier> tier = there().memory();
    if (tier == nullptr || tier->of(table).cache == nullptr) {
        return;
    }
    const features::MemoryTier::Slots& slots = tier->of(table);
    while (!ids.empty()) {
        const auto step = ids.first(std::min(ids.size(), kStepRows));
        ids = ids.subspan(step.size());
        std::vector<std::uint64_t> wanted;
        std::vector<std::uint64_t> places_of;
        wanted.reserve(step.size());
        places_of.reserve(step.size());
        features::PreloadedRows rows(*slots.cache, step);
        for (std::size_t i = 0; i < step.size(); ++i) {
            if (rows.is_read(i)) {
                wanted.push_back(step[i]);
                places_of.push_back(rows.slot(i));
            }
        }
        if (!wanted.empty()) {
            const features::WantedRows one{table, wanted, places_of, slots.memory.bytes()};
            features::RowReads reads;
            features::make_reads(*opened, std::span(&one, 1), reads);
            opened->engine->run(std::move(reads.request)).wait();
        }
        rows.commit();
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
    std::vector<std::string_view> known;
    for (const FeatureTable& one : tables()) {
        if (one.name == name) {
            return static_cast<std::uint32_t>(known.size());
        }
        known.emplace_back(one.name);
    }
    const std::string_view near = base::nearest(name, known);
    features::refuse_call(
        ErrorCode::kInvalidArgument,
        fmt::format("there is no table {}; {}", format::shown(name),
                    !near.empty()   ? fmt::format("did you mean {}?", format::shown(near))
                    : known.empty() ? "the file has none"
                                    : fmt::format("expected {}", fmt::join(known, ", "))),
        file().path);
}

FeatureGather FeatureStore::start(std::span<const FeatureRequest> requests,
                                  bool caller_waits) const {
    Impl& impl = there();
    FeatureGather made;
    made.pending_ = std::make_unique<FeatureGather::Pending>();
    made.pending_->opened = impl.get();
    const features::OpenedFeatures& opened = *made.pending_->opened;
    const std::shared_ptr<features::MemoryTier> tier = impl.memory();
    std::vector<features::WantedRows> wanted;
    for (const FeatureRequest& request : requests) {
        features::check_request(opened, request);
        made.bytes_ += request.out.bytes;
    }
    std::uint64_t rows = 0;
    std::uint64_t hits = 0;
    std::uint64_t bytes_read = 0;
    const auto reading = tier == nullptr ? nullptr : std::make_shared<char>();
    auto& kept = made.pending_->tables;
    kept.reserve(requests.size());
    for (const FeatureRequest& request : requests) {
        rows += request.ids.size();
        features::WantedRows one{request.table, request.ids, {}, request.out};
        if (!request.ids.empty() && tier != nullptr && tier->of(request.table).cache != nullptr) {
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
        made.transfer_ = caller_waits ? opened.engine->run(std::move(reads.request))
                                      : opened.engine->submit(std::move(reads.request));
    }
    features::GatherCounts& counts = impl.counts;
    counts.add(counts.gathers, 1);
    counts.add(counts.rows, rows);
    counts.add(counts.bytes, made.bytes_);
    counts.add(counts.rows_hit, hits);
    counts.add(counts.rows_read, rows - hits);
    counts.add(counts.bytes_read, bytes_read);
    return made;
}

std::uint64_t FeatureStore::gather(std::uint32_t table, std::span<const std::uint64_t> ids,
                                   Memory out) const {
    const FeatureRequest request{table, ids, out};
    return gather(std::span(&request, 1));
}

std::uint64_t FeatureStore::gather(std::span<const FeatureRequest> requests) const {
    return start(requests, true).wait();
}

FeatureGather FeatureStore::gather_async(std::span<const FeatureRequest> requests) const {
    return start(requests, false);
}

FeatureGather FeatureStore::run(std::span<const FeatureRequest> requests) const {
    return start(requests, true);
}

bool FeatureStore::hint(std::uint32_t table, std::span<const std::uint64_t> ids) const {
    features::check_ids(*there().get(), table, ids);
    const std::shared_ptr<features::MemoryTier> tier = there().memory();
    return tier != nullptr && tier->of(table).cache != nullptr &&
           tier->of(table).cache->hint(ids) != features::kNoHint;
}

void FeatureStore::drop_hints() const {
    const std::shared_ptr<features::MemoryTier> tier = there().memory();
    for (std::uint32_t table = 0; tier != nullptr && table < tables().size(); ++table) {
        if (tier->of(table).cache != nullptr) {
            tier->of(table).cache->drop_hints();
        }
    }
}

FeatureStats FeatureStore::stats() const {
    const features::GatherCounts& counts = there().counts;
    FeatureStats out{.gathers = counts.gathers.load(),
                     .rows = counts.rows.load(),
                     .bytes = counts.bytes.load(),
                     .rows_hit = counts.rows_hit.load(),
                     .rows_read = counts.rows_read.load(),
                     .bytes_read = counts.bytes_read.load()};
    if (const auto tier = there().memory()) {
        tier->add_stats(out);
    }
    return out;
}

void FeatureStore::close() {
    if (impl_ != nullptr) {
        impl_->close();
    }
}

}  // namespace penstock
