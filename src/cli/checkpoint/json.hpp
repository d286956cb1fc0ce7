// SPDX-License-Identifier: Apache-2.0
// The --json output of the checkpoint commands. Sizes in bytes, times in nanoseconds since 1970.
#pragma once

#include "base/path.hpp"
#include "state/source.hpp"
#include "store/manifest/metadata.hpp"

#include <penstock/checkpoint.hpp>

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <variant>

namespace penstock::cli {

inline nlohmann::ordered_json words_of(std::span<const std::string> command) {
    nlohmann::ordered_json words = nlohmann::ordered_json::array({"penstock"});
    for (const std::string& word : command) {
        words.push_back(word);
    }
    return words;
}

/// Without its folder.
inline std::string file_name_of(const state::Source& source, const TensorEntry& tensor) {
    return std::string(base::last_name(source.path_of(tensor)));
}

/// As a manifest has it: ["nan"], for JSON has no such number.
inline nlohmann::ordered_json json_of(const CheckpointMetadata& metadata) {
    nlohmann::ordered_json out = nlohmann::ordered_json::object();
    for (const auto& [name, value] : metadata) {
        const auto* const text = std::get_if<std::string>(&value);
        out[name] = text != nullptr ? nlohmann::ordered_json(*text)
                                    : nlohmann::ordered_json::parse(store::number_json(value));
    }
    return out;
}

inline nlohmann::ordered_json json_of(const CheckpointInfo& info) {
    return {{"path", info.path},
            {"generation", info.generation},
            {"step", info.step},
            {"saved_unix_ns", info.saved_unix_ns},
            {"tensors", info.tensors},
            {"tensor_bytes", info.tensor_bytes},
            {"written_bytes", info.written_bytes},
            {"shards", info.shards},
            {"linked_shards", info.linked_shards},
            {"pinned", info.pinned},
            {"metadata", json_of(info.metadata)},
            {"problem", info.problem}};
}

inline nlohmann::ordered_json json_of(const state::Source& source, const TensorEntry& t) {
    return {{"name", t.name},
            {"dtype", t.dtype},
            {"shape", t.shape},
            {"bytes", t.bytes},
            {"file", file_name_of(source, t)},
            {"offset", t.stretches[0].offset}};
}

inline nlohmann::ordered_json json_of(const CheckpointProblem& problem) {
    nlohmann::ordered_json out{
        {"path", problem.path}, {"tensor", problem.tensor}, {"message", problem.message}};
    if (problem.offset != kNoOffset) {
        out["offset"] = problem.offset;
    }
    return out;
}

}  // namespace penstock::cli
