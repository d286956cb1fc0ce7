// SPDX-License-Identifier: Apache-2.0
// Limits of this process and machine: for messages, describe() and doctor.
#pragma once

#include "os/file.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::os {

inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

/// The soft limit on locked memory in bytes (RLIMIT_MEMLOCK), or kUnlimited.
[[nodiscard]] std::uint64_t memlock_limit();
/// The ways to raise it.
inline constexpr const char* kRaiseMemlock =
    "'ulimit -l unlimited', LimitMEMLOCK=infinity in a systemd unit, or 'docker run --ulimit "
    "memlock=-1'";
/// "raise the limit on locked memory (RLIMIT_MEMLOCK is 8 MiB): ...", with the ways.
[[nodiscard]] std::string memlock_advice();
/// Whether so many bytes more may be locked, by locking and unlocking them untouched. The limit
/// does not apply with CAP_IPC_LOCK.
[[nodiscard]] bool may_lock(std::uint64_t bytes);

/// The soft limit on the size of a file that this process writes.
[[nodiscard]] std::uint64_t file_size_limit();

/// The soft limit on open files.
[[nodiscard]] std::uint64_t open_files_limit();

/// "6.1.0-18-amd64"
[[nodiscard]] std::string kernel_release();

/// Whether a release such as "6.1.0-18-amd64" is at least major.minor.
[[nodiscard]] bool release_at_least(const std::string& release, int major, int minor);

/// The chosen mode of transparent huge pages: "always", "madvise", "never", or "absent".
[[nodiscard]] std::string huge_page_mode();

/// The word in brackets in "always [madvise] never"; all of it when there are none.
[[nodiscard]] std::string chosen_word(const std::string& text);

/// The seccomp mode of this process: 0 none, 1 strict, 2 filter; -1 if unknown.
[[nodiscard]] int seccomp_mode();

/// "docker", "podman", "kubernetes", "gvisor", "container", or empty.
[[nodiscard]] std::string container();

/// A limit that a control group of this process, or one above it, puts on a device. 0 = none.
struct IoLimit {
    DeviceId device;
    std::uint64_t read_bytes_per_s = 0;
    std::uint64_t write_bytes_per_s = 0;
    std::uint64_t reads_per_s = 0;
    std::uint64_t writes_per_s = 0;
    std::string source;  ///< the file that sets it
};
[[nodiscard]] std::vector<IoLimit> io_limits();

/// Parses the lines of an io.max of version 2 ("8:16 rbps=2097152 wbps=max riops=max wiops=120").
[[nodiscard]] std::vector<IoLimit> parse_io_max(const std::string& text, const std::string& source);

}  // namespace penstock::os
