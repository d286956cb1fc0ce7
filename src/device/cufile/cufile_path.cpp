// SPDX-License-Identifier: Apache-2.0
#include "device/cufile/cufile_path.hpp"

#include "device/cuda/context.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <utility>

namespace penstock::device {

using base::Result;
using engine::MemoryPlace;
using engine::Op;
using namespace cufile;  // NVIDIA's names, as in its documents

namespace {

// A file whose requests were refused so often in a row is tried no more.
constexpr std::uint32_t kRefusalsMax = 4;

// The handle of a file. The first request registers it; the file drops it before its descriptors.
class FileHandle final : public os::FileCompanion {
public:
    ~FileHandle() override {
        const CuFileCall call;
        if (handle_ != nullptr && call.allowed() && may_call_driver()) {
            library_->cuFileHandleDeregister(handle_);
        }
    }

    [[nodiscard]] bool refused() const { return refused_.load(std::memory_order_acquire); }
    [[nodiscard]] std::string refusal() {
        const std::lock_guard lock(mutex_);
        return refusal_;
    }

    // Blocks the first time.
    [[nodiscard]] Result<CUfileHandle_t> get(const CuFileLibrary& library, int descriptor) {
        if (CUfileHandle_t known = ready_.load(std::memory_order_acquire)) {
            return known;
        }
        const std::lock_guard lock(mutex_);
        if (handle_ != nullptr) {
            return handle_;
        }
        if (!refused()) {
            CUfileDescr_t of{};
            of.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
            of.handle.fd = descriptor;
            const CUfileError_t made = library.cuFileHandleRegister(&handle_, &of);
            if (made.err == CU_FILE_SUCCESS && handle_ != nullptr) {
                library_ = &library;
                ready_.store(handle_, std::memory_order_release);
                return handle_;
            }
            handle_ = nullptr;
            refuse("cuFileHandleRegister: " + cufile_error_text(made));
        }
        return base::fail(base::error(ErrorCode::kUnsupported, "cufile", refusal_));
    }

    void moved() { in_a_row_.store(0, std::memory_order_relaxed); }
    void call_refused(const std::string& text) {
        if (in_a_row_.fetch_add(1, std::memory_order_relaxed) + 1 >= kRefusalsMax) {
            const std::lock_guard lock(mutex_);
            refuse(fmt::format("{} requests in a row were refused, the last one with {}",
                               kRefusalsMax, text));
        }
    }

private:
    void refuse(std::string text) {
        if (!refused()) {
            refusal_ = std::move(text);
            refused_.store(true, std::memory_order_release);
        }
    }

