// SPDX-License-Identifier: Apache-2.0
#include "state/streamed/arrivals.hpp"

#include "base/raise.hpp"
#include "format/fault.hpp"
#include "state/writing/state_image.hpp"
#include "stream/checksum.hpp"

#include <penstock/gpu.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace penstock::state {

namespace {

constexpr const char* kStreamed = "save";

std::string look_of(const StateTensor& tensor) {
    return fmt::format("[{}] of {}", fmt::join(tensor.shape, ", "), tensor.dtype);
}

}  // namespace

Arrivals::Arrivals(const TensorStream& stream, const SaveFileOptions& options, bool for_torch,
                   const std::string& path)
    : stream_(stream), options_(options), for_torch_(for_torch), path_(path) {
    if (!stream.next) {
        base::raise(base::error(ErrorCode::kInvalidArgument, kStreamed,
                                "the stream has no function that gives tensors", path));
    }
    for (std::size_t i = 0; stream.like && i < stream.like->size(); ++i) {
        const StateTensor& tensor = (*stream.like)[i];
        if (!known_.emplace(tensor.name, i).second) {
            refuse_tensor(tensor, kStreamed, "it comes twice in the list of what will come");
        }
    }
}

std::optional<Arrivals::Arrival> Arrivals::next() {
    std::optional<StateTensor> given = stream_.next();
    if (!given) {
        check_end();
        return std::nullopt;
    }
    Arrival arrival{std::move(*given), came_.size()};
    const StateTensor& tensor = arrival.tensor;
    if (!came_.insert(tensor.name).second) {
        refuse_tensor(tensor, kStreamed, "it comes twice; give each name once. Nothing was saved");
    }
    check_tensor(tensor, kStreamed, for_torch_);
    if (!tensor.global_shape.empty() && tensor.global_shape != tensor.shape) {
        refuse_tensor(tensor, kStreamed,
                      "it is a slice of a larger one; a file holds whole tensors");
    }
    if (stream_.like) {
        check_like(arrival);
    }
    wait_for_streams({&tensor, 1}, options_.streams);
    return arrival;
}

void Arrivals::check_like(Arrival& arrival) {
    const StateTensor& tensor = arrival.tensor;
    const auto found = known_.find(tensor.name);
    if (found == known_.end()) {
        refuse_tensor(tensor, kStreamed,
                      "it is not among the tensors that were announced (like). Nothing was saved");
    }
    arrival.number = found->second;
    const StateTensor& announced = (*stream_.like)[arrival.number];
    if (tensor.dtype != announced.dtype || tensor.shape != announced.shape) {
        refuse_tensor(tensor, kStreamed,
                      fmt::format("it is {}, and {} was announced (like). Nothing was saved",
                                  look_of(tensor), look_of(announced)));
    }
    known_.erase(found);
}

void Arrivals::check_end() const {
    if (known_.empty()) {
        return;
    }
    std::size_t first = SIZE_MAX;
    for (const auto& [name, number] : known_) {
        first = std::min(first, number);
    }
    refuse_tensor(
        (*stream_.like)[first], kStreamed,
        fmt::format(
            "it was announced (like), and the stream ended without it{}. Nothing "
            "was saved",
            known_.size() == 1 ? std::string() : fmt::format(" and {} others", known_.size() - 1)));
}

std::vector<std::uint64_t> Arrivals::write(stream::StagedWriter& writer, std::uint64_t offset,
                                           const StateTensor& tensor,
                                           const stream::PieceSums& sums) {
    stream::PieceSums made = sums;
    if (!made.hash && options_.changing == Changing::kFails) {
        made.hash = stream::content_hash;
    }
    std::vector<std::uint64_t> out = writer.write(offset, tensor.data, made);
    look_again(tensor, made, out);
    return out;
}

void Arrivals::copy(const StateTensor& tensor, std::byte* to) {
    const Memory copy(to, tensor.data.bytes);
    if (tensor.data.kind != MemoryKind::kHost) {
        const MemoryCopy one{copy, tensor.data};
        copy_memory({&one, 1}, options_.streams);
        return;
    }
    std::copy_n(tensor.data.data, tensor.data.bytes, to);
    check_copy(tensor, copy.span());
}

void Arrivals::check_copy(const StateTensor& tensor, std::span<const std::byte> copy) {
    if (looks_again(tensor)) {
        look_again(tensor, {tensor.data.bytes, stream::content_hash}, {stream::content_hash(copy)});
    }
}

bool Arrivals::looks_again(const StateTensor& tensor) const {
    return options_.changing == Changing::kFails && !tensor.is_copy &&
           tensor.data.kind == MemoryKind::kHost && tensor.data.bytes != 0;
}

// A tensor that was copied in pieces, while something else changed it, may be half old, half new.
void Arrivals::look_again(const StateTensor& tensor, const stream::PieceSums& sums,
                          const std::vector<std::uint64_t>& before) {
    if (!looks_again(tensor)) {
        return;
    }
    std::uint64_t at = 0;
    for (const std::uint64_t sum : before) {
        const std::uint64_t count = std::min(sums.piece_bytes, tensor.data.bytes - at);
        if (sums.hash(tensor.data.span().subspan(at, count)) != sum) {
            base::raise(base::error(
                ErrorCode::kChanged, kStreamed,
                fmt::format("tensor {}: it changed while it was copied, so nothing was saved. Let "
                            "nothing change a tensor before the next one is asked for, or save "
                            "what is found, torn, with changing=\"torn\" (C++: Changing::kTorn)",
                            format::shown(tensor.name)),
                path_));
        }
        at += count;
    }
}

}  // namespace penstock::state
