// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/driver.hpp"

#include "base/assert.hpp"
#include "base/environment.hpp"
#include "base/of_process.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

namespace penstock::device {

using base::fail;
using base::Result;
using namespace cuda;  // NVIDIA's names, as in its documents

namespace {

constexpr const char* kLibrary = "libcuda.so.1";
constexpr std::string_view kInstall =
    "install NVIDIA's driver, or start the container with its GPUs (docker run --gpus all)";

/// The state of one process: a fork that comes while another thread loads leaves a mutex locked in
/// the child.
struct State {
    std::mutex mutex;
    std::atomic<const Driver*> driver{nullptr};
    std::string refusal;  ///< of the last try, under the mutex
};

State& state() {
    // Never destroyed: CUDA's objects outlive the process, and threads of other libraries may ask
    // while it ends.
    static auto& of_process = *new base::OfProcess<State>([] { return std::make_shared<State>(); });
    return *of_process;
}

std::atomic<pid_t> begun_by{0};  ///< the process that called cuInit
std::atomic<bool> process_ends{false};

base::Error absent(const std::string& reason) {
    return base::error(ErrorCode::kUnsupported, "gpu", reason);
}

// Also where another library began CUDA: then the driver's own CUDA_ERROR_NOT_INITIALIZED says so.
base::Error forked() {
    return absent(
        "CUDA was begun before this process was forked, and works in no child of a fork: start "
        "processes with 'spawn' or 'forkserver' (torch: multiprocessing_context=\"spawn\"), or use "
        "the GPU in the parent alone");
}

// The advice on errors that have one usual reason.
std::string_view advice(CUresult result) {
    switch (result) {
        case CUDA_ERROR_STUB_LIBRARY:
            return "this libcuda is the stub that programs are linked with; take its folder "
                   "(.../lib64/stubs) out of LD_LIBRARY_PATH";
        case CUDA_ERROR_NO_DEVICE:
            return "the driver shows this process no GPU; look at nvidia-smi and at "
                   "CUDA_VISIBLE_DEVICES, and start a container with --gpus all";
        case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
            return "the driver's kernel module is of another release than libcuda; restart the "
                   "machine after an update, and give a container the host's driver";
        case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
            return "libcuda is of the package cuda-compat, which serves GPUs for data centres "
                   "only; "
                   "take its folder (.../cuda/compat) out of LD_LIBRARY_PATH, or update the driver";
        case CUDA_ERROR_SYSTEM_NOT_READY:
            return "the machine's GPUs are not set up yet; start nvidia-fabricmanager";
        case CUDA_ERROR_DEVICE_UNAVAILABLE:
            return "another process has the GPU for itself (nvidia-smi -c DEFAULT shares it)";
        case CUDA_ERROR_OUT_OF_MEMORY:
            return "free memory of the GPU or the host";
        case CUDA_ERROR_ECC_UNCORRECTABLE:
            return "the GPU's memory is damaged; restart the process, and look at nvidia-smi -q";
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_FAILED:
            return "a kernel or copy of this process failed earlier, and all calls to this GPU "
                   "fail since; run it with CUDA_LAUNCH_BLOCKING=1 to find it, and start the "
                   "process again";
        case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        case CUDA_ERROR_INVALID_CONTEXT:
            return "the GPU's context was reset (cudaDeviceReset) while it was in use; make the "
                   "engine again (in Python, close penstock.default_engine() for that)";
        case CUDA_ERROR_UNKNOWN:
            return "the driver does not say more; look at dmesg, and run nvidia-smi as root once "
                   "so that /dev/nvidia-uvm is there";
        default:
            return {};
    }
}

std::string name_of(CUresult result, cuGetErrorName_type* name, cuGetErrorString_type* text) {
    const char* said = nullptr;
    const char* meant = nullptr;
    if (name != nullptr && name(result, &said) != CUDA_SUCCESS) {
        said = nullptr;
    }
    if (text != nullptr && text(result, &meant) != CUDA_SUCCESS) {
        meant = nullptr;
    }
    return fmt::format("{} ({}{}{})", said == nullptr ? "a CUDA error" : said,
                       static_cast<unsigned int>(result), meant == nullptr ? "" : ": ",
                       meant == nullptr ? "" : meant);
}

std::string why(CUresult result, const Driver& driver) {
    const std::string_view what_to_do = advice(result);
    return fmt::format("{}{}{}", name_of(result, driver.cuGetErrorName, driver.cuGetErrorString),
                       what_to_do.empty() ? "" : "; ", what_to_do);
}

std::string path_of(void* library) {
    const link_map* map = nullptr;
    if (::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name != nullptr &&
        *map->l_name != '\0') {
        return map->l_name;
    }
    return kLibrary;
}

base::Error too_old(const std::string& library, int version) {
    return absent(fmt::format(
        "{} is of CUDA {}, and Penstock wants {} or later: update NVIDIA's driver to release 525 "
        "or later",
        library, version == 0 ? std::string("11 or earlier") : version_text(version),
        version_text(kOldestDriver)));
}

/// Finds the calls; the name of the first that is needed and missing, or nothing.
class Symbols {
public:
    explicit Symbols(cuGetProcAddress_type* ask) : ask_(ask) {}
    template <typename Call>
    void find(const char* name, int version, bool needed, Call** call) {
        void* found = nullptr;
        CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
        const CUresult result =
            ask_(name, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status);
        if (result == CUDA_SUCCESS && status == CU_GET_PROC_ADDRESS_SUCCESS) {
            *call = reinterpret_cast<Call*>(found);
        }
        if (*call == nullptr && needed && missing_ == nullptr) {
            missing_ = name;
            result_ = result;
        }
    }
    [[nodiscard]] const char* missing() const { return missing_; }
    [[nodiscard]] CUresult result() const { return result_; }

private:
    cuGetProcAddress_type* ask_;
    const char* missing_ = nullptr;
    CUresult result_ = CUDA_SUCCESS;
};

Result<void> find_calls(void* library, Driver& found) {
    auto* ask = reinterpret_cast<cuGetProcAddress_type*>(::dlsym(library, "cuGetProcAddress_v2"));
    if (ask == nullptr) {
        auto* version =
            reinterpret_cast<cuDriverGetVersion_type*>(::dlsym(library, "cuDriverGetVersion"));
        int is = 0;
        const bool known = version != nullptr && version(&is) == CUDA_SUCCESS;
        return fail(too_old(found.library, known ? is : 0));
    }
    Symbols symbols(ask);
#define PENSTOCK_CUDA_FIND(name, version, ...) symbols.find(#name, version, true, &found.name);
    PENSTOCK_CUDA_CALLS(PENSTOCK_CUDA_FIND)
#undef PENSTOCK_CUDA_FIND
#define PENSTOCK_CUDA_FIND(name, version, ...) symbols.find(#name, version, false, &found.name);
    PENSTOCK_CUDA_OPTIONAL_CALLS(PENSTOCK_CUDA_FIND)
#undef PENSTOCK_CUDA_FIND
    if (symbols.missing() == nullptr) {
        return {};
    }
    if (symbols.result() == CUDA_ERROR_NOT_INITIALIZED) {
        return fail(forked());
    }
    if (symbols.result() == CUDA_ERROR_STUB_LIBRARY) {
        return fail(absent(fmt::format("{}: {}", found.library, why(symbols.result(), found))));
    }
    return fail(
        absent(fmt::format("{} does not have {}, which every driver of CUDA {} or later "
                           "has; update NVIDIA's driver",
                           found.library, symbols.missing(), version_text(kOldestDriver))));
}

Result<void> begin(Driver& found) {
    PENSTOCK_ASSERT(begun_by.load() == 0 || begun_by.load() == ::getpid());
    begun_by.store(::getpid());
    if (const CUresult result = found.cuInit(0); result != CUDA_SUCCESS) {
        begun_by.store(0);
        if (result == CUDA_ERROR_NOT_INITIALIZED) {
            return fail(forked());
        }
        std::string text =
            fmt::format("{} is there, and cuInit failed: {}", found.library, why(result, found));
        const auto visible = base::system_environment_text("CUDA_VISIBLE_DEVICES");
        if (result == CUDA_ERROR_NO_DEVICE && visible) {
            text += fmt::format(" (CUDA_VISIBLE_DEVICES is '{}')", *visible);
        }
        return fail(absent(text));
    }
    const auto ask = [&](const char* name, CUresult result, int value, int least) -> Result<void> {
        if (result != CUDA_SUCCESS) {
            return fail(cuda_error(found, result, name, "gpu", {}));
        }
        if (value < least) {
            return fail(least == 1 ? absent(fmt::format("{} shows no GPU: {}", found.library,
                                                        advice(CUDA_ERROR_NO_DEVICE)))
                                   : too_old(found.library, value));
        }
        return {};
    };
    CUresult result = found.cuDriverGetVersion(&found.version);
    PENSTOCK_CHECK(ask("cuDriverGetVersion", result, found.version, kOldestDriver));
    result = found.cuDeviceGetCount(&found.gpus);
    return ask("cuDeviceGetCount", result, found.gpus, 1);
}

Result<const Driver*> load() {
    void* library = ::dlopen(kLibrary, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
        const char* said = ::dlerror();
        const bool amd = ::access("/dev/kfd", F_OK) == 0;
        return fail(absent(fmt::format(
            "no CUDA driver ({}); {}", said == nullptr ? kLibrary : said,
            amd ? std::string_view("the GPU of this machine seems to be AMD's, which this version "
                                   "moves no bytes to: read to host memory and copy")
                : kInstall)));
    }
    auto found = std::make_unique<Driver>();
    found->library = path_of(library);
    PENSTOCK_CHECK(find_calls(library, *found));
    PENSTOCK_CHECK(begin(*found));
    // After cuInit, so that it runs before what libcuda does when the process ends.
    std::atexit([] { process_ends.store(true); });
    return found.release();  // lives until the process ends
}

bool is_forked() {
    const pid_t process = begun_by.load();
    return process != 0 && process != ::getpid();
}

}  // namespace

Result<const Driver*> driver() {
    return base::as_result("gpu", []() -> Result<const Driver*> {
        if (is_forked()) {
            return fail(forked());
        }
        State& mine = state();
        if (const Driver* known = mine.driver.load(std::memory_order_acquire); known != nullptr) {
            return known;
        }
        const std::lock_guard lock(mine.mutex);
        if (const Driver* known = mine.driver.load(std::memory_order_acquire); known != nullptr) {
            return known;
        }
        auto made = load();
        if (!made) {
            mine.refusal = made.error().message;
            return made;
        }
        mine.driver.store(*made, std::memory_order_release);
        return made;
    });
}

const Driver* loaded_driver() noexcept {
    return begun_by.load() != ::getpid() ? nullptr : state().driver.load(std::memory_order_acquire);
}

std::string driver_text() {
    if (is_forked()) {
        return forked().message;
    }
    State& mine = state();
    if (const Driver* known = mine.driver.load(std::memory_order_acquire); known != nullptr) {
        return fmt::format("CUDA {}, {} GPU{} ({})", version_text(known->version), known->gpus,
                           known->gpus == 1 ? "" : "s", known->library);
    }
    const std::lock_guard lock(mine.mutex);
    return mine.refusal.empty() ? "the driver is not opened: no memory of a GPU has come in"
                                : mine.refusal;
}

std::string several_drivers_text() {
    std::vector<std::string> found;
    ::dl_iterate_phdr(
        [](dl_phdr_info* library, std::size_t, void* into) {
            const std::string_view path = library->dlpi_name == nullptr ? "" : library->dlpi_name;
            const std::string_view name = path.substr(path.rfind('/') + 1);
            if (name.starts_with("libcuda.so")) {
                static_cast<std::vector<std::string>*>(into)->emplace_back(path);
            }
            return 0;
        },
        &found);
    const Driver* used = loaded_driver();
    if (found.size() < 2 || used == nullptr) {
        return {};
    }
    return fmt::format(
        "this process has loaded {} CUDA drivers ({}), and Penstock uses {}, which knows no memory "
        "of the others: let all libraries use one (LD_LIBRARY_PATH)",
        found.size(), fmt::join(found, ", "), used->library);
}

bool may_call_driver() noexcept {
    return begun_by.load() == ::getpid() && !process_ends.load();
}

std::string version_text(int version) {
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

base::Error cuda_error(const Driver& driver, CUresult result, std::string_view call,
                       std::string_view operation, std::string_view subject) noexcept {
    const ErrorCode code =
        result == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::kOutOfMemory : ErrorCode::kSystem;
    return base::error(code, operation, [&] {
        return fmt::format("{}{}{} failed: {}", subject, subject.empty() ? "" : ": ", call,
                           why(result, driver));
    });
}

}  // namespace penstock::device