    std::mutex mutex_;
    const CuFileLibrary* library_ = nullptr;
    CUfileHandle_t handle_ = nullptr;
    std::string refusal_;
    std::atomic<CUfileHandle_t> ready_{nullptr};
    std::atomic<bool> refused_{false};
    std::atomic<std::uint32_t> in_a_row_{0};
};

FileHandle* handle_of(const os::File& file) {
    return static_cast<FileHandle*>(file.companion());
}

Gpu facts_of(const Driver& driver, std::int32_t number) {
    Gpu gpu;
    gpu.number = number;
    cuda::CUdevice device = 0;
    if (driver.cuDeviceGet(&device, number) == cuda::CUDA_SUCCESS) {
        driver.cuDeviceGetAttribute(&gpu.compute_major,
                                    cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
        driver.cuDeviceGetAttribute(&gpu.compute_minor,
                                    cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
        std::array<char, 64> pci{};
        if (driver.cuDeviceGetPCIBusId(pci.data(), static_cast<int>(pci.size()) - 1, device) ==
            cuda::CUDA_SUCCESS) {
            gpu.pci = pci.data();
        }
    }
    return gpu;
}

bool is_possible(const os::File& file) {
    return file.geometry().direct && !file.info().is_block_device &&
           file.descriptor(os::IoPath::kDirect) >= 0;
}

}  // namespace

bool CuFilePath::is_slower(const Pair& pair, const std::string& pci) const {
    return !required_ && std::any_of(tuned_.begin(), tuned_.end(), [&](const TunedGpuPath& one) {
        return one.path == GpuPath::kBounce && one.disk == pair.disk &&
               std::equal(one.gpu.begin(), one.gpu.end(), pci.begin(), pci.end(),
                          [](unsigned char a, unsigned char b) {
                              return std::tolower(a) == std::tolower(b);
                          });
    });
}

const CuFilePath::Pair* CuFilePath::pair_of(const os::File& file, std::int32_t gpu) {
    const os::FileInfo& info = file.info();
    const std::lock_guard lock(mutex_);
    for (const auto& pair : pairs_) {
        if (pair->disk == info.device && pair->gpu == gpu &&
            pair->file_system == info.file_system) {
            return pair.get();
        }
    }
    const Driver* driver = loaded_driver();
    if (driver == nullptr) {
        return nullptr;
    }
    auto made = base::as_result("cufile", [&]() -> Result<const Pair*> {
        auto pair = std::make_unique<Pair>();
        pair->disk = info.device;
        pair->file_system = info.file_system;
        pair->gpu = gpu;
        const Gpu facts = facts_of(*driver, gpu);
        pair->conditions = cufile_conditions(facts, driver->version,
                                             FilePlace{info.device, info.file_system}, folders_);
        pair->slower = is_slower(*pair, facts.pci);
        pairs_.push_back(std::move(pair));
        return pairs_.back().get();
    });
    return made ? *made : nullptr;
}

bool CuFilePath::takes(os::File& file, const MemoryPlace& place) {
    if (place.kind != MemoryKind::kDevice || !is_possible(file)) {
        return false;
    }
    if (const FileHandle* handle = handle_of(file); handle != nullptr && handle->refused()) {
        return false;
    }
    const Pair* pair = pair_of(file, place.device);
    if (pair == nullptr || pair->conditions.way == CuFileWay::kNone || pair->slower) {
        return false;
    }
    const std::lock_guard lock(mutex_);
    return no_library_.empty();
}

base::Error CuFilePath::why_not(os::File& file, const MemoryPlace& place) {
    std::string reason;
    if (!is_possible(file)) {
        reason = "the file is not open for direct I/O: " + file.geometry().reason;
    } else if (FileHandle* handle = handle_of(file); handle != nullptr && handle->refused()) {
        reason = handle->refusal();
    } else if (const Pair* pair = pair_of(file, place.device);
               pair != nullptr && pair->conditions.way == CuFileWay::kNone) {
        reason = fmt::format("{}", fmt::join(pair->conditions.reasons, "; "));
    } else {
        const std::lock_guard lock(mutex_);
        reason = no_library_;
    }
    return base::error(ErrorCode::kUnsupported, "cufile",
                       fmt::format("gpu_path is 'cufile', and cuFile cannot reach GPU {} from this "
                                   "file: {}; choose 'auto' to go through host memory",
                                   place.device, reason),
                       file.info().path);
}

void CuFilePath::note(std::string refusal) noexcept {
    const std::lock_guard lock(mutex_);
    last_refusal_ = std::move(refusal);
}

std::int64_t CuFilePath::move(Op op, os::File& file, const MemoryPlace& place, std::byte* memory,
                              std::uint64_t bytes, std::uint64_t offset) noexcept {
    auto moved = base::as_result("cufile", [&]() -> Result<std::int64_t> {
        const Pair* pair = pair_of(file, place.device);
        if (pair == nullptr || pair->conditions.way == CuFileWay::kNone) {
            return -EOPNOTSUPP;
        }
        PENSTOCK_TRY(driver, device::driver());
        PENSTOCK_TRY(context, primary_context(*driver, place.device));
        const Current current(*driver, context);
        if (current.result() != cuda::CUDA_SUCCESS) {
            return -EOPNOTSUPP;  // the other way says it in the driver's words
        }
        auto library = cufile_library(pair->conditions.way);
        if (!library) {
            const std::lock_guard lock(mutex_);
            no_library_ = library.error().message;
            return -EOPNOTSUPP;
        }
        FileHandle* handle = handle_of(file);
        if (handle == nullptr) {
            handle = static_cast<FileHandle*>(&file.adopt(std::make_unique<FileHandle>()));
        }
        auto registered = handle->get(**library, file.descriptor(os::IoPath::kDirect));
        if (!registered) {
            note(file.info().path + ": " + registered.error().message);
            return -EOPNOTSUPP;
        }
        const CuFileCall call;
        if (!call.allowed()) {
            return -EOPNOTSUPP;
        }
        errno = 0;
        ssize_t result = op == Op::kRead ? (*library)->cuFileRead(*registered, memory, bytes,
                                                                  static_cast<off_t>(offset), 0)
                                         : (*library)->cuFileWrite(*registered, memory, bytes,
                                                                   static_cast<off_t>(offset), 0);
        if (result > 0) {
            handle->moved();
            return result;
        }
        // -1 is an error of the system, in errno; others are cuFile's own. 0 is the end of a file,
        // or nothing accepted: the other way finds out which.
        if (result < 0) {
            const int system = errno;
            if (result == -1 && system != 0) {
                result = -system;
            }
            const std::string text = cufile_error_text(result);
            handle->call_refused(text);
            note(fmt::format("{}: {} of {} bytes at {}: {}", file.info().path,
                             op == Op::kRead ? "cuFileRead" : "cuFileWrite", bytes, offset, text));
        }
        return result;
    });
    return moved ? *moved : -ENOMEM;
}

std::string CuFilePath::text() {
    const CuFileLibrary* library = loaded_cufile();
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const auto& pair : pairs_) {
        if (!text.empty()) {
            text += "; ";
        }
        text +=
            fmt::format("disk {}:{} and GPU {}: ", pair->disk.major, pair->disk.minor, pair->gpu);
        text += pair->conditions.way == CuFileWay::kNone
                    ? fmt::format("not used: {}", fmt::join(pair->conditions.reasons, "; "))
                    : name_of(pair->conditions.way);
        if (pair->slower) {
            text += ", not used: pinned memory was faster (penstock tune)";
        }
    }
    if (text.empty()) {
        text = "not asked for yet";
    }
    if (!no_library_.empty()) {
        text += "; " + no_library_;
    } else if (library != nullptr) {
        text += fmt::format("; cuFile {} ({})", cufile_version_text(library->version),
                            library->library);
    }
    if (!last_refusal_.empty()) {
        text += "; refused last: " + last_refusal_;
    }
    return text;
}

std::shared_ptr<engine::DevicePath> make_device_path(GpuPath path, const MachineFolders& folders,
                                                     const std::vector<TunedGpuPath>& tuned) {
    if (path == GpuPath::kBounce) {
        return nullptr;
    }
    return std::make_shared<CuFilePath>(path == GpuPath::kCuFile, folders, tuned);
}

}  // namespace penstock::device
