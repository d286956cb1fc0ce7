// SPDX-License-Identifier: Apache-2.0
// A libcufile.so.0 without GPUDirect Storage, for tests: its reads and writes move bytes between
// files and memory of the fake libcuda.so.1 in this folder. What it promises is what
// tests/device_conformance/cufile_conformance_test.cpp states, which holds for NVIDIA's too. Faults
// at its calls are those of the fake driver: FakeGpu::fail("cuFileRead", ...), and FAKE_GPU_FAIL.
// Nothing of it is ever destroyed, so that threads may call in while their process ends.
#include "device/cufile/cufile_abi.hpp"
#include "fake_gpu/cufile_control.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
namespace penstock::device::cufile::fake {
namespace {

constexpr int kVersion = 1200;  // 1.20
constexpr std::uint64_t kAlign = 4096;

// NVIDIA's ends itself with the process, and whatever is under way then is lost.
std::atomic<int> under_way{0};
struct UnderWay {
    UnderWay() {
        ++under_way;
        if (const char* delay = std::getenv("FAKE_CUFILE_DELAY_US")) {
            ::usleep(static_cast<useconds_t>(std::atoi(delay)));
        }
    }
    ~UnderWay() { --under_way; }
};

struct File {
    int fd = -1;  ///< of its own, through the page cache: any alignment is taken
    int of_fd = -1;
};

struct Machine {
    std::mutex mutex;
    std::map<void*, File> files;
    std::map<const void*, std::size_t> buffers;
    std::uintptr_t next = 0x5FA6'CF00'0000'0000;  // no address: a program that follows it faults
    long opened = 0;
    bool direct = true;
    bool allows_compat = true;     ///< as it is shown
    bool compat_in_effect = true;  ///< as it was when the driver was opened
    std::uint64_t short_every = 0;
    std::uint64_t short_bytes = 0;
    std::uint64_t transfers = 0;
    FakeCuFileCounters counters{};

    int (*meet)(const char*) = nullptr;
    int (*look)(std::uint64_t, void*, std::uint64_t) = nullptr;
    int (*put)(std::uint64_t, const void*, std::uint64_t) = nullptr;
    cuda::cuCtxGetCurrent_type* current = nullptr;

