// SPDX-License-Identifier: Apache-2.0
#include "state/update/update_plan.hpp"

#include "base/raise.hpp"
#include "base/text/near.hpp"
#include "format/fault.hpp"
#include "format/torch_types.hpp"
#include "format/zip/zip.hpp"
#include "state/state_views.hpp"
#include "stream/file_bytes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace penstock::state {

namespace {

using format::TensorValue;
using format::safetensors::Header;

constexpr std::string_view kPlanUpdate = "update";
constexpr std::uint64_t kDigitsOfSum = 16;

// A tensor as the file has it.
struct Stored {
    std::size_t item = 0;
    std::string_view dtype;
    std::vector<std::uint64_t> shape;
    const TensorValue* view = nullptr;             // of a .pt
    const format::zip::Record* storage = nullptr;  // likewise
    bool is_shared = false;
    bool is_ambiguous = false;
};
using StoredByName = std::unordered_map<std::string, Stored>;

// Whether its elements are all of a storage, each of them once, in whatever order.
bool covers(const TensorValue& t, std::uint64_t storage_bytes) {
    if (t.offset != 0 || view_bytes(t) != storage_bytes) {
        return false;
    }
    std::vector<std::size_t> order;
    for (std::size_t d = 0; d < t.shape.size(); ++d) {
        if (t.shape[d] != 1) {
            order.push_back(d);
        }
    }
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return t.strides[a] < t.strides[b]; });
    std::uint64_t packed = 1;
    return std::all_of(order.begin(), order.end(), [&](std::size_t d) {
        const bool is_next = t.strides[d] == packed;
        packed *= t.shape[d];
        return is_next;
    });
}

// Whether `t` is a Parameter, and `inner` the tensor that it was made from, which is no value of
// the state itself.
bool is_made_from(const TensorValue& t, const TensorValue& inner) {
    return t.parameter && !inner.parameter && inner.storage == t.storage && inner.type == t.type &&
           inner.offset == t.offset && inner.shape == t.shape && inner.strides == t.strides;
}

// The tensors of a .pt. The item is the number of the storage.
StoredByName stored_in(const format::torch_file::File& file) {
    const format::ValueTree& tree = file.tree;
    std::vector<std::size_t> users(tree.storages.size(), 0);
    for (const TensorValue& t : tree.tensors) {
        ++users[t.storage];
    }
    const std::vector<StateView> views = views_of(tree);
    std::vector<std::size_t> names(tree.tensors.size(), 0);
    for (const StateView& view : views) {
        ++names[view.tensor];
    }
    for (std::size_t i = 1; i < tree.tensors.size(); ++i) {
        const TensorValue& t = tree.tensors[i];
        if (names[i - 1] == 0 && is_made_from(t, tree.tensors[i - 1])) {
            --users[t.storage];
        }
    }
    StoredByName out;
    for (const StateView& view : views) {
        const TensorValue& t = tree.tensors[view.tensor];
        Stored stored{
            t.storage, tensor::row_of(t.type).name, t.shape,
            &t,        &file.storages[t.storage],   users[t.storage] > 1 || names[view.tensor] > 1};
        if (t.type == tensor::ElementType::kF4E2M1 && !stored.shape.empty()) {
            stored.shape.back() *= 2;  // torch counts pairs
        }
        const auto [known, is_new] = out.emplace(view.name, stored);
        known->second.is_ambiguous = !is_new;
    }
    return out;
}

class Planner {
public:
    Planner(Engine& engine, const TensorReader& reader, const std::string& path,
            std::span<const StateTensor> tensors)
        : engine_(engine), reader_(reader), path_(path) {
        if (reader_.is_swapped()) {
            refuse("a big-endian machine saved it; save what load() gives, and update that",
                   ErrorCode::kUnsupported);
        }
        const auto* const torch = reader_.torch_file();
        if (torch != nullptr && torch->form == format::torch_file::Form::kNpz) {
            refuse(
                "it is a .npz, which is only read; save what load() gives as .safetensors, and "
                "update that",
                ErrorCode::kUnsupported);
        }
        if (torch != nullptr) {
            stored_ = stored_in(*torch);
            return;
        }
        for (std::size_t i = 0; i < reader_.items().size(); ++i) {
            const format::safetensors::Tensor& t = reader_.tensor(i);
            stored_.emplace(t.name, Stored{i, format::safetensors::name_of(t.type), t.shape});
        }
        for (const StateTensor& given : tensors) {
            const auto found = stored_.find(given.name);
            if (found != stored_.end()) {
                take_shard(reader_.items()[found->second.item].described_by);
            }
        }
    }

