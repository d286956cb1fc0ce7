// SPDX-License-Identifier: Apache-2.0
#include "state/source.hpp"

#include "base/handles.hpp"
#include "base/path.hpp"
#include "state/model_folder.hpp"
#include "state/stored_rows.hpp"

#include <utility>

namespace penstock::state {

namespace {

bool is_folder(const FileSystem& files, const std::string& path) {
    return files.status(files.resolve(path)).kind == FileKind::kFolder;
}

std::string model_in(const FileSystem& files, const std::string& path) {
    const std::string folder = model_folder(files, path);
    return base::join(folder, the_model_file(files, {&folder, 1}));
}

}  // namespace

std::string_view Source::kind() const {
    switch (table_.kind) {
        case TableKind::kTorch:
            return "torch file";
        case TableKind::kLegacyTorch:
            return "legacy torch file";
        case TableKind::kNpz:
            return "archive of NumPy arrays";
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

std::unique_ptr<FileSource> open_source(const std::shared_ptr<Engine>& engine,
                                        const FileSystem& files, const std::string& path) {
    return std::make_unique<FileSource>(base::engine_given(engine, "open"), files,
                                        is_folder(files, path) ? model_in(files, path) : path);
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
