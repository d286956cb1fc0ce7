// SPDX-License-Identifier: Apache-2.0
#include "format/unread.hpp"

#include "format/fault.hpp"
#include "format/grammar.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace penstock::format {

namespace {

constexpr std::size_t kPlaceBytesMax = 1000;
constexpr std::size_t kPlacesMax = 100;
constexpr std::size_t kShownMax = 3;

class UnreadWalk {
public:
    UnreadWalk(const ValueTree& tree, std::size_t count_max)
        : tree_(tree), count_max_(count_max), seen_(tree.values.size(), false) {}

    std::vector<UnreadPlace> run() {
        if (tree_.root != kNoValue) {
            visit(tree_.root, 0);
        }
        return std::move(out_);
    }

private:
    void visit(ValueId id, int depth) {
        if (seen_[id] || depth > kNestingMax || out_.size() == count_max_) {
            return;
        }
        seen_[id] = true;
        const Value& v = tree_.at(id);
        if (v.kind == ValueKind::kUnread) {
            std::string place = path_.text(tree_);
            if (place.size() > kPlaceBytesMax) {
                place = escaped(place.substr(0, kPlaceBytesMax)) + "...";
            }
            out_.push_back({id, std::move(place)});
            return;
        }
        const bool dict = is_dict(v.kind);
        for (std::size_t i = 0; i < v.items.size(); ++i) {
            dict ? path_.enter_key(v.items[i - i % 2]) : path_.enter_index(i);
            visit(v.items[i], depth + 1);
            path_.leave();
        }
        if (v.attributes != kNoValue) {
            path_.enter_attributes();
            visit(v.attributes, depth + 1);
            path_.leave();
        }
    }

    const ValueTree& tree_;
    const std::size_t count_max_;
    std::vector<bool> seen_;
    ValuePath path_;
    std::vector<UnreadPlace> out_;
};

std::string named(const ValueTree& tree, const UnreadPlace& one) {
    const std::string& name = tree.at(one.id).text;
    return fmt::format("{} ({})", one.place, name.empty() ? "object" : escaped(name));
}

}  // namespace

std::vector<UnreadPlace> unread_in(const ValueTree& tree, std::size_t count_max) {
    const bool any = std::any_of(tree.values.begin(), tree.values.end(),
                                 [](const Value& v) { return v.kind == ValueKind::kUnread; });
    return any ? UnreadWalk(tree, count_max).run() : std::vector<UnreadPlace>();
}

std::vector<std::string> unread_places(const ValueTree& tree) {
    std::vector<std::string> out;
    for (const UnreadPlace& one : unread_in(tree, kPlacesMax)) {
        out.push_back(named(tree, one));
    }
    return out;
}

std::string why_not_whole(const ValueTree& tree) {
    const std::vector<UnreadPlace> found = unread_in(tree, kShownMax + 1);
    if (found.empty()) {
        return {};
    }
    std::vector<std::string> others;
    for (std::size_t i = 1; i < std::min(found.size(), kShownMax); ++i) {
        others.push_back(named(tree, found[i]));
    }
    return fmt::format("{}: {}{}{}{}", found[0].place, escaped(tree.at(found[0].id).data),
                       others.empty() ? "" : "; nor are read: ", fmt::join(others, ", "),
                       found.size() > kShownMax ? ", ..." : "");
}

}  // namespace penstock::format
