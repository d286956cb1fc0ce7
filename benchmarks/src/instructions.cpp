// SPDX-License-Identifier: Apache-2.0
// Work to be counted by callgrind: the real engine on real files, its channel turned by this
// thread. One thread, because valgrind runs one at a time and lets no other in while one of them
// sleeps in io_uring_enter. User instructions are the same wherever the channel is turned.
#include "instructions.hpp"

#include "api/options.hpp"
#include "base/clock.hpp"
#include "engine/core.hpp"
#include "features.hpp"
#include "os/local_file_system.hpp"

#include <penstock/memory.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::benchmarks {

namespace {

constexpr std::uint64_t kBlock = 4096;
constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kWindow = 16 * kMiB;

class Turned {
public:
    /// `threads`: the engine has its own, as for callers; then with POSIX threads in place of
    /// io_uring.
    Turned(std::uint32_t depth, bool threads) : threads_(threads) {
        EngineOptions options;
        options.queue_depth = depth;
        options.gap_bytes = 0;  // what a request costs is counted, so that each read is one
        auto core_options = api::core_options(options);
        core_options->domain.threads = threads;
        auto core = engine::Core::make(
            *core_options,
            {.file_system = os::local_file_system(),
             .backends = api::backends_for(threads ? BackendKind::kPosix : BackendKind::kUring),
             .clock = std::make_shared<base::SteadyClock>()});
        if (!core) {
            throw CannotRun("io_uring is what is counted: " + core.error().message);
        }
        core_ = std::move(*core);
    }

    /// Drops what is cached of it, so that reads go to the device.
    std::shared_ptr<os::File> open(const std::string& path) {
        evict(path);
        auto file = core_->file_system().open(path, {});
        if (!file) {
            throw CannotRun(file.error().message);
        }
        return *file;
    }

    /// As Engine::read() does it.
    void read_one(const std::shared_ptr<os::File>& file, const Extent& extent) {
        if (!core_->read_at_once(*file, extent.memory, extent.offset, {})) {
            read(file, engine::Extents::of_one(extent), true);
        }
    }

    void read(const std::shared_ptr<os::File>& file, engine::Extents extents, bool blocking) {
        engine::TransferSpec spec;
        spec.files.push_back(file);
        spec.extents = std::move(extents);
        spec.caller_waits = blocking;
        auto started = core_->start(std::move(spec));
        if (!started) {
            throw std::runtime_error(started.error().message);
        }
        engine::Transfer* transfer = *started;
        if (threads_) {
            while (!transfer->finished()) {
                (void)transfer->wait(base::kForever);
            }
        } else {
            turn_until_finished(*transfer);
        }
        transfer->mark_observed();
        const std::string message = transfer->error() != nullptr ? transfer->error()->message : "";
        transfer->abandon();
        transfer->release();
        if (!message.empty()) {
            throw std::runtime_error(message);
        }
    }

    [[nodiscard]] std::string backend() const { return core_->backend_name(); }

private:
    // As the channel's own thread does it, asleep in the kernel between turns, so that no turn
    // without work is counted; but not from where nothing is left to draw: that turn would finish
    // the transfer and sleep on.
    static void turn_until_finished(engine::Transfer& transfer) {
        engine::Part& part = transfer.first_window.parts.front();
        while (!transfer.finished()) {
            const bool more = part.plan.peek(kMiB) != nullptr;
            if (!part.channel->turn(more) && !more) {
                std::this_thread::sleep_for(std::chrono::microseconds(100));
            }
        }
    }

    bool threads_;
    std::shared_ptr<engine::Core> core_;
};

// A thousand rows at a time, none of which adjoins another; handicap `no_batching`: each by itself.
void gathered_rows(const Arguments& arguments, Figures& figures) {
    constexpr std::uint64_t kTable = 65'536;
    constexpr std::uint64_t kApart = 8;
    const std::uint64_t count = arguments.number("count");
    Turned engine(128, false);
    const auto file = engine.open(arguments.text("path"));
    const features::OpenedFeatures table = striped_table(1, kTable, kBlock);
    std::vector<std::uint64_t> ids(kTable / kApart);
    std::iota(ids.begin(), ids.end(), 0);
    Random random;
    for (std::uint64_t i = 0; i < count; ++i) {
        std::swap(ids.at(i), ids.at(i + random.below(ids.size() - i)));
        ids[i] *= kApart;
    }
    const std::uint64_t step = arguments.handicap("no_batching") ? 1 : 1000;
    const Memory memory(step * kBlock);
    for (std::uint64_t begin = 0; begin < count; begin += step) {
        const auto some = std::span(ids).subspan(begin, std::min(step, count - begin));
        engine.read(file, extents_of_gather(table, some, {memory.data(), some.size() * kBlock}),
                    false);
    }
    figures.set("operations", count);
    figures.set("backend", engine.backend());
}

}  // namespace

void instructions(const Arguments& arguments, Figures& figures) {
    const std::string what = arguments.text("what");
    if (what == "rows") {
        gathered_rows(arguments, figures);
        return;
    }
    const std::uint64_t count = arguments.number("count");
    const bool blocking = what == "blocking";
    const std::uint64_t bytes = what == "1m" ? kMiB : kBlock;
    // A blocking read is done inline, by plain system calls, whatever the backend is.
    Turned engine(what == "1m" ? 16 : 128, blocking);
    const auto file = engine.open(arguments.text("path"));
    const Memory memory(kWindow);
    const std::uint64_t blocks = 64 * kMiB / bytes;  // of the file: all that is asked of it
    std::vector<Extent> extents(count);
    Random random;
    for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t block = bytes == kMiB ? i % blocks : random.below(blocks);
        extents[i] = {block * bytes, {memory.data() + i * bytes % kWindow, bytes}, 0};
    }
    if (blocking && !arguments.handicap("hop")) {
        for (const Extent& extent : extents) {
            engine.read_one(file, extent);
        }
    } else if (blocking || arguments.handicap("each")) {
        for (const Extent& extent : extents) {
            engine.read(file, engine::Extents::of_one(extent), false);
        }
    } else {
        engine.read(file, engine::Extents(std::move(extents)), false);
    }
    figures.set("operations", count);
    figures.set("backend", engine.backend());
}

}  // namespace penstock::benchmarks
