// SPDX-License-Identifier: Apache-2.0
// What the fake driver knows: devices, contexts, streams with their queues, events, memory. One
// mutex guards all of it; copies run outside it. The namespace lies in that of the ABI, whose names
// all of this speaks. Nothing of it is ever destroyed, so that threads may call in while their
// process ends.
#pragma once

#include "control.hpp"
#include "cuda_more.hpp"

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace penstock::device::cuda::fake {

using Nanos = std::int64_t;
[[nodiscard]] Nanos now_ns();

/// A pseudo-random number made of a seed and a count, the same in every run.
[[nodiscard]] std::uint64_t scramble(std::uint64_t value);

enum class Kind : std::uint8_t { kDevice, kManaged, kHostAlloc, kRegistered };

struct Context;

struct Allocation {
    Kind kind = Kind::kDevice;
    int device = 0;
    std::uint64_t number = 0;
    std::shared_ptr<Context> context;
    std::uintptr_t base = 0;  ///< as the program has it; nothing can be read there for kDevice
    std::size_t bytes = 0;
    std::byte* backing = nullptr;  ///< where the bytes are
    std::size_t backing_bytes = 0;
    unsigned flags = 0;
    bool of_pool = false;
    bool sync_memops = false;
};

/// One recording of an event: done when the stream has got there.
struct Record {
    bool done = false;
    Nanos at = 0;  ///< on the clock of the rates
};

struct Event {
    std::shared_ptr<Context> context;
    unsigned flags = 0;
    std::shared_ptr<Record> last;  ///< null: never recorded
};

struct Piece {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
};

enum class Lane : std::uint8_t { kIn, kOut, kOther, kNone };
inline constexpr int kLanes = 3;

/// Compute capability of the devices, as sm_90.
inline constexpr int kComputeCapability = 90;

/// One entry of a stream's queue.
struct Work {
    std::uint64_t number = 0;  ///< order in which work was given, over all streams
    Lane lane = Lane::kNone;   ///< which engine does it; kNone: nobody, it is done when reached
    Nanos given = 0;
    Nanos not_before = 0;
    std::vector<Piece> pieces;
    std::uint64_t bytes = 0;
    std::function<void()> act;   ///< of kOther: what to do
    bool calls_program = false;  ///< act() runs code of the program
    std::shared_ptr<Record> record;
    std::shared_ptr<Record> wait;
};

struct Stream {
    std::shared_ptr<Context> context;
    unsigned flags = 0;
    int priority = 0;
    std::uint64_t number = 0;
    bool legacy = false;
    std::deque<Work> queue;
    bool running = false;  ///< an engine has the first entry
    Nanos free_at = 0;     ///< when, by the rates, what was before is through
};

struct Context {
    int device = 0;
    bool primary = false;
    bool destroyed = false;
    unsigned flags = 0;
    std::uintptr_t handle = 0;
    std::uint64_t number = 0;
    std::shared_ptr<Stream> legacy;
    std::map<std::thread::id, std::shared_ptr<Stream>> per_thread;
};

struct Device {
    std::shared_ptr<Context> primary;  ///< null while nobody retains it
    unsigned retained = 0;
    unsigned primary_flags = 0;
    bool started = false;
    Nanos free_at[kLanes] = {};
    std::uintptr_t space = 0;  ///< addresses, never readable
    std::uintptr_t next = 0;
    std::uint64_t used_bytes = 0;
};

struct Settings {
    int devices = 1;
    std::uint64_t memory_bytes = 0;
    int driver_version = 13000;
    bool stub = false;
    bool poison = true;
    std::string hidden;         ///< ",cuA,cuB,": cuGetProcAddress does not know these
    std::string counters_file;  ///< counters are written there at exit
};

/// Tests change these at any time.
struct Knobs {
    double rate[kLanes] = {0, 0, 0};
    Nanos latency_ns = 0;
    Nanos delay_max_ns = 0;
    std::uint64_t seed = 0;
    std::uint64_t fail_copy = 0;  ///< copies from now
    CUresult fail_copy_error = CUDA_SUCCESS;
    bool held = false;
    bool captures = false;  ///< some thread captures a graph, in the global mode
};

struct Machine {
    Machine();
    static Machine& get();

    std::mutex mutex;
    std::condition_variable engines;  ///< there may be work
    std::condition_variable waiters;  ///< something is through
    Settings settings;
    Knobs knobs;
    std::atomic<bool> initialized{false};
    std::vector<Device> devices;
    std::map<std::uintptr_t, Allocation> memory;  ///< by base
    std::unordered_map<std::uintptr_t, std::shared_ptr<Context>> contexts;
    std::unordered_map<std::uintptr_t, std::shared_ptr<Stream>> streams;
    std::unordered_map<std::uintptr_t, std::shared_ptr<Event>> events;
    std::vector<std::shared_ptr<Stream>> queues;  ///< all that may hold work, destroyed ones too
    std::uint64_t next_number = 1;
    std::uint64_t next_handle = 1;
    FakeGpuCounters counters{};
    std::atomic<int> broken{0};  ///< what all calls return, when not 0

    /// No address: a program that follows it faults.
    [[nodiscard]] std::uintptr_t new_handle() {
        return 0x5FA6'E000'0000'0000U + (next_handle++ << 4U);
    }

    // memory.cpp, all with the mutex held
    [[nodiscard]] CUresult allocate(Kind kind, const std::shared_ptr<Context>& context,
                                    std::size_t bytes, unsigned flags, Allocation** made);
    void release(std::uintptr_t base);
    /// The allocation that holds this address; null: none does.
    [[nodiscard]] Allocation* holder(std::uintptr_t address);
    /// The bytes as a device finds them: null when no allocation holds all of them.
    [[nodiscard]] std::byte* on_device(std::uintptr_t address, std::size_t bytes);
    enum class HostMemory : std::uint8_t { kPageable, kPinned, kNone };
    /// Says what host memory this is; kNone: device memory, or only a part of it is pinned.
    [[nodiscard]] HostMemory host_memory(std::uintptr_t address, std::size_t bytes);

    // engines.cpp, all with the mutex held
    void start_engines(int device);
    std::uint64_t give(Stream& stream, Work work);
    /// Ends what needs no engine, in all streams, as far as order allows.
    void advance();
    [[nodiscard]] bool idle(const Stream& stream) const;
    void wait_for(std::unique_lock<std::mutex>& lock, const Stream& stream, std::uint64_t number);
    /// All work of a device (of all: -1) that was given before now.
    void wait_for_device(std::unique_lock<std::mutex>& lock, int device);

private:
    [[nodiscard]] bool may_begin(const Stream& stream) const;
    [[nodiscard]] Stream* next_for(int device, Lane lane, Nanos now, Nanos& look_again);
    void engine_loop(int device, Lane lane);
    void run(std::unique_lock<std::mutex>& lock, int device, Lane lane, Stream& stream);
};

/// The contexts of this thread, the current one last; 0: none.
/// Nothing of it is destroyed: threads call in after their end, as destructors of statics do.
class ContextStack {
public:
    [[nodiscard]] bool empty() const { return count_ == 0; }
    [[nodiscard]] std::uintptr_t& back() { return contexts_[count_ - 1]; }
    void push_back(std::uintptr_t context) {
        if (count_ == contexts_.size()) {
            std::abort();  // a program that pops none of them
        }
        contexts_[count_++] = context;
    }
    void pop_back() { --count_; }

private:
    std::array<std::uintptr_t, 1024> contexts_{};  // each pop that a test refuses leaves one
    std::size_t count_ = 0;
};
ContextStack& context_stack();
/// How calls of this thread bear with captures of others.
[[nodiscard]] CUstreamCaptureMode& capture_mode();

// call.cpp

/// One of the driver's calls, as faults and counters know it: without its version. Never destroyed:
/// threads call while the process ends.
struct Entry {
    explicit Entry(const char* function);
    std::string name;
    std::atomic<std::uint64_t> calls{0};
};

enum class Wants : std::uint8_t { kNothing, kInit, kContext };

/// Each of the driver's calls begins with this. It holds the mutex while the call runs, unless
/// refused() is something other than CUDA_SUCCESS.
class Call {
public:
    Call(Entry& entry, Wants wants);
    [[nodiscard]] CUresult refused() const { return refused_; }
    [[nodiscard]] Machine& machine() const { return machine_; }
    [[nodiscard]] const std::shared_ptr<Context>& context() const { return context_; }
    [[nodiscard]] std::unique_lock<std::mutex>& lock() { return lock_; }
    /// The stream of a handle, the default streams too; null: it is none.
    [[nodiscard]] std::shared_ptr<Stream> stream(CUstream handle) const;

private:
    Machine& machine_;
    std::unique_lock<std::mutex> lock_;
    std::shared_ptr<Context> context_;
    CUresult refused_ = CUDA_SUCCESS;
};

void fail_call(const std::string& name, std::uint64_t nth, int error, std::uint64_t times);
void no_failures();
void stop_at_call(const std::string& name);
std::uint64_t calls_of(const std::string& name);
/// Counts a call of that name; the error that it shall return, or 0.
int meet_call(const char* name);

}  // namespace penstock::device::cuda::fake

#define FAKE_GPU_EXPORT extern "C" __attribute__((visibility("default")))

// The head of each of the driver's calls.
#define FAKE_GPU_CALL(wants)                                                  \
    static auto& this_entry = *new Entry(static_cast<const char*>(__func__)); \
    Call call(this_entry, Wants::wants);                                      \
    if (call.refused() != CUDA_SUCCESS) {                                     \
        return call.refused();                                                \
    }                                                                         \
    [[maybe_unused]] Machine& machine = call.machine()
