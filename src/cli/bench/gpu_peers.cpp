// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/gpu_peers.hpp"

#include "base/environment.hpp"
#include "report/interrupt.hpp"
#include "report/subprocess.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <utility>

namespace penstock::cli {

namespace {

constexpr const char* kGdsioInstalled = "/usr/local/cuda/gds/tools/gdsio";
constexpr std::size_t kToldMax = 400;
constexpr std::uint64_t kKvikioBytes = std::uint64_t{256} << 20;  // a call

// Reads or writes the file again and again, 256 MiB a call, until the seconds are over.
constexpr const char* kKvikioProgram = R"(
import ctypes, json, os, resource, sys, time
path, write = sys.argv[1], sys.argv[2] == "1"
nbytes, chunk, gpu, seconds = *map(int, sys.argv[3:6]), float(sys.argv[6])
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result:
        sys.exit(f"{name} = {result}")
device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), gpu)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(chunk))
import kvikio
class Memory:
    def __init__(self, count):
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "|u1", "data": (address.value, False), "version": 3,
            "strides": None}
def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
with kvikio.CuFile(path, "r+" if write else "r") as file:
    move = file.write if write else file.read
    move(Memory(min(chunk, 4 << 20)))
    total, at, before, start = 0, 0, cpu(), time.perf_counter()
    while time.perf_counter() - start < seconds:
        count = min(chunk, nbytes - at)
        moved = move(Memory(count), count, at)
        if moved != count:
            sys.exit(f"{moved} of {count} bytes were moved")
        total, at = total + moved, (at + moved) % nbytes
    spent = time.perf_counter() - start
print(json.dumps({"seconds": spent, "bytes": total, "cpu_s": cpu() - before}))
)";

Error peer_error(const std::string& name, const std::string& message) {
    return {ErrorCode::kSystem, 0, name, {}, kNoOffset, name + " " + message};
}

std::string end_of(const report::Finished& finished) {
    const std::string told = finished.errors.empty() ? finished.output : finished.errors;
    return told.size() > kToldMax ? "..." + told.substr(told.size() - kToldMax) : told;
}

// The command with the driver that it is to find.
std::vector<std::string> with_driver(const PeerDriver& driver, std::vector<std::string> argv) {
    if (!driver.fake_folder.empty()) {
        argv.insert(argv.begin(), {"env", "LD_LIBRARY_PATH=" + driver.fake_folder,
                                   fmt::format("FAKE_GPU_RATE={:.0f}", driver.fake_bytes_per_s)});
    }
    return argv;
}

class KvikioPeer final : public GpuPeer {
public:
    KvikioPeer(PeerDriver driver, std::string python, std::string version)
        : driver_(std::move(driver)), python_(std::move(python)), version_(std::move(version)) {}

    [[nodiscard]] std::string name() const override { return "KvikIO"; }
    [[nodiscard]] std::string version() const override {
        return "KvikIO " + version_ + " at its defaults, direct I/O on";
    }
    [[nodiscard]] std::string refusal(const JobSpec& job) const override {
        return probe::is_random(job.rw) ? "is measured on rows in sequence" : "";
    }
    [[nodiscard]] Sample run(const JobSpec& job, const Target& target, double seconds,
                             report::Progress& progress) override {
        std::vector<std::string> argv{"env", "KVIKIO_AUTO_DIRECT_IO_READ=ON",
                                      "KVIKIO_AUTO_DIRECT_IO_WRITE=ON"};
        if (!driver_.fake_folder.empty()) {
            argv.emplace_back("KVIKIO_COMPAT_MODE=ON");  // where AUTO arrives without nvidia-fs
        }
        argv.insert(argv.end(), {python_, "-c", kKvikioProgram, target.path,
                                 probe::is_write(job.rw) ? "1" : "0", std::to_string(target.bytes),
                                 std::to_string(std::min(target.bytes, kKvikioBytes)),
                                 std::to_string(driver_.gpu), fmt::format("{}", seconds)});
        const report::Finished finished = report::run_program(with_driver(driver_, argv), [&] {
            report::check_interrupt();
            progress.show("KvikIO");
        });
        report::check_interrupt();
        if (finished.status != 0) {
            throw peer_error("KvikIO", fmt::format("ended with status {}: {}", finished.status,
                                                   end_of(finished)));
        }
        try {
            const auto json = nlohmann::json::parse(finished.output);
            Sample sample;
            sample.side = name();
            sample.seconds = json.at("seconds").get<double>();
            sample.bytes = json.at("bytes").get<std::uint64_t>();
            sample.cpu_s = json.at("cpu_s").get<double>();
            sample.operations = sample.bytes / job.block_bytes;
            return sample;
        } catch (const nlohmann::json::exception&) {
            throw peer_error("KvikIO", "printed no figures: " + end_of(finished));
        }
    }

private:
    PeerDriver driver_;
    std::string python_;
    std::string version_;
};

class GdsioPeer final : public GpuPeer {
public:
    GdsioPeer(PeerDriver driver, std::string program, std::string version)
        : driver_(std::move(driver)), program_(std::move(program)), version_(std::move(version)) {}

