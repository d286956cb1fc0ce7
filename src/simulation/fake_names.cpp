// SPDX-License-Identifier: Apache-2.0
#include "simulation/fake_names.hpp"

#include "base/path.hpp"

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

namespace penstock::simulation {

namespace {

// Returns the next component from `at` on; moves `at` past it. Empty at the end.
std::string next_component(const std::string& path, std::size_t& at) {
    while (at < path.size() && path[at] == '/') {
        ++at;
    }
    const std::size_t end = std::min(path.find('/', at), path.size());
    std::string name = path.substr(at, end - at);
    at = end;
    return name;
}

std::uint64_t number_of(const std::map<std::string, std::uint64_t>& names,
                        const std::string& name) {
    const auto found = names.find(name);
    return found == names.end() ? FakeNames::kNone : found->second;
}

void set_name(std::map<std::string, std::uint64_t>& names, const std::string& name,
              std::uint64_t number) {
    if (number == FakeNames::kNone) {
        names.erase(name);
    } else {
        names[name] = number;
    }
}

}  // namespace

FakeNames::FakeNames() {
    nodes_[kRoot] = {.kind = FileKind::kFolder, .mode = 0755, .links = 1};
}

std::uint64_t FakeNames::find(const std::string& path) const {
    std::uint64_t number = kRoot;
    for (std::size_t at = 0;;) {
        const std::string name = next_component(path, at);
        if (name.empty()) {
            return number;
        }
        const Node* here = node(number);
        number = here->kind == FileKind::kFolder ? number_of(here->names, name) : kNone;
        if (number == kNone) {
            return kNone;
        }
    }
}

std::uint64_t FakeNames::folder_of(const std::string& path) const {
    const std::uint64_t number = find(base::folder_of(path));
    const Node* here = node(number);
    return here != nullptr && here->kind == FileKind::kFolder ? number : kNone;
}

const FakeNames::Node* FakeNames::node(std::uint64_t number) const {
    const auto found = nodes_.find(number);
    return found == nodes_.end() ? nullptr : &found->second;
}

std::uint64_t FakeNames::find_in(std::uint64_t folder, const std::string& name) const {
    const Node* here = node(folder);
    return here == nullptr ? kNone : number_of(here->names, name);
}

void FakeNames::set_mode(std::uint64_t number, std::uint32_t mode) {
    nodes_.at(number).mode = mode;
}

std::optional<std::string> FakeNames::step_through_link(const std::string& path, bool follow_last,
                                                        const std::string& mount) const {
    std::uint64_t number = kRoot;
    for (std::size_t at = 0;;) {
        const std::size_t begin = at;
        const std::string name = next_component(path, at);
        const Node* here = node(number);
        if (name.empty() || here == nullptr || here->kind != FileKind::kFolder) {
            return std::nullopt;
        }
        number = number_of(here->names, name);
        const Node* next = node(number);
        if (next == nullptr) {
            return std::nullopt;
        }
        const bool last = path.find_first_not_of('/', at) == std::string::npos;
        if (next->kind == FileKind::kSymbolicLink && (!last || follow_last)) {
            const bool absolute = next->target.starts_with('/');
            return (absolute ? "" : mount + path.substr(0, begin) + "/") + next->target +
                   path.substr(at);
        }
    }
}

void FakeNames::change(Change what) {
    for (const Entry& entry : what) {
        set_name(nodes_.at(entry.folder).names, entry.name, entry.after);
    }
    volatile_.push_back(std::move(what));
}

int FakeNames::make(const std::string& path, FileKind kind, const std::string& target,
                    std::uint64_t& number) {
    const std::uint64_t folder = folder_of(path);
    if (folder == kNone) {
        return ENOENT;
    }
    if (find(path) != kNone) {
        return EEXIST;
    }
    number = next_++;
    nodes_[number] = {.kind = kind,
                      .mode = kind == FileKind::kFolder ? 0755U : 0644U,
                      .links = 1,
                      .target = target};
    change({{folder, std::string(base::last_name(path)), kNone, number}});
    return 0;
}

int FakeNames::link(const std::string& from, const std::string& to) {
    const std::uint64_t number = find(from);
    const std::uint64_t folder = folder_of(to);
    if (number == kNone || folder == kNone) {
        return ENOENT;
    }
    if (find(to) != kNone) {
        return EEXIST;
    }
    Node& linked = nodes_.at(number);
    if (linked.kind == FileKind::kFolder) {
        return EPERM;
    }
    ++linked.links;
    change({{folder, std::string(base::last_name(to)), kNone, number}});
    return 0;
}

int FakeNames::rename(const std::string& from, const std::string& to, std::uint64_t& gone) {
    gone = kNone;
    const std::uint64_t number = find(from);
    const std::uint64_t to_folder = folder_of(to);
    if (number == kNone || number == kRoot || to_folder == kNone) {
        return number == kRoot ? EBUSY : ENOENT;
    }
    if (to.starts_with(from + "/")) {
        return EINVAL;
    }
    return move({folder_of(from), std::string(base::last_name(from)), number, kNone},
                {to_folder, std::string(base::last_name(to)), find(to), number}, gone);
}

int FakeNames::exchange(const std::string& one, const std::string& other) {
    const std::uint64_t first = find(one);
    const std::uint64_t second = find(other);
    if (first == kNone || second == kNone) {
        return ENOENT;
    }
    if (one.starts_with(other + "/") || other.starts_with(one + "/")) {
        return EINVAL;
    }
    if (first != second) {
        change({{folder_of(one), std::string(base::last_name(one)), first, second},
                {folder_of(other), std::string(base::last_name(other)), second, first}});
    }
    return 0;
}

int FakeNames::rename_in(std::uint64_t folder, const std::string& from, const std::string& to,
                         std::uint64_t& gone) {
    gone = kNone;
    const std::uint64_t number = find_in(folder, from);
    return number == kNone ? ENOENT
                           : move({folder, from, number, kNone},
                                  {folder, to, find_in(folder, to), number}, gone);
}

// `to.before` is the node that it replaces.
int FakeNames::move(const Entry& from, const Entry& to, std::uint64_t& gone) {
    const std::uint64_t replaced = to.before;
    if (replaced == to.after) {
        return 0;  // two names of one file: the system does nothing
    }
    const bool folder = nodes_.at(to.after).kind == FileKind::kFolder;
    if (replaced != kNone) {
        Node& target = nodes_.at(replaced);
        if ((target.kind == FileKind::kFolder) != folder) {
            return folder ? ENOTDIR : EISDIR;
        }
        if (!target.names.empty()) {
            return ENOTEMPTY;
        }
        gone = --target.links == 0 ? replaced : kNone;
    }
    change({from, to});
    return 0;
}

int FakeNames::remove(const std::string& path, std::uint64_t& gone) {
    gone = kNone;
    const std::uint64_t number = find(path);
    if (number == kNone || number == kRoot) {
        return number == kRoot ? EBUSY : ENOENT;
    }
    return take_away(folder_of(path), std::string(base::last_name(path)), gone);
}

int FakeNames::remove_in(std::uint64_t folder, const std::string& name, bool is_folder,
                         std::uint64_t& gone) {
    gone = kNone;
    const Node* found = node(find_in(folder, name));
    if (found == nullptr) {
        return ENOENT;
    }
    if ((found->kind == FileKind::kFolder) != is_folder) {
        return is_folder ? ENOTDIR : EISDIR;
    }
    return take_away(folder, name, gone);
}

int FakeNames::take_away(std::uint64_t folder, const std::string& name, std::uint64_t& gone) {
    const std::uint64_t number = find_in(folder, name);
    Node& removed = nodes_.at(number);
    if (!removed.names.empty()) {
        return ENOTEMPTY;
    }
    gone = --removed.links == 0 ? number : kNone;
    change({{folder, name, number, kNone}});
    return 0;
}

// False when a change that it depends on is missing.
bool FakeNames::apply_durable(const Change& what) {
    for (const Entry& entry : what) {
        if (number_of(nodes_.at(entry.folder).durable, entry.name) != entry.before) {
            return false;
        }
    }
    for (const Entry& entry : what) {
        set_name(nodes_.at(entry.folder).durable, entry.name, entry.after);
    }
    return true;
}

void FakeNames::sync_folder(std::uint64_t folder) {
    // A rename between two folders makes both of them durable.
    std::set<std::uint64_t> folders{folder};
    const auto touches = [&](const Change& what) {
        return std::any_of(what.begin(), what.end(),
                           [&](const Entry& entry) { return folders.contains(entry.folder); });
    };
    for (std::size_t before = 0; before != folders.size();) {
        before = folders.size();
        for (const Change& what : volatile_) {
            if (touches(what)) {
                for (const Entry& entry : what) {
                    folders.insert(entry.folder);
                }
            }
        }
    }
    std::erase_if(volatile_,
                  [&](const Change& what) { return touches(what) && (apply_durable(what), true); });
}

void FakeNames::crash(const std::function<bool()>& keep) {
    for (const Change& what : volatile_) {
        if (keep()) {
            static_cast<void>(apply_durable(what));
        }
    }
    volatile_.clear();
    for (auto& [number, node] : nodes_) {
        node.names = node.durable;
    }
    count_links();
}

void FakeNames::count_links() {
    for (auto& [number, node] : nodes_) {
        node.links = number == kRoot ? 1 : 0;
    }
    // Starts at the root: the content of a lost folder is lost.
    std::vector<std::uint64_t> open{kRoot};
    while (!open.empty()) {
        const Node& folder = nodes_.at(open.back());
        open.pop_back();
        for (const auto& [name, number] : folder.names) {
            Node& node = nodes_.at(number);
            if (++node.links == 1 && node.kind == FileKind::kFolder) {
                open.push_back(number);
            }
        }
    }
    std::erase_if(nodes_, [](const auto& entry) { return entry.second.links == 0; });
}

}  // namespace penstock::simulation
