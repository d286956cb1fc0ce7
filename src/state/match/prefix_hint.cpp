// SPDX-License-Identifier: Apache-2.0
#include "state/match/prefix_hint.hpp"

#include <algorithm>
#include <cctype>
#include <set>
#include <unordered_set>

namespace penstock::state {

namespace {

using Names = std::span<const std::string>;

constexpr std::size_t kTried = 4;  // names for which a prefix is looked for
constexpr std::string_view kWrappers[] = {"_orig_mod.", "module.", "_fsdp_wrapped_module.",
                                          "_checkpoint_wrapped_module.", "_forward_module."};

bool is_half(std::size_t count, Names a, Names b) {
    return count > 0 && 2 * count >= std::min(a.size(), b.size());
}

// Finds the prefix that makes names of `others` from those of `plain`, or nothing.
std::string prefix_of(Names others, Names plain) {
    const std::unordered_set<std::string_view> known(others.begin(), others.end());
    std::set<std::string> tried;
    std::string best;
    std::size_t most = 0;
    for (const std::string& name : plain.first(std::min(kTried, plain.size()))) {
        const std::string ending = "." + name;
        for (const std::string& other : others) {
            if (!other.ends_with(ending)) {
                continue;
            }
            const std::string prefix = other.substr(0, other.size() - name.size());
            if (!tried.insert(prefix).second || tried.size() > kTried * kTried) {
                continue;
            }
            const auto count = static_cast<std::size_t>(
                std::count_if(plain.begin(), plain.end(),
                              [&](const auto& one) { return known.contains(prefix + one); }));
            if (count > most) {
                most = count;
                best = prefix;
            }
        }
    }
    return is_half(most, others, plain) ? best : std::string();
}

// The name without the words of wrappers, wherever they are.
std::string unwrapped(std::string name) {
    for (const std::string_view word : kWrappers) {
        for (std::size_t at = 0; (at = name.find(word, at)) != std::string::npos;) {
            if (at == 0 || name[at - 1] == '.') {
                name.erase(at, word.size());
            } else {
                ++at;
            }
        }
    }
    return name;
}

// Finds the wrapper whose word only names of `others` have, or nothing.
std::string wrapper_in(Names others, Names plain) {
    std::unordered_set<std::string> known;
    for (const std::string& name : plain) {
        known.insert(unwrapped(name));
    }
    std::size_t count = 0;
    std::string found;
    for (const std::string& name : others) {
        const std::string without = unwrapped(name);
        if (without == name || !known.contains(without)) {
            continue;
        }
        ++count;
        for (const std::string_view word : kWrappers) {
            if (found.empty() && name.find(word) != std::string::npos) {
                found = word;
            }
        }
    }
    return is_half(count, others, plain) ? found : std::string();
}

bool is_attribute(std::string_view path) {
    bool begins = true;
    for (const char c : path) {
        const auto byte = static_cast<unsigned char>(c);
        if ((begins && std::isdigit(byte) != 0) ||
            (std::isalnum(byte) == 0 && c != '_' && c != '.')) {
            return false;
        }
        begins = c == '.';
    }
    return true;
}

std::string of_file(std::string_view verb, const std::string& prefix, std::string_view under) {
    const std::string path = prefix.substr(0, prefix.size() - 1);
    const std::string all = under.empty() ? path : std::string(under) + "." + path;
    std::string out =
        "the names in the file begin with '" + prefix + "', those of the model do not: ";
    if (verb == "stream") {
        return out + "save the tensors again under names without it";
    }
    return out + "names='" + all + "' reads what is below it";
}

std::string of_model(std::string_view verb, const std::string& prefix) {
    const std::string path = prefix.substr(0, prefix.size() - 1);
    std::string child =
        is_attribute(path) ? "model." + path : "model.get_submodule('" + path + "')";
    child += verb == "load" ? ".state_dict()" : "";
    return "the names of the model begin with '" + prefix + "', those in the file do not: give " +
           child;
}

}  // namespace

std::string prefix_hint(std::string_view verb, Names missing, Names unexpected,
                        std::string_view under) {
    if (const std::string prefix = prefix_of(unexpected, missing); !prefix.empty()) {
        return of_file(verb, prefix, under);
    }
    if (const std::string prefix = prefix_of(missing, unexpected); !prefix.empty()) {
        return of_model(verb, prefix);
    }
    if (const std::string word = wrapper_in(unexpected, missing); !word.empty()) {
        return "some names in the file have '" + word +
               "' in them, and without it they are those of the model: take it out of the keys of "
               "penstock.load(f), and give the result to load_state_dict()";
    }
    if (const std::string word = wrapper_in(missing, unexpected); !word.empty()) {
        return "some names of the model have '" + word +
               "' in them, and without it they are those in the file: load before the parts of the "
               "model are compiled or wrapped";
    }
    return {};
}

}  // namespace penstock::state
