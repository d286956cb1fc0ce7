// SPDX-License-Identifier: Apache-2.0
// What holds for the fake libcufile.so.0 as for NVIDIA's, of the calls that Penstock makes. The
// program takes the fake in the folder next to it; CONFORMANCE_LIBCUFILE names another library.
// NVIDIA's runs in its compatibility mode on the fake driver (tests/gpu_peers), which is as far as
// a machine without a GPU reaches.
#include "device/cufile/cufile_abi.hpp"
#include "device_conformance/gpu_driver.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

namespace penstock::device::cuda::conformance {
namespace {

using namespace cufile;  // NOLINT(google-build-using-namespace)

struct Library {
#define CONFORMANCE_MEMBER(name, symbol, ...) \
    cufile::name##_type* name = nullptr;  // NOLINT: NVIDIA's name
    PENSTOCK_CUFILE_CALLS(CONFORMANCE_MEMBER)
    PENSTOCK_CUFILE_OPTIONAL_CALLS(CONFORMANCE_MEMBER)
    PENSTOCK_CUFILE_CALLS_OF_TESTS(CONFORMANCE_MEMBER)
#undef CONFORMANCE_MEMBER

    static Library* get() {
        static Library* const made = [] {
            const char* name = std::getenv("CONFORMANCE_LIBCUFILE");
            void* library = ::dlopen(name == nullptr ? "libcufile.so.0" : name, RTLD_LAZY);
            if (library == nullptr) {
                return static_cast<Library*>(nullptr);
            }
            auto* found = new Library;
            const auto find = [library](auto& call, const char* symbol) {
                call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(
                    ::dlsym(library, symbol));
            };
#define CONFORMANCE_FIND(name, symbol, ...) find(found->name, #symbol);
            PENSTOCK_CUFILE_CALLS(CONFORMANCE_FIND)
            PENSTOCK_CUFILE_OPTIONAL_CALLS(CONFORMANCE_FIND)
            PENSTOCK_CUFILE_CALLS_OF_TESTS(CONFORMANCE_FIND)
#undef CONFORMANCE_FIND
            return found;
        }();
        return made;
    }
};

constexpr std::size_t kBytes = 3 << 20;

// A file of random bytes on tmpfs, and memory of the GPU. cuFile looks a file on a disk up in
// udev, which containers have not.
class CuFileConformance : public Gpu {
protected:
    void SetUp() override {
        Gpu::SetUp();
        if (IsSkipped() || HasFatalFailure()) {
            return;
        }
        cufile_ = Library::get();
        if (cufile_ == nullptr) {
            GTEST_SKIP() << "no libcufile.so.0: " << ::dlerror();
        }
        path_ = "/dev/shm/penstock-cufile-" + std::to_string(::getpid());
        data_.resize(kBytes);
        std::mt19937 random(7);
        std::generate(data_.begin(), data_.end(),
                      [&] { return static_cast<unsigned char>(random()); });
        fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
        ASSERT_GE(fd_, 0);
        ASSERT_EQ(::pwrite(fd_, data_.data(), kBytes, 0), static_cast<ssize_t>(kBytes));
        memory_ = device_memory(kBytes);
        ASSERT_EQ(cufile_->cuFileDriverOpen().err, CU_FILE_SUCCESS);
        CUfileHandle_t tried = nullptr;
        if (register_file(tried) == CU_FILE_SUCCESS) {
            cufile_->cuFileHandleDeregister(tried);
        } else if (::access("/run/udev/data", F_OK) != 0) {
            GTEST_SKIP() << "libcufile registers no file where /run/udev/data is not there";
        }
    }
    void TearDown() override {
        if (handle_ != nullptr) {
            cufile_->cuFileHandleDeregister(handle_);
        }
        if (fd_ >= 0) {
            ::close(fd_);
            ::unlink(path_.c_str());
            EXPECT_EQ(cufile_->cuFileDriverClose().err, CU_FILE_SUCCESS);
        }
        Gpu::TearDown();
    }
    [[nodiscard]] CUfileOpError register_file(CUfileHandle_t& handle) const {
        CUfileDescr_t of{};
        of.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
        of.handle.fd = fd_;
        return cufile_->cuFileHandleRegister(&handle, &of).err;
    }
    [[nodiscard]] void* memory() const {
        return reinterpret_cast<void*>(static_cast<std::uintptr_t>(memory_));
    }
    [[nodiscard]] std::vector<unsigned char> part(std::size_t from, std::size_t bytes) const {
        const auto begin = data_.begin() + static_cast<std::ptrdiff_t>(from);
        return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
    }

