// SPDX-License-Identifier: Apache-2.0
#include "store/write/shard_time.hpp"

#include "base/text/hex.hpp"

#include <string_view>

namespace penstock::store {

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kMicrosecond = 1'000;  // resolution of some file systems and servers

// 1 us to 999,999 us.
std::int64_t part_of(const Shard& shard) {
    std::uint64_t id = 0;
    static_cast<void>(base::parse_hex(std::string_view(shard.id).substr(0, base::kHexDigits), id));
    return static_cast<std::int64_t>(id % (kSecond / kMicrosecond - 1) + 1) * kMicrosecond;
}

}  // namespace

std::int64_t time_of(const Shard& shard, std::int64_t saved_unix_ns) {
    const std::int64_t time = saved_unix_ns - saved_unix_ns % kSecond + part_of(shard);
    return time <= saved_unix_ns ? time : time - kSecond;
}

bool has_its_time(const Shard& shard, const FileStatus& status, std::int64_t saved_unix_ns) {
    const std::int64_t part = (status.modified_ns % kSecond + kSecond) % kSecond;
    return part == part_of(shard) || (part == 0 && status.modified_ns <= saved_unix_ns);
}

}  // namespace penstock::store
