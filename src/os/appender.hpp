// SPDX-License-Identifier: Apache-2.0
// The end of a file that is opened with FileOptions::append: records are put there whole, in the
// order of the calls, one system call each, or gathered first.
//
//   append -> fits behind what is gathered: copied, no system call
//          -> does not: flush, then again; longer than the buffer: written by itself
//
// The kernel puts each write at the end as it is by then, and one after the other, so that
// processes that append to one file do not write over each other.
//
// A full disk may let the kernel take a part of a record. That part is cut off again, if nobody
// else has the file open. Otherwise it stays, for to cut it could remove what others append at the
// same time; then the error says where it is. The next flush writes the rest behind it; where
// others appended meanwhile, the whole record, and the part stays in the file.
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

    // Any thread. After an error nothing of a record that was to be gathered is taken; where bytes
    // of one that was not are in the file, the message says so. What was gathered before and could
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
        std::vector<std::uint32_t> records;  ///< their lengths
        std::uint64_t torn_bytes = 0;        ///< of the first, which are in the file
        std::uint64_t torn_end = 0;          ///< up to here

        void drop(std::uint64_t done_bytes);
    };

    base::Result<void> flush(Gathered& gathered);
    base::Result<void> write(std::span<const std::byte> bytes, std::uint64_t& done_bytes);
    [[nodiscard]] bool cut_torn(std::uint64_t torn_bytes, std::uint64_t torn_end, base::Error& why);

    const std::shared_ptr<File> file_;
    const std::uint64_t buffer_bytes_;
    base::OfProcess<Gathered> gathered_;
};

}  // namespace penstock::os
