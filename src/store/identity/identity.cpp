// SPDX-License-Identifier: Apache-2.0
#include "store/identity/identity.hpp"

#include "base/random.hpp"
#include "base/text/hex.hpp"
#include "stream/checksum.hpp"

#include <fmt/format.h>

#include <charconv>
#include <span>

namespace penstock::store {

namespace {

constexpr std::string_view kIdentityHead = "penstock_store 1\n";
constexpr std::string_view kRecordHead = "penstock_store_record 1\n";
constexpr std::string_view kSumKey = "sum ";

std::uint64_t sum_of(std::string_view text) {
    return stream::content_hash(std::as_bytes(std::span(text.data(), text.size())));
}

std::string with_sum(std::string text) {
    return text + fmt::format("{}{:016x}\n", kSumKey, sum_of(text));
}

// The lines between the head and the sum; nothing where either is another one.
std::optional<std::string_view> lines_of(std::string_view text, std::string_view head) {
    constexpr std::size_t kTail = kSumKey.size() + base::kHexDigits + 1;
    std::uint64_t sum = 0;
    if (text.size() < head.size() + kTail || !text.starts_with(head) || text.back() != '\n') {
        return std::nullopt;
    }
    const std::string_view tail = text.substr(text.size() - kTail);
    const std::string_view summed = text.substr(0, text.size() - kTail);
    if (!tail.starts_with(kSumKey) ||
        !base::parse_hex(tail.substr(kSumKey.size(), base::kHexDigits), sum) ||
        sum != sum_of(summed)) {
        return std::nullopt;
    }
    return summed.substr(head.size());
}

// Takes "word " or "word\n" from the front.
std::string_view take_word(std::string_view& text) {
    const std::size_t end = text.find_first_of(" \n");
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    return word;
}

bool take_hex(std::string_view& text, std::uint64_t& value) {
    return base::parse_hex(take_word(text), value);
}

template <typename Number>
bool take_number(std::string_view& text, Number& value) {
    const std::string_view word = take_word(text);
    const auto read = std::from_chars(word.data(), word.data() + word.size(), value);
    return !word.empty() && read.ec == std::errc{} && read.ptr == word.data() + word.size();
}

bool take_identity(std::string_view& text, std::string& identity) {
    identity = take_word(text);
    return is_identity(identity);
}

}  // namespace

std::string make_identity() {
    std::string digits;
    base::append_hex(digits, base::random_bits());
    base::append_hex(digits, base::random_bits());
    return digits;
}

bool is_identity(std::string_view text) {
    return text.size() == kIdentityDigits &&
           text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string record_name(std::string_view identity) {
    return fmt::format("{}-{}", kIdentityName, identity);
}

std::string render(const StoreIdentity& identity) {
    std::string out(kIdentityHead);
    out += fmt::format("identity {}\n", identity.identity);
    for (const std::string& before : identity.before) {
        out += fmt::format("before {}\n", before);
    }
    const FilePlace& place = identity.place;
    out += fmt::format("place {} {} {} {:016x}\n", place.inode, place.device.major,
                       place.device.minor, place.path_hash);
    for (const RecordWords& words : identity.records) {
        out += fmt::format("record {:016x} {:016x}\n", words.last, words.next);
    }
    return with_sum(std::move(out));
}

std::string render(const FolderRecord& record) {
    return with_sum(fmt::format("{}identity {}\ngeneration {}\nword {:016x}\n", kRecordHead,
                                record.identity, record.generation, record.word));
}

std::optional<StoreIdentity> parse_identity(std::string_view text) {
    auto lines = lines_of(text, kIdentityHead);
    StoreIdentity out;
    bool good = lines.has_value();
    bool has_place = false;
    while (good && !lines->empty()) {
        const std::string_view key = take_word(*lines);
        if (key == "identity" && out.identity.empty()) {
            good = take_identity(*lines, out.identity);
        } else if (key == "before") {
            good = take_identity(*lines, out.before.emplace_back());
        } else if (key == "place" && !has_place) {
            FilePlace& place = out.place;
            has_place = good =
                take_number(*lines, place.inode) && take_number(*lines, place.device.major) &&
                take_number(*lines, place.device.minor) && take_hex(*lines, place.path_hash);
        } else if (key == "record") {
            RecordWords& words = out.records.emplace_back();
            good = take_hex(*lines, words.last) && take_hex(*lines, words.next);
        } else {
            good = false;
        }
    }
    return good && !out.identity.empty() && has_place ? std::optional(std::move(out))
                                                      : std::nullopt;
}

std::optional<FolderRecord> parse_record(std::string_view text) {
    auto lines = lines_of(text, kRecordHead);
    FolderRecord out;
    const bool good = lines && take_word(*lines) == "identity" &&
                      take_identity(*lines, out.identity) && take_word(*lines) == "generation" &&
                      take_number(*lines, out.generation) && take_word(*lines) == "word" &&
                      take_hex(*lines, out.word) && lines->empty();
    return good ? std::optional(std::move(out)) : std::nullopt;
}

}  // namespace penstock::store
