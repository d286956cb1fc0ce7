// SPDX-License-Identifier: Apache-2.0
#include "works.hpp"

#include "os/file_system.hpp"
#include "state/writing/file_image.hpp"
#include "state/writing/file_writer.hpp"
#include "store/crash_state.hpp"
#include "stream/checksum.hpp"
#include "support/test_engine.hpp"

#include <penstock/checkpoint.hpp>
#include <penstock/state_file.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace penstock::power_cut {

namespace {

using Bytes = std::vector<char>;

std::optional<std::uint64_t> hash_of_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return std::nullopt;
    }
    const Bytes bytes((std::istreambuf_iterator<char>(file)), {});
    return stream::content_hash(std::as_bytes(std::span(bytes)));
}

/// An open folder, but for its sync.
class FolderNoSync final : public os::Folder {
public:
    explicit FolderNoSync(std::shared_ptr<os::Folder> inner)
        : os::Folder(inner->path()), inner_(std::move(inner)) {}
    base::Result<std::vector<std::string>> list() override { return inner_->list(); }
    base::Result<FileStatus> status(const std::string& name) override {
        return inner_->status(name);
    }
    base::Result<std::shared_ptr<os::Folder>> open_folder(const std::string& name) override {
        PENSTOCK_TRY(inner, inner_->open_folder(name));
        return std::make_shared<FolderNoSync>(std::move(inner));
    }
    base::Result<void> remove(const std::string& name) override { return inner_->remove(name); }
    base::Result<void> remove_folder(const std::string& name) override {
        return inner_->remove_folder(name);
    }
    base::Result<void> rename(const std::string& from, const std::string& to) override {
        return inner_->rename(from, to);
    }
    base::Result<void> sync() override { return {}; }
    base::Result<std::unique_ptr<os::FileLock>> lock() override { return inner_->lock(); }

private:
    std::shared_ptr<os::Folder> inner_;
};

/// The local file system, but for the syncs of folders.
class NoFolderSync final : public os::FileSystem {
public:
    explicit NoFolderSync(std::shared_ptr<os::FileSystem> inner) : inner_(std::move(inner)) {}
    base::Result<std::shared_ptr<os::File>> open(const std::string& path,
                                                 const FileOptions& options) override {
        return inner_->open(path, options);
    }
    base::Result<void> rename(const std::string& from, const std::string& to) override {
        return inner_->rename(from, to);
    }
    base::Result<void> exchange(const std::string& one, const std::string& other) override {
        return inner_->exchange(one, other);
    }
    base::Result<void> link(const std::string& from, const std::string& to) override {
        return inner_->link(from, to);
    }
    base::Result<void> symbolic_link(const std::string& target, const std::string& path) override {
        return inner_->symbolic_link(target, path);
    }
    base::Result<void> remove(const std::string& path) override { return inner_->remove(path); }
    base::Result<void> make_folder(const std::string& path) override {
        return inner_->make_folder(path);
    }
    base::Result<std::vector<std::string>> list(const std::string& path) override {
        return inner_->list(path);
    }
    base::Result<Space> space(const std::string& path) override { return inner_->space(path); }
    base::Result<FileStatus> status(const std::string& path) override {
        return inner_->status(path);
    }
    base::Result<std::string> resolve(const std::string& path) override {
        return inner_->resolve(path);
    }
    base::Result<void> take_attributes(const std::string& from, os::File& to) override {
        return inner_->take_attributes(from, to);
    }
    base::Result<void> set_modified(const std::string& path, std::int64_t since_1970_ns) override {
        return inner_->set_modified(path, since_1970_ns);
    }
    base::Result<std::shared_ptr<os::Folder>> open_folder(const std::string& path) override {
        PENSTOCK_TRY(inner, inner_->open_folder(path));
        return std::make_shared<FolderNoSync>(std::move(inner));
    }
    base::Result<std::unique_ptr<os::FileLock>> lock(const std::string& path, bool make) override {
        return inner_->lock(path, make);
    }
    base::Result<void> sync_folder(const std::string& /*path*/) override { return {}; }

private:
    std::shared_ptr<os::FileSystem> inner_;
};

