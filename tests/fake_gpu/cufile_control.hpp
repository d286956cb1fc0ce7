// SPDX-License-Identifier: Apache-2.0
// The controls of the fake libcufile.so.0, as control.hpp has those of the fake driver. Faults at
// its calls, and how often they were made, are FakeGpu's: fail("cuFileRead", ...), calls(...); an
// error from 5001 on is cuFile's, one below is an errno.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <optional>
#include <type_traits>

extern "C" {
/// Counted since the library was loaded, or since fake_cufile_reset_counters().
struct FakeCuFileCounters {
    std::uint64_t reads;  ///< that were not refused
    std::uint64_t writes;
    std::uint64_t bytes_read;
    std::uint64_t bytes_written;
    std::uint64_t refused;           ///< reads and writes
    std::uint64_t unaligned;         ///< offset, length or address not of 4 KiB
    std::uint64_t missing_contexts;  ///< reads and writes without a current context
    std::uint64_t handles_made;
    std::uint64_t handles_without_file;  ///< deregistered after their descriptor was closed
    std::uint64_t handles_now;
};
}

namespace penstock::fake_gpu {

/// The fake that is loaded in this process. find() is empty where libcufile.so.0 is not loaded or
/// is NVIDIA's. open() loads it by its name first.
class FakeCuFile {
public:
    [[nodiscard]] static std::optional<FakeCuFile> find() { return with(RTLD_NOLOAD); }
    [[nodiscard]] static std::optional<FakeCuFile> open() { return with(RTLD_NODELETE); }

    [[nodiscard]] FakeCuFileCounters counters() const {
        FakeCuFileCounters found{};
        counters_(&found);
        return found;
    }
    void reset_counters() const { reset_counters_(); }
    /// Each n-th read or write moves at most so many bytes; 0: none does.
    void set_short(std::uint64_t every, std::uint64_t bytes) const { set_short_(every, bytes); }

private:
    static std::optional<FakeCuFile> with(int flag) {
        void* library = dlopen("libcufile.so.0", RTLD_LAZY | RTLD_LOCAL | flag);
        if (library == nullptr || dlsym(library, "fake_cufile_counters") == nullptr) {
            return std::nullopt;
        }
        FakeCuFile made;
        const auto find = [library](auto& function, const char* name) {
            function =
                reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
        };
        find(made.counters_, "fake_cufile_counters");
        find(made.reset_counters_, "fake_cufile_reset_counters");
        find(made.set_short_, "fake_cufile_set_short");
        return made;
    }

    void (*counters_)(FakeCuFileCounters*) = nullptr;
    void (*reset_counters_)() = nullptr;
    void (*set_short_)(std::uint64_t, std::uint64_t) = nullptr;
};

}  // namespace penstock::fake_gpu
