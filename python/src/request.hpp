// SPDX-License-Identifier: Apache-2.0
// From the arguments of a verb to a TransferRequest. What cannot be meant raises here, before any
// I/O, and names the argument, what came and what is allowed.
#pragma once

#include "host_memory.hpp"
#include "nanobind.hpp"

#include <penstock/engine.hpp>

#include <vector>

namespace penstock::python {

/// The arguments of a verb, as they came.
struct Arguments {
    bool write;
    nb::handle file;
    nb::handle memory;
    nb::handle offset;
    nb::handle flag;  ///< reads: allow_short; writes: sync
    nb::handle stream;
    nb::handle priority;
    nb::handle block_bytes;
    nb::handle depth_limit;
    nb::handle cache;  ///< of paths; None: 'auto'
};

struct Request {
    TransferRequest request;
    std::vector<Keep> keeps;
    bool list_result = false;
    std::size_t extent_count = 0;
};

[[nodiscard]] Request parse(const Arguments& arguments);

[[nodiscard]] Priority priority_of(nb::handle priority);
/// 'auto', 'cached', 'direct' or 'required'.
[[nodiscard]] CachePolicy cache_policy_of(nb::handle cache);

}  // namespace penstock::python
