// SPDX-License-Identifier: Apache-2.0
#include "engine_text.hpp"

#include "api/option_table.hpp"

namespace penstock::python {

namespace {

// "'a', 'b' or 'c'" as a type; other texts are of any kind.
std::string literal_of(std::string words) {
    const std::size_t last = words.find(" or ");
    if (last == std::string::npos) {
        return "str";
    }
    return "typing.Literal[" + words.replace(last, 4, ", ") + "]";
}

}  // namespace

std::string engine_signature() {
    std::string text =
        "def __init__(self, *, options: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None "
        "= None";
    for (const api::WordOption& option : api::kWordOptions) {
        text +=
            std::string(", ") + option.name + ": " + literal_of(option.allowed) + " | None = None";
    }
    for (const api::Option& option : api::kOptions) {
        text += std::string(", ") + option.name + (option.is_size() ? ": int | str" : ": int") +
                " | None = None";
    }
    return text + ") -> None";
}

std::string engine_doc() {
    std::string text =
        "Moves bytes between files and memory at the speed of the device. Thread-safe; works on "
        "after a fork.\n\n"
        "options: an options file, as `penstock tune -o FILE` writes it; other arguments beat "
        "it.\n";
    for (const api::WordOption& option : api::kWordOptions) {
        text += std::string(option.name) + ": " + option.about + "; " + option.allowed + ".\n";
    }
    for (const api::Option& option : api::kOptions) {
        text += std::string(option.name) + ": " + option.about + "; " + option.allowed() + ".\n";
    }
    return text +
           "Sizes are bytes, or words: '4MiB'.\n"
           "An option that is not given has the value of the file, of its environment variable\n"
           "(PENSTOCK_BLOCK_BYTES, ...) or its default. As a context manager it is closed at the "
           "end.";
}

std::string options_text(const EngineOptions& options) {
    std::string out = std::string("backend='") + name_of(options.backend) + "'";
    for (const api::Option& option : api::kOptions) {
        out += std::string(", ") + option.name + "=" + std::to_string(option.get(options));
    }
    return out;
}

}  // namespace penstock::python
