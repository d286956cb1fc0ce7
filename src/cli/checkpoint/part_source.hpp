// SPDX-License-Identifier: Apache-2.0
// A part of a source, by names in its state: what `convert --names` converts. It is a state of its
// own, as load(names=) gives it, and reads the bytes of the whole.
#pragma once

#include "state/source.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock::cli {

class PartSource final : public state::Source {
public:
    /// One name: that part of the state. Several names, or those of tensors, or patterns: a dict
    /// of them. Throws Error: kInvalidArgument for a name that the state lacks.
    PartSource(state::Source& whole, std::span<const std::string> names);

    void read(std::size_t tensor, std::uint64_t begin, std::uint64_t end,
              std::span<std::byte> into) override;
    void read_tensors(std::span<const state::TensorInto> wanted,
                      const stream::ReadFileOptions& options,
                      const penstock::Progress& progress) override;
    [[nodiscard]] bool checks_reads() const override { return whole_.checks_reads(); }
    [[nodiscard]] state::Verified verify(const penstock::Progress& progress) override {
        return whole_.verify(progress);
    }

private:
    state::Source& whole_;
    struct Origin {
        std::size_t tensor = 0;   // of the whole
        std::uint64_t first = 0;  // byte in it
    };
    std::vector<Origin> places_;  // of each tensor
};

}  // namespace penstock::cli
