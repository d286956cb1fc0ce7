// SPDX-License-Identifier: Apache-2.0
// The head of each call: is the driver there for this process, was it told to fail, is there a
// context. And what tests and the environment set.
#include "machine.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <string_view>

namespace penstock::device::cuda::fake {
namespace {

/// A child of a process that had initialized the driver: NVIDIA's does not work there either.
std::atomic<bool> forked{false};

struct Order {
    std::uint64_t nth = 0;
    std::uint64_t times = 0;
    int error = 0;
};

struct Faults {
    std::mutex mutex;
    std::map<std::string, Order> orders;
    std::map<std::string, std::uint64_t> calls;
    std::uint64_t all_calls = 0;
    std::string stopped;  ///< threads wait at the head of this call
    std::condition_variable goes_on;

    static Faults& get() {
        static auto* faults = new Faults;
        return *faults;
    }

    int next(Order& order) {
        if (order.nth > 1) {
            order.nth--;
            return 0;
        }
        if (order.times == 0) {
            return 0;
        }
        order.times--;
        return order.error;
    }

    /// Counts the call; the error that it shall return, or 0.
    int meet(const std::string& name) {
        std::unique_lock lock(mutex);
        goes_on.wait(lock, [&] { return stopped != name; });
        calls[name]++;
        all_calls++;
        int error = 0;
        for (const char* of : {name.c_str(), "*"}) {
            const auto found = orders.find(of);
            if (found != orders.end() && error == 0) {
                error = next(found->second);
            }
        }
        return error;
    }
};

double number_of(const char* name, double otherwise) {
    const char* text = std::getenv(name);
    if (text == nullptr || *text == '\0') {
        return otherwise;
    }
    char* end = nullptr;
    double value = std::strtod(text, &end);
    switch (*end) {
        case 'k':
            value *= 1e3;
            break;
        case 'M':
            value *= 1e6;
            break;
        case 'G':
            value *= 1e9;
            break;
        default:
            break;
    }
    return value;
}

/// FAKE_GPU_FAIL=cuMemAlloc:3:2,*:17:719 — call, which one, error.
void read_orders(std::string_view text) {
    while (!text.empty()) {
        const std::string order(text.substr(0, text.find(',')));
        text.remove_prefix(std::min(text.size(), order.size() + 1));
        char name[64] = {};
        unsigned long nth = 1;
        int error = CUDA_ERROR_UNKNOWN;
        if (std::sscanf(order.c_str(), "%63[^:]:%lu:%d", name, &nth, &error) >= 1) {
            fail_call(name, nth, error, 1);
        }
    }
}

void write_counters() {
    Machine& machine = Machine::get();
    std::FILE* file = std::fopen(machine.settings.counters_file.c_str(), "w");
    if (file == nullptr || forked) {
        return;
    }
    const std::lock_guard lock(machine.mutex);
    const FakeGpuCounters& c = machine.counters;
    const auto line = [file](const char* name, std::uint64_t value) {
        std::fprintf(file, "%s %llu\n", name, static_cast<unsigned long long>(value));
    };
    line("calls", c.calls);
    line("copies_in", c.copies_in);
    line("copies_out", c.copies_out);
    line("bytes_in", c.bytes_in);
    line("bytes_out", c.bytes_out);
    line("unpinned_async_copies", c.unpinned_async_copies);
    line("synchronizations", c.synchronizations);
    line("missing_contexts", c.missing_contexts);
    line("pinned_bytes_max", c.pinned_bytes_max);
    line("device_bytes_max", c.device_bytes_max);
    line("engine_cpu_ns", c.engine_cpu_ns);
    std::fclose(file);
}

}  // namespace

Entry::Entry(const char* function) : name(function) {
    const std::size_t tail = name.rfind("_v");
    if (tail != std::string::npos && tail + 3 == name.size()) {
        name.resize(tail);
    }
}

CUstreamCaptureMode& capture_mode() {
    thread_local constinit CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return mode;
}

ContextStack& context_stack() {
    thread_local constinit ContextStack stack;
    return stack;
}

void fail_call(const std::string& name, std::uint64_t nth, int error, std::uint64_t times) {
    Faults& faults = Faults::get();
    const std::lock_guard lock(faults.mutex);
    if (nth == 0) {
        faults.orders.erase(name);
    } else {
        faults.orders[name] = {nth, times, error};
    }
}

void no_failures() {
    Faults& faults = Faults::get();
    const std::lock_guard lock(faults.mutex);
    faults.orders.clear();
}

void stop_at_call(const std::string& name) {
    Faults& faults = Faults::get();
    const std::lock_guard lock(faults.mutex);
    faults.stopped = name;
    faults.goes_on.notify_all();
}

std::uint64_t calls_of(const std::string& name) {
    Faults& faults = Faults::get();
    const std::lock_guard lock(faults.mutex);
    return name == "*" ? faults.all_calls : faults.calls[name];
}

int meet_call(const char* name) {
    return Faults::get().meet(name);
}

Machine& Machine::get() {
    static auto* machine = new Machine;
    return *machine;
}

Machine::Machine() {
    settings.devices = static_cast<int>(number_of("FAKE_GPU_DEVICES", 1));
    settings.memory_bytes = static_cast<std::uint64_t>(number_of("FAKE_GPU_MEMORY", 8e9));
    settings.driver_version = static_cast<int>(number_of("FAKE_GPU_DRIVER_VERSION", 13000));
    settings.stub = number_of("FAKE_GPU_STUB", 0) != 0;
    settings.poison = number_of("FAKE_GPU_POISON", 1) != 0;
    knobs.rate[0] = number_of("FAKE_GPU_RATE_IN", number_of("FAKE_GPU_RATE", 0));
    knobs.rate[1] = number_of("FAKE_GPU_RATE_OUT", number_of("FAKE_GPU_RATE", 0));
    knobs.latency_ns = static_cast<Nanos>(number_of("FAKE_GPU_LATENCY_US", 0) * 1e3);
    knobs.delay_max_ns = static_cast<Nanos>(number_of("FAKE_GPU_DELAY_US", 0) * 1e3);
    knobs.seed = static_cast<std::uint64_t>(number_of("FAKE_GPU_SEED", 0));
    knobs.fail_copy = static_cast<std::uint64_t>(number_of("FAKE_GPU_FAIL_COPY", 0));
    knobs.fail_copy_error =
        static_cast<CUresult>(number_of("FAKE_GPU_FAIL_COPY_ERROR", CUDA_ERROR_ECC_UNCORRECTABLE));
    devices.resize(static_cast<std::size_t>(std::max(settings.devices, 0)));
    if (const char* hidden = std::getenv("FAKE_GPU_HIDE")) {
        settings.hidden = std::string(",") + hidden + ",";
    }
    if (const char* orders = std::getenv("FAKE_GPU_FAIL")) {
        read_orders(orders);
    }
    if (const char* file = std::getenv("FAKE_GPU_COUNTERS")) {
        settings.counters_file = file;
        std::atexit(write_counters);
    }
    pthread_atfork(nullptr, nullptr, [] {
        Machine& machine = Machine::get();
        if (machine.initialized) {
            forked = true;
        }
        // Another thread may have had it at the fork, and a child asks for counters.
        new (&machine.mutex) std::mutex;
    });
}

namespace {

/// Calls that the driver takes for unsafe while a graph is captured: of memory, and all that wait
/// or ask how far work is.
bool ends_captures(std::string_view call) {
    constexpr std::string_view kCalls[] = {
        "cuEventQuery",        "cuStreamQuery",  "cuEventSynchronize", "cuStreamSynchronize",
        "cuCtxSynchronize",    "cuMemAlloc",     "cuMemFree",          "cuMemHostRegister",
        "cuMemHostUnregister", "cuMemHostAlloc", "cuMemFreeHost",      "cuMemAllocManaged",
        "cuModuleLoadData",    "cuModuleUnload", "cuMemcpyHtoD",       "cuMemcpyDtoH",
    };
    return std::find(std::begin(kCalls), std::end(kCalls), call) != std::end(kCalls);
}

}  // namespace

Call::Call(Entry& entry, Wants wants) : machine_(Machine::get()) {
    if (forked) {
        refused_ = CUDA_ERROR_NOT_INITIALIZED;
        return;
    }
    const int asked = Faults::get().meet(entry.name);
    lock_ = std::unique_lock<std::mutex>(machine_.mutex);
    machine_.counters.calls++;
    if (asked != 0) {
        machine_.counters.failed_by_order++;
        refused_ = static_cast<CUresult>(asked);
    } else if (wants == Wants::kNothing) {
        // cuInit and what works before it.
    } else if (!machine_.initialized) {
        refused_ = CUDA_ERROR_NOT_INITIALIZED;
    } else if (machine_.broken != 0) {
        refused_ = static_cast<CUresult>(machine_.broken.load());
    } else if (machine_.knobs.captures && capture_mode() == CU_STREAM_CAPTURE_MODE_GLOBAL &&
               ends_captures(entry.name)) {
        machine_.counters.captures_ended++;
        refused_ = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else {
        auto& stack = context_stack();
        if (!stack.empty() && stack.back() != 0) {
            const auto found = machine_.contexts.find(stack.back());
            context_ = found == machine_.contexts.end() ? nullptr : found->second;
            if (context_ == nullptr && wants == Wants::kContext) {
                refused_ = CUDA_ERROR_CONTEXT_IS_DESTROYED;
            }
        } else if (wants == Wants::kContext) {
            machine_.counters.missing_contexts++;
            refused_ = CUDA_ERROR_INVALID_CONTEXT;
        }
    }
    if (refused_ != CUDA_SUCCESS) {
        lock_.unlock();
    }
}

std::shared_ptr<Stream> Call::stream(CUstream handle) const {
    const auto value = reinterpret_cast<std::uintptr_t>(handle);
    if (value > CU_STREAM_PER_THREAD) {
        const auto found = machine_.streams.find(value);
        return found == machine_.streams.end() ? nullptr : found->second;
    }
    if (context_ == nullptr) {
        return nullptr;
    }
    std::shared_ptr<Stream>& place = value == CU_STREAM_PER_THREAD
                                         ? context_->per_thread[std::this_thread::get_id()]
                                         : context_->legacy;
    if (place == nullptr) {
        place = std::make_shared<Stream>();
        place->context = context_;
        place->legacy = value != CU_STREAM_PER_THREAD;
        place->number = machine_.next_number++;
    }
    if (std::find(machine_.queues.begin(), machine_.queues.end(), place) == machine_.queues.end()) {
        machine_.queues.push_back(place);
    }
    return place;
}

}  // namespace penstock::device::cuda::fake