    Library* cufile_ = nullptr;
    std::string path_;
    int fd_ = -1;
    CUfileHandle_t handle_ = nullptr;
    CUdeviceptr memory_ = 0;
    std::vector<unsigned char> data_;
};

TEST_F(CuFileConformance, ReadsBringWhatTheFileHas) {
    ASSERT_EQ(register_file(handle_), CU_FILE_SUCCESS);
    for (const bool registered : {false, true}) {
        if (registered) {
            ASSERT_EQ(cufile_->cuFileBufRegister(memory(), kBytes, 0).err, CU_FILE_SUCCESS);
        }
        for (const std::array<std::size_t, 3>& at :
             {std::array<std::size_t, 3>{0, kBytes, 0}, {777, 1'000'001, 13}, {4096, 4096, 512}}) {
            ASSERT_EQ(cufile_->cuFileRead(handle_, memory(), at[1], static_cast<off_t>(at[0]),
                                          static_cast<off_t>(at[2])),
                      static_cast<ssize_t>(at[1]));
            EXPECT_TRUE(bytes_of(memory_ + at[2], at[1]) == part(at[0], at[1])) << at[0];
        }
    }
    EXPECT_EQ(cufile_->cuFileBufDeregister(memory()).err, CU_FILE_SUCCESS);
}

TEST_F(CuFileConformance, ReadsEndWhereTheFileDoes) {
    ASSERT_EQ(register_file(handle_), CU_FILE_SUCCESS);
    EXPECT_EQ(cufile_->cuFileRead(handle_, memory(), 8192, kBytes - 4096, 0), 4096);
    EXPECT_EQ(cufile_->cuFileRead(handle_, memory(), 4096, kBytes, 0), 0);
    EXPECT_EQ(cufile_->cuFileRead(handle_, memory(), 4096, kBytes + 8192, 0), 0);
}

TEST_F(CuFileConformance, WritesPutWhatTheMemoryHasAndMayExtend) {
    ASSERT_EQ(register_file(handle_), CU_FILE_SUCCESS);
    ASSERT_EQ(cufile_->cuFileRead(handle_, memory(), kBytes, 0, 0), static_cast<ssize_t>(kBytes));
    ASSERT_EQ(cufile_->cuFileWrite(handle_, memory(), 1 << 20, kBytes - 4096, 8192), 1 << 20);
    std::vector<unsigned char> found(1 << 20);
    ASSERT_EQ(::pread(fd_, found.data(), found.size(), kBytes - 4096), 1 << 20);
    EXPECT_TRUE(found == part(8192, 1 << 20));
    EXPECT_EQ(std::filesystem::file_size(path_), kBytes - 4096 + (1 << 20));
}

TEST_F(CuFileConformance, AFileIsRegisteredOnceAtATime) {
    ASSERT_EQ(register_file(handle_), CU_FILE_SUCCESS);
    CUfileHandle_t second = nullptr;
    EXPECT_EQ(register_file(second), CU_FILE_HANDLE_ALREADY_REGISTERED);
    cufile_->cuFileHandleDeregister(handle_);
    handle_ = nullptr;
    EXPECT_EQ(register_file(handle_), CU_FILE_SUCCESS);
}

TEST_F(CuFileConformance, AnErrorIsANegativeNumber) {
    ASSERT_EQ(register_file(handle_), CU_FILE_SUCCESS);
    // Past the end of the allocation; a descriptor that is none; what is no file.
    EXPECT_LT(cufile_->cuFileRead(handle_, memory(), kBytes, 0, 64 << 20), 0);
    CUfileDescr_t of{};
    of.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    of.handle.fd = 100'000;
    CUfileHandle_t none = nullptr;
    EXPECT_NE(cufile_->cuFileHandleRegister(&none, &of).err, CU_FILE_SUCCESS);
    of.handle.fd = ::open("/dev/shm", O_RDONLY | O_DIRECTORY);
    EXPECT_NE(cufile_->cuFileHandleRegister(&none, &of).err, CU_FILE_SUCCESS);
    ::close(of.handle.fd);
}

TEST_F(CuFileConformance, SaysWhetherItIsOpenAndWhatItIs) {
    int version = 0;
    EXPECT_EQ(cufile_->cuFileGetVersion(&version).err, CU_FILE_SUCCESS);
    EXPECT_GE(version, 1000);
    EXPECT_EQ(cufile_->cuFileUseCount(), 1);
    EXPECT_EQ(cufile_->cuFileDriverClose().err, CU_FILE_SUCCESS);
    EXPECT_EQ(cufile_->cuFileUseCount(), 0);
    EXPECT_EQ(cufile_->cuFileDriverOpen().err, CU_FILE_SUCCESS);
}

TEST_F(CuFileConformance, ShowsItsCompatibilityModeAsItIsSetBeforeItOpens) {
    EXPECT_EQ(cufile_->cuFileDriverClose().err, CU_FILE_SUCCESS);
    for (const bool allowed : {false, true}) {
        ASSERT_EQ(
            cufile_->cuFileSetParameterBool(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, allowed).err,
            CU_FILE_SUCCESS);
        CUfileDrvProps_t properties{};
        ASSERT_EQ(cufile_->cuFileDriverGetProperties(&properties).err, CU_FILE_SUCCESS);
        EXPECT_EQ((properties.nvfs.dcontrolflags & (1U << CU_FILE_ALLOW_COMPAT_MODE)) != 0,
                  allowed);
    }
    EXPECT_EQ(cufile_->cuFileDriverOpen().err, CU_FILE_SUCCESS);
}

}  // namespace
}  // namespace penstock::device::cuda::conformance
