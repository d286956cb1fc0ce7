// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/removal.hpp"

#include "checkpoint/checksum.hpp"
#include "checkpoint/hex.hpp"
#include "checkpoint/store_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>

namespace penstock::checkpoint {

namespace {

constexpr std::size_t kRandomDigits = 8;
constexpr std::size_t kPartsDigits = kHexDigits + kRandomDigits;

std::string store_digits(const std::string& store_folder) {
    std::string digits;
    append_hex(digits, content_hash(std::as_bytes(std::span(store_folder))));
    return digits;
}

// "<checkpoint>" and its digits, of the name of a parts folder; empty for any other name.
std::pair<std::string_view, std::string_view> split_parts(std::string_view name) {
    const std::size_t dot = name.rfind('.');
    if (dot == std::string_view::npos || name.size() - dot - 1 != kPartsDigits ||
        name.find_first_not_of("0123456789abcdef", dot + 1) != std::string_view::npos ||
        !parse_checkpoint_name(name.substr(0, dot))) {
        return {};
    }
    return {name.substr(0, dot), name.substr(dot + 1)};
}

std::string_view last_name(std::string_view path) {
    return path.substr(path.rfind('/') + 1);
}

bool exists(const Error& error) {
    return error.system_errno() == EEXIST || error.system_errno() == ENOTEMPTY;
}

bool is_missing(const Error& error) {
    return error.system_errno() == ENOENT;
}

}  // namespace

std::string parts_name(std::string_view checkpoint, const std::string& store_folder,
                       std::uint64_t random) {
    std::string digits;
    append_hex(digits, random);
    return fmt::format("{}.{}{}", checkpoint, store_digits(store_folder),
                       digits.substr(0, kRandomDigits));
}

std::vector<std::string> Remover::names_in(const std::string& folder) const {
    try {
        return files_.list(folder);
    } catch (const Error& error) {
        if (is_missing(error)) {
            return {};
        }
        throw;
    }
}

std::uint64_t Remover::remove_tree(const std::string& path) {
    if (!is_there(files_, path)) {
        return 0;
    }
    std::uint64_t freed = 0;
    for (const std::string& name : names_in(path)) {
        const std::string inside = join(path, name);
        const FileStatus status = files_.status(inside);
        if (status.kind == FileKind::kFolder) {
            freed += remove_tree(inside);
            continue;
        }
        files_.remove(inside);
        freed += status.kind == FileKind::kFile && status.links <= 1 ? status.bytes : 0;
    }
    files_.remove(path);
    return freed;
}

// Where its links lead, as far as the names there say that they are this checkpoint's: a manifest
// need not be whole, and a large one is not read for this.
std::vector<std::string> Remover::parts_of(const std::string& name) const {
    const std::string path = join(folders_.front(), name);
    std::vector<std::string> parts;
    for (const std::string& file : names_in(path)) {
        const std::string link = join(path, file);
        if (files_.status(link).kind != FileKind::kSymbolicLink) {
            continue;
        }
        const std::string target = files_.resolve(link);
        const std::string folder = target.substr(0, target.rfind('/'));
        const auto owner = parse_checkpoint_name(split_parts(last_name(folder)).first);
        if (owner && owner->generation == hidden_generation(name) &&
            std::count(parts.begin(), parts.end(), folder) == 0) {
            parts.push_back(folder);
        }
    }
    return parts;
}

std::uint64_t Remover::remove_hidden(const std::string& name) {
    std::uint64_t freed = 0;
    for (const std::string& parts : parts_of(name)) {
        freed += remove_tree(parts);
    }
    return freed + remove_tree(join(folders_.front(), name));
}

std::uint64_t Remover::remove(std::span<const std::string> checkpoints) {
    const std::string& folder = folders_.front();
    std::vector<std::string> hidden;
    for (const std::string& checkpoint : checkpoints) {
        std::string name = removed_name(checkpoint);
        for (int next = 2;; ++next) {
            try {
                files_.rename(join(folder, checkpoint), join(folder, name));
                break;
            } catch (const Error& error) {
                if (!exists(error)) {  // else: of an earlier one, which could not be removed
                    throw;
                }
                name = fmt::format("{}-{}", removed_name(checkpoint), next);
            }
        }
        if (is_there(files_, join(join(folder, name), kPinnedName))) {
            files_.rename(join(folder, name), join(folder, checkpoint));
            continue;
        }
        hidden.push_back(std::move(name));
    }
    files_.sync_folder(folder);
    std::uint64_t freed = 0;
    for (const std::string& name : hidden) {
        freed += remove_hidden(name);
    }
    return freed;
}

std::uint64_t Remover::collect_parts(const std::string& folder) {
    const std::string ours = store_digits(folders_.front());
    std::uint64_t freed = 0;
    for (const std::string& name : names_in(folder)) {
        const auto [checkpoint, digits] = split_parts(name);
        // Another store may have its shards here too.
        if (checkpoint.empty() || !digits.starts_with(ours)) {
            continue;
        }
        const std::string owner = join(folders_.front(), checkpoint);
        if (!is_there(files_, owner)) {
            freed += remove_tree(join(folder, name));
        }
    }
    return freed;
}

std::uint64_t Remover::collect() {
    std::uint64_t freed = 0;
    for (const std::string& name : scan_folder(files_, folders_.front()).leftovers) {
        freed += remove_hidden(name);
    }
    for (std::size_t i = 1; i < folders_.size(); ++i) {
        freed += collect_parts(folders_[i]);
    }
    return freed;
}

}  // namespace penstock::checkpoint
