// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, loaded at run time: nothing is opened before somebody asks, and a machine
// without a GPU is an ordinary answer with its reason.
#pragma once

#include "base/result.hpp"
#include "device/cuda/cuda_abi.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::device {

/// The oldest driver that is taken: CUDA 12.0 (release 525), the first with cuGetProcAddress_v2.
inline constexpr int kOldestDriver = 12000;

/// The calls of a driver that answered cuInit and has a GPU. Lives until the process ends.
/// Thread-safe, as the calls are.
struct Driver {
#define PENSTOCK_CUDA_MEMBER(name, version, ...) cuda::name##_type* name = nullptr;
    PENSTOCK_CUDA_CALLS(PENSTOCK_CUDA_MEMBER)
    PENSTOCK_CUDA_OPTIONAL_CALLS(PENSTOCK_CUDA_MEMBER)  // null where the driver lacks it
#undef PENSTOCK_CUDA_MEMBER

    int version = 0;      ///< of CUDA, which it speaks: 12080 is 12.8
    int gpus = 0;         ///< how many it shows to this process
    std::string library;  ///< the file
};

/// The driver; loads it at the first call. kUnsupported, with the reason and what to do, where it
/// is not installed, is too old or a stub, or shows no GPU; and in a child that was forked after
/// CUDA was begun, where CUDA works no more. A failure is not kept: the next call tries again.
/// Thread-safe.
[[nodiscard]] base::Result<const Driver*> driver();

/// The driver where driver() has had success in this process; else nullptr. Opens nothing.
[[nodiscard]] const Driver* loaded_driver() noexcept;

/// The driver in a few words: what is loaded, why the last try failed, or that nobody has asked.
/// Opens nothing.
[[nodiscard]] std::string driver_text();

/// Which drivers this process has loaded, and which of them is used, where there are several (a
/// program and a library that each bring one); else "". Memory of one is unknown to the others.
[[nodiscard]] std::string several_drivers_text();

/// CUDA's objects outlive the process: false while it ends, and in a child after a fork, where
/// nothing of them is to be touched.
[[nodiscard]] bool may_call_driver() noexcept;

/// "12.8" of 12080.
[[nodiscard]] std::string version_text(int version);

/// The words for a call that failed: the call, what it was to do, the driver's name and text of the
/// error, and what to do. kOutOfMemory for a lack of memory, else kSystem.
[[nodiscard]] base::Error cuda_error(const Driver& driver, cuda::CUresult result,
                                     std::string_view call, std::string_view operation,
                                     std::string_view subject) noexcept;

}  // namespace penstock::device
