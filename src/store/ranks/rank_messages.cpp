// SPDX-License-Identifier: Apache-2.0
#include "store/ranks/rank_messages.hpp"

#include "ranks/message.hpp"

#include <bit>
#include <utility>

namespace penstock::store {

namespace {

using ranks::MessageReader;
using ranks::MessageWriter;

// The number of entries of a list is checked by the reader, which ends before it.
template <typename T, typename Write>
void write_list(MessageWriter& out, const std::vector<T>& list, const Write& write) {
    out.number(list.size());
    for (const T& one : list) {
        write(one);
    }
}

template <typename T, typename Read>
std::vector<T> read_list(MessageReader& in, const Read& read) {
    std::vector<T> list;
    for (std::uint64_t left = in.number(); left > 0; --left) {
        list.push_back(read());
    }
    return list;
}

void write_optional(MessageWriter& out, const std::optional<std::uint64_t>& number) {
    out.number(number ? 1 : 0).number(number.value_or(0));
}

std::optional<std::uint64_t> read_optional(MessageReader& in) {
    const bool is_there = in.number() != 0;
    const std::uint64_t number = in.number();
    return is_there ? std::optional(number) : std::nullopt;
}

}  // namespace

std::string SaveOffer::message() const {
    MessageWriter out;
    out.number(generation).number(step).number(std::bit_cast<std::uint64_t>(saved_unix_ns));
    out.text(store).text(name).text(unfinished);
    const auto text = [&](const std::string& one) { out.text(one); };
    write_list(out, written, text);
    write_list(out, named, text);
    out.text(last).number(last_hash).number(shard_bytes);
    out.number(checksums ? 1 : 0).number(incremental ? 1 : 0);
    out.number(structure).number(tensors).number(contents);
    return out.take();
}

SaveOffer SaveOffer::from(std::string_view message) {
    MessageReader in(message);
    const auto text = [&] { return in.text(); };
    SaveOffer out;
    out.generation = in.number();
    out.step = in.number();
    out.saved_unix_ns = std::bit_cast<std::int64_t>(in.number());
    out.store = in.text();
    out.name = in.text();
    out.unfinished = in.text();
    out.written = read_list<std::string>(in, text);
    out.named = read_list<std::string>(in, text);
    out.last = in.text();
    out.last_hash = in.number();
    out.shard_bytes = in.number();
    out.checksums = in.number() != 0;
    out.incremental = in.number() != 0;
    out.structure = in.number();
    out.tensors = in.number();
    out.contents = in.number();
    in.end();
    return out;
}

std::string SaveState::message() const {
    return MessageWriter()
        .number(step)
        .number(structure)
        .number(tensors)
        .number(contents)
        .number(description)
        .take();
}

SaveState SaveState::from(std::string_view message) {
    MessageReader in(message);
    SaveState out;
    out.step = in.number();
    out.structure = in.number();
    out.tensors = in.number();
    out.contents = in.number();
    out.description = in.number();
    in.end();
    return out;
}

std::string SaveAssigned::message() const {
    return MessageWriter().number(writers).take();
}

SaveAssigned SaveAssigned::from(std::string_view message) {
    MessageReader in(message);
    const SaveAssigned out{.writers = in.number()};
    in.end();
    return out;
}

std::string SaveReady::message() const {
    MessageWriter out;
    write_list(out, bytes, [&](std::uint64_t one) { out.number(one); });
    return out.take();
}

SaveReady SaveReady::from(std::string_view message) {
    MessageReader in(message);
    SaveReady out{.bytes = read_list<std::uint64_t>(in, [&] { return in.number(); })};
    in.end();
    return out;
}

std::string SaveWritten::message() const {
    return MessageWriter().number(share).text(note).take();
}

SaveWritten SaveWritten::from(std::string_view message) {
    MessageReader in(message);
    SaveWritten out;
    out.share = in.number();
    out.note = in.text();
    in.end();
    return out;
}

std::string LoadOffer::message() const {
    MessageWriter out;
    out.text(name).number(manifest);
    write_optional(out, step);
    write_optional(out, generation);
    return out.take();
}

LoadOffer LoadOffer::from(std::string_view message) {
    MessageReader in(message);
    LoadOffer out;
    out.name = in.text();
    out.manifest = in.number();
    out.step = read_optional(in);
    out.generation = read_optional(in);
    in.end();
    return out;
}

std::string LoadVerdict::message() const {
    MessageWriter out;
    out.number(goes_on ? 1 : 0).number(is_loaded ? 1 : 0);
    write_list(out, passed_over, [&](const auto& one) { out.text(one.first).text(one.second); });
    return out.take();
}

LoadVerdict LoadVerdict::from(std::string_view message) {
    MessageReader in(message);
    LoadVerdict out;
    out.goes_on = in.number() != 0;
    out.is_loaded = in.number() != 0;
    out.passed_over = read_list<std::pair<std::string, std::string>>(in, [&] {
        std::string name = in.text();
        return std::pair(std::move(name), in.text());
    });
    in.end();
    return out;
}

std::string verdict_of(const CheckpointInfo& info) {
    return MessageWriter()
        .number(info.generation)
        .number(info.step)
        .number(std::bit_cast<std::uint64_t>(info.saved_unix_ns))
        .number(info.tensors)
        .number(info.tensor_bytes)
        .number(info.written_bytes)
        .number(info.shards)
        .number(info.linked_shards)
        .number(info.ranks)
        .text(info.note)
        .take();
}

CheckpointInfo info_from(std::string_view verdict) {
    MessageReader in(verdict);
    CheckpointInfo info;
    info.generation = in.number();
    info.step = in.number();
    info.saved_unix_ns = std::bit_cast<std::int64_t>(in.number());
    info.tensors = in.number();
    info.tensor_bytes = in.number();
    info.written_bytes = in.number();
    info.shards = static_cast<std::uint32_t>(in.number());
    info.linked_shards = static_cast<std::uint32_t>(in.number());
    info.ranks = static_cast<std::uint32_t>(in.number());
    info.note = in.text();
    in.end();
    return info;
}

}  // namespace penstock::store
