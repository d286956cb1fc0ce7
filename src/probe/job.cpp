// SPDX-License-Identifier: Apache-2.0
#include "probe/job.hpp"

#include "base/align.hpp"
#include "base/clock.hpp"
#include "base/histogram.hpp"
#include "base/text/units.hpp"
#include "base/wait_slice.hpp"
#include "probe/gpu.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace penstock::probe {

namespace {

constexpr std::uint64_t kEngineGrain = 64 << 10;  // EngineOptions::block_bytes is a multiple of it
constexpr std::size_t kInFlight = 3;              // transfers of many blocks
constexpr std::uint64_t kTransferBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kTransferBlocksMax = 32;  // where the depth does not ask for more

double cpu_seconds() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::int64_t percentile(const base::Histogram& histogram, std::uint64_t total, double share) {
    const auto rank = static_cast<std::uint64_t>(static_cast<double>(total) * share);
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < base::Histogram::kBuckets; ++i) {
        seen += histogram.count(i);
        if (seen > rank) {
            return base::Histogram::upper_bound(i);
        }
    }
    return 0;
}

// Chooses the next blocks.
class Blocks {
public:
    Blocks(const JobSpec& job, std::uint64_t file_bytes)
        : block_bytes_(job.block_bytes), count_(file_bytes / job.block_bytes) {}

    [[nodiscard]] std::uint64_t count() const { return count_; }
    std::uint64_t random_offset() {
        // xorshift64*; its high bits are the best ones.
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        const std::uint64_t draw = (state_ * 0x2545f4914f6cdd1dU) >> 20;
        return draw % count_ * block_bytes_;
    }
    // The next `blocks` in a row, or as many as there are before the end: first offset and bytes.
    std::pair<std::uint64_t, std::uint64_t> next(std::uint64_t blocks) {
        const std::uint64_t first = next_;
        const std::uint64_t taken = std::min(blocks, count_ - first);
        next_ = (first + taken) % count_;
        return {first * block_bytes_, taken * block_bytes_};
    }

private:
    std::uint64_t block_bytes_;
    std::uint64_t count_;
    std::uint64_t next_ = 0;
    std::uint64_t state_ = 0x9e3779b97f4a7c15U;
};

// How the blocks of a row are submitted.
struct Shape {
    bool blocking = false;
    std::size_t transfers = kInFlight;
    std::uint64_t blocks = 1;  // per transfer
};

Shape shape_of(const JobSpec& job, const EngineOptions& options, std::size_t targets) {
    if (targets == 1 && job.depth == 1 && job.block_bytes <= options.inline_bytes_max &&
        options.backend == BackendKind::kAuto) {
        return {.blocking = true, .transfers = 1, .blocks = 1};
    }
    if (!is_random(job.rw) && job.block_bytes % kEngineGrain != 0) {
        return {.transfers = 2 * std::size_t{job.depth}, .blocks = 1};
    }
    const std::uint64_t fit =
        std::clamp<std::uint64_t>(kTransferBytes / job.block_bytes, 1, kTransferBlocksMax);
    return {.blocks = std::max<std::uint64_t>(job.depth, fit)};
}

class Run {
public:
    Run(const JobSpec& job, const RunOptions& options, const std::vector<const Target*>& targets,
        MemoryPool& pool, Watch& watch)
        : job_(job),
          targets_(targets),
          watch_(watch),
          shape_(shape_of(job, engine_options(job, options), targets.size())),
          gpu_(options.gpu),
          engine_(engine_options(job, options)) {
        const std::uint64_t bytes =
            shape_.transfers * targets.size() * shape_.blocks * job.block_bytes;
        if (gpu_ >= 0) {
            gpu_memory_ = std::make_unique<GpuMemory>(gpu_, bytes);
            data_ = gpu_memory_->data();
        } else {
            memory_ = pool.take(bytes);
            data_ = memory_.data();
        }
        for (const Target* target : targets) {
            blocks_.emplace_back(job, target->bytes);
        }
        if (is_write(job.rw)) {
            gpu_memory_ ? gpu_memory_->fill() : fill_random(memory_.bytes(), 1);
        }
    }

    Sample go(double seconds) {
        Sample sample;
        sample.side = "penstock";
        const double cpu_before = cpu_seconds();
        start_ = clock_.now();
        deadline_ = start_ + static_cast<base::Nanos>(seconds * 1e9);
        if (shape_.blocking) {
            blocking(sample);
        } else {
            streaming();
        }
        sample.seconds = static_cast<double>(clock_.now() - start_) * 1e-9;
        sample.cpu_s = cpu_seconds() - cpu_before;
        sample.bytes = bytes_;
        sample.operations = bytes_ / job_.block_bytes;
        if (!shape_.blocking) {
            const LatencyStats latency = engine_.stats().latency;
            sample.p50_ns = latency.p50;
            sample.p99_ns = latency.p99;
            sample.p999_ns = latency.p999;
            sample.histogram = latency.histogram;
        }
        return sample;
    }

private:
    void blocking(Sample& sample) {
        base::Histogram histogram;
        const Memory memory = memory_at(data_, job_.block_bytes);
        std::uint64_t count = 0;
        base::Nanos before = start_;
        while (before < deadline_) {
            watch_.check();
            Blocks& blocks = blocks_.front();
            const std::uint64_t offset =
                is_random(job_.rw) ? blocks.random_offset() : blocks.next(1).first;
            if (is_write(job_.rw)) {
                engine_.write(targets_.front()->file, memory, offset);
            } else {
                engine_.read(targets_.front()->file, memory, offset);
            }
            const base::Nanos after = clock_.now();
            histogram.add(after - before);
            before = after;
            bytes_ += job_.block_bytes;
            ++count;
            tell(after);
        }
        sample.p50_ns = percentile(histogram, count, 0.5);
        sample.p99_ns = percentile(histogram, count, 0.99);
        sample.p999_ns = percentile(histogram, count, 0.999);
        for (std::size_t i = 0; i < base::Histogram::kBuckets; ++i) {
            if (histogram.count(i) != 0) {
                sample.histogram.push_back({base::Histogram::upper_bound(i), histogram.count(i)});
            }
        }
    }

