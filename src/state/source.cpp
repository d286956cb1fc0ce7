// SPDX-License-Identifier: Apache-2.0
#include "state/source.hpp"

#include "base/raise.hpp"
#include "format/fault.hpp"
#include "state/stored_rows.hpp"
#include "stream/file_reader.hpp"
#include "stream/when_room.hpp"

#include <fmt/format.h>

#include <utility>

namespace penstock::state {

namespace {

bool is_folder(const FileSystem& files, const std::string& path) {
    return files.status(files.resolve(path)).kind == FileKind::kFolder;
}

std::string index_in(const FileSystem& files, const std::string& folder) {
    for (const std::string& name : files.list(folder)) {
        if (name == format::kShardIndexName) {
            return folder.ends_with('/') ? folder + name : folder + "/" + name;
        }
    }
    base::raise(base::error(
        ErrorCode::kInvalidArgument, "open",
        fmt::format("this is a folder, and there is no {} in it; give the path of a file",
                    format::kShardIndexName),
        folder));
}

}  // namespace

std::string_view Source::kind() const {
    switch (table_.kind) {
        case TableKind::kTorch:
            return "torch file";
        case TableKind::kLegacyTorch:
            return "legacy torch file";
        case TableKind::kSafetensors:
            return "safetensors file";
        case TableKind::kIndex:
            return "sharded safetensors";
        case TableKind::kCheckpoint:
            break;
    }
    return "checkpoint of a store";
}

std::uint64_t Source::bytes() const {
    std::uint64_t total = 0;
    for (const TensorEntry& t : table_.tensors) {
        total += t.bytes;
    }
    return total;
}

const std::string& Source::path_of(const TensorEntry& tensor) const {
    return table_.files[tensor.stretches[0].file];
}

void FileSource::read(std::size_t tensor, std::uint64_t begin, std::uint64_t /*end*/,
                      std::span<std::byte> into) {
    const TensorEntry& t = table_.tensors[tensor];
    const std::uint64_t row = t.shape.empty() || t.shape[0] == 0 ? 0 : t.bytes / t.shape[0];
    const TensorStretch& place = t.stretches[0];
    if (!into.empty()) {
        stream::read_when_room(*engine_, files_[place.file], into, place.offset + begin * row);
    }
}

void FileSource::read_all(std::span<const std::span<std::byte>> into, const Progress& progress) {
    std::vector<std::vector<stream::Wanted>> wanted(files_.size());
    for (std::size_t i = 0; i < table_.tensors.size(); ++i) {
        const TensorStretch& place = table_.tensors[i].stretches[0];
        wanted[place.file].push_back({.offset = place.offset, .into = into[i]});
    }
    const std::uint64_t total = bytes();
    std::uint64_t before = 0;
    for (std::size_t i = 0; i < files_.size(); ++i) {
        static_cast<void>(stream::read_file(*engine_, files_[i], wanted[i], {.verify = false},
                                            [&](std::uint64_t done, std::uint64_t /*of_file*/) {
                                                return !progress || progress(before + done, total);
                                            }));
        for (const stream::Wanted& one : wanted[i]) {
            before += one.into.size();
        }
    }
}

void FileSource::read_stretches(std::uint32_t file, std::span<stream::Wanted> wanted,
                                std::span<const std::size_t> tensors, bool verify,
                                const Progress& progress) {
    for (std::size_t i = 0; verify && i < wanted.size(); ++i) {
        add_sums(tensors[i], wanted[i]);
    }
    const auto wrong =
        stream::read_file(*engine_, files_[file], wanted, {.verify = verify}, progress);
    if (wrong) {
        base::raise(base::error(
            ErrorCode::kDamaged, "read",
            fmt::format("checksum mismatch in tensor {}: {} bytes have {:08x} and should have "
                        "{:08x}",
                        format::shown(table_.tensors[tensors[wrong->wanted]].name), wrong->bytes,
                        wrong->found, wrong->expected),
            table_.files[file], wrong->offset));
    }
}

std::unique_ptr<FileSource> open_source(const std::shared_ptr<Engine>& engine,
                                        const FileSystem& files, const std::string& path) {
    TensorFile file =
        open_tensor_file(*engine, files, is_folder(files, path) ? index_in(files, path) : path);
    if (std::holds_alternative<format::ShardIndex>(file.content)) {
        return index_source(engine, files, std::move(file));
    }
    if (std::holds_alternative<format::safetensors::Header>(file.content)) {
        return safetensors_source(engine, std::move(file));
    }
    return torch_source(engine, std::move(file));
}

}  // namespace penstock::state

namespace penstock {

TensorTable inspect(const std::shared_ptr<Engine>& engine, const std::string& path,
                    const FileSystem& files) {
    const auto source = state::open_source(engine, files, path);
    TensorTable out = source->table();
    out.tensors.clear();
    for (state::StoredRow& row : state::rows_of(*source, state::skeleton_of(*source))) {
        out.tensors.push_back(std::move(row.tensor));
    }
    return out;
}

}  // namespace penstock
