// SPDX-License-Identifier: Apache-2.0
#include "os/appender.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

namespace penstock::os {

using base::fail;
using base::Result;

Appender::Appender(std::shared_ptr<File> file, std::uint64_t buffer_bytes)
    : file_(std::move(file)), buffer_bytes_(buffer_bytes), gathered_([buffer_bytes] {
          auto made = std::make_shared<Gathered>();
          made->bytes.reserve(buffer_bytes);
          return made;
      }) {}

Appender::~Appender() {
    if (gathered_.is_made()) {
        static_cast<void>(base::as_result("append", [this] { return close(); }));
    }
}

Result<void> Appender::append(std::span<const std::byte> record) {
    Gathered& gathered = *gathered_;
    const std::lock_guard lock(gathered.mutex);
    if (record.size() > buffer_bytes_ - gathered.bytes.size()) {
        PENSTOCK_CHECK(flush(gathered));
    }
    if (record.size() <= buffer_bytes_ && buffer_bytes_ != 0) {
        gathered.bytes.insert(gathered.bytes.end(), record.begin(), record.end());
        return {};
    }
    std::uint64_t done_bytes = 0;
    auto written = write(record, done_bytes);
    if (!written && done_bytes != 0) {
        written.error().message += fmt::format(
            "; {} of the {} bytes of this record are in the file", done_bytes, record.size());
    }
    return written;
}

Result<void> Appender::flush() {
    Gathered& gathered = *gathered_;
    const std::lock_guard lock(gathered.mutex);
    return flush(gathered);
}

Result<void> Appender::close() {
    Gathered& gathered = *gathered_;
    const std::lock_guard lock(gathered.mutex);
    auto flushed = flush(gathered);
    if (!flushed) {
        flushed.error().message += "; no flush follows, as the file is being closed: they are lost";
    }
    gathered.bytes.clear();
    return flushed;
}

Result<void> Appender::flush(Gathered& gathered) {
    std::uint64_t done_bytes = 0;
    auto written = write(gathered.bytes, done_bytes);
    gathered.bytes.erase(gathered.bytes.begin(),
                         gathered.bytes.begin() + static_cast<std::ptrdiff_t>(done_bytes));
    if (!written) {
        written.error().message += fmt::format(
            "; {} bytes that were gathered are not in the file, and the next flush "
            "tries them again",
            gathered.bytes.size());
    }
    return written;
}

std::uint64_t Appender::gathered_bytes() const {
    Gathered& gathered = *gathered_;
    const std::lock_guard lock(gathered.mutex);
    return gathered.bytes.size();
}

Result<void> Appender::write(std::span<const std::byte> bytes, std::uint64_t& done_bytes) {
    while (done_bytes < bytes.size()) {
        const auto put = file_->append_some(bytes.subspan(done_bytes));
        if (put == -EINTR) {
            continue;
        }
        if (put <= 0) {
            return fail(base::system_error(put == 0 ? EIO : static_cast<int>(-put), "append",
                                           file_->info().path));
        }
        done_bytes += static_cast<std::uint64_t>(put);
    }
    return {};
}

}  // namespace penstock::os
