// SPDX-License-Identifier: Apache-2.0
#include "state/selection.hpp"

#include "base/text/near.hpp"
#include "format/fault.hpp"
#include "format/utf8.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace penstock::state {

namespace {

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

// Takes a character from the beginning of a text that is not empty; for invalid UTF-8, a byte.
std::string_view take(std::string_view& text) {
    const std::string_view out =
        text.substr(0, std::max<std::size_t>(format::character_bytes(text), 1));
    text.remove_prefix(out.size());
    return out;
}

// Bytes of UTF-8 are in the order of the code points.
bool is_between(std::string_view c, std::string_view first, std::string_view last) {
    return first <= c && c <= last;
}

// Takes the characters between the brackets of a set off the pattern, which begins after the first.
// Nothing if the set is never closed: then the bracket is a character.
std::optional<std::string_view> take_set(std::string_view& pattern) {
    std::size_t end = pattern.starts_with('!') ? 1 : 0;
    end += pattern.substr(end).starts_with(']') ? 1 : 0;  // as the first it is one of the set
    end = pattern.find(']', end);
    if (end == std::string_view::npos) {
        return std::nullopt;
    }
    const std::string_view set = pattern.substr(0, end);
    pattern.remove_prefix(end + 1);
    return set;
}

bool has(std::string_view set, std::string_view c) {
    const bool others = set.starts_with('!');
    set.remove_prefix(others ? 1 : 0);
    bool found = false;
    while (!set.empty()) {
        const std::string_view first = take(set);
        std::string_view last = first;
        if (set.starts_with('-') && set.size() > 1) {
            set.remove_prefix(1);
            last = take(set);
        }
        found = found || is_between(c, first, last);
    }
    return found != others;
}

// Takes a character from the name and its match from the pattern, if it matches.
bool take_one(std::string_view& name, std::string_view& pattern) {
    if (name.empty() || pattern.empty()) {
        return false;
    }
    const std::string_view c = take(name);
    const std::string_view one = take(pattern);
    if (one == "[") {
        if (const auto set = take_set(pattern)) {
            return has(*set, c);
        }
    }
    return one == "?" || one == c;
}

// The numbers of the names, sorted by name.
std::vector<std::size_t> by_name(std::span<const std::string_view> names) {
    std::vector<std::size_t> out(names.size());
    std::iota(out.begin(), out.end(), std::size_t{0});
    std::stable_sort(out.begin(), out.end(),
                     [&](std::size_t a, std::size_t b) { return names[a] < names[b]; });
    return out;
}

// Lists what a name may have meant: each tensor, and each name above one.
std::vector<std::string_view> with_those_above(std::span<const std::string_view> names) {
    std::set<std::string_view> all(names.begin(), names.end());
    for (const std::string_view name : names) {
        for (std::size_t dot = name.find('.'); dot != std::string_view::npos;
             dot = name.find('.', dot + 1)) {
            all.insert(name.substr(0, dot));
        }
    }
    return {all.begin(), all.end()};
}

// "; its names are 'a', 'b', 'c', ...", or nothing where it has no names.
std::string some_of(std::span<const std::string_view> names) {
    constexpr std::size_t kSomeMax = 3;
    std::string out;
    for (const std::string_view name : names.first(std::min(kSomeMax, names.size()))) {
        out += fmt::format("{}{}", out.empty() ? "; its names are " : ", ", format::shown(name));
    }
    return names.size() > kSomeMax ? out + ", ..." : out;
}

}  // namespace

bool is_pattern(std::string_view wanted) {
    return wanted.find_first_of("*?[") != std::string_view::npos;
}

bool is_below(std::string_view name, std::string_view above) {
    return name.size() > above.size() && name[above.size()] == '.' && name.starts_with(above);
}

bool matches(std::string_view name, std::string_view pattern) {
    // Remembers the last `*`, and the rest of the name after its match.
    std::optional<std::pair<std::string_view, std::string_view>> star;
    while (!name.empty() || !pattern.empty()) {
        if (pattern.starts_with('*')) {
            pattern.remove_prefix(1);
            star = {name, pattern};
        } else if (!take_one(name, pattern)) {
            if (!star || star->first.empty()) {
                return false;
            }
            take(star->first);
            std::tie(name, pattern) = *star;
        }
    }
    return true;
}

base::Result<std::vector<Selected>> select(std::span<const std::string_view> names,
                                           std::span<const std::string_view> wanted) {
    const std::vector<std::size_t> sorted = by_name(names);
    std::vector<std::size_t> place(names.size(), kNone);  // in `out`
    std::vector<Selected> out;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        bool found = false;
        const auto add = [&](std::size_t tensor) {
            found = true;
            if (place[tensor] == kNone) {
                place[tensor] = out.size();
                out.push_back({tensor, i});
            }
            out[place[tensor]].wanted = i;
        };
        auto same = std::lower_bound(
            sorted.begin(), sorted.end(), wanted[i],
            [&](std::size_t tensor, std::string_view name) { return names[tensor] < name; });
        for (; same != sorted.end() && names[*same] == wanted[i]; ++same) {
            add(*same);
        }
        const bool by_name = found;
        for (std::size_t tensor = 0; !by_name && tensor < names.size(); ++tensor) {
            if (is_below(names[tensor], wanted[i])) {
                add(tensor);
            }
        }
        const bool by_pattern = !found && is_pattern(wanted[i]);
        for (std::size_t tensor = 0; by_pattern && tensor < names.size(); ++tensor) {
            if (matches(names[tensor], wanted[i])) {
                add(tensor);
            }
        }
        if (!found) {
            return base::fail(base::error(ErrorCode::kInvalidArgument, "load",
                                          fmt::format("it has {}", lacking(wanted[i], names))));
        }
    }
    return out;
}

std::string lacking(std::string_view wanted, std::span<const std::string_view> names) {
    const std::string none = fmt::format("no tensor {}", format::shown(wanted));
    const std::string_view near = base::nearest(wanted, with_those_above(names));
    return near.empty() ? none + some_of(names)
                        : fmt::format("{}; did you mean {}?", none, format::shown(near));
}

std::uint64_t TensorBox::elements() const {
    std::uint64_t out = 1;
    for (std::size_t d = 0; d < begin.size(); ++d) {
        out *= end[d] - begin[d];
    }
    return out;
}

base::Result<TensorBox> inside(TensorBox box, std::span<const std::uint64_t> shape,
                               std::string_view tensor) {
    if (box.begin.empty()) {
        box.begin.assign(shape.size(), 0);
    }
    if (box.end.empty()) {
        box.end.assign(shape.begin(), shape.end());
    }
    bool sound = box.begin.size() == shape.size() && box.end.size() == shape.size();
    for (std::size_t d = 0; sound && d < shape.size(); ++d) {
        sound = box.begin[d] <= box.end[d] && box.end[d] <= shape[d];
    }
    if (!sound) {
        return base::fail(base::error(
            ErrorCode::kInvalidArgument, "load",
            fmt::format("tensor {} has the shape [{}], and [{}] to [{}] is wanted of it",
                        format::shown(tensor), fmt::join(shape, ", "), fmt::join(box.begin, ", "),
                        fmt::join(box.end, ", "))));
    }
    return box;
}

}  // namespace penstock::state