    void streaming() {
        try {
            for (std::size_t slot = 0; slot < shape_.transfers; ++slot) {
                running_.emplace_back(submit(slot), slot);
            }
            while (!running_.empty()) {
                auto [transfer, slot] = std::move(running_.front());
                running_.pop_front();
                wait(transfer);
                if (clock_.now() < deadline_) {
                    running_.emplace_back(submit(slot), slot);
                }
            }
        } catch (...) {
            for (auto& [transfer, slot] : running_) {
                transfer.cancel();
            }
            throw;  // the engine's destructor waits for the device before the memory is freed
        }
    }

    void wait(Transfer& transfer) {
        std::optional<std::uint64_t> moved;
        while (!moved) {
            watch_.check();
            moved = transfer.wait_for(base::kWaitSlice);
            tell(clock_.now());
        }
        bytes_ += *moved;
    }

    Transfer submit(std::size_t slot) {
        const std::uint64_t share = shape_.blocks * job_.block_bytes;  // per target
        std::byte* memory = data_ + slot * targets_.size() * share;
        TransferRequest request;
        request.write = is_write(job_.rw);
        request.options.allow_overlap = request.write;  // random blocks may meet
        request.extents.reserve(targets_.size() * (is_random(job_.rw) ? shape_.blocks : 1));
        for (std::uint32_t i = 0; i < targets_.size(); ++i) {
            request.files.push_back(targets_[i]->file);
            add_extents(request, i, memory + i * share);
        }
        return engine_.submit(std::move(request));
    }

    [[nodiscard]] Memory memory_at(std::byte* data, std::uint64_t bytes) const {
        return gpu_ < 0 ? Memory{data, bytes} : Memory{data, bytes, MemoryKind::kDevice, gpu_};
    }

    void add_extents(TransferRequest& request, std::uint32_t file, std::byte* memory) {
        Blocks& blocks = blocks_[file];
        if (!is_random(job_.rw)) {
            const auto [offset, bytes] = blocks.next(shape_.blocks);
            request.extents.push_back({offset, memory_at(memory, bytes), file});
            return;
        }
        for (std::uint64_t i = 0; i < shape_.blocks; ++i) {
            request.extents.push_back({blocks.random_offset(),
                                       memory_at(memory + i * job_.block_bytes, job_.block_bytes),
                                       file});
        }
    }

    void tell(base::Nanos now) {
        if (watch_.due()) {
            watch_.moved(bytes_, static_cast<double>(now - start_) * 1e-9);
        }
    }

    JobSpec job_;
    const std::vector<const Target*>& targets_;
    Watch& watch_;
    Shape shape_;
    std::vector<Blocks> blocks_;  // one per target
    base::SteadyClock clock_;
    base::Nanos start_ = 0;
    base::Nanos deadline_ = 0;
    std::uint64_t bytes_ = 0;
    std::int32_t gpu_;
    Buffer memory_;  // outlives the engine, as does that of a GPU
    std::unique_ptr<GpuMemory> gpu_memory_;
    std::byte* data_ = nullptr;
    Engine engine_;  // its destructor waits for running transfers
    std::deque<std::pair<Transfer, std::size_t>> running_;
};

}  // namespace

EngineOptions engine_options(const JobSpec& job, const RunOptions& options) {
    EngineOptions engine = Engine::default_options();
    engine.backend = options.backend;
    engine.channels = options.channels;
    engine.queue_depth = job.depth;
    engine.block_bytes = static_cast<std::uint32_t>(base::align_up(job.block_bytes, kEngineGrain));
    engine.in_flight_bytes =
        std::max(engine.in_flight_bytes, std::uint64_t{engine.block_bytes} * job.depth);
    engine.background_bytes = std::max(engine.background_bytes, std::uint64_t{engine.block_bytes});
    engine.gap_bytes = 0;  // a request a block, as fio makes them
    return engine;
}

Sample run_job(const JobSpec& job, const RunOptions& options,
               const std::vector<const Target*>& targets, MemoryPool& pool, Watch& watch) {
    for (const Target* target : targets) {
        if (target->bytes < job.block_bytes) {
            throw Error(
                ErrorCode::kInvalidArgument, 0, "bench", target->path, kNoOffset,
                fmt::format("bench {}: blocks of {} were asked for, and there are {} bytes; take "
                            "a smaller --block-size or a larger file",
                            target->path, base::format_bytes(job.block_bytes), target->bytes));
        }
    }
    return Run(job, options, targets, pool, watch).go(options.seconds);
}

}  // namespace penstock::probe
