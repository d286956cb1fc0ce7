// SPDX-License-Identifier: Apache-2.0
// The control functions: control.hpp says what each does.
#include "machine.hpp"

#include <cstring>

namespace penstock::device::cuda::fake {

FAKE_GPU_EXPORT void fake_gpu_counters(FakeGpuCounters* to) {
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    *to = machine.counters;
}

FAKE_GPU_EXPORT void fake_gpu_reset_counters() {
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    FakeGpuCounters fresh{};
    const FakeGpuCounters& old = machine.counters;
    fresh.pinned_bytes_now = fresh.pinned_bytes_max = old.pinned_bytes_now;
    fresh.device_bytes_now = fresh.device_bytes_max = old.device_bytes_now;
    fresh.streams_now = old.streams_now;
    fresh.events_now = old.events_now;
    fresh.retained_now = old.retained_now;
    machine.counters = fresh;
}

FAKE_GPU_EXPORT void fake_gpu_set_rate(double in, double out, std::uint32_t latency_us) {
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    machine.knobs.rate[0] = in;
    machine.knobs.rate[1] = out;
    machine.knobs.latency_ns = Nanos{latency_us} * 1000;
}

FAKE_GPU_EXPORT void fake_gpu_set_delays(std::uint64_t seed, std::uint32_t max_us) {
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    machine.knobs.seed = seed;
    machine.knobs.delay_max_ns = Nanos{max_us} * 1000;
}

FAKE_GPU_EXPORT void fake_gpu_fail(const char* call, std::uint64_t nth, int error,
                                   std::uint64_t times) {
    fail_call(call, nth, error, times);
}

FAKE_GPU_EXPORT void fake_gpu_fail_copy(std::uint64_t nth, int error) {
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    machine.knobs.fail_copy = nth;
    machine.knobs.fail_copy_error = static_cast<CUresult>(error);
}

FAKE_GPU_EXPORT void fake_gpu_set_broken(int error) {
    Machine::get().broken = error;
}

FAKE_GPU_EXPORT void fake_gpu_stop_at(const char* call) {
    stop_at_call(call == nullptr ? "" : call);
}

FAKE_GPU_EXPORT std::uint64_t fake_gpu_calls(const char* call) {
    return calls_of(call);
}

// For the fake libcufile.so.0, whose faults and counts are here too.
FAKE_GPU_EXPORT int fake_gpu_meet(const char* call) {
    return meet_call(call);
}

FAKE_GPU_EXPORT void fake_gpu_hold(int on) {
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    machine.knobs.held = on != 0;
    machine.engines.notify_all();
}

FAKE_GPU_EXPORT int fake_gpu_look(std::uint64_t device, void* to, std::uint64_t bytes) {
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    const std::byte* memory = machine.on_device(device, bytes);
    if (memory == nullptr) {
        return 0;
    }
    std::memcpy(to, memory, bytes);
    return 1;
}

FAKE_GPU_EXPORT int fake_gpu_put(std::uint64_t device, const void* from, std::uint64_t bytes) {
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    std::byte* memory = machine.on_device(device, bytes);
    if (memory == nullptr) {
        return 0;
    }
    std::memcpy(memory, from, bytes);
    return 1;
}

FAKE_GPU_EXPORT void fake_gpu_capture(int on) {
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    machine.knobs.captures = on != 0;
}

FAKE_GPU_EXPORT void fake_gpu_calm() {
    no_failures();
    stop_at_call({});
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    machine.knobs = Knobs{};
    machine.broken = 0;
    machine.engines.notify_all();
}

}  // namespace penstock::device::cuda::fake
