// SPDX-License-Identifier: Apache-2.0
// States for tests of the store, and a look at what it left that trusts nothing but the bytes: each
// shard as a plain safetensors file, each sum computed again.
#pragma once

#include "store/manifest/manifest.hpp"

#include <penstock/checkpoint.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::test {

/// A structure in which the state is None.
inline constexpr std::string_view kNoValues =
    R"({"penstock_structure":1,"values":[null],"tensors":[],"storages":[]})";

/// Tensors with memory of their own.
class Tensors {
public:
    /// F32 tensors "t000", "t001", ... of `counts[i]` elements.
    Tensors(const std::vector<std::uint64_t>& counts, std::uint64_t seed);

    [[nodiscard]] State state() const;
    /// New contents.
    void change(std::size_t tensor, std::uint64_t seed);
    [[nodiscard]] std::size_t size() const { return data_.size(); }
    [[nodiscard]] const std::vector<std::byte>& data(std::size_t tensor) const {
        return data_[tensor];
    }
    [[nodiscard]] static std::string name(std::size_t tensor);
    [[nodiscard]] std::uint64_t bytes() const;

private:
    std::vector<std::vector<std::byte>> data_;
};

[[nodiscard]] std::vector<std::byte> read_whole(Engine& engine, const FileSystem& files,
                                                const std::string& path);

/// All tensors of a checkpoint folder, by the names that its index has for them. Records a failure
/// of the test, and says false, where a shard is no sound safetensors file, the index names what is
/// not there, or a sum of the manifest does not fit.
[[nodiscard]] bool look_at(Engine& engine, const FileSystem& files, const std::string& checkpoint,
                           std::map<std::string, std::vector<std::byte>>& tensors);

/// look_at(), and the tensors are these.
void expect_holds(Engine& engine, const FileSystem& files, const std::string& checkpoint,
                  const Tensors& tensors);

}  // namespace penstock::test
