// SPDX-License-Identifier: Apache-2.0
// penstock_bench_model JOB --key=value ...: the engine with its default options on the simulator's
// disks (100 us a request, 32 at once, 7 GB/s; copies 10 GB/s on each of two cores) under a virtual
// clock. What it prints as `value` is exact: time is counted, not measured. (`instructions`, beside
// them, is the engine on real files, for callgrind.)
#include "model.hpp"

#include "api/options.hpp"
#include "features.hpp"
#include "instructions.hpp"

#include <penstock/version.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <stdexcept>

namespace penstock::benchmarks {

Addresses::Addresses(std::uint64_t bytes) : bytes_(bytes) {
    start_ = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start_ == MAP_FAILED) {
        throw CannotRun("no room for " + std::to_string(bytes) + " bytes of addresses");
    }
}

Addresses::~Addresses() {
    munmap(start_, bytes_);
}

simulation::SimulationOptions simulation_options(const Arguments& arguments) {
    EngineOptions options;  // not of the environment: the figure is the same everywhere
    if (arguments.handicap("depth1")) {
        options.queue_depth = 1;
    }
    simulation::SimulationOptions simulation;
    simulation.core = value_of(api::core_options(options));
    simulation.shape.hollow = true;
    simulation.model = {
        .request_ns = kRequestNs, .lanes = kLanes, .bytes_per_second = kBytesPerSecond};
    return simulation;
}

double bound_ns(std::uint64_t bytes, std::uint64_t requests) {
    return std::max(static_cast<double>(bytes) / kBytesPerSecond * 1e9,
                    static_cast<double>(requests) * kRequestNs / kLanes);
}

void run_to_its_end(simulation::Simulation& simulation, engine::TransferSpec spec) {
    engine::Transfer* transfer = value_of(simulation.core().start(std::move(spec)));
    if (!simulation.run(*transfer)) {
        throw std::runtime_error("the transfer hangs: nothing will ever happen again");
    }
    const auto* error = transfer->error();
    const std::string message = error != nullptr ? error->message : "";
    transfer->mark_observed();
    transfer->abandon();
    transfer->release();
    if (error != nullptr) {
        throw std::runtime_error(message);
    }
}

}  // namespace penstock::benchmarks

