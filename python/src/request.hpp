// SPDX-License-Identifier: Apache-2.0
// From the arguments of a verb to a TransferRequest. What cannot be meant raises here, before any
// I/O, and names the argument, what came and what is allowed.
#pragma once

#include "borrowed_memory.hpp"
#include "engine_object.hpp"
#include "nanobind.hpp"
#include "row_numbers.hpp"
#include "transfer_object.hpp"

#include <penstock/engine.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::python {

/// How a transfer is to be done, as it came.
struct Manner {
    nb::handle priority;
    nb::handle block_bytes;
    nb::handle depth_limit;
    nb::handle cache;  ///< of paths; None: 'auto'
};

/// The arguments of a verb, as they came.
struct Arguments {
    bool write;
    nb::handle file;
    nb::handle memory;
    nb::handle offset;
    nb::handle flag;  ///< reads: allow_short; writes: sync
    nb::handle stream;
    Manner manner;
};

/// A table of rows as Python gives it: the file is open, or it is opened by each read.
struct TableObject {
    nb::object file;
    RowTable table = {};
    bool row_bytes_open = true;  ///< as long as a row of `out`
};

/// The arguments of read_rows(), as they came.
struct RowArguments {
    nb::handle file;
    nb::handle ids;
    nb::handle out;
    nb::handle base;
    nb::handle stride;
    nb::handle row_bytes;
    nb::handle table_of;
    nb::handle destinations;
    nb::handle stream;
    Manner manner;
};

/// As most calls have it: then the lists of the request stay empty, and nothing is allocated.
struct OneExtent {
    File file;
    Memory memory;
    std::uint64_t offset = 0;
};

struct Request {
    TransferRequest request;
    std::optional<OneExtent> one;  ///< of an open file; instead of files and extents of `request`
    Keeps keeps;
    std::vector<RowNumbers> numbers;  ///< that `request.rows` looks at
    std::vector<std::uint32_t> table_of;
    bool list_result = false;
    std::size_t extent_count = 0;
};

[[nodiscard]] Request parse(const Arguments& arguments);
[[nodiscard]] Request parse_rows(const RowArguments& arguments);
[[nodiscard]] TableObject table_of(nb::handle file, nb::handle base, nb::handle stride,
                                   nb::handle row_bytes, nb::handle rows);

/// Moves it, and waits; or begins it. As the verbs of an engine do.
[[nodiscard]] nb::object run_request(EngineObject& self, Request parsed);
[[nodiscard]] nb::object submit_request(EngineObject& self, Request parsed);

[[nodiscard]] Priority priority_of(nb::handle priority);
/// 'auto', 'cached', 'direct' or 'required'.
[[nodiscard]] CachePolicy cache_policy_of(nb::handle cache);

}  // namespace penstock::python
