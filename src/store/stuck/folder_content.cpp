// SPDX-License-Identifier: Apache-2.0
#include "store/stuck/folder_content.hpp"

#include "base/raise.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <exception>

namespace penstock::store {

namespace {

constexpr int kDepthMax = 64;  // of folders in a checkpoint; a save makes none

std::uint64_t empty(const Folder& folder, std::string_view but, int depth);

std::uint64_t remove_one(const Folder& folder, const std::string& name, int depth) {
    const auto status = status_of(folder, name);
    if (!status) {
        return 0;
    }
    if (status->kind == FileKind::kFolder) {
        const std::uint64_t freed = empty(folder.open_folder(name), {}, depth + 1);
        folder.remove_folder(name);
        return freed;
    }
    folder.remove(name);
    return status->kind == FileKind::kFile && status->links <= 1 ? status->bytes : 0;
}

std::uint64_t empty(const Folder& folder, std::string_view but, int depth) {
    if (depth > kDepthMax) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "remove folder",
                                fmt::format("folders lie in it more than {} deep; delete it "
                                            "yourself",
                                            kDepthMax),
                                folder.path()));
    }
    std::uint64_t freed = 0;
    std::exception_ptr first;
    for (const std::string& name : folder.list()) {
        try {
            freed += name == but ? 0 : remove_one(folder, name, depth);
        } catch (const Error&) {
            first = first ? first : std::current_exception();
        }
    }
    if (first) {
        std::rethrow_exception(first);
    }
    return freed;
}

}  // namespace

std::optional<FileStatus> status_of(const Folder& folder, const std::string& name) {
    try {
        return folder.status(name);
    } catch (const Error& error) {
        if (error.system_errno() == ENOENT) {
            return std::nullopt;
        }
        throw;
    }
}

std::uint64_t remove_content(const Folder& folder, std::string_view but) {
    return empty(folder, but, 0);
}

std::uint64_t bytes_in(const Folder& folder) {
    std::uint64_t bytes = 0;
    for (const std::string& name : folder.list()) {
        const auto status = status_of(folder, name);
        const bool is_counted = status && status->kind == FileKind::kFile && status->links <= 1;
        bytes += is_counted ? status->bytes : 0;
    }
    return bytes;
}

}  // namespace penstock::store
