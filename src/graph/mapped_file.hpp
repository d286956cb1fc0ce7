// SPDX-License-Identifier: Apache-2.0
// A file as read-only memory of this process, through the page cache.
#pragma once

#include "base/result.hpp"

#include <cstddef>
#include <span>
#include <string>

namespace penstock::graph {

/// Movable. Who reads its bytes beyond the end of a file that was cut since gets SIGBUS.
class MappedFile {
public:
    /// An empty file has no bytes. Nothing is read ahead: sampling reads here and there.
    [[nodiscard]] static base::Result<MappedFile> open(const std::string& path);
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;
    ~MappedFile();

    [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
    /// Before and after all of it is read from front to back: the system reads ahead in between.
    void expect_all(bool now) const;

private:
    explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
    std::span<const std::byte> bytes_;
};

}  // namespace penstock::graph