constexpr std::uint64_t kScale = 140;  // of a state of 22 KB

class StoreWork final : public Work {
public:
    explicit StoreWork(bool sync_folders)
        : files_(sync_folders
                     ? FileSystem::local()
                     : FileSystem(std::make_shared<NoFolderSync>(FileSystem::local().handle()))) {}
    void save(const std::string& folder, std::uint64_t number) override {
        if (!store_) {
            store_.emplace(open(folder));
        }
        const store::NumberedState state(number, kScale);
        store_->save(state.state(), {.step = number});
    }
    Found look(const std::string& folder) override {
        Found found;
        const CheckpointStore store = open(folder);
        for (const CheckpointInfo& info : store.list()) {
            if (!info.problem.empty()) {
                found.damaged = info.path + ": " + info.problem;
                continue;
            }
            Checkpoint saved = store.open(info.generation);
            std::string wrong = store::compare(saved, info.step, kScale);
            if (wrong.empty() && !saved.verify().empty()) {
                wrong = saved.verify().front().message;
            }
            if (wrong.empty()) {
                found.newest = std::max(found.newest, info.step);
            } else {
                found.damaged = info.path + ": " + wrong;
            }
        }
        return found;
    }
    void leave() override { store_.reset(); }

private:
    CheckpointStore open(const std::string& folder) const {
        StoreOptions options;
        options.keep = kKept;
        options.shard_bytes = 1 << 20;
        return {engine_, files_, {folder + "/checkpoints"}, options};
    }
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
    FileSystem files_;
    std::optional<CheckpointStore> store_;
};

/// One file under one name, replaced.
class SaveWork final : public Work {
public:
    void save(const std::string& folder, std::uint64_t number) override {
        const auto content = support::pattern(3'000'000, number);
        auto image = state::FileImage::safetensors({{.name = "weight", .shape = {3'000'000}}},
                                                   {{"number", std::to_string(number)}}, {content});
        state::save_file(engine_, FileSystem::local(), folder + "/state.safetensors", image);
        known_[hash_of_file(folder + "/state.safetensors").value()] = number;
    }
    Found look(const std::string& folder) override {
        const std::string path = folder + "/state.safetensors";
        const auto hash = hash_of_file(path);
        if (!hash) {
            return {};
        }
        const auto known = known_.find(*hash);
        return known == known_.end() ? Found{0, path + ": none of what was saved"}
                                     : Found{known->second, {}};
    }

private:
    Engine engine_;
    std::map<std::uint64_t, std::uint64_t> known_;
};

/// An index of shards under one name, replaced.
class IndexWork final : public Work {
public:
    void save(const std::string& folder, std::uint64_t number) override {
        std::vector<std::vector<std::byte>> data;
        State state;
        for (std::uint64_t i = 0; i < kTensors; ++i) {
            data.push_back(content(number, i));
            state.tensors.push_back({fmt::format("t{}", i), "U8", {kBytes}, data.back()});
        }
        penstock::save_file(engine_, path_of(folder), state, {.shard_bytes = 2 * kBytes});
    }
    Found look(const std::string& folder) override {
        const std::string path = path_of(folder);
        if (!std::filesystem::exists(path)) {
            return {};
        }
        try {
            const LoadedState loaded = load_file(engine_, path);
            for (std::uint64_t number = 1; number <= kSaves; ++number) {
                if (is_of(loaded.state, number)) {
                    return {number, {}};
                }
            }
            return {0, path + ": of no save, or of several"};
        } catch (const Error& error) {
            return {0, error.what()};
        }
    }

private:
    static constexpr std::uint64_t kTensors = 5;
    static constexpr std::uint64_t kBytes = 600'000;
    static std::string path_of(const std::string& folder) {
        return folder + "/model.safetensors.index.json";
    }
    static std::vector<std::byte> content(std::uint64_t number, std::uint64_t tensor) {
        return support::pattern(kBytes, number * kTensors + tensor);
    }
    static bool is_of(const State& state, std::uint64_t number) {
        bool same = state.tensors.size() == kTensors;
        for (const StateTensor& t : state.tensors) {
            const auto wanted = content(number, std::stoull(t.name.substr(1)));
            same = same && std::ranges::equal(t.data.span(), wanted);
        }
        return same;
    }
    std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();
};

