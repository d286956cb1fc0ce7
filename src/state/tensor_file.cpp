// SPDX-License-Identifier: Apache-2.0
#include "state/tensor_file.hpp"

#include "base/raise.hpp"
#include "format/file_kind.hpp"
#include "stream/file_bytes.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace penstock::state {

namespace {

// Reports a format's error as one of the file.
template <typename T>
T sound(format::Result<T>&& result, const std::string& path) {
    if (!result) {
        base::Error error = std::move(result.error());
        if (error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kEndOfFile) {
            error.code = ErrorCode::kDamaged;
        }
        error.path = path;
        base::raise(error);
    }
    return std::move(*result);
}

format::safetensors::Header read_header(format::ByteSource& source, const std::string& path) {
    std::vector<std::byte> head(std::min<std::uint64_t>(8, source.size()));
    base::unwrap(source.read(0, head));
    const std::uint64_t bytes = sound(format::safetensors::header_bytes(head, source.size()), path);
    std::vector<std::byte> json(bytes);
    base::unwrap(source.read(head.size(), json));
    return sound(format::safetensors::parse_header(json, source.size()), path);
}

FileContent read_form(format::ByteSource& source, const std::string& path) {
    switch (sound(format::form_of(source, path.ends_with(".safetensors")), path)) {
        case format::FileForm::kSafetensors:
            return read_header(source, path);
        case format::FileForm::kIndex:
            return read_index(source, path);
        case format::FileForm::kTorch:
            break;
    }
    return sound(format::torch_file::read(source), path);
}

}  // namespace

format::ShardIndex read_index(format::ByteSource& source, const std::string& path) {
    std::string text(std::min(source.size(), format::kShardIndexBytesMax + 1), '\0');
    base::unwrap(source.read(0, std::as_writable_bytes(std::span(text))));
    return sound(format::parse_shard_index(text), path);
}

FileContent read_content(format::ByteSource& source, const std::string& path) {
    try {
        return read_form(source, path);
    } catch (const Error& error) {
        if (error.reason() != ErrorCode::kEndOfFile) {
            throw;
        }
        base::raise(base::error(ErrorCode::kDamaged, "read",
                                "the file became shorter while it was read", path));
    }
}

TensorFile open_tensor_file(Engine& engine, const FileSystem& files, const std::string& path) {
    TensorFile out{files.open(path), path, {}};
    stream::FileBytes bytes(engine, out.file);
    out.content = read_content(bytes, path);
    return out;
}

}  // namespace penstock::state
