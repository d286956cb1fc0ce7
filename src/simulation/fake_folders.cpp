// SPDX-License-Identifier: Apache-2.0
// Open folders of a fake disk.
#include "simulation/fake_disk.hpp"

#include <cerrno>

namespace penstock::simulation {

FakeDisk::Opened FakeDisk::as_folder(std::uint64_t inode) const {
    const FakeNames::Node* node = names_.node(inode);
    if (node == nullptr) {
        return {ENOENT, 0};
    }
    return {node->kind == FileKind::kFolder ? 0 : ENOTDIR, inode};
}

int FakeDisk::status_of(std::uint64_t inode, FileStatus& status) const {
    const FakeNames::Node* node = names_.node(inode);
    if (node == nullptr) {
        return ENOENT;
    }
    status = {.kind = node->kind,
              .bytes = is_file(inode) ? inodes_.at(inode)->bytes() : 0,
              .links = node->links,
              .device = device_,
              .inode = inode,
              .mode = node->mode,
              .modified_ns = is_file(inode) ? inodes_.at(inode)->modified_ns() : 0};
    return 0;
}

int FakeDisk::names_of(std::uint64_t folder, std::vector<std::string>& names) const {
    const Opened opened = as_folder(folder);
    if (opened.system_errno != 0) {
        return opened.system_errno;
    }
    for (const auto& [name, inode] : names_.node(folder)->names) {
        names.push_back(name);
    }
    return 0;
}

int FakeDisk::sync_names(std::uint64_t folder) {
    const Opened opened = as_folder(folder);
    if (opened.system_errno == 0 && shape_.syncs_names) {
        names_.sync_folder(folder);
    }
    return opened.system_errno;
}

FakeDisk::Opened FakeDisk::open_folder(const std::string& path) {
    announce(DiskCall::kOpenFolder, path);
    const std::lock_guard lock(mutex_);
    const int refused = step(DiskCall::kOpenFolder, path);
    return refused != 0 ? Opened{refused, 0} : as_folder(names_.find(path));
}

FakeDisk::Opened FakeDisk::open_folder_in(std::uint64_t folder, const std::string& name,
                                          const std::string& path) {
    announce(DiskCall::kOpenFolder, path);
    const std::lock_guard lock(mutex_);
    const int refused = step(DiskCall::kOpenFolder, path);
    return refused != 0 ? Opened{refused, 0} : as_folder(names_.find_in(folder, name));
}

int FakeDisk::list_in(std::uint64_t folder, std::vector<std::string>& names) const {
    const std::lock_guard lock(mutex_);
    return names_of(folder, names);
}

int FakeDisk::status_in(std::uint64_t folder, const std::string& name, FileStatus& status) const {
    const std::lock_guard lock(mutex_);
    return status_of(names_.find_in(folder, name), status);
}

int FakeDisk::rename_in(std::uint64_t folder, const std::string& from, const std::string& to,
                        const std::string& path) {
    announce(DiskCall::kRename, path);
    const std::lock_guard lock(mutex_);
    if (const int refused = step(DiskCall::kRename, path)) {
        return refused;
    }
    std::uint64_t gone = FakeNames::kNone;
    const int refused = names_.rename_in(folder, from, to, gone);
    nameless_.insert(gone);
    return refused;
}

int FakeDisk::remove_in(std::uint64_t folder, const std::string& name, bool is_folder,
                        const std::string& path) {
    announce(DiskCall::kRemove, path);
    const std::lock_guard lock(mutex_);
    if (const int refused = step(DiskCall::kRemove, path)) {
        return refused;
    }
    std::uint64_t gone = FakeNames::kNone;
    const int refused = names_.remove_in(folder, name, is_folder, gone);
    nameless_.insert(gone);
    return refused;
}

int FakeDisk::lock_folder(std::uint64_t folder, const std::string& path) {
    announce(DiskCall::kLock, path);
    const std::lock_guard lock(mutex_);
    if (const int refused = step(DiskCall::kLock, path)) {
        return refused;
    }
    return locks_.insert(folder).second ? 0 : EWOULDBLOCK;
}

int FakeDisk::sync_folder_in(std::uint64_t folder, const std::string& path) {
    announce(DiskCall::kSyncFolder, path);
    const std::lock_guard lock(mutex_);
    const int refused = step(DiskCall::kSyncFolder, path);
    return refused != 0 ? refused : sync_names(folder);
}

}  // namespace penstock::simulation
