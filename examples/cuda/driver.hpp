// SPDX-License-Identifier: Apache-2.0
// The few calls of NVIDIA's driver that examples make, out of libcuda.so.1 itself, so that they
// build where there is no CUDA and run where there is no GPU. A program with CUDA's toolkit has
// cudaMalloc(), cudaMemcpy() and <<<...>>> instead.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cuda_example {

/// GPU 0, with its primary context, which CUDA's runtime and torch use too.
class Gpu {
public:
    Gpu() : library_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NODELETE)) {
        if (library_ == nullptr) {
            throw std::runtime_error(dlerror());
        }
        int device = 0;
        void* context = nullptr;
        call<int(unsigned)>("cuInit", 0U);
        call<int(int*, int)>("cuDeviceGet", &device, 0);
        call<int(void**, int)>("cuDevicePrimaryCtxRetain", &context, device);
        call<int(void*)>("cuCtxSetCurrent", context);
    }

    /// Calls a function of the driver, whose result has to be CUDA_SUCCESS.
    template <typename Function, typename... Arguments>
    void call(const char* name, Arguments... arguments) const {
        auto* const function = reinterpret_cast<Function*>(dlsym(library_, name));
        const int result = function == nullptr ? -1 : function(arguments...);
        if (result != 0) {
            throw std::runtime_error(std::string(name) + " = " + std::to_string(result));
        }
    }

    /// A kernel out of PTX.
    [[nodiscard]] void* kernel(const std::string& ptx, const char* name) const {
        void* module = nullptr;
        void* function = nullptr;
        call<int(void**, const void*)>("cuModuleLoadData", &module, ptx.c_str());
        call<int(void**, void*, const char*)>("cuModuleGetFunction", &function, module, name);
        return function;
    }

    /// Runs a kernel to its end.
    template <typename... Parameters>
    void launch(void* kernel, unsigned blocks, unsigned threads, Parameters... parameters) const {
        void* given[] = {&parameters...};
        using Launch = int(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                           unsigned, void*, void**, void**);
        call<Launch>("cuLaunchKernel", kernel, blocks, 1U, 1U, threads, 1U, 1U, 0U, nullptr, given,
                     nullptr);
        call<int()>("cuCtxSynchronize");
    }

private:
    void* library_;
};

/// So many values in the memory of the GPU.
template <typename T>
class Values {
public:
    Values(const Gpu& gpu, std::size_t count) : gpu_(gpu), count_(count) {
        gpu_.call<int(std::uint64_t*, std::size_t)>("cuMemAlloc_v2", &address_, count * sizeof(T));
    }
    Values(const Gpu& gpu, const std::vector<T>& values) : Values(gpu, values.size()) {
        put(values);
    }
    Values(const Values&) = delete;
    Values& operator=(const Values&) = delete;
    ~Values() {
        try {
            gpu_.call<int(std::uint64_t)>("cuMemFree_v2", address_);
        } catch (const std::runtime_error&) {  // the GPU is in an error, and its memory is lost
            address_ = 0;
        }
    }

    [[nodiscard]] T* data() const { return reinterpret_cast<T*>(address_); }
    void put(const std::vector<T>& values) {
        gpu_.call<int(std::uint64_t, const void*, std::size_t)>(
            "cuMemcpyHtoD_v2", address_, values.data(), values.size() * sizeof(T));
    }
    [[nodiscard]] std::vector<T> get() const { return get(count_); }
    [[nodiscard]] std::vector<T> get(std::size_t count) const {
        std::vector<T> values(count);
        if (count > 0) {
            gpu_.call<int(void*, std::uint64_t, std::size_t)>("cuMemcpyDtoH_v2", values.data(),
                                                              address_, count * sizeof(T));
        }
        return values;
    }

private:
    const Gpu& gpu_;
    std::size_t count_;
    std::uint64_t address_ = 0;
};

}  // namespace cuda_example
