// SPDX-License-Identifier: Apache-2.0
#include "state/tensor_file.hpp"

#include "base/raise.hpp"
#include "format/file_kind.hpp"
#include "stream/file_bytes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::state {

namespace {

// To look at a file that is updated just then, whose pages may be half written.
constexpr int kLookTries = 4;
constexpr std::chrono::milliseconds kLookAgain{5};

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
    switch (sound(format::form_of(source, path), path)) {
        case format::FileForm::kSafetensors:
            return read_header(source, path);
        case format::FileForm::kIndex:
            return read_index(source, path);
        case format::FileForm::kTorch:
            break;
    }
    return sound(format::torch_file::read(source), path);
}

// Opens a file. `path` becomes that of the target of a symbolic link, next to which logs are.
File open_at(const FileSystem& files, std::string& path) {
    try {
        return files.open(path, {.follow = false});
    } catch (const Error& error) {
        if (error.system_errno() != ELOOP) {
            throw;
        }
    }
    File file = files.open(path);
    try {
        path = files.resolve(path);
    } catch (const Error&) {  // a link of the kernel's to what has no path
    }
    return file;
}

// The status comes first: what is written to the file later shows in another one.
FoundUpdate look_at(Engine& engine, const FileSystem& files, const std::string& place,
                    TensorFile& out) {
    try {
        out.status = out.file.status();
    } catch (const Error&) {  // a file system that has none
    }
    return find_update(engine, files, place, out.file);
}

// Whether nobody is at work on the update of a file: its lock can be had and the log is there
// still, or nobody knows.
bool is_left_alone(const FileSystem& files, const std::string& place) {
    try {
        const FileLock lock = files.lock(place, false);
        return files.find(place + std::string(kUpdateSuffix)).has_value();
    } catch (const Error& error) {
        return error.system_errno() != EWOULDBLOCK;
    }
}

TensorFile read_with(Engine& engine, const FileSystem& files, TensorFile out,
                     const std::string& place, FoundUpdate found) {
    refuse_damaged(found, place);
    out.note = note_of(found);
    out.update_path = place + std::string(kUpdateSuffix);
    out.is_update_there = found.found != UpdateFound::kNone;
    stream::FileBytes bytes(engine, out.file);
    if (found.found != UpdateFound::kPending) {
        out.content = read_content(bytes, out.path);
        return out;
    }
    out.update = std::move(found.update);
    out.is_interrupted = is_left_alone(files, place);
    PatchedBytes patched(bytes, out.update->log.patches);
    out.content = read_content(patched, out.path);
    return out;
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
    for (int i = 1;; ++i) {
        std::string place = path;
        TensorFile out{open_at(files, place), path};
        FoundUpdate found = look_at(engine, files, place, out);
        if (found.found != UpdateFound::kForeign || i == kLookTries) {
            return read_with(engine, files, std::move(out), place, std::move(found));
        }
        std::this_thread::sleep_for(kLookAgain);
    }
}

TensorFile read_tensor_file(Engine& engine, const File& file, const std::string& path,
                            const std::string& place, std::uint64_t begin) {
    const FileSystem files = FileSystem::any();
    TensorFile out{file, path};
    std::string real;
    try {
        real = files.resolve(place.empty() ? file.path() : place);
    } catch (const Error&) {  // no path leads to it
    }
    FoundUpdate found;
    for (int i = 0; i < kLookTries && !real.empty(); ++i) {
        found = look_at(engine, files, real, out);
        if (found.found != UpdateFound::kForeign) {
            break;
        }
        std::this_thread::sleep_for(kLookAgain);
    }
    if (begin != 0 && found.found == UpdateFound::kPending) {
        base::raise(base::error(
            ErrorCode::kUnsupported, "read",
            fmt::format("an update of this file was interrupted, and a part of it is read with the "
                        "log '{}' from its beginning on only; finish the update first: "
                        "penstock.update(path, {{}})",
                        found.path),
            path));
    }
    if (begin != 0) {
        refuse_damaged(found, real);
        stream::FileBytes bytes(engine, file, begin);
        out.content = read_content(bytes, path);
        return out;
    }
    return read_with(engine, files, std::move(out), real, std::move(found));
}

}  // namespace penstock::state
