// SPDX-License-Identifier: Apache-2.0
// The end of a file that is opened with FileOptions::append: records are put there whole, in the
// order of the calls, one system call each, or gathered first.
//
//   append -> fits behind what is gathered: copied, no system call
//          -> does not: flush, then again; longer than the buffer: written by itself
//
// The kernel puts each write at the end as it is by then, and one after the other, so that
// processes that append to one file do not write over each other. A record stays in one piece as
// long as the kernel takes it whole, which a full disk may prevent.
#pragma once

#include "base/of_process.hpp"
#include "os/file.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace penstock::os {

class Appender {
public:
    /// Allocates its buffer at once; 0: gathers nothing.
    Appender(std::shared_ptr<File> file, std::uint64_t buffer_bytes);
    Appender(const Appender&) = delete;
    Appender& operator=(const Appender&) = delete;
    /// Closes; an error of that is lost.
    ~Appender();

    // Any thread. After an error nothing of a record that was to be gathered is taken; of one that
    // was not, the message says how many bytes are in the file. What was gathered before and could
    // not be written stays, for the next flush to go on with.
    [[nodiscard]] base::Result<void> append(std::span<const std::byte> record);
    [[nodiscard]] base::Result<void> flush();
    /// Flushes for the last time: what cannot be written is lost, and the error says how much.
    [[nodiscard]] base::Result<void> close();
    [[nodiscard]] std::uint64_t gathered_bytes() const;
    [[nodiscard]] std::uint64_t buffer_bytes() const { return buffer_bytes_; }

private:
    /// In the child of a fork another, empty one: what the parent gathered is the parent's to
    /// write.
    struct Gathered {
        std::mutex mutex;
        std::vector<std::byte> bytes;
    };

    base::Result<void> flush(Gathered& gathered);
    base::Result<void> write(std::span<const std::byte> bytes, std::uint64_t& done_bytes);

    const std::shared_ptr<File> file_;
    const std::uint64_t buffer_bytes_;
    base::OfProcess<Gathered> gathered_;
};

}  // namespace penstock::os
