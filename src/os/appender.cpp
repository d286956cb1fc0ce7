// SPDX-License-Identifier: Apache-2.0
#include "os/appender.hpp"

#include "base/assert.hpp"
#include "base/planted.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
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
    PENSTOCK_ASSERT(gathered.bytes.size() <= buffer_bytes_);
    if (record.size() > buffer_bytes_ - gathered.bytes.size()) {
        PENSTOCK_CHECK(flush(gathered));
    }
    if (record.size() <= buffer_bytes_ && buffer_bytes_ != 0) {
        if (!record.empty()) {
            gathered.records.push_back(static_cast<std::uint32_t>(record.size()));
        }
        gathered.bytes.insert(gathered.bytes.end(), record.begin(), record.end());
        return {};
    }
    std::uint64_t done_bytes = 0;
    auto written = write(record, done_bytes);
    if (!written && done_bytes != 0) {
        static_cast<void>(cut_torn(done_bytes, file_->appended_to(), written.error()));
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
    gathered.records.clear();
    return flushed;
}

// Writes all of a torn record again where another writer's bytes have come behind its part.
Result<void> Appender::flush(Gathered& gathered) {
    const auto size = gathered.torn_bytes == 0 ? base::Result<std::uint64_t>(0) : file_->size();
    const bool goes_on = gathered.torn_bytes != 0 && size && *size == gathered.torn_end;
    const std::uint64_t before = goes_on ? gathered.torn_bytes : 0;
    std::uint64_t done_bytes = before;
    auto written = write(gathered.bytes, done_bytes);
    if (done_bytes != before || !goes_on) {
        gathered.torn_end = done_bytes == before ? 0 : file_->appended_to();
    }
    gathered.drop(done_bytes);
    if (written) {
        return written;
    }
    std::string& message = written.error().message;
    if (gathered.torn_bytes != 0 &&
        cut_torn(gathered.torn_bytes, gathered.torn_end, written.error())) {
        gathered.torn_bytes = 0;
    }
    message += fmt::format(
        "; {} bytes that were gathered are not in the file, and the next flush tries them again",
        gathered.bytes.size() - gathered.torn_bytes);
    return written;
}

// Those records whose bytes are all among the first `done_bytes` are in the file.
void Appender::Gathered::drop(std::uint64_t done_bytes) {
    PENSTOCK_ASSERT(done_bytes <= bytes.size());
    std::size_t count = 0;
    std::uint64_t whole = 0;
    while (count < records.size() && whole + records[count] <= done_bytes) {
        whole += records[count++];
    }
    records.erase(records.begin(), records.begin() + static_cast<std::ptrdiff_t>(count));
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(whole));
    torn_bytes = done_bytes - whole;
    PENSTOCK_ASSERT(records.empty() ? torn_bytes == 0 : torn_bytes < records.front());
}

// False: they stay in the file, and the error says so.
bool Appender::cut_torn(std::uint64_t torn_bytes, std::uint64_t torn_end, base::Error& why) {
    if (file_->cut_back(torn_end, torn_bytes)) {
        return true;
    }
    why.message += fmt::format(
        "; the first {} bytes of a record are in the file from byte {} on, and are not removed, as "
        "others may have the file open",
        torn_bytes, torn_end - std::min(torn_end, torn_bytes));
    return false;
}

std::uint64_t Appender::gathered_bytes() const {
    Gathered& gathered = *gathered_;
    const std::lock_guard lock(gathered.mutex);
    return gathered.bytes.size() - gathered.torn_bytes;
}

Result<void> Appender::write(std::span<const std::byte> bytes, std::uint64_t& done_bytes) {
    while (done_bytes < bytes.size()) {
        auto rest = bytes.subspan(done_bytes);
        if (base::planted("torn_record")) {
            rest = rest.first(std::min(rest.size(), std::size_t{100}));
        }
        const auto put = file_->append_some(rest);
        if (put == -EINTR) {
            continue;
        }
        if (put <= 0) {
            return fail(base::system_error(put == 0 ? EIO : static_cast<int>(-put), "append",
                                           file_->info().path));
        }
        PENSTOCK_ASSERT(static_cast<std::uint64_t>(put) <= rest.size());
        done_bytes += static_cast<std::uint64_t>(put);
    }
    return {};
}

}  // namespace penstock::os