    Machine() {
        void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
        const auto find = [driver](auto& call, const char* name) {
            call = driver == nullptr ? nullptr
                                     : reinterpret_cast<std::remove_reference_t<decltype(call)>>(
                                           ::dlsym(driver, name));
        };
        find(meet, "fake_gpu_meet");
        find(look, "fake_gpu_look");
        find(put, "fake_gpu_put");
        find(current, "cuCtxGetCurrent");
        const char* without = std::getenv("FAKE_CUFILE_DIRECT");
        std::atexit([] {
            if (under_way != 0) {
                ::_exit(70);
            }
        });
        direct = without == nullptr || std::string(without) != "0";
    }
    static Machine& get() {
        static auto* const made = new Machine;
        return *made;
    }
    [[nodiscard]] int ordered(const char* call) const { return meet == nullptr ? 0 : meet(call); }
};

CUfileError_t answer(int error) {
    return {static_cast<CUfileOpError>(error), cuda::CUDA_SUCCESS};
}

// -1 and errno for an error of the system, else the negated error.
ssize_t refused(int error) {
    if (error < CUFILEOP_BASE_ERR) {
        errno = error;
        return -1;
    }
    return -ssize_t{error};
}

// The mutex is held.
int open_driver(Machine& machine) {
    if (!machine.direct && !machine.allows_compat) {
        return CU_FILE_DRIVER_NOT_INITIALIZED;
    }
    if (machine.opened++ == 0) {
        machine.compat_in_effect = machine.allows_compat;
    }
    return CU_FILE_SUCCESS;
}

struct Transfer {
    int error = 0;
    int fd = -1;
    std::size_t bytes = 0;
};

Transfer begin(const char* call, CUfileHandle_t handle, std::uint64_t memory, std::size_t bytes,
               off_t offset) {
    Machine& machine = Machine::get();
    Transfer transfer{machine.ordered(call), -1, bytes};
    cuda::CUcontext context = nullptr;
    const bool in_context = machine.current != nullptr &&
                            machine.current(&context) == cuda::CUDA_SUCCESS && context != nullptr;
    const std::lock_guard lock(machine.mutex);
    if (!in_context) {
        ++machine.counters.missing_contexts;
    }
    const auto file = machine.files.find(handle);
    if (transfer.error == 0 && file == machine.files.end()) {
        transfer.error = CU_FILE_HANDLE_NOT_REGISTERED;
    }
    if (transfer.error == 0 && offset < 0) {
        transfer.error = CU_FILE_INVALID_VALUE;
    }
    std::byte probe{};
    if (transfer.error == 0 && bytes != 0 &&
        (machine.look(memory, &probe, 1) == 0 ||
         machine.look(memory + bytes - 1, &probe, 1) == 0)) {
        transfer.error = CU_FILE_INVALID_VALUE;
    }
    if (transfer.error != 0) {
        ++machine.counters.refused;
        return transfer;
    }
    if (((memory | bytes | static_cast<std::uint64_t>(offset)) & (kAlign - 1)) != 0) {
        ++machine.counters.unaligned;
    }
    if (machine.short_every != 0 && ++machine.transfers % machine.short_every == 0) {
        transfer.bytes = std::min<std::size_t>(bytes, machine.short_bytes);
    }
    transfer.fd = ::dup(file->second.fd);  // the handle may go meanwhile
    return transfer;
}

void count(std::uint64_t FakeCuFileCounters::*calls, std::uint64_t FakeCuFileCounters::*bytes,
           ssize_t moved) {
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    ++(machine.counters.*calls);
    machine.counters.*bytes += moved > 0 ? static_cast<std::uint64_t>(moved) : 0;
}

std::uint64_t address_of(const void* base, off_t offset) {
    return reinterpret_cast<std::uintptr_t>(base) + static_cast<std::uint64_t>(offset);
}

}  // namespace

extern "C" {
#pragma GCC visibility push(default)

CUfileError_t cuFileDriverOpen() {
    Machine& machine = Machine::get();
    if (const int error = machine.ordered("cuFileDriverOpen")) {
        return answer(error);
    }
    const std::lock_guard lock(machine.mutex);
    return answer(open_driver(machine));
}

CUfileError_t cuFileDriverClose_v2() {
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    if (machine.opened > 0) {
        --machine.opened;
    }
    return answer(CU_FILE_SUCCESS);
}

long cuFileUseCount() {
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    return machine.opened;
}

CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t* properties) {
    Machine& machine = Machine::get();
    if (const int error = machine.ordered("cuFileDriverGetProperties")) {
        return answer(error);
    }
    const std::lock_guard lock(machine.mutex);
    *properties = {};
    properties->nvfs.max_direct_io_size = 16384;
    properties->nvfs.dcontrolflags = machine.allows_compat ? 1U << CU_FILE_ALLOW_COMPAT_MODE : 0U;
    return answer(CU_FILE_SUCCESS);
}

CUfileError_t cuFileGetVersion(int* version) {
    if (version == nullptr) {
        return answer(CU_FILE_INVALID_VALUE);
    }
    *version = kVersion;
    return answer(CU_FILE_SUCCESS);
}

CUfileError_t cuFileSetParameterBool(CUFileBoolConfigParameter_t parameter, bool value) {
    Machine& machine = Machine::get();
    if (const int error = machine.ordered("cuFileSetParameterBool")) {
        return answer(error);
    }
    const std::lock_guard lock(machine.mutex);
    // Once it is open NVIDIA's takes a setting and shows it, without an effect.
    if (parameter == CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE) {
        machine.allows_compat = value;
    }
    return answer(CU_FILE_SUCCESS);
}

CUfileError_t cuFileHandleRegister(CUfileHandle_t* handle, CUfileDescr_t* of) {
    Machine& machine = Machine::get();
    if (const int error = machine.ordered("cuFileHandleRegister")) {
        return answer(error);
    }
    if (handle == nullptr || of == nullptr || of->type != CU_FILE_HANDLE_TYPE_OPAQUE_FD) {
        return answer(CU_FILE_INVALID_VALUE);
    }
    const std::lock_guard lock(machine.mutex);
    if (machine.opened == 0) {
        if (const int error = open_driver(machine)) {
            return answer(error);
        }
    }
    const int fd = of->handle.fd;
    struct stat status {};
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || ::fstat(fd, &status) != 0) {
        return answer(CU_FILE_INVALID_FILE_TYPE);
    }
    if (!S_ISREG(status.st_mode)) {
        return answer(CU_FILE_INVALID_FILE_TYPE);
    }
    if ((flags & O_DIRECT) == 0 && !machine.compat_in_effect) {
        return answer(CU_FILE_INVALID_FILE_OPEN_FLAG);
    }
    const auto has_it = [fd](const auto& file) { return file.second.of_fd == fd; };
    if (std::any_of(machine.files.begin(), machine.files.end(), has_it)) {
        return answer(CU_FILE_HANDLE_ALREADY_REGISTERED);
    }
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    const int own = ::open(path.c_str(), (flags & O_ACCMODE) | O_CLOEXEC);
    if (own < 0) {
        return answer(CU_FILE_GETNEWFD_FAILED);
    }
    *handle = reinterpret_cast<void*>(machine.next += 16);
    machine.files[*handle] = {own, fd};
    machine.counters.handles_now = machine.files.size();
    ++machine.counters.handles_made;
    return answer(CU_FILE_SUCCESS);
}

