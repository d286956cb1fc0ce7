// SPDX-License-Identifier: Apache-2.0
#include "base/raise.hpp"
#include "base/text/near.hpp"

#include <penstock/tensor_table.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace penstock {

namespace {

constexpr std::string_view kOperation = "gather";

[[noreturn]] void refuse(ErrorCode code, const std::string& message, std::string_view path = {}) {
    base::raise(base::error(code, kOperation, message, path));
}

const TensorEntry& entry_of(const TensorTable& table, const std::string& name) {
    std::vector<std::string_view> known;
    for (const TensorEntry& entry : table.tensors) {
        if (entry.name == name) {
            return entry;
        }
        known.push_back(entry.name);
    }
    const std::string_view near = base::nearest(name, known);
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("the tensor '{}' is in none of the {} files{}", name, table.files.size(),
                       near.empty() ? "" : fmt::format("; did you mean '{}'?", near)),
           table.path);
}

// Shapes as a message has them.
std::string shown(std::span<const std::uint64_t> shape) {
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Each stretch has to begin and end with a row.
void check_rows(const TensorTable& table, const TensorEntry& entry, std::uint64_t row_bytes) {
    if (!entry.strides.empty()) {
        refuse(ErrorCode::kUnsupported,
               fmt::format("tensor '{}' was saved with strides; save it contiguous to gather rows",
                           entry.name),
               table.path);
    }
    const bool whole = entry.bytes % std::max<std::uint64_t>(entry.shape[0], 1) == 0 &&
                       std::all_of(entry.stretches.begin(), entry.stretches.end(),
                                   [row_bytes](const TensorStretch& stretch) {
                                       return row_bytes != 0 && stretch.bytes % row_bytes == 0;
                                   });
    if (!whole) {
        refuse(ErrorCode::kUnsupported,
               fmt::format("tensor '{}' of dtype {} and shape {} has no rows of whole bytes",
                           entry.name, entry.dtype, shown(entry.shape)),
               table.path);
    }
}

}  // namespace

TensorRows::TensorRows(std::shared_ptr<Engine> engine, const TensorTable& table,
                       std::span<const std::string> names, const FileSystem& files)
    : engine_(std::move(engine)) {
    if (names.empty()) {
        refuse(ErrorCode::kInvalidArgument, "names: expected 1 tensor or more, got none",
               table.path);
    }
    std::unordered_map<std::uint32_t, std::uint32_t> opened;  // of a file of the table: its number
    for (const std::string& name : names) {
        const TensorEntry& entry = entry_of(table, name);
        if (entry.shape.empty()) {
            refuse(ErrorCode::kInvalidArgument,
                   fmt::format("tensor '{}' has no dimensions, and so no rows", name), table.path);
        }
        const std::vector<std::uint64_t> row(entry.shape.begin() + 1, entry.shape.end());
        if (tables_.empty() && rows_ == 0) {
            dtype_ = entry.dtype;
            row_shape_ = row;
            row_bytes_ = entry.shape[0] == 0 ? 0 : entry.bytes / entry.shape[0];
        } else if (entry.dtype != dtype_ || row != row_shape_) {
            refuse(ErrorCode::kInvalidArgument,
                   fmt::format("tensor '{}' is {} with rows of shape {}, and '{}' is {} with rows "
                               "of shape {}; give tensors that are parts of one table",
                               name, entry.dtype, shown(row), names[0], dtype_, shown(row_shape_)),
                   table.path);
        }
        check_rows(table, entry, row_bytes_);
        for (const TensorStretch& stretch : entry.stretches) {
            const auto [file, is_new] =
                opened.emplace(stretch.file, static_cast<std::uint32_t>(files_.size()));
            if (is_new) {
                files_.push_back(files.open(table.files[stretch.file]));
            }
            tables_.push_back({.base = stretch.offset,
                               .row_bytes = row_bytes_,
                               .rows = stretch.bytes / row_bytes_,
                               .file = file->second});
        }
        rows_ += entry.shape[0];
    }
}

TransferRequest TensorRows::request(std::span<const std::uint64_t> ids, std::span<std::byte> out,
                                    const TransferOptions& options) const {
    if (files_.empty()) {
        refuse(ErrorCode::kClosed, "these rows are closed; make another TensorRows");
    }
    if (out.size() % std::max<std::uint64_t>(row_bytes_, 1) != 0 ||
        out.size() / std::max<std::uint64_t>(row_bytes_, 1) != ids.size()) {
        refuse(ErrorCode::kInvalidArgument,
               fmt::format("out: expected {} rows of {} bytes, one for each of ids, got {} bytes",
                           ids.size(), row_bytes_, out.size()));
    }
    const auto outside =
        std::find_if(ids.begin(), ids.end(), [this](std::uint64_t id) { return id >= rows_; });
    if (outside != ids.end()) {
        refuse(ErrorCode::kInvalidArgument,
               fmt::format("ids[{}]: {} is no row; there are {}, from 0 on", outside - ids.begin(),
                           *outside, rows_));
    }
    TransferRequest made;
    made.files = files_;
    made.options = options;
    made.rows =
        Rows{.tables = tables_, .ids = ids, .memory = out, .memory_stride_bytes = row_bytes_};
    return made;
}

std::uint64_t TensorRows::gather(std::span<const std::uint64_t> ids, std::span<std::byte> out,
                                 const TransferOptions& options) const {
    return ids.empty() ? 0 : engine_->run(request(ids, out, options)).wait();
}

Transfer TensorRows::gather_async(std::span<const std::uint64_t> ids, std::span<std::byte> out,
                                  const TransferOptions& options) const {
    return engine_->submit(request(ids, out, options));
}

void TensorRows::close() {
    for (File& file : files_) {
        file.close();
    }
    files_.clear();
    tables_.clear();
}

}  // namespace penstock