    std::vector<PlannedFile> run(std::span<const StateTensor> tensors) {
        std::unordered_set<std::string_view> names;
        std::map<std::uint32_t, PlannedFile> files;
        for (const StateTensor& given : tensors) {
            if (!names.insert(given.name).second) {
                refuse(fmt::format("tensor {} is given twice", format::shown(given.name)));
            }
            const Stored& stored = find(given);
            const TensorReader::Item& item = reader_.items()[stored.item];
            if (item.bytes != 0) {
                files[item.described_by].tensors.push_back(plan(given, stored));
            }
        }
        std::vector<PlannedFile> out;
        for (auto& [number, file] : files) {
            file.number = number;
            std::sort(file.tensors.begin(), file.tensors.end(),
                      [](const auto& a, const auto& b) { return a.offset < b.offset; });
            add_surroundings(file);
            out.push_back(std::move(file));
        }
        return out;
    }

private:
    [[noreturn]] void refuse(const std::string& why,
                             ErrorCode code = ErrorCode::kInvalidArgument) const {
        base::raise(base::error(code, kPlanUpdate, why + "; nothing was written", path_));
    }

    // A shard of torch.save has CRCs, and tensors that share memory, of which the header that was
    // made for it says nothing.
    void take_shard(std::uint32_t number) {
        const TensorFile& shard = reader_.file(number);
        if (!shard.is_header_made || shards_.contains(number)) {
            return;
        }
        stream::FileBytes bytes(engine_, shard.file);
        FileContent content = read_content(bytes, shard.path);
        auto* const torch = std::get_if<format::torch_file::File>(&content);
        if (torch == nullptr || shard.update) {
            refuse("it was saved again just then; update it when that is over",
                   ErrorCode::kChanged);
        }
        const auto& kept = *shards_.emplace(number, std::move(*torch)).first;
        const StoredByName inside = stored_in(kept.second);
        for (std::size_t i = 0; i < reader_.items().size(); ++i) {
            if (reader_.items()[i].described_by != number) {
                continue;
            }
            const std::string& name = reader_.tensor(i).name;
            const auto found = inside.find(name);
            if (found == inside.end()) {
                refuse("it was saved again just then; update it when that is over",
                       ErrorCode::kChanged);
            }
            stored_.at(name) = found->second;
            stored_.at(name).item = i;
        }
    }

    // The .pt that a file is, or nullptr.
    [[nodiscard]] const format::torch_file::File* torch_of(std::uint32_t number) const {
        const auto found = shards_.find(number);
        return found != shards_.end() ? &found->second : reader_.torch_file();
    }

    const Stored& find(const StateTensor& given) const {
        const auto found = stored_.find(given.name);
        const std::string name = format::shown(given.name);
        if (found == stored_.end()) {
            std::vector<std::string_view> names;
            for (const auto& entry : stored_) {
                names.push_back(entry.first);
            }
            throw UnknownTensor(
                ErrorCode::kInvalidArgument, 0, std::string(kPlanUpdate), path_, kNoOffset,
                fmt::format("update: '{}': it has no tensor {}; inspect() lists its "
                            "{}. Nothing was written",
                            path_, name, names.size()));
        }
        const Stored& stored = found->second;
        if (stored.is_ambiguous) {
            refuse(fmt::format("two tensors have the name {}", name));
        }
        if (given.dtype != stored.dtype || given.shape != stored.shape) {
            refuse(
                fmt::format("tensor {} is {} [{}] in the file, and {} [{}] was given; an update "
                            "keeps type and shape",
                            name, stored.dtype, fmt::join(stored.shape, ", "), given.dtype,
                            fmt::join(given.shape, ", ")));
        }
        if (stored.is_shared) {
            refuse(
                fmt::format("tensor {} shares its memory with others of the state, which would "
                            "change with it; save the state instead",
                            name));
        }
        return stored;
    }

