// SPDX-License-Identifier: Apache-2.0
// The controls of the fake libcuda.so.1, for tests: rates, delays, faults, counters. They are C
// functions of the library that this process has loaded; FakeGpu finds them by dlsym. All are
// thread-safe, take effect from the next call or copy on, and work without a context.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <optional>

extern "C" {
/// Counted since the library was loaded, or since fake_gpu_reset_counters(). Those that end in
/// `_now` are levels, and are not reset.
struct FakeGpuCounters {
    std::uint64_t calls;       ///< of the driver's calls, all threads
    std::uint64_t copies_in;   ///< host to device, as the copy engine saw them
    std::uint64_t copies_out;  ///< device to host
    std::uint64_t bytes_in;
    std::uint64_t bytes_out;
    std::uint64_t unpinned_async_copies;  ///< they block their caller
    std::uint64_t unpinned_async_bytes;
    std::uint64_t synchronizations;  ///< of stream, event or context, and synchronous copies
    std::uint64_t
        frees_that_waited;           ///< cuMemFree, cuMemFreeHost, unregistration: they synchronise
    std::uint64_t missing_contexts;  ///< calls refused for want of a current context
    std::uint64_t streams_made;
    std::uint64_t events_made;
    std::uint64_t host_functions;    ///< run for streams
    std::uint64_t failed_by_order;   ///< calls and copies that failed because a test asked
    std::uint64_t engine_cpu_ns;     ///< CPU time of the fake's own threads
    std::uint64_t pinned_bytes_now;  ///< registered and cuMemHostAlloc
    std::uint64_t pinned_bytes_max;
    std::uint64_t device_bytes_now;
    std::uint64_t device_bytes_max;
    std::uint64_t streams_now;
    std::uint64_t events_now;
    std::uint64_t retained_now;    ///< primary contexts retained, over all devices
    std::uint64_t captures_ended;  ///< calls that end a capture, while there is one
};
}

namespace penstock::fake_gpu {

/// The fake that is loaded in this process. find() is empty where libcuda.so.1 is not loaded or is
/// NVIDIA's. open() loads it by its name first.
class FakeGpu {
public:
    [[nodiscard]] static std::optional<FakeGpu> find() { return with(RTLD_NOLOAD); }
    [[nodiscard]] static std::optional<FakeGpu> open() { return with(RTLD_NODELETE); }

    [[nodiscard]] FakeGpuCounters counters() const {
        FakeGpuCounters found{};
        counters_(&found);
        return found;
    }
    void reset_counters() const { reset_counters_(); }
    /// Bytes a second of each copy engine, 0 for no limit; what a copy costs whatever its length.
    void set_rate(double in, double out, std::uint32_t latency_us = 0) const {
        set_rate_(in, out, latency_us);
    }
    /// Each copy waits a random time of at most `max_us` before it may begin (0: none), and streams
    /// take turns at random by the same seed.
    void set_delays(std::uint64_t seed, std::uint32_t max_us) const { set_delays_(seed, max_us); }
    /// The n-th call from now (1: the next) of `call` ("cuMemAlloc", without _v2; "*": any) and the
    /// `times - 1` after it return `error` and do nothing. One such order for each call at a time;
    /// nth 0 takes it back.
    void fail(const char* call, std::uint64_t nth, int error, std::uint64_t times = 1) const {
        fail_(call, nth, error, times);
    }
    /// The n-th copy from now is not done; from then on all calls return `error`.
    void fail_copy(std::uint64_t nth, int error) const { fail_copy_(nth, error); }
    /// All calls return this from now on, as after an ECC error (214); 0: no longer.
    void set_broken(int error) const { set_broken_(error); }
    /// Calls of `call` wait from now on, on the threads that make them; nullptr: they go on.
    void stop_at(const char* call) const { stop_at_(call); }
    /// How often a call was made.
    [[nodiscard]] std::uint64_t calls(const char* call) const { return calls_(call); }
    /// From now on it is as if another thread captured a graph, in the mode that is the default:
    /// calls of any thread that is in that mode too, and that are unsafe then, are refused.
    void capture(bool on) const { capture_(on ? 1 : 0); }
    /// The copy engines begin nothing new until hold(false).
    void hold(bool on) const { hold_(on ? 1 : 0); }
    /// Bytes of device memory, without the driver; false where that is none.
    [[nodiscard]] bool look(std::uint64_t device, void* to, std::uint64_t bytes) const {
        return look_(device, to, bytes) != 0;
    }
    [[nodiscard]] bool put(std::uint64_t device, const void* from, std::uint64_t bytes) const {
        return put_(device, from, bytes) != 0;
    }
    /// No rate, delay, fault, stop, hold or capture. What was made stays.
    void calm() const { calm_(); }

private:
    static std::optional<FakeGpu> with(int flag) {
        void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | flag);
        if (library == nullptr || dlsym(library, "fake_gpu_counters") == nullptr) {
            return std::nullopt;
        }
        FakeGpu made;
        const auto find = [library](auto& function, const char* name) {
            function =
                reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
        };
        find(made.counters_, "fake_gpu_counters");
        find(made.reset_counters_, "fake_gpu_reset_counters");
        find(made.set_rate_, "fake_gpu_set_rate");
        find(made.set_delays_, "fake_gpu_set_delays");
        find(made.fail_, "fake_gpu_fail");
        find(made.fail_copy_, "fake_gpu_fail_copy");
        find(made.set_broken_, "fake_gpu_set_broken");
        find(made.stop_at_, "fake_gpu_stop_at");
        find(made.calls_, "fake_gpu_calls");
        find(made.hold_, "fake_gpu_hold");
        find(made.capture_, "fake_gpu_capture");
        find(made.look_, "fake_gpu_look");
        find(made.put_, "fake_gpu_put");
        find(made.calm_, "fake_gpu_calm");
        return made;
    }

    void (*counters_)(FakeGpuCounters*) = nullptr;
    void (*reset_counters_)() = nullptr;
    void (*set_rate_)(double, double, std::uint32_t) = nullptr;
    void (*set_delays_)(std::uint64_t, std::uint32_t) = nullptr;
    void (*fail_)(const char*, std::uint64_t, int, std::uint64_t) = nullptr;
    void (*fail_copy_)(std::uint64_t, int) = nullptr;
    void (*set_broken_)(int) = nullptr;
    void (*stop_at_)(const char*) = nullptr;
    std::uint64_t (*calls_)(const char*) = nullptr;
    void (*hold_)(int) = nullptr;
    void (*capture_)(int) = nullptr;
    int (*look_)(std::uint64_t, void*, std::uint64_t) = nullptr;
    int (*put_)(std::uint64_t, const void*, std::uint64_t) = nullptr;
    void (*calm_)() = nullptr;
};

}  // namespace penstock::fake_gpu