    [[nodiscard]] std::string name() const override { return "gdsio"; }
    [[nodiscard]] std::string version() const override {
        return version_ + ", storage to GPU (-x 0), as many threads as blocks, at most 32";
    }
    [[nodiscard]] std::string refusal(const JobSpec& job) const override {
        return job.block_bytes % 4096 == 0 ? "" : "takes blocks of 4 KiB";
    }
    [[nodiscard]] Sample run(const JobSpec& job, const Target& target, double seconds,
                             report::Progress& progress) override {
        constexpr std::uint32_t kThreadsMax = 32;
        const std::uint32_t threads = std::min(job.depth, kThreadsMax);
        const std::uint64_t grain = job.block_bytes * threads;  // a share of the file a thread
        const std::vector<std::string> argv{
            program_,
            "-f",
            target.path,
            "-d",
            std::to_string(driver_.gpu),
            "-w",
            std::to_string(threads),
            "-s",
            std::to_string(std::max(target.bytes / grain, std::uint64_t{1}) * grain),
            "-i",
            std::to_string(job.block_bytes),
            "-x",
            "0",
            "-I",
            std::to_string((probe::is_random(job.rw) ? 2 : 0) + (probe::is_write(job.rw) ? 1 : 0)),
            "-T",
            fmt::format("{:.0f}", std::max(1.0, seconds))};
        const report::Finished finished = report::run_program(with_driver(driver_, argv), [&] {
            report::check_interrupt();
            progress.show("gdsio");
        });
        report::check_interrupt();
        if (finished.status != 0) {
            throw peer_error("gdsio", fmt::format("ended with status {}: {}", finished.status,
                                                  end_of(finished)));
        }
        auto sample = gdsio_sample(finished.output);
        if (!sample) {
            throw peer_error("gdsio",
                             "printed no figures that are understood: " + end_of(finished));
        }
        sample->operations = sample->bytes / job.block_bytes;
        return *sample;
    }

private:
    PeerDriver driver_;
    std::string program_;
    std::string version_;
};

void find_kvikio(const PeerDriver& driver, const std::function<void()>& tick, GpuPeers& peers) {
    const std::string python =
        base::environment_text("KVIKIO_PYTHON").value_or(std::string("python3"));
    const report::Finished asked = report::run_program(
        with_driver(driver, {python, "-c", "import kvikio; print(kvikio.__version__)"}), tick);
    if (asked.status == 0) {
        peers.found.push_back(std::make_unique<KvikioPeer>(
            driver, python, asked.output.substr(0, asked.output.find('\n'))));
    } else {
        peers.absent.push_back(
            fmt::format("KvikIO: {} cannot import it; PENSTOCK_KVIKIO_PYTHON names an interpreter "
                        "that has it (pip install kvikio-cu13)",
                        python));
    }
}

void find_gdsio(const PeerDriver& driver, const std::function<void()>& tick, GpuPeers& peers) {
    for (const std::string program : {"gdsio", kGdsioInstalled}) {
        const report::Finished asked =
            report::run_program(with_driver(driver, {program, "-v"}), tick);
        if (asked.status != 127) {  // some versions end -v with an error
            const std::string first = asked.output.substr(0, asked.output.find('\n'));
            peers.found.push_back(std::make_unique<GdsioPeer>(
                driver, program, first.empty() ? std::string("gdsio") : first));
            return;
        }
    }
    peers.absent.push_back(fmt::format(
        "gdsio: neither in PATH nor at {}; it comes with NVIDIA's gds-tools", kGdsioInstalled));
}

}  // namespace

std::optional<Sample> gdsio_sample(const std::string& output) {
    // IoType: READ XferType: GPUD Threads: 16 DataSetSize: 8388608/1048576(KiB) IOSize: 1024(KiB)
    // Throughput: 3.061224 GiB/sec, Avg_Latency: 5104.1 usecs ops: 8192 total_time 2.613 secs
    static const std::regex kFigures(
        R"(DataSetSize: (\d+)/\d+\(KiB\).*Throughput: ([0-9.]+) GiB/sec.*total_time ([0-9.]+))");
    std::smatch found;
    if (!std::regex_search(output, found, kFigures)) {
        return std::nullopt;
    }
    Sample sample;
    sample.side = "gdsio";
    sample.bytes = std::stoull(found[1]) * 1024;
    const double rate = std::stod(found[2]) * static_cast<double>(1 << 30);
    if (rate <= 0 || sample.bytes == 0) {
        return std::nullopt;
    }
    sample.seconds = static_cast<double>(sample.bytes) / rate;  // by its own division
    return sample;
}

GpuPeers find_gpu_peers(const PeerDriver& driver, report::Progress& progress) {
    GpuPeers peers;
    const auto tick = [&] {
        report::check_interrupt();
        progress.show("looking for KvikIO and gdsio");
    };
    find_kvikio(driver, tick, peers);
    find_gdsio(driver, tick, peers);
    return peers;
}

}  // namespace penstock::cli
