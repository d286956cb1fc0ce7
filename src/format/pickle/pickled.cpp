// SPDX-License-Identifier: Apache-2.0
#include "format/pickle/pickled.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

namespace penstock::format {

namespace {

constexpr std::size_t kShownMax = 8;
constexpr std::size_t kPlacesMax = 100;  // each is searched for
constexpr std::string_view kObject = "object";

// Takes "\x8c", a length of one byte, and the text, and what memoizes it; empty if that is not
// there.
std::string_view take_text(std::string_view& pickle) {
    if (pickle.size() < 2 || pickle[0] != '\x8c') {
        return {};
    }
    const auto bytes = static_cast<std::size_t>(static_cast<unsigned char>(pickle[1]));
    const std::string_view text = pickle.substr(2, bytes);
    pickle.remove_prefix(std::min(2 + bytes, pickle.size()));
    if (pickle.starts_with('\x94')) {
        pickle.remove_prefix(1);
    }
    return text;
}

}  // namespace

std::string pickled_type(std::string_view pickle) {
    // Protocol 4 and later: the version, a frame, the module, the name, and both become a global.
    constexpr std::size_t kVersion = 2;
    constexpr std::size_t kFrame = 9;
    pickle.remove_prefix(std::min(kVersion, pickle.size()));
    pickle.remove_prefix(pickle.starts_with('\x95') ? std::min(kFrame, pickle.size()) : 0);
    const std::string_view module = take_text(pickle);
    const std::string_view name = take_text(pickle);
    if (module.empty() || name.empty() || !pickle.starts_with('\x93')) {
        return std::string(kObject);
    }
    return fmt::format("{}.{}", module, name);
}

std::vector<std::string> pickled_places(const ValueTree& tree) {
    std::vector<std::string> out;
    for (ValueId id = 0; id < tree.values.size() && out.size() < kPlacesMax; ++id) {
        const Value& value = tree.at(id);
        if (value.kind == ValueKind::kPickled) {
            out.push_back(
                fmt::format("{} ({})", place_of(tree, id), escaped(pickled_type(value.text))));
        }
    }
    return out;
}

std::string pickled_line(const ValueTree& tree) {
    std::vector<std::string> places = pickled_places(tree);
    const bool more = places.size() > kShownMax;
    places.resize(std::min(places.size(), kShownMax));
    return fmt::format("{}{}", fmt::join(places, ", "), more ? ", ..." : "");
}

}  // namespace penstock::format
