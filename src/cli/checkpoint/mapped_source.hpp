// SPDX-License-Identifier: Apache-2.0
// The tensors of a source as memory that nobody holds: the kernel reads the files as they are
// looked at, and takes the pages back when it needs them.
//
// Such a look has no way to fail but a signal: SIGBUS, where a file has shrunk or its device fails.
// While a MappedSource lives, the handler puts zeros there and takes a note, so that whoever works
// ends in good order: check() throws.
#pragma once

#include "state/source.hpp"

#include <csignal>
#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <vector>

namespace penstock::cli {

class MappedFile {
public:
    /// Throws Error. An empty file has no bytes.
    explicit MappedFile(std::string path);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

private:
    std::string path_;
    std::span<const std::byte> bytes_;
};

/// One at a time in a process.
class MappedSource {
public:
    /// Throws Error for a file that cannot be opened or mapped, or has become too short.
    explicit MappedSource(const state::Source& source);
    ~MappedSource();
    MappedSource(const MappedSource&) = delete;
    MappedSource& operator=(const MappedSource&) = delete;

    /// The bytes of each tensor of the source, in its order.
    [[nodiscard]] const std::vector<std::span<const std::byte>>& tensors() const {
        return tensors_;
    }
    /// kDamaged, with the file, when bytes that were looked at could not be had.
    void check() const;
    /// As check(), of a write that failed: where the kernel itself looked, there is no signal, and
    /// the write has a bad address. Returns when it failed for another reason.
    void explain(const Error& failed) const;

private:
    std::string source_path_;
    std::deque<MappedFile> files_;
    std::vector<std::span<const std::byte>> tensors_;
    struct sigaction before_ {};
};

}  // namespace penstock::cli