void cuFileHandleDeregister(CUfileHandle_t handle) {
    Machine& machine = Machine::get();
    static_cast<void>(machine.ordered("cuFileHandleDeregister"));
    const std::lock_guard lock(machine.mutex);
    const auto file = machine.files.find(handle);
    if (file != machine.files.end()) {
        // A handle that outlives its descriptor is a mistake of its owner.
        machine.counters.handles_without_file += ::fcntl(file->second.of_fd, F_GETFD) < 0 ? 1 : 0;
        ::close(file->second.fd);
        machine.files.erase(file);
        machine.counters.handles_now = machine.files.size();
    }
}

CUfileError_t cuFileBufRegister(const void* base, std::size_t bytes, int /*flags*/) {
    Machine& machine = Machine::get();
    if (const int error = machine.ordered("cuFileBufRegister")) {
        return answer(error);
    }
    const std::lock_guard lock(machine.mutex);
    return answer(machine.buffers.try_emplace(base, bytes).second
                      ? CU_FILE_SUCCESS
                      : CU_FILE_MEMORY_ALREADY_REGISTERED);
}

CUfileError_t cuFileBufDeregister(const void* base) {
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    return answer(machine.buffers.erase(base) == 1 ? CU_FILE_SUCCESS
                                                   : CU_FILE_MEMORY_NOT_REGISTERED);
}

ssize_t cuFileRead(CUfileHandle_t handle, void* base, std::size_t bytes, off_t file_offset,
                   off_t memory_offset) {
    const UnderWay counted;
    const std::uint64_t memory = address_of(base, memory_offset);
    const Transfer transfer = begin("cuFileRead", handle, memory, bytes, file_offset);
    if (transfer.error != 0) {
        return refused(transfer.error);
    }
    std::vector<std::byte> found(transfer.bytes);
    const ssize_t got = ::pread(transfer.fd, found.data(), found.size(), file_offset);
    const int why = errno;
    ::close(transfer.fd);
    if (got > 0) {
        Machine::get().put(memory, found.data(), static_cast<std::uint64_t>(got));
    }
    count(&FakeCuFileCounters::reads, &FakeCuFileCounters::bytes_read, got);
    return got < 0 ? refused(why) : got;
}

ssize_t cuFileWrite(CUfileHandle_t handle, const void* base, std::size_t bytes, off_t file_offset,
                    off_t memory_offset) {
    const UnderWay counted;
    const std::uint64_t memory = address_of(base, memory_offset);
    const Transfer transfer = begin("cuFileWrite", handle, memory, bytes, file_offset);
    if (transfer.error != 0) {
        return refused(transfer.error);
    }
    std::vector<std::byte> found(transfer.bytes);
    Machine::get().look(memory, found.data(), found.size());
    const ssize_t put = ::pwrite(transfer.fd, found.data(), found.size(), file_offset);
    const int why = errno;
    ::close(transfer.fd);
    count(&FakeCuFileCounters::writes, &FakeCuFileCounters::bytes_written, put);
    return put < 0 ? refused(why) : put;
}

// The controls: cufile_control.hpp says what each does.
void fake_cufile_counters(FakeCuFileCounters* to) {
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    *to = machine.counters;
}

void fake_cufile_reset_counters() {
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    machine.counters = {};
    machine.counters.handles_now = machine.files.size();
}

void fake_cufile_set_short(std::uint64_t every, std::uint64_t bytes) {
    Machine& machine = Machine::get();
    const std::lock_guard lock(machine.mutex);
    machine.short_every = every;
    machine.short_bytes = bytes;
}

#pragma GCC visibility pop
}  // extern "C"

}  // namespace penstock::device::cufile::fake
// NOLINTEND(readability-identifier-naming)
