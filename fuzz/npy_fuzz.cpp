// SPDX-License-Identifier: Apache-2.0
// Any bytes as a .npy file: an error with a text, or a header that is within its limits and the
// same whatever follows it.
#include "format/numpy/npy.hpp"

#include <algorithm>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    namespace npy = penstock::format::npy;
    const auto file = std::as_bytes(std::span(data, bytes));
    const auto header = npy::read_header(file, true);
    if (!header) {
        if (header.error().message.empty()) {
            std::abort();
        }
        return 0;
    }
    const auto length = npy::header_bytes(file.first(std::min(bytes, npy::kStartBytes)));
    if (!length || *length != header->header_bytes || header->header_bytes > bytes ||
        header->header_bytes > npy::kHeaderBytesMax || header->data_bytes >> 61 != 0 ||
        header->shape.size() > 64 || header->dtype.empty()) {
        std::abort();
    }
    const auto again = npy::read_header(file.first(header->header_bytes), true);
    if (!again || again->shape != header->shape || again->dtype != header->dtype) {
        std::abort();
    }
    return 0;
}
