// SPDX-License-Identifier: Apache-2.0
// Calls about modules and kernels. Of a module's PTX the fake reads what a driver checks first (its
// version and its architecture), and the names and parameters of its kernels.
#include "calls.hpp"
#include "kernels.hpp"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
namespace penstock::device::cuda::fake {
namespace {

constexpr auto kIllegalAddress = CUDA_ERROR_ILLEGAL_ADDRESS;
constexpr unsigned kThreadsMax = 1024;
constexpr unsigned kGridMax = 65535;  // of y and z

struct Kernel {
    std::string name;
    std::vector<std::size_t> sizes;  ///< of the parameters, in bytes
    std::uintptr_t module = 0;
};

struct Module {
    std::shared_ptr<Context> context;
    std::vector<Kernel> kernels;
    std::vector<std::uintptr_t> handles;  ///< of those that were asked for
};

struct Modules {
    std::map<std::uintptr_t, Module> loaded;
    std::map<std::uintptr_t, Kernel> functions;
    // With the machine's mutex held.
    static Modules& get() {
        static auto* modules = new Modules;
        return *modules;
    }
};

std::string_view word_after(std::string_view text, std::string_view key) {
    const std::size_t found = text.find(key);
    if (found == std::string_view::npos) {
        return {};
    }
    const std::size_t begin = text.find_first_not_of(" \t", found + key.size());
    return begin == std::string_view::npos
               ? std::string_view()
               : text.substr(begin, text.find_first_of(" \t\r\n,([]", begin) - begin);
}

int number_of(std::string_view text) {
    int value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
}

// PTX ISA, "Release Notes": the version of each release of CUDA.
int newest_ptx(int driver) {
    const int minor = driver % 1000 / 10;
    return driver / 1000 >= 13   ? 90 + minor
           : driver / 1000 == 12 ? 80 + (minor <= 5 ? minor : minor - 1)
                                 : 70;
}

// ".param .align 8 .b8 name[24]" has 24 bytes, ".param .u64 name" 8.
std::optional<std::size_t> size_of(std::string_view parameter) {
    const std::size_t bracket = parameter.find('[');
    std::size_t count = 1;
    if (bracket != std::string_view::npos) {
        count = static_cast<std::size_t>(number_of(parameter.substr(bracket + 1)));
    }
    for (const char* type : {".u", ".s", ".b", ".f"}) {
        for (const int bits : {8, 16, 32, 64}) {
            if (parameter.find(type + std::to_string(bits) + " ") != std::string_view::npos) {
                return count * static_cast<std::size_t>(bits) / 8;
            }
        }
    }
    return std::nullopt;
}

CUresult read_kernels(std::string_view text, std::vector<Kernel>& kernels) {
    constexpr std::string_view kEntry = ".entry ";
    for (std::size_t at = text.find(kEntry); at != std::string_view::npos;
         at = text.find(kEntry, at + 1)) {
        const std::size_t open = text.find('(', at);
        const std::size_t close = text.find(')', at);
        if (open == std::string_view::npos || close == std::string_view::npos) {
            return CUDA_ERROR_INVALID_PTX;
        }
        Kernel kernel;
        kernel.name = word_after(text.substr(at), kEntry);
        std::string_view list = text.substr(open + 1, close - open - 1);
        while (list.find(".param") != std::string_view::npos) {
            const auto size = size_of(list.substr(0, list.find(',')));
            if (!size) {
                return CUDA_ERROR_INVALID_PTX;
            }
            kernel.sizes.push_back(*size);
            list.remove_prefix(std::min(list.size(), list.find(',')));
            list.remove_prefix(list.empty() ? 0 : 1);
        }
        kernels.push_back(std::move(kernel));
    }
    return CUDA_SUCCESS;
}

CUresult read_module(const Machine& machine, int device, std::string_view text, Module& made) {
    const std::string_view version = word_after(text, ".version");
    const std::string_view target = word_after(text, ".target");
    if (version.size() < 3 || target.substr(0, 3) != "sm_") {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    const int is = number_of(version) * 10 + number_of(version.substr(version.find('.') + 1));
    if (is > newest_ptx(machine.settings.driver_version)) {
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    }
    static_cast<void>(device);
    if (number_of(target.substr(3)) > kComputeCapability) {
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    return read_kernels(text, made.kernels);
}

}  // namespace

std::byte* Reach::at(std::uint64_t address, std::uint64_t bytes, std::size_t alignment) const {
    if (address % alignment != 0) {
        throw IllegalAddress();
    }
    const auto holds = [&](const Known& known) {
        return address >= known.base && address - known.base <= known.bytes &&
               bytes <= known.bytes - (address - known.base);
    };
    for (const Known& known : known_) {
        if (known.backing != nullptr && holds(known)) {
            return known.backing + (address - known.base);
        }
    }
    const std::lock_guard lock(machine_.mutex);
    const Allocation* found = machine_.holder(address);
    // No device reads another's memory without cuCtxEnablePeerAccess(), which is refused here.
    if (found == nullptr || (found->kind == Kind::kDevice && found->device != device_)) {
        throw IllegalAddress();
    }
    const Known known{found->base, found->bytes, found->backing};
    if (!holds(known)) {
        throw IllegalAddress();
    }
    known_[next_++ % 2] = known;
    return known.backing + (address - known.base);
}

FAKE_GPU_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    FAKE_GPU_CALL(kContext);
    if (module == nullptr || image == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Module made;
    made.context = call.context();
    const CUresult bad =
        read_module(machine, made.context->device, static_cast<const char*>(image), made);
    if (bad != CUDA_SUCCESS) {
        return bad;
    }
    const std::uintptr_t handle = machine.new_handle();
    Modules::get().loaded[handle] = std::move(made);
    *module = reinterpret_cast<CUmodule>(handle);
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuModuleUnload(CUmodule module) {
    FAKE_GPU_CALL(kContext);
    Modules& modules = Modules::get();
    const auto found = modules.loaded.find(reinterpret_cast<std::uintptr_t>(module));
    if (found == modules.loaded.end()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (const std::uintptr_t handle : found->second.handles) {
        modules.functions.erase(handle);
    }
    modules.loaded.erase(found);
    return CUDA_SUCCESS;
}

FAKE_GPU_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module,
                                             const char* name) {
    FAKE_GPU_CALL(kContext);
    if (function == nullptr || name == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Modules& modules = Modules::get();
    const auto found = modules.loaded.find(reinterpret_cast<std::uintptr_t>(module));
    if (found == modules.loaded.end()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (const Kernel& kernel : found->second.kernels) {
        if (kernel.name == name) {
            const std::uintptr_t handle = machine.new_handle();
            found->second.handles.push_back(handle);
            modules.functions[handle] = {kernel.name, kernel.sizes, found->first};
            *function = reinterpret_cast<CUfunction>(handle);
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_NOT_FOUND;
}

FAKE_GPU_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                        unsigned grid_z, unsigned block_x, unsigned block_y,
                                        unsigned block_z, unsigned /*shared_bytes*/,
                                        CUstream stream, void** parameters, void** extra) {
    FAKE_GPU_CALL(kContext);
    Modules& modules = Modules::get();
    const auto found = modules.functions.find(reinterpret_cast<std::uintptr_t>(function));
    const auto where = call.stream(stream);
    // A kernel and its stream are of one context.
    if (found == modules.functions.end() || where == nullptr ||
        modules.loaded[found->second.module].context != where->context) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const std::uint64_t threads = std::uint64_t{block_x} * block_y * block_z;
    if (grid_x == 0 || grid_x > INT32_MAX || grid_y == 0 || grid_y > kGridMax || grid_z == 0 ||
        grid_z > kGridMax || threads == 0 || threads > kThreadsMax ||
        (parameters == nullptr && !found->second.sizes.empty()) || extra != nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Twin twin = twin_of(found->second.name);
    if (twin == nullptr) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    Launch launch{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, {}};
    for (std::size_t i = 0; i < found->second.sizes.size(); ++i) {  // read by the call, not later
        const auto* const value = static_cast<const std::byte*>(parameters[i]);
        launch.parameters.emplace_back(value, value + found->second.sizes[i]);
    }
    Work work;
    work.lane = Lane::kOther;
    work.act = [&machine, launch = std::move(launch), twin, device = where->context->device] {
        try {
            twin(launch, Reach(machine, device));
        } catch (const IllegalAddress&) {
            machine.broken = kIllegalAddress;  // and all calls return it from now on
        }
    };
    machine.give(*where, std::move(work));
    return CUDA_SUCCESS;
}

}  // namespace penstock::device::cuda::fake
// NOLINTEND(readability-identifier-naming)