/// `torch.save` under the final name, in a Python that gets each number.
class TorchWork final : public Work {
public:
    explicit TorchWork(std::string python) : python_(std::move(python)) {}
    TorchWork(const TorchWork&) = delete;
    TorchWork& operator=(const TorchWork&) = delete;
    ~TorchWork() override { leave(); }
    void save(const std::string& folder, std::uint64_t number) override {
        if (child_ < 0) {
            start(folder);
        }
        const std::string line = std::to_string(number) + "\n";
        std::string answer;
        char c = 0;
        bool told = ::write(to_, line.data(), line.size()) == static_cast<ssize_t>(line.size());
        while (told && !answer.ends_with('\n')) {
            told = ::read(from_, &c, 1) == 1;
            answer += c;
        }
        if (!told || answer != line) {
            throw std::runtime_error("torch.save did not answer");
        }
        known_[hash_of_file(path_of(folder, number)).value()] = number;
    }
    Found look(const std::string& folder) override {
        Found found;
        for (std::uint64_t number = 1; number <= kSaves; ++number) {
            const auto hash = hash_of_file(path_of(folder, number));
            if (!hash) {
                continue;
            }
            const auto known = known_.find(*hash);
            if (known != known_.end() && known->second == number) {
                found.newest = number;
            } else {
                found.damaged = path_of(folder, number) + ": not what was saved";
            }
        }
        return found;
    }
    void leave() override {
        if (child_ < 0) {
            return;
        }
        ::close(to_);  // it ends with its input
        ::close(from_);
        while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
        }
        child_ = -1;
    }

private:
    static std::string path_of(const std::string& folder, std::uint64_t number) {
        return fmt::format("{}/checkpoint-{:04}.pt", folder, number);
    }
    void start(const std::string& folder) {
        std::array<int, 2> in{};
        std::array<int, 2> out{};
        if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0) {
            throw std::runtime_error("no pipe");
        }
        posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_adddup2(&actions, in[0], 0);
        ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
        std::string script = PENSTOCK_SOURCE_DIR "/tests/power_cut/torch_saves.py";
        std::string where = folder;
        std::string kept = std::to_string(kKept);
        std::array<char*, 5> words{python_.data(), script.data(), where.data(), kept.data(),
                                   nullptr};
        const int failed =
            ::posix_spawn(&child_, words[0], &actions, nullptr, words.data(), environ);
        ::posix_spawn_file_actions_destroy(&actions);
        ::close(in[0]);
        ::close(out[1]);
        to_ = in[1];
        from_ = out[0];
        if (failed != 0) {
            child_ = -1;
            throw std::runtime_error("cannot start " + python_);
        }
    }
    std::string python_;
    pid_t child_ = -1;
    int to_ = -1;
    int from_ = -1;
    std::map<std::uint64_t, std::uint64_t> known_;
};

}  // namespace

std::unique_ptr<Work> make_work(const std::string& name, const std::string& python) {
    if (name == "store" || name == "store_no_folder_sync") {
        return std::make_unique<StoreWork>(name == "store");
    }
    if (name == "save") {
        return std::make_unique<SaveWork>();
    }
    if (name == "index") {
        return std::make_unique<IndexWork>();
    }
    if (name == "torch.save") {
        return std::make_unique<TorchWork>(python);
    }
    throw std::invalid_argument("no work is called " + name);
}

}  // namespace penstock::power_cut