namespace {

using penstock::Extent;
using penstock::Priority;
using penstock::benchmarks::Addresses;
using penstock::benchmarks::Arguments;
using penstock::benchmarks::bound_ns;
using penstock::benchmarks::Figures;
using penstock::benchmarks::simulation_options;
using penstock::benchmarks::value_of;
using penstock::engine::Op;
using penstock::engine::Transfer;
using penstock::engine::TransferSpec;
using penstock::simulation::Simulation;
using penstock::simulation::SimulationOptions;
using Files = std::vector<std::shared_ptr<penstock::os::File>>;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kGiB = 1 << 30;
constexpr std::uint64_t kBlock = 4096;

/// A file of `bytes` bytes (hollow: without any) on each disk.
Files make_files(Simulation& simulation, std::uint32_t disks, std::uint64_t bytes) {
    Files files;
    for (std::uint32_t i = 0; i < disks; ++i) {
        const std::string path = disks == 1 ? "/data" : "/" + std::to_string(i) + "/data";
        files.push_back(value_of(simulation.file_system().open(
            path, {.access = penstock::Access::kReadWrite, .create = true})));
        if (const auto result = files.back()->truncate(bytes); !result) {
            throw std::runtime_error(result.error().message);
        }
    }
    return files;
}

TransferSpec spec_of(Op op, Files files, std::vector<Extent> extents,
                     Priority priority = Priority::kNormal) {
    TransferSpec spec;
    spec.op = op;
    spec.files = penstock::engine::FileList(std::move(files));
    spec.extents = penstock::engine::Extents(std::move(extents));
    spec.options.priority = priority;
    return spec;
}

/// Runs a transfer to its end; virtual nanoseconds.
double run(Simulation& simulation, TransferSpec spec) {
    const auto start = simulation.now();
    penstock::benchmarks::run_to_its_end(simulation, std::move(spec));
    return static_cast<double>(simulation.now() - start);
}

void one_gib(const Arguments& arguments, Figures& figures, std::uint64_t shift) {
    Simulation simulation(simulation_options(arguments));
    const Files files = make_files(simulation, 1, kGiB);
    const Addresses memory(kGiB + kBlock);
    const double taken =
        run(simulation, spec_of(Op::kRead, files, {{0, {memory.at(shift), kGiB}, 0}}));
    figures.set("value", bound_ns(kGiB, 1) / taken);
    figures.set("seconds", taken * 1e-9);
    figures.set("bytes", kGiB);
}

void straight(const Arguments& arguments, Figures& figures) {
    one_gib(arguments, figures, 0);
}
void slots(const Arguments& arguments, Figures& figures) {
    one_gib(arguments, figures, 64);
}

void random_reads(const Arguments& arguments, Figures& figures) {
    constexpr std::uint64_t kReads = 1'000'000;
    constexpr std::uint64_t kFileBytes = 256 * kGiB;
    SimulationOptions options = simulation_options(arguments);
    options.core.domain.channel.gap_bytes = 0;  // a request a read, as the bound has it
    Simulation simulation(options);
    const Files files = make_files(simulation, 1, kFileBytes);
    const Addresses memory(kReads * kBlock);
    std::vector<Extent> extents;
    penstock::benchmarks::Random random;
    for (std::uint64_t i = 0; i < kReads; ++i) {
        extents.push_back(
            {random.below(kFileBytes / kBlock) * kBlock, {memory.at(i * kBlock), kBlock}, 0});
    }
    const double taken = run(simulation, spec_of(Op::kRead, files, std::move(extents)));
    figures.set("value", bound_ns(kReads * kBlock, kReads) / taken);
    figures.set("seconds", taken * 1e-9);
    figures.set("operations", kReads);
}

void devices(const Arguments& arguments, Figures& figures) {
    constexpr std::uint32_t kDisks = 8;
    SimulationOptions options = simulation_options(arguments);
    options.disks = kDisks;
    Simulation simulation(options);
    const Files files = make_files(simulation, kDisks, kGiB);
    const Addresses memory(kDisks * kGiB);
    std::vector<Extent> extents;
    for (std::uint32_t i = 0; i < kDisks; ++i) {
        extents.push_back({0, {memory.at(i * kGiB), kGiB}, i});
    }
    double taken = 0;
    if (arguments.handicap("in_turn")) {
        for (const Extent& extent : extents) {
            taken += run(simulation, spec_of(Op::kRead, files, {extent}));
        }
    } else {
        taken = run(simulation, spec_of(Op::kRead, files, extents));
    }
    figures.set("value", bound_ns(kGiB, 1) / taken);
    figures.set("seconds", taken * 1e-9);
    figures.set("bytes", kDisks * kGiB);
}

/// Time of an urgent read of 4 MiB, with `background_bytes` of writes under way before it.
double urgent_read_ns(const Arguments& arguments, std::uint64_t background_bytes) {
    const bool no_classes = arguments.handicap("no_classes");
    constexpr std::uint64_t kReadBytes = 4 * kMiB;
    Simulation simulation(simulation_options(arguments));
    const std::uint64_t file_bytes = std::max(background_bytes, kReadBytes);
    const Files files = make_files(simulation, 1, file_bytes);
    const Addresses memory(file_bytes + kReadBytes);
    Transfer* background = nullptr;
    if (background_bytes > 0) {
        background = value_of(simulation.core().start(
            spec_of(Op::kWrite, files, {{0, {memory.at(), background_bytes}, 0}},
                    no_classes ? Priority::kNormal : Priority::kBackground)));
        const auto full = simulation.now() + 50'000'000;  // the disk is as full as it gets
        const auto under_way = [&] { return simulation.now() >= full; };
        if (!simulation.run_until(under_way)) {
            throw std::runtime_error("the background writes hang");
        }
    }
    const double taken =
        run(simulation, spec_of(Op::kRead, files, {{0, {memory.at(file_bytes), kReadBytes}, 0}},
                                no_classes ? Priority::kNormal : Priority::kUrgent));
    if (background != nullptr) {
        if (background->finished() && !no_classes) {
            throw std::runtime_error("the background writes were over before the urgent read");
        }
        simulation.core().cancel(*background);
        (void)simulation.run(*background);
        background->mark_observed();
        background->abandon();
        background->release();
    }
    return taken;
}

void classes(const Arguments& arguments, Figures& figures) {
    const double idle_ns = urgent_read_ns(arguments, 0);
    const double busy_ns = urgent_read_ns(arguments, 100'000'000'000);
    figures.set("value", busy_ns / idle_ns);
    figures.set("idle_ns", idle_ns);
    figures.set("busy_ns", busy_ns);
}

// The key of the single flow that the handicap `first_in_first_out` makes.
const int kOneFlow = 0;

Transfer* start_in_flow(Simulation& simulation, const Arguments& arguments, const Files& files,
                        const Extent& extent) {
    TransferSpec spec = spec_of(Op::kRead, files, {extent});
    spec.options.group = arguments.handicap("first_in_first_out") ? &kOneFlow : nullptr;
    return value_of(simulation.core().start(std::move(spec)));
}

/// Cancels its running transfers, and releases it.
void drop(Simulation& simulation, Transfer* transfer) {
    simulation.core().cancel(*transfer);
    (void)simulation.run(*transfer);
    transfer->mark_observed();
    transfer->abandon();
    transfer->release();
}

/// Time of a read of 4 KiB, with a read of `before_bytes` under way before it.
double small_read_ns(const Arguments& arguments, std::uint64_t before_bytes) {
    Simulation simulation(simulation_options(arguments));
    const Files files = make_files(simulation, 1, before_bytes + kBlock);
    const Addresses memory(before_bytes + kBlock);
    Transfer* before =
        start_in_flow(simulation, arguments, files, {0, {memory.at(), before_bytes}, 0});
    // The disk is as full as it gets.
    const auto full = simulation.now() + (before_bytes > kGiB ? 50'000'000 : 0);
    if (!simulation.step() || !simulation.run_until([&] { return simulation.now() >= full; })) {
        throw std::runtime_error("the read before it hangs");
    }
    const auto start = simulation.now();
    Transfer* small = start_in_flow(simulation, arguments, files,
                                    {before_bytes, {memory.at(before_bytes), kBlock}, 0});
    if (!simulation.run(*small)) {
        throw std::runtime_error("the small read hangs");
    }
    const auto taken = static_cast<double>(simulation.now() - start);
    drop(simulation, small);
    drop(simulation, before);
    return taken;
}

void small_behind_big(const Arguments& arguments, Figures& figures) {
    const std::uint64_t at_device = penstock::EngineOptions().in_flight_bytes;
    const double alone_ns = small_read_ns(arguments, at_device);
    const double busy_ns = small_read_ns(arguments, 100'000'000'000);
    figures.set("value", busy_ns / alone_ns);
    figures.set("alone_ns", alone_ns);
    figures.set("busy_ns", busy_ns);
}

/// Two reads of equal size of one class, each of a File of its own: what the one that ends later
/// has when the other ends, as a part of what that has.
void share(const Arguments& arguments, Figures& figures) {
    constexpr std::uint64_t kBytes = 10 * kGiB;
    Simulation simulation(simulation_options(arguments));
    const Files first_file = make_files(simulation, 1, 2 * kBytes);
    const Files second_file = {
        value_of(simulation.file_system().open("/data", {.access = penstock::Access::kRead}))};
    const Addresses memory(2 * kBytes);
    std::array<std::uint64_t, 2> moved{};
    simulation.disk().set_faults([&moved](const penstock::simulation::DiskAccess& access) {
        moved.at(access.offset / kBytes) += access.bytes;
        return penstock::simulation::Fault{};
    });
    Transfer* first =
        start_in_flow(simulation, arguments, first_file, {0, {memory.at(), kBytes}, 0});
    Transfer* second =
        start_in_flow(simulation, arguments, second_file, {kBytes, {memory.at(kBytes), kBytes}, 0});
    if (!simulation.run_until([&] { return first->finished() || second->finished(); })) {
        throw std::runtime_error("the reads hang");
    }
    figures.set("value", static_cast<double>(std::min(moved[0], moved[1])) /
                             static_cast<double>(std::max(moved[0], moved[1])));
    figures.set("bytes", moved[0] + moved[1]);
    drop(simulation, first);
    drop(simulation, second);
}

// ---- memory of a GPU, whose copy engines the simulator has (one a direction)

constexpr double kCopyBytesPerSecond = 25e9;
constexpr double kCopyNs = 10'000;

SimulationOptions with_device(const Arguments& arguments, double copy_bytes_per_second) {
    SimulationOptions options = simulation_options(arguments);
    options.devices.push_back({.bytes_per_second = copy_bytes_per_second,
                               .copy_ns = static_cast<penstock::base::Nanos>(kCopyNs),
                               .one_stream = arguments.handicap("one_stream")});
    // The next request begins when the copy of the one before is through, from and to one slot.
    if (arguments.handicap("wait_each") || arguments.handicap("one_slot")) {
        options.core.domain.channel.in_flight_bytes = options.core.domain.channel.block_bytes;
    }
    return options;
}

Extent of_device(const Addresses& memory, std::uint32_t file) {
    return {0, {memory.at(), kGiB, penstock::MemoryKind::kDevice, 0}, file};
}

void device_one_gib(const Arguments& arguments, Figures& figures, Op op, double rate,
                    double bound) {
    Simulation simulation(with_device(arguments, rate));
    const Files files = make_files(simulation, 1, kGiB);
    const Addresses memory(kGiB);
    const double taken = run(simulation, spec_of(op, files, {of_device(memory, 0)}));
    figures.set("value", bound / taken);
    figures.set("seconds", taken * 1e-9);
    figures.set("bytes", kGiB);
    figures.set("pinned_bytes", simulation.core().device_slot_bytes());
}

void device_read(const Arguments& arguments, Figures& figures) {
    device_one_gib(arguments, figures, Op::kRead, kCopyBytesPerSecond, bound_ns(kGiB, 1));
}

void device_write(const Arguments& arguments, Figures& figures) {
    device_one_gib(arguments, figures, Op::kWrite, kCopyBytesPerSecond, bound_ns(kGiB, 1));
}

/// A copy engine slower than the disk, which has a copy for each MiB.
void device_copy(const Arguments& arguments, Figures& figures) {
    constexpr double kSlow = 5e9;
    const double bound = static_cast<double>(kGiB) / kSlow * 1e9 +
                         static_cast<double>(kGiB) / static_cast<double>(kMiB) * kCopyNs;
    device_one_gib(arguments, figures, Op::kRead, kSlow, bound);
}

/// A read from one disk and a write to another at once: the slower one alone, by both together.
void device_two(const Arguments& arguments, Figures& figures) {
    constexpr double kRate = 10e9;  // so that one engine is too little for both
    const Addresses memory(kGiB);
    double alone = 0;
    for (const Op op : {Op::kRead, Op::kWrite}) {
        Simulation simulation(with_device(arguments, kRate));
        const Files files = make_files(simulation, 1, kGiB);
        alone = std::max(alone, run(simulation, spec_of(op, files, {of_device(memory, 0)})));
    }
    SimulationOptions options = with_device(arguments, kRate);
    options.disks = 2;
    Simulation simulation(options);
    const Files files = make_files(simulation, 2, kGiB);
    const auto start = simulation.now();
    Transfer* write =
        value_of(simulation.core().start(spec_of(Op::kWrite, files, {of_device(memory, 1)})));
    Transfer* read =
        value_of(simulation.core().start(spec_of(Op::kRead, files, {of_device(memory, 0)})));
    if (!simulation.run(*read) || !simulation.run(*write)) {
        throw std::runtime_error("the transfers hang");
    }
    const auto both = static_cast<double>(simulation.now() - start);
    drop(simulation, read);
    drop(simulation, write);
    figures.set("value", alone / both);
    figures.set("alone_ns", alone);
    figures.set("both_ns", both);
}

/// Bytes copied a byte read, into memory as torch gives it (aligned to 64 bytes).
void copies(const Arguments& arguments, Figures& figures) {
    constexpr std::uint64_t kBytes = 64 * kMiB;
    SimulationOptions options = simulation_options(arguments);
    options.shape.memory_align = static_cast<std::uint32_t>(arguments.number("alignment"));
    Simulation simulation(options);
    const Files files = make_files(simulation, 1, kBytes);
    const Addresses memory(kBytes + kBlock);
    const std::uint64_t shift = arguments.handicap("misaligned") ? 2 : 64;
    const int times = arguments.handicap("twice") ? 2 : 1;  // the second copy of a careless reader
    for (int i = 0; i < times; ++i) {
        run(simulation, spec_of(Op::kRead, files, {{0, {memory.at(shift), kBytes}, 0}}));
    }
    std::uint64_t copied = 0;
    simulation.core().for_each_domain([&](penstock::engine::Domain& domain) {
        for (std::uint32_t i = 0; i < domain.channel_count(); ++i) {
            copied += domain.channel(i).counters().copied_bytes.get();
        }
    });
    figures.set("value", static_cast<double>(copied) / static_cast<double>(kBytes));
    figures.set("bytes", kBytes);
    figures.set("copied_bytes", copied);
}

/// The least cost of reading blocks of a device (their numbers, sorted): bytes, and
/// `request_bytes` a request of at most a MiB.
std::uint64_t best_cost(const std::vector<std::uint64_t>& blocks, std::uint64_t block_bytes,
                        std::uint64_t request_bytes) {
    std::uint64_t cost = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    for (const std::uint64_t block : blocks) {
        const std::uint64_t at = block * block_bytes;
        if (cost != 0 && at < end + request_bytes && at + block_bytes <= begin + kMiB) {
            cost += at + block_bytes - std::min(at + block_bytes, end);
        } else {
            cost += request_bytes + block_bytes;
            begin = at;
        }
        end = at + block_bytes;
    }
    return cost;
}

/// 20,000 pieces of 1 to 512 bytes of 256 MiB, in any order: what was read, and what the requests
/// cost, by the best that the same cost allows.
void gaps(const Arguments& arguments, Figures& figures) {
    constexpr std::uint64_t kPieces = 20'000;
    constexpr std::uint64_t kPieceBytes = 512;
    constexpr std::uint64_t kFileBytes = 256 * kMiB;
    SimulationOptions options = simulation_options(arguments);
    const std::uint64_t request_bytes = options.core.domain.channel.gap_bytes;
    if (arguments.handicap("no_gaps")) {
        options.core.domain.channel.gap_bytes = 0;
    }
    const std::uint64_t align = options.shape.read_align;
    Simulation simulation(options);
    const Files files = make_files(simulation, 1, kFileBytes);
    const Addresses memory(kPieces * kPieceBytes);
    std::vector<Extent> extents;
    std::vector<std::uint64_t> blocks;
    penstock::benchmarks::Random random;
    for (std::uint64_t i = 0; i < kPieces; ++i) {
        const std::uint64_t bytes = 1 + random.below(kPieceBytes);
        const std::uint64_t offset = random.below(kFileBytes - kPieceBytes);
        extents.push_back({offset, {memory.at(i * kPieceBytes), bytes}, 0});
        for (std::uint64_t block = offset / align; block * align < offset + bytes; ++block) {
            blocks.push_back(block);
        }
    }
    std::sort(blocks.begin(), blocks.end());
    run(simulation, spec_of(Op::kRead, files, std::move(extents)));
    std::uint64_t cost = 0;
    simulation.core().for_each_domain([&](penstock::engine::Domain& domain) {
        const auto& counters = domain.channel(0).counters();
        cost += counters.bytes_read.get() + counters.requests.get() * request_bytes;
    });
    const std::uint64_t best = best_cost(blocks, align, request_bytes);
    figures.set("value", static_cast<double>(cost) / static_cast<double>(best));
    figures.set("cost_bytes", cost);
    figures.set("best_bytes", best);
}

}  // namespace

int main(int count, char** words) {
    return penstock::benchmarks::run_job("penstock_bench_model",
                                         {{"straight", straight},
                                          {"slots", slots},
                                          {"random", random_reads},
                                          {"devices", devices},
                                          {"classes", classes},
                                          {"small_behind_big", small_behind_big},
                                          {"share", share},
                                          {"copies", copies},
                                          {"gaps", gaps},
                                          {"device_read", device_read},
                                          {"device_write", device_write},
                                          {"device_copy", device_copy},
                                          {"device_two", device_two},
                                          {"checkpoint", penstock::benchmarks::checkpoint_save},
                                          {"readback", penstock::benchmarks::checkpoint_readback},
                                          {"pages", penstock::benchmarks::pages},
                                          {"instructions", penstock::benchmarks::instructions},
                                          {"row_depth", penstock::benchmarks::depth},
                                          {"row_trace", penstock::benchmarks::trace},
                                          {"row_control", penstock::benchmarks::control},
                                          {"row_metadata", penstock::benchmarks::metadata}},
                                         count, words);
}
