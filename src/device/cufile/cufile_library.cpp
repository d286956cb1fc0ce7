// SPDX-License-Identifier: Apache-2.0
#include "device/cufile/cufile_library.hpp"

#include "base/assert.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <time.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>

namespace penstock::device {

using base::fail;
using base::Result;
using namespace cufile;  // NVIDIA's names, as in its documents

namespace {

constexpr const char* kLibrary = "libcufile.so.0";

struct State {
    std::mutex mutex;
    std::atomic<const CuFileLibrary*> library{nullptr};
    std::optional<std::string> refusal;
};

// Never destroyed: threads may ask while the process ends.
State& state() {
    static auto* const made = new State;
    return *made;
}

// A call that takes longer at the end of the process does not answer any more.
constexpr int kPatienceMs = 10'000;

std::atomic<std::uint32_t> calls{0};
std::atomic<bool> process_ends{false};

void wait_for_calls() {
    process_ends.store(true);
    for (int waited = 0; waited < kPatienceMs && calls.load() != 0; ++waited) {
        const timespec nap{0, 1'000'000};
        ::nanosleep(&nap, nullptr);
    }
}

base::Error absent(const std::string& message) {
    return base::error(ErrorCode::kUnsupported, "cufile", message);
}

std::string path_of(void* library) {
    const link_map* map = nullptr;
    const bool known = ::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr &&
                       map->l_name != nullptr && *map->l_name != '\0';
    return known ? map->l_name : kLibrary;
}

bool failed(const CUfileError_t& error) {
    return error.err != CU_FILE_SUCCESS;
}

Result<void> find_calls(void* library, CuFileLibrary& found) {
    const char* missing = nullptr;
    const auto find = [&](const char* name, auto& call, bool needed) {
        call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(::dlsym(library, name));
        if (call == nullptr && needed && missing == nullptr) {
            missing = name;
        }
    };
#define PENSTOCK_CUFILE_FIND(name, symbol, ...) find(#symbol, found.name, true);
    PENSTOCK_CUFILE_CALLS(PENSTOCK_CUFILE_FIND)
#undef PENSTOCK_CUFILE_FIND
#define PENSTOCK_CUFILE_FIND(name, symbol, ...) find(#symbol, found.name, false);
    PENSTOCK_CUFILE_OPTIONAL_CALLS(PENSTOCK_CUFILE_FIND)
#undef PENSTOCK_CUFILE_FIND
    if (missing != nullptr) {
        return fail(absent(
            fmt::format("{} does not have {}; update it to 1.0 or later", found.library, missing)));
    }
    return {};
}

// An older library knows this by its cufile.json alone, which is the user's.
void forbid_compatibility(const CuFileLibrary& library, CuFileWay way) {
    if (library.cuFileSetParameterBool == nullptr) {
        return;
    }
    library.cuFileSetParameterBool(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, false);
    library.cuFileSetParameterBool(CUFILE_PARAM_FORCE_COMPAT_MODE, false);
    if (way == CuFileWay::kP2pDma) {
        library.cuFileSetParameterBool(CUFILE_PARAM_USE_PCIP2PDMA, true);
    }
}

Result<void> refuse_compatibility(const CuFileLibrary& library) {
    CUfileDrvProps_t properties{};
    const CUfileError_t asked = library.cuFileDriverGetProperties(&properties);
    if (failed(asked)) {
        return fail(absent(fmt::format("{}: cuFileDriverGetProperties failed: {}", library.library,
                                       cufile_error_text(asked))));
    }
    if ((properties.nvfs.dcontrolflags & (1U << CU_FILE_ALLOW_COMPAT_MODE)) != 0) {
        return fail(absent(fmt::format(
            "{} keeps its compatibility mode, in which it copies through host memory: set "
            "\"allow_compat_mode\": false in cufile.json, or update libcufile to 1.14 or later; "
            "where another library of this process opens cuFile first, that one decides",
            library.library)));
    }
    return {};
}

// Once it is open, 1.20 takes a setting and shows it, and 1.14 takes it and does not show it:
// neither changes anything. So a cuFile that others of this process have open is taken as it is.
Result<void> open_driver(const CuFileLibrary& library, CuFileWay way) {
    if (library.cuFileUseCount != nullptr && library.cuFileUseCount() > 0) {
        PENSTOCK_CHECK(refuse_compatibility(library));
    } else {
        forbid_compatibility(library, way);
    }
    const CUfileError_t opened = library.cuFileDriverOpen();
    if (failed(opened) && opened.err != CU_FILE_DRIVER_ALREADY_OPEN) {
        return fail(
            absent(fmt::format("{} is there, and cuFileDriverOpen failed: {}; run "
                               "NVIDIA's gdscheck -p",
                               library.library, cufile_error_text(opened))));
    }
    return refuse_compatibility(library);
}

Result<const CuFileLibrary*> load(CuFileWay way) {
    void* library = ::dlopen(kLibrary, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
        const char* said = ::dlerror();
        return fail(absent(
            fmt::format("no cuFile ({}); install nvidia-gds or libcufile, or put the folder of the "
                        "nvidia-cufile wheel into LD_LIBRARY_PATH",
                        said == nullptr ? kLibrary : said)));
    }
    auto found = std::make_unique<CuFileLibrary>();
    found->library = path_of(library);
    PENSTOCK_CHECK(find_calls(library, *found));
    if (found->cuFileGetVersion != nullptr && failed(found->cuFileGetVersion(&found->version))) {
        found->version = 0;
    }
    PENSTOCK_CHECK(open_driver(*found, way));
    // After what libcufile has registered for the end itself, so that it runs before that.
    std::atexit(wait_for_calls);
    return found.release();  // lives until the process ends
}

}  // namespace

Result<const CuFileLibrary*> cufile_library(CuFileWay way) {
    PENSTOCK_ASSERT(way != CuFileWay::kNone);
    return base::as_result("cufile", [way]() -> Result<const CuFileLibrary*> {
        State& mine = state();
        if (const CuFileLibrary* known = mine.library.load(std::memory_order_acquire)) {
            return known;
        }
        const std::lock_guard lock(mine.mutex);
        if (const CuFileLibrary* known = mine.library.load(std::memory_order_acquire)) {
            return known;
        }
        if (mine.refusal) {
            return fail(absent(*mine.refusal));
        }
        auto made = load(way);
        if (!made) {
            mine.refusal = made.error().message;
            return made;
        }
        mine.library.store(*made, std::memory_order_release);
        return made;
    });
}

// Counted first: either the end of the process sees this call, or this call sees the end.
CuFileCall::CuFileCall() noexcept {
    calls.fetch_add(1);
    allowed_ = !process_ends.load();
}

CuFileCall::~CuFileCall() {
    calls.fetch_sub(1);
}

const CuFileLibrary* loaded_cufile() noexcept {
    return state().library.load(std::memory_order_acquire);
}

std::string cufile_error_text(std::int64_t error) {
    const auto number = static_cast<int>(error < 0 ? -error : error);
    if (number < CUFILEOP_BASE_ERR) {
        return fmt::format("{} (errno {})", std::generic_category().message(number), number);
    }
    const char* name = "an error of cuFile";
    switch (static_cast<CUfileOpError>(number)) {
#define PENSTOCK_CUFILE_NAME(error) \
    case error:                     \
        name = #error;              \
        break;
        PENSTOCK_CUFILE_NAME(CU_FILE_DRIVER_NOT_INITIALIZED)
        PENSTOCK_CUFILE_NAME(CU_FILE_DRIVER_VERSION_MISMATCH)
        PENSTOCK_CUFILE_NAME(CU_FILE_PLATFORM_NOT_SUPPORTED)
        PENSTOCK_CUFILE_NAME(CU_FILE_IO_NOT_SUPPORTED)
        PENSTOCK_CUFILE_NAME(CU_FILE_DEVICE_NOT_SUPPORTED)
        PENSTOCK_CUFILE_NAME(CU_FILE_NVFS_DRIVER_ERROR)
        PENSTOCK_CUFILE_NAME(CU_FILE_CUDA_DRIVER_ERROR)
        PENSTOCK_CUFILE_NAME(CU_FILE_CUDA_POINTER_INVALID)
        PENSTOCK_CUFILE_NAME(CU_FILE_CUDA_MEMORY_TYPE_INVALID)
        PENSTOCK_CUFILE_NAME(CU_FILE_CUDA_POINTER_RANGE_ERROR)
        PENSTOCK_CUFILE_NAME(CU_FILE_CUDA_CONTEXT_MISMATCH)
        PENSTOCK_CUFILE_NAME(CU_FILE_INVALID_FILE_TYPE)
        PENSTOCK_CUFILE_NAME(CU_FILE_INVALID_FILE_OPEN_FLAG)
        PENSTOCK_CUFILE_NAME(CU_FILE_DIO_NOT_SET)
        PENSTOCK_CUFILE_NAME(CU_FILE_INVALID_VALUE)
        PENSTOCK_CUFILE_NAME(CU_FILE_PERMISSION_DENIED)
        PENSTOCK_CUFILE_NAME(CU_FILE_HANDLE_NOT_REGISTERED)
        PENSTOCK_CUFILE_NAME(CU_FILE_HANDLE_ALREADY_REGISTERED)
        PENSTOCK_CUFILE_NAME(CU_FILE_DEVICE_NOT_FOUND)
        PENSTOCK_CUFILE_NAME(CU_FILE_INTERNAL_ERROR)
        PENSTOCK_CUFILE_NAME(CU_FILE_GETNEWFD_FAILED)
        PENSTOCK_CUFILE_NAME(CU_FILE_NVFS_SETUP_ERROR)
        PENSTOCK_CUFILE_NAME(CU_FILE_IO_DISABLED)
        PENSTOCK_CUFILE_NAME(CU_FILE_GPU_MEMORY_PINNING_FAILED)
#undef PENSTOCK_CUFILE_NAME
        default:
            break;
    }
    return fmt::format("{} ({})", name, number);
}

std::string cufile_error_text(const CUfileError_t& error) {
    std::string text = cufile_error_text(static_cast<std::int64_t>(error.err));
    if (error.err == CU_FILE_CUDA_DRIVER_ERROR) {
        text += fmt::format(", CUDA error {}", static_cast<unsigned int>(error.cu_err));
    }
    return text;
}

std::string cufile_version_text(int version) {
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace penstock::device
