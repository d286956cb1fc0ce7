// SPDX-License-Identifier: Apache-2.0
#include "cli/checkpoint/one_by_one.hpp"

#include "format/fault.hpp"

#include <penstock/error.hpp>
#include <penstock/memory.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>

namespace penstock::cli {

bool has_slices(const state::Source& source) {
    return std::any_of(source.tensors().begin(), source.tensors().end(), [](const TensorEntry& t) {
        return t.bytes != 0 && t.stretches.size() != 1;
    });
}

TensorStream one_by_one(state::Source& source, bool structure, std::uint64_t memory) {
    struct Reading {
        std::size_t next = 0;
        MemoryPool pool{{.kept_bytes_max = 0, .touch = false}};
        Buffer memory;  // of the tensor that was given last
    };
    TensorStream stream;
    stream.like.emplace();
    for (const TensorEntry& t : source.tensors()) {
        if (t.bytes > memory) {
            throw Error(ErrorCode::kOutOfMemory, 0, "convert", source.path(), kNoOffset,
                        fmt::format("{}: tensor {} has {} bytes, which have to be put together in "
                                    "memory, and {} may be taken; give more with --memory, or "
                                    "convert it on a machine with more",
                                    source.path(), format::shown(t.name), t.bytes, memory));
        }
        stream.like->push_back({t.name, t.dtype, t.shape, {}});
    }
    stream.structure = structure ? source.structure() : "null";
    stream.next = [&source, reading = std::make_shared<Reading>()]() -> std::optional<StateTensor> {
        Reading& r = *reading;
        if (r.next == source.tensors().size()) {
            return std::nullopt;
        }
        const std::size_t number = r.next++;
        const TensorEntry& t = source.tensors()[number];
        if (r.memory.size() < t.bytes) {
            r.memory = {};
            r.memory = r.pool.take(t.bytes);
        }
        const state::TensorInto wanted{number, r.memory.bytes().first(t.bytes)};
        if (t.bytes != 0) {
            source.read_tensors({&wanted, 1}, {.verify = source.checks_reads()}, {});
        }
        StateTensor given{t.name, t.dtype, t.shape, wanted.into};
        given.is_copy = true;
        return given;
    };
    return stream;
}

}  // namespace penstock::cli
