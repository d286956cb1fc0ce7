// SPDX-License-Identifier: Apache-2.0
// The tensors of a source as mapped memory: the kernel reads the files when they are accessed, and
// reclaims the pages when it needs them.
//
// Such an access has no way to fail but a signal: SIGBUS, if a file has shrunk or its device fails.
// While a MappedSource lives, the handler maps zeros there and records it, so that the command ends
// in good order: check() throws.
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

/// At most one at a time in a process.
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
    /// Throws kDamaged, with the file, when mapped bytes could not be read.
    void check() const;
    /// Does what check() does, for a write that failed: if the kernel itself accessed the bytes,
    /// there is no signal, and the write fails with a bad address. Returns when it failed for
    /// another reason.
    void explain(const Error& failed) const;

private:
    std::string source_path_;
    std::deque<MappedFile> files_;
    std::vector<std::span<const std::byte>> tensors_;
    struct sigaction before_ {};
};

}  // namespace penstock::cli
