// SPDX-License-Identifier: Apache-2.0
#include "store/stuck_files.hpp"

#include "os/local_file_system.hpp"

#include <penstock/file.hpp>

#include <utility>
#include <vector>

namespace penstock::test {

namespace {

using base::Result;

Result<void> asked(const Refuse& refuse, StuckCall call, const std::string& path) {
    const int number = refuse ? refuse(call, path) : 0;
    return number == 0 ? Result<void>() : base::fail(base::system_error(number, "stuck", path));
}

class StuckFolder final : public os::Folder {
public:
    StuckFolder(std::shared_ptr<os::Folder> inner, std::shared_ptr<Refuse> refuse)
        : os::Folder(inner->path()), inner_(std::move(inner)), refuse_(std::move(refuse)) {}

    Result<std::vector<std::string>> list() override {
        PENSTOCK_CHECK(asked(*refuse_, StuckCall::kList, path()));
        return inner_->list();
    }
    Result<FileStatus> status(const std::string& name) override {
        PENSTOCK_CHECK(at(StuckCall::kStatus, name));
        return inner_->status(name);
    }
    Result<std::shared_ptr<os::Folder>> open_folder(const std::string& name) override {
        PENSTOCK_CHECK(at(StuckCall::kOpenFolder, name));
        PENSTOCK_TRY(opened, inner_->open_folder(name));
        return std::make_shared<StuckFolder>(std::move(opened), refuse_);
    }
    Result<void> remove(const std::string& name) override {
        PENSTOCK_CHECK(at(StuckCall::kRemove, name));
        return inner_->remove(name);
    }
    Result<void> remove_folder(const std::string& name) override {
        PENSTOCK_CHECK(at(StuckCall::kRemove, name));
        return inner_->remove_folder(name);
    }
    Result<void> rename(const std::string& from, const std::string& to) override {
        PENSTOCK_CHECK(at(StuckCall::kRename, from));
        return inner_->rename(from, to);
    }
    Result<void> sync() override { return inner_->sync(); }
    Result<std::unique_ptr<os::FileLock>> lock() override { return inner_->lock(); }

private:
    Result<void> at(StuckCall call, const std::string& name) const {
        return asked(*refuse_, call, os::path_in(path(), name));
    }

    std::shared_ptr<os::Folder> inner_;
    std::shared_ptr<Refuse> refuse_;
};

class StuckFiles final : public os::FileSystem {
public:
    explicit StuckFiles(std::shared_ptr<Refuse> refuse) : refuse_(std::move(refuse)) {}

    Result<std::shared_ptr<os::File>> open(const std::string& path,
                                           const FileOptions& options) override {
        PENSTOCK_CHECK(asked(*refuse_, StuckCall::kOpen, path));
        return inner_->open(path, options);
    }
    Result<void> rename(const std::string& from, const std::string& to) override {
        PENSTOCK_CHECK(asked(*refuse_, StuckCall::kRename, from));
        return inner_->rename(from, to);
    }
    Result<void> exchange(const std::string& one, const std::string& other) override {
        PENSTOCK_CHECK(asked(*refuse_, StuckCall::kRename, one));
        return inner_->exchange(one, other);
    }
    Result<void> link(const std::string& from, const std::string& to) override {
        PENSTOCK_CHECK(asked(*refuse_, StuckCall::kLink, from));
        return inner_->link(from, to);
    }
    Result<void> symbolic_link(const std::string& target, const std::string& path) override {
        return inner_->symbolic_link(target, path);
    }
    Result<void> remove(const std::string& path) override {
        PENSTOCK_CHECK(asked(*refuse_, StuckCall::kRemove, path));
        return inner_->remove(path);
    }
    Result<void> make_folder(const std::string& path) override { return inner_->make_folder(path); }
    Result<std::vector<std::string>> list(const std::string& path) override {
        PENSTOCK_CHECK(asked(*refuse_, StuckCall::kList, path));
        return inner_->list(path);
    }
    Result<Space> space(const std::string& path) override { return inner_->space(path); }
    Result<FileStatus> status(const std::string& path) override {
        PENSTOCK_CHECK(asked(*refuse_, StuckCall::kStatus, path));
        return inner_->status(path);
    }
    Result<std::string> resolve(const std::string& path) override { return inner_->resolve(path); }
    Result<void> set_modified(const std::string& path, std::int64_t since_1970_ns) override {
        return inner_->set_modified(path, since_1970_ns);
    }
    Result<std::shared_ptr<os::Folder>> open_folder(const std::string& path) override {
        PENSTOCK_CHECK(asked(*refuse_, StuckCall::kOpenFolder, path));
        PENSTOCK_TRY(opened, inner_->open_folder(path));
        return std::make_shared<StuckFolder>(std::move(opened), refuse_);
    }
    Result<std::unique_ptr<os::FileLock>> lock(const std::string& path, bool make) override {
        return inner_->lock(path, make);
    }
    Result<void> sync_folder(const std::string& path) override { return inner_->sync_folder(path); }

private:
    std::shared_ptr<os::FileSystem> inner_ = os::local_file_system();
    std::shared_ptr<Refuse> refuse_;
};

}  // namespace

std::shared_ptr<os::FileSystem> make_stuck_files(std::shared_ptr<Refuse> refuse) {
    return std::make_shared<StuckFiles>(std::move(refuse));
}

}  // namespace penstock::test
