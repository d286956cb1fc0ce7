// SPDX-License-Identifier: Apache-2.0
// Any bytes as a manifest, as they are and with the checksum that they should have: an error, or
// one that is written as it was read, whose slices lie where they can.
#include "base/text/hex.hpp"
#include "store/manifest/manifest.hpp"
#include "stream/checksum.hpp"

#include <penstock/error.hpp>

#include <cstdlib>
#include <span>
#include <string>

namespace {

using namespace penstock::store;  // NOLINT(google-build-using-namespace)

void check(const std::string& text) {
    Manifest manifest;
    try {
        manifest = parse_manifest(text, "fuzz");
    } catch (const penstock::Error& error) {
        if (error.reason() != penstock::ErrorCode::kDamaged) {
            std::abort();
        }
        return;
    }
    for (const Tensor& tensor : manifest.tensors) {
        for (const Slice& slice : tensor.slices) {
            const Shard& shard = manifest.shards.at(slice.shard);
            if (slice.begin < shard.header_bytes || slice.begin + slice.bytes > shard.bytes ||
                slice.begin + slice.bytes < slice.begin) {
                std::abort();
            }
        }
    }
    const std::string again = render(manifest);
    if (render(parse_manifest(again, "fuzz")) != again) {
        std::abort();
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    std::string text(reinterpret_cast<const char*>(data), bytes);
    check(text);
    if (const std::size_t sum = text.rfind(",\"checksum\":\""); sum != std::string::npos) {
        text.resize(sum);
    }
    std::string digits;
    append_hex(digits, content_hash(std::as_bytes(std::span(text.data(), text.size()))));
    check(text + ",\"checksum\":\"" + digits + "\"}\n");
    return 0;
}
