// SPDX-License-Identifier: Apache-2.0
#include "features/gather/gather_request.hpp"

#include "base/planted.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"

#include <penstock/gpu.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace penstock::features {

namespace {

[[noreturn]] void refuse_ids(const OpenedFeatures& opened, const std::string& message,
                             const RowsAsked& asked = {}) {
    base::raise(
        base::error(ErrorCode::kInvalidArgument, asked.operation, message, opened.described.path));
}

// Rows of one table: 16 bytes a row in the engine, and errors that name the row.
void read_rows(const OpenedFeatures& opened, const WantedRows& wanted, RowReads& reads) {
    const Table& table = opened.directory.tables[wanted.table];
    const std::uint64_t parts = opened.parts.size();
    Rows rows{.ids = wanted.ids,
              .destinations = wanted.destinations,
              .memory = wanted.out,
              .memory_stride_bytes = table.row_bytes};
    for (std::uint32_t p = 0; p < parts; ++p) {
        rows.tables.push_back({.base = table.bases[p],
                               .row_bytes = table.row_bytes,
                               .stride_bytes = table.stride_bytes,
                               .rows = rows_in_part(table.rows, table.stripe_rows, parts, p),
                               .file = p});
    }
    if (parts > 1) {
        reads.ids.reserve(wanted.ids.size());
        reads.parts_of.reserve(wanted.ids.size());
        for (const std::uint64_t id : wanted.ids) {
            RowPlace place = place_of(id, table.stripe_rows, parts);
            if (place.row >= table.stripe_rows && base::planted("wrong_stripe")) {
                place.row -= table.stripe_rows;
            }
            reads.ids.push_back(place.row);
            reads.parts_of.push_back(place.part);
        }
        rows.ids = reads.ids;
        rows.table_of = reads.parts_of;
    }
    reads.request.rows = std::move(rows);
}

void add_extents(const OpenedFeatures& opened, const WantedRows& wanted, RowReads& reads) {
    const Table& table = opened.directory.tables[wanted.table];
    const std::uint64_t parts = opened.parts.size();
    for (std::size_t i = 0; i < wanted.ids.size(); ++i) {
        const RowPlace place = place_of(wanted.ids[i], table.stripe_rows, parts);
        const std::uint64_t to = wanted.destinations.empty() ? i : wanted.destinations[i];
        reads.request.extents.push_back({table.bases[place.part] + place.row * table.stride_bytes,
                                         {wanted.out.data + to * table.row_bytes, table.row_bytes,
                                          wanted.out.kind, wanted.out.device},
                                         place.part});
    }
}

}  // namespace

void check_ids(const OpenedFeatures& opened, std::uint32_t number,
               std::span<const std::uint64_t> ids, const RowsAsked& asked) {
    if (number >= opened.directory.tables.size()) {
        refuse_ids(opened,
                   fmt::format("there is no table number {}; there are {}, from 0 on", number,
                               opened.directory.tables.size()),
                   asked);
    }
    const Table& table = opened.directory.tables[number];
    const auto outside = std::find_if(ids.begin(), ids.end(),
                                      [&table](std::uint64_t id) { return id >= table.rows; });
    if (outside != ids.end()) {
        refuse_ids(opened,
                   fmt::format("{}[{}]: table {} has no row {}; {}", asked.argument,
                               outside - ids.begin(), format::shown(table.name), *outside,
                               table.rows == 0 ? "it has no rows"
                                               : fmt::format("expected 0 to {}", table.rows - 1)),
                   asked);
    }
}

void check_request(const OpenedFeatures& opened, const FeatureRequest& request) {
    check_ids(opened, request.table, request.ids);
    const Table& table = opened.directory.tables[request.table];
    if (request.out.bytes % table.row_bytes != 0 ||
        request.out.bytes / table.row_bytes != request.ids.size()) {
        refuse_ids(opened, fmt::format("out: expected {} rows of {} bytes, one for each of ids, "
                                       "got {} bytes",
                                       request.ids.size(), table.row_bytes, request.out.bytes));
    }
    if (request.out.kind == MemoryKind::kDevice && request.out.bytes != 0) {
        const Memory is = device_memory(request.out.data, request.out.bytes);
        if (is.kind != MemoryKind::kDevice || is.device != request.out.device) {
            refuse_ids(
                opened,
                fmt::format("out: it was given as memory of GPU {}, and is {}", request.out.device,
                            is.kind == MemoryKind::kDevice ? fmt::format("of GPU {}", is.device)
                                                           : "of the host; give it as the host's"));
        }
    }
}

void check_stream(const OpenedFeatures& opened, std::span<const FeatureRequest> requests,
                  const std::optional<StreamHandle>& stream) {
    if (!stream) {
        return;
    }
    std::int32_t device = stream->device;
    bool found = false;
    bool host = false;  // an empty tensor may have no place
    for (const FeatureRequest& request : requests) {
        if (request.out.kind != MemoryKind::kDevice) {
            host = host || request.out.bytes != 0;
            continue;
        }
        if (device >= 0 && request.out.device != device) {
            refuse_ids(opened, fmt::format("stream: it is of GPU {}, and out is memory of GPU {}; "
                                           "gather for each GPU with a stream of its own",
                                           device, request.out.device));
        }
        device = request.out.device;
        found = true;
    }
    if (!found && host) {
        refuse_ids(opened,
                   "stream: a stream orders what is done with the memory of a GPU, and out is "
                   "memory of the host; give none, and synchronise the stream where it writes to "
                   "that memory");
    }
}

void make_reads(const OpenedFeatures& opened, std::span<const WantedRows> wanted, RowReads& reads) {
    reads.request.files = opened.parts;
    if (wanted.size() == 1) {
        read_rows(opened, wanted[0], reads);
        return;
    }
    std::size_t count = 0;
    for (const WantedRows& one : wanted) {
        count += one.ids.size();
    }
    reads.request.extents.reserve(count);
    for (const WantedRows& one : wanted) {
        add_extents(opened, one, reads);
    }
}

}  // namespace penstock::features
