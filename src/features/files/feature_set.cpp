// SPDX-License-Identifier: Apache-2.0
#include "features/files/feature_set.hpp"

#include "base/path.hpp"
#include "base/raise.hpp"
#include "base/random.hpp"
#include "features/files/opened_features.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace penstock::features {

namespace {

[[noreturn]] void refuse_folder(const std::string& message, const std::string& path) {
    base::raise(base::error(ErrorCode::kInvalidArgument, "write features", message, path));
}

// The main file's; no parts, and an id that no set has, where it is another kind of file.
Directory directory_of(Engine& engine, const FileSystem& files, const std::string& path,
                       std::uint64_t& id) {
    id = 0;
    const File file = files.open(path);
    const std::vector<std::byte> start = read_start(engine, file);
    return form_of(start) == FileForm::kFeatures ? read_directory(engine, file, path, start, id)
                                                 : Directory();
}

std::vector<std::string> folders_of(Engine& engine, const FileSystem& files,
                                    const std::string& path) {
    std::vector<std::string> out;
    try {
        std::uint64_t id = 0;
        for (const PartFile& part : directory_of(engine, files, path, id).parts) {
            if (!part.path.empty()) {
                out.push_back(base::folder_of(part.path));
            }
        }
    } catch (const Error&) {  // no file yet, or a damaged one: nothing of it is removed
    }
    return out;
}

}  // namespace

FeatureSet::FeatureSet(Engine& engine, FileSystem files, const std::string& path,
                       const std::vector<std::string>& folders)
    : engine_(engine), files_(std::move(files)), id_(base::random_bits() | 1), main_(files_, path) {
    if (folders.size() > kPartsMax) {
        refuse_folder("expected at most 1024 folders, got " + std::to_string(folders.size()), path);
    }
    const std::string_view name = base::last_name(main_.target());
    old_folders_ = folders_of(engine_, files_, main_.target());
    for (const std::string& folder : folders) {
        const std::string resolved = files_.resolve(folder);
        if (files_.status(resolved).kind != FileKind::kFolder) {
            refuse_folder("expected a folder for a stripe, got another kind of file", folder);
        }
        if (std::find(folders_.begin(), folders_.end(), resolved) != folders_.end()) {
            refuse_folder("this folder is named twice; name each once", folder);
        }
        folders_.push_back(resolved);
        open_folders_.push_back(files_.open_folder(resolved));
    }
    for (const std::string& folder : folders_) {
        remove_old(folder);  // the new parts may need the room
    }
    for (std::uint32_t i = 0; i < folders_.size(); ++i) {
        paths_.push_back(part_path(folders_[i], name, id_, i));
        names_.emplace_back(base::last_name(paths_.back()));
        parts_.push_back(std::make_unique<state::Replacement>(files_, paths_.back()));
    }
}

FeatureSet::~FeatureSet() {
    if (main_.is_in_place() || !is_of_this_process()) {
        return;
    }
    for (std::size_t i = 0; i < parts_.size(); ++i) {
        if (parts_[i]->is_in_place()) {
            try {
                open_folders_[i].remove(names_[i]);
            } catch (const std::exception&) {  // the caller has an earlier error
            }
        }
    }
}

void FeatureSet::commit(bool sync) {
    for (const auto& part : parts_) {
        part->commit(sync);
    }
    main_.commit(sync);
    // It is written: from here on nothing fails.
    for (const auto* const folders : {&old_folders_, &folders_}) {
        for (const std::string& folder : *folders) {
            remove_old(folder);
        }
    }
}

// Optional: errors leave files that the next write removes.
void FeatureSet::remove_old(const std::string& folder) noexcept {
    try {
        const std::string_view name = base::last_name(main_.target());
        const Folder open = files_.open_folder(folder);
        for (const std::string& other : open.list()) {
            std::uint64_t id = 0;
            const bool temporary = is_temporary_part_name(other, name);
            if ((!temporary && !is_part_name(other, name, id)) || id == id_ ||
                open.status(other).kind != FileKind::kFile) {
                continue;
            }
            try {
                const FileLock lock = files_.lock(base::join(folder, other));
                std::uint64_t named = 0;
                if (!temporary) {
                    static_cast<void>(directory_of(engine_, files_, main_.target(), named));
                }
                if (temporary || (named != 0 && named != id)) {
                    open.remove(other);
                }
            } catch (const Error&) {  // another process writes it, or it may not be removed
            }
        }
    } catch (const std::exception&) {
    }
}

}  // namespace penstock::features
