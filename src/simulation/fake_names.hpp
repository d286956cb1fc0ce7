// SPDX-License-Identifier: Apache-2.0
// The names of a fake disk: folders, files by number, symbolic links, and whether a name would
// survive a crash. A change of names (create, link, remove, rename ...) is volatile until a folder
// that it touches is synced. A crash keeps any subset of the volatile ones, each whole, in their
// order, if the changes that they depend on were kept: no journaling file system is less reliable.
#pragma once

#include <penstock/types.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace penstock::simulation {

class FakeNames {
public:
    static constexpr std::uint64_t kNone = 0;
    static constexpr std::uint64_t kRoot = 1;

    struct Node {
        FileKind kind = FileKind::kFile;
        std::uint32_t mode = 0644;
        std::uint64_t links = 0;
        std::string target = {};                          ///< only of a symbolic link
        std::map<std::string, std::uint64_t> names = {};  ///< only of a folder
        std::map<std::string, std::uint64_t> durable = {};
    };

    FakeNames();

    /// The number of the node at a path, kNone when there is nothing. Follows no symbolic link.
    [[nodiscard]] std::uint64_t find(const std::string& path) const;
    [[nodiscard]] std::uint64_t folder_of(const std::string& path) const;
    /// The node of a number that find() returned; nullptr after a crash that lost it.
    [[nodiscard]] const Node* node(std::uint64_t number) const;
    /// The number of a name in a folder.
    [[nodiscard]] std::uint64_t find_in(std::uint64_t folder, const std::string& name) const;
    void set_mode(std::uint64_t number, std::uint32_t mode);
    /// The first symbolic link on the path (the last component only with `follow_last`): its
    /// target, relative ones after `mount` and their folder, with the rest of the path.
    [[nodiscard]] std::optional<std::string> step_through_link(const std::string& path,
                                                               bool follow_last,
                                                               const std::string& mount) const;

    // Errors are errno values, 0 = success.
    [[nodiscard]] int make(const std::string& path, FileKind kind, const std::string& target,
                           std::uint64_t& number);
    [[nodiscard]] int link(const std::string& from, const std::string& to);
    /// `gone`: a number that has no name any more, or kNone.
    [[nodiscard]] int rename(const std::string& from, const std::string& to, std::uint64_t& gone);
    [[nodiscard]] int exchange(const std::string& one, const std::string& other);
    [[nodiscard]] int remove(const std::string& path, std::uint64_t& gone);
    // The same in a folder by its number, whatever its path is by now.
    [[nodiscard]] int rename_in(std::uint64_t folder, const std::string& from,
                                const std::string& to, std::uint64_t& gone);
    /// `is_folder`: the expected kind; otherwise ENOTDIR, or EISDIR.
    [[nodiscard]] int remove_in(std::uint64_t folder, const std::string& name, bool is_folder,
                                std::uint64_t& gone);

    [[nodiscard]] std::size_t volatile_changes() const { return volatile_.size(); }
    void sync_folder(std::uint64_t folder);
    /// `keep` decides about each change that was not synced. Nodes without a name are removed.
    void crash(const std::function<bool()>& keep);

private:
    struct Entry {
        std::uint64_t folder;
        std::string name;
        std::uint64_t before;
        std::uint64_t after;
    };
    using Change = std::vector<Entry>;  // one or two, atomic

    [[nodiscard]] int move(const Entry& from, const Entry& to, std::uint64_t& gone);
    [[nodiscard]] int take_away(std::uint64_t folder, const std::string& name, std::uint64_t& gone);
    void change(Change what);
    bool apply_durable(const Change& what);
    void count_links();

    std::map<std::uint64_t, Node> nodes_;
    std::vector<Change> volatile_;
    std::uint64_t next_ = kRoot + 1;
};

}  // namespace penstock::simulation
