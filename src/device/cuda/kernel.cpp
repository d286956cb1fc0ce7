// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/kernel.hpp"

#include "base/assert.hpp"
#include "device/cuda/context.hpp"
#include "kernels/kept_ptx.hpp"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <string>
#include <tuple>

namespace penstock::device {

using base::fail;
using base::Result;
using namespace cuda;  // NVIDIA's names, as in its documents

namespace {

struct Loaded {
    std::mutex mutex;
    std::map<std::tuple<CUcontext, std::string, std::string>, CUfunction> functions;
};

// A child of a fork never comes here: there driver() has failed before.
Loaded& loaded() {
    static auto& kept = *new Loaded;  // never destroyed, as CUDA's objects outlive the process
    return kept;
}

base::Error not_loaded(const Driver& driver, CUresult result, std::string_view call,
                       std::int32_t device, std::string_view name) {
    base::Error error = cuda_error(driver, result, call, "gpu",
                                   fmt::format("the kernel {} of GPU {}", name, device));
    if (result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_INVALID_PTX ||
        result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION) {
        error.code = ErrorCode::kUnsupported;
        error.message +=
            "; kernels are for GPUs of compute capability 7.5 (Turing) or later and drivers of "
            "CUDA 12.0 or later: gather into host memory and copy";
    }
    return error;
}

}  // namespace

Result<CUfunction> kernel(const Driver& driver, std::int32_t device, const char* file,
                          const char* name) {
    return base::as_result("gpu", [&]() -> Result<CUfunction> {
        PENSTOCK_TRY(context, primary_context(driver, device));
        Loaded& all = loaded();
        const std::lock_guard lock(all.mutex);
        const auto key = std::make_tuple(context, std::string(file), std::string(name));
        if (const auto known = all.functions.find(key); known != all.functions.end()) {
            return known->second;
        }
        const char* const ptx = kernels::kept_ptx(file);
        PENSTOCK_ASSERT(ptx != nullptr);
        const Current current(driver, context);
        CUmodule module = nullptr;
        CUfunction function = nullptr;
        CUresult result = current.result();
        const char* call = "cuCtxPushCurrent";
        if (result == CUDA_SUCCESS) {
            call = "cuModuleLoadData";
            result = driver.cuModuleLoadData(&module, ptx);
        }
        if (result == CUDA_SUCCESS) {
            call = "cuModuleGetFunction";
            result = driver.cuModuleGetFunction(&function, module, name);
            if (result != CUDA_SUCCESS) {
                driver.cuModuleUnload(module);
            }
        }
        if (result != CUDA_SUCCESS) {
            return fail(not_loaded(driver, result, call, device, name));
        }
        all.functions.emplace(key, function);
        return function;
    });
}

}  // namespace penstock::device