    PlannedTensor plan(const StateTensor& given, const Stored& stored) {
        const TensorReader::Item& item = reader_.items()[stored.item];
        PlannedTensor out{.given = &given, .offset = item.offset, .bytes = item.bytes};
        if (stored.view != nullptr) {
            const TensorValue& t = *stored.view;
            const std::string name = format::shown(given.name);
            if (t.conjugated || t.negated || !covers(t, stored.storage->bytes)) {
                refuse(fmt::format("tensor {} is a view of a part of its storage, or conjugated or "
                                   "negated; save the state instead",
                                   name),
                       ErrorCode::kUnsupported);
            }
            if (!is_plain(t)) {
                out.strided = &t;
            }
            plan_crcs(item.described_by, *stored.storage, out);
        } else {
            plan_digits(item, out);
        }
        if (given.data.bytes != item.bytes) {
            refuse(fmt::format("tensor {}: got {} bytes, and its type and shape have {}",
                               format::shown(given.name), given.data.bytes, item.bytes));
        }
        return out;
    }

    void plan_crcs(std::uint32_t number, const format::zip::Record& storage, PlannedTensor& out) {
        if (torch_of(number)->form != format::torch_file::Form::kZip) {
            return;
        }
        stream::FileBytes bytes(engine_, reader_.file(number).file);
        auto places = format::zip::crc_places(bytes, storage);
        if (!places) {
            refuse(places.error().message, ErrorCode::kDamaged);
        }
        out.crc_places = std::move(*places);
    }

    void plan_digits(const TensorReader::Item& item, PlannedTensor& out) {
        const auto& table = reader_.sums(item.described_by);
        if (!table) {
            return;
        }
        out.piece_bytes = table->piece_bytes;
        out.digits_at = digits_of(item.described_by) + table->first[item.place] * kDigitsOfSum;
    }

    // Finds the digits of the table: its text is once in the header, as it is.
    std::uint64_t digits_of(std::uint32_t number) {
        const auto [known, is_new] = digits_.try_emplace(number, 0);
        if (!is_new) {
            return known->second;
        }
        const auto& header = std::get<Header>(reader_.file(number).content);
        const auto table =
            std::find_if(header.metadata.begin(), header.metadata.end(),
                         [](const auto& entry) { return entry.first == kSumTableKey; });
        std::string text(header.data_begin, '\0');
        stream::FileBytes bytes(engine_, reader_.file(number).file);
        base::unwrap(bytes.read(0, std::as_writable_bytes(std::span(text))));
        const std::size_t at = text.find(table->second);
        if (at == std::string::npos || text.find(table->second, at + 1) != std::string::npos) {
            refuse(fmt::format("the table of checksums in '{}' is written in another way than "
                               "Penstock's, and cannot be changed in place",
                               reader_.file(number).path),
                   ErrorCode::kUnsupported);
        }
        const std::size_t digits = reader_.sums(number)->sums.size() * kDigitsOfSum;
        return known->second = at + table->second.size() - digits;
    }

    void add_surroundings(PlannedFile& file) const {
        std::unordered_set<std::uint64_t> changed;
        for (const PlannedTensor& one : file.tensors) {
            changed.insert(one.offset);
        }
        file.head_end = UINT64_MAX;
        const auto add = [&](std::uint64_t offset, std::uint64_t bytes) {
            if (bytes == 0) {
                return;
            }
            file.head_end = std::min(file.head_end, offset);
            file.tail_begin = std::max(file.tail_begin, offset + bytes);
            if (!changed.contains(offset)) {
                file.others.emplace_back(offset, bytes);
            }
        };
        if (const auto* const torch = torch_of(file.number)) {
            for (const format::zip::Record& storage : torch->storages) {
                add(storage.offset, storage.bytes);
            }
            return;
        }
        const auto& header = std::get<Header>(reader_.file(file.number).content);
        for (const format::safetensors::Tensor& t : header.tensors) {
            add(header.data_begin + t.begin, t.end - t.begin);
        }
    }

    Engine& engine_;
    const TensorReader& reader_;
    const std::string& path_;
    std::map<std::uint32_t, format::torch_file::File> shards_;  // of torch.save, by their numbers
    StoredByName stored_;
    std::unordered_map<std::uint32_t, std::uint64_t> digits_;  // of a file
};

}  // namespace

std::vector<PlannedFile> plan_update(Engine& engine, const TensorReader& reader,
                                     const std::string& path,
                                     std::span<const StateTensor> tensors) {
    return Planner(engine, reader, path, tensors).run(tensors);
}

}  // namespace penstock::state
