// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/replace.hpp"

#include "base/raise.hpp"
#include "base/random.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

namespace penstock::checkpoint {

namespace {

constexpr std::size_t kNameBytesMax = 200;  // of the old name in the temporary one: 255 in all

bool is_there(const FileSystem& files, const std::string& path) {
    try {
        if (files.status(path).kind != FileKind::kFile) {
            base::raise(base::error(ErrorCode::kInvalidArgument, "save",
                                    "it is no regular file; give the path of one", path));
        }
        return true;
    } catch (const Error& error) {
        if (error.system_errno() != ENOENT) {
            throw;
        }
        return false;
    }
}

}  // namespace

Replacement::Replacement(FileSystem files, const std::string& path)
    : files_(std::move(files)), target_(files_.resolve(path)) {
    const std::size_t slash = target_.rfind('/');
    folder_ = slash == 0 ? "/" : target_.substr(0, slash);
    const std::string name = target_.substr(slash + 1);
    const bool replaces = is_there(files_, target_);
    temporary_ = fmt::format("{}/.{}.{:016x}.tmp", slash == 0 ? "" : folder_,
                             name.substr(0, kNameBytesMax), base::random_bits());
    file_ = files_.open(temporary_, {.access = Access::kWrite, .create = true, .exclusive = true});
    pending_ = true;
    if (replaces) {
        try {
            files_.take_attributes(target_, file_);
        } catch (...) {
            give_up();
            throw;
        }
    }
}

Replacement::~Replacement() {
    give_up();
}

void Replacement::give_up() noexcept {
    if (!std::exchange(pending_, false)) {
        return;
    }
    try {
        files_.remove(temporary_);
        file_.close();
    } catch (const Error&) {  // what went wrong before is what the caller hears of
    }
}

void Replacement::commit() {
    file_.sync_data();
    file_.close();
    files_.rename(temporary_, target_);
    pending_ = false;
    files_.sync_folder(folder_);
}

}  // namespace penstock::checkpoint
