// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file: an error, or tensors that tile the data; its table of checksums
// an error, or one sum for each piece of them. As an index of shards: an error, or one that is read
// again as it is written.
#include "format/safetensors.hpp"
#include "format/shard_index.hpp"
#include "state/sum_table.hpp"

#include <cstdlib>

namespace {

void check_table(const penstock::format::safetensors::Header& header) {
    try {
        const auto table = penstock::state::parse_sum_table(header, "file");
        if (table && (table->first.size() != header.tensors.size() ||
                      table->sums.size() * table->piece_bytes < header.tensors.back().end)) {
            std::abort();
        }
    } catch (const penstock::Error&) {  // that is an answer
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    using namespace penstock::format;  // NOLINT(google-build-using-namespace)
    const auto file = std::as_bytes(std::span(data, bytes));
    if (const auto header = safetensors::read_header(file, bytes)) {
        std::uint64_t end = 0;
        for (const safetensors::Tensor& t : header->tensors) {
            if (t.begin != end || safetensors::bytes_of(t.type, t.shape) != t.end - t.begin) {
                std::abort();
            }
            end = t.end;
        }
        if (header->data_begin + end != bytes) {
            std::abort();
        }
        if (!header->tensors.empty()) {
            check_table(*header);
        }
    }
    const auto index = parse_shard_index({reinterpret_cast<const char*>(data), bytes});
    if (index) {
        const auto text = render_shard_index(*index);
        if (!text || parse_shard_index(*text)->weight_map != index->weight_map) {
            std::abort();
        }
    }
    return 0;
}
