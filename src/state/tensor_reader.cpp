// SPDX-License-Identifier: Apache-2.0
#include "state/tensor_reader.hpp"

#include "base/assert.hpp"
#include "base/raise.hpp"
#include "format/fault.hpp"
#include "format/torch_types.hpp"
#include "state/state_views.hpp"
#include "stream/file_bytes.hpp"
#include "stream/progress_clock.hpp"

#include <penstock/gpu.hpp>
#include <penstock/memory.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace penstock::state {

namespace {

using format::safetensors::Header;
using format::safetensors::Tensor;

[[noreturn]] void damaged(const std::string& path, std::uint64_t offset,
                          const std::string& message) {
    throw Error(ErrorCode::kDamaged, 0, "load", path, offset,
                fmt::format("load: '{}': {}", path, message));
}

std::vector<std::size_t> chosen_of(const Header& header, const Choose& choose) {
    std::vector<std::string_view> names;
    for (const Tensor& t : header.tensors) {
        names.push_back(t.name);
    }
    if (choose) {
        return choose(names);
    }
    std::vector<std::size_t> all(names.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    return all;
}

TensorFile index_at(Engine& engine, const FileSystem& files, const std::string& path) {
    TensorFile out{files.open(path), path, {}};
    stream::FileBytes bytes(engine, out.file);
    out.content = read_index(bytes, path);
    return out;
}

}  // namespace

TensorReader::TensorReader(std::shared_ptr<Engine> engine, const FileSystem& files,
                           const std::string& path, const Choose& choose, bool hold_all)
    : engine_(std::move(engine)), files_(files) {
    take(path.ends_with(".json") ? index_at(*engine_, files, path)
                                 : open_tensor_file(*engine_, files, path),
         true, choose, hold_all);
}

TensorReader::TensorReader(std::shared_ptr<Engine> engine, const File& file,
                           const std::string& path, bool is_named, std::uint64_t begin,
                           const Choose& choose)
    : engine_(std::move(engine)), begin_(begin) {
    take(read_tensor_file(*engine_, file, path, is_named ? path : std::string(), begin), is_named,
         choose);
}

TensorReader::TensorReader(std::span<const std::byte> bytes, const std::string& path,
                           const Choose& choose)
    : bytes_(bytes) {
    format::MemorySource source(bytes);
    take({{}, path, read_content(source, path)}, false, choose);
}

void TensorReader::take(TensorFile file, bool is_named, const Choose& choose, bool hold_all) {
    if (std::holds_alternative<format::ShardIndex>(file.content)) {
        if (!is_named) {
            throw Error(ErrorCode::kUnsupported, 0, "load", file.path, kNoOffset,
                        fmt::format("load: '{}': this is JSON, an index of shards: give its path",
                                    file.path));
        }
        index_ = open_index(*engine_, files_, std::move(file), choose, hold_all);
        for (TensorFile& shard : index_->shards) {
            data_.emplace_back(std::move(shard));
        }
    } else {
        data_.emplace_back(std::move(file));
    }
    for (Data& data : data_) {
        data.status = data.file.status ? data.file.status : status_of(data.file);
    }
    headers_ = data_.size();
    const auto add = [this](std::uint32_t number, std::size_t place) {
        const auto& header = std::get<Header>(data_[number].file.content);
        const Tensor& t = header.tensors[place];
        items_.push_back({.file = number,
                          .offset = header.data_begin + t.begin,
                          .bytes = t.end - t.begin,
                          .place = place,
                          .described_by = number});
    };
    if (index_) {
        for (const IndexShards::Tensor& tensor : index_->tensors) {
            add(tensor.shard, tensor.place);
            items_.back().crc = tensor.crc;
        }
    } else if (const auto* const torch = torch_file()) {
        for (const format::zip::Record& storage : torch->storages) {
            items_.push_back(
                {.offset = storage.offset, .bytes = storage.bytes, .crc = storage.crc});
            if (torch->big_endian) {
                items_.back().swap_unit = torch->swap_units[items_.size() - 1];
            }
        }
    } else {
        for (const std::size_t place : chosen_of(std::get<Header>(data_[0].file.content), choose)) {
            add(0, place);
        }
    }
    take_updates();
}

// The items that an update has new bytes for lie in its log.
void TensorReader::take_updates() {
    std::vector<std::uint32_t> logs(headers_, 0);
    for (std::uint32_t i = 0; i < headers_; ++i) {
        if (const OpenUpdatePtr& update = data_[i].file.update) {
            logs[i] = static_cast<std::uint32_t>(data_.size());
            data_.emplace_back(TensorFile{update->file, update->path});
            data_.back().status = status_of(data_.back().file);
        }
    }
    for (Item& item : items_) {
        const OpenUpdatePtr& update = data_[item.described_by].file.update;
        const auto* const range = update ? update->range(item.offset, item.bytes) : nullptr;
        if (range != nullptr) {
            item.file = logs[item.described_by];
            item.offset = range->at;
        }
    }
}

std::string TensorReader::note(bool all) const {
    std::string out;
    bool is_known = false;
    for (std::size_t i = 0; i < headers_; ++i) {
        const TensorFile& one = data_[i].file;
        std::string note = one.note;
        if (one.update && (all || (one.is_interrupted && !is_known))) {
            note = fmt::format(
                "an update of '{}' did not come to its end: its new tensors are read from '{}'. "
                "update() of no tensors finishes it. If the file was restored from a copy since, "
                "or another program saved it, remove that log",
                one.path, one.update->path);
            is_known = true;
        }
        out += (out.empty() || note.empty() ? "" : "; ") + note;
    }
    return out;
}

const format::torch_file::File* TensorReader::torch_file() const {
    return index_ ? nullptr : std::get_if<format::torch_file::File>(&file(0).content);
}

void TensorReader::keep_only(Subtree part) {
    auto& torch = std::get<format::torch_file::File>(data_[0].file.content);
    std::vector<format::zip::Record> records;
    std::vector<Item> items;
    for (const std::uint32_t storage : part.storages) {
        records.push_back(std::move(torch.storages[storage]));
        items.push_back(items_[storage]);
    }
    torch.tree = std::move(part.tree);
    torch.storages = std::move(records);
    items_ = std::move(items);
}

std::vector<std::optional<ElementType>> TensorReader::set_types(ElementType to) {
    if (torch_file() == nullptr) {
        return {};
    }
    return state::set_types(std::get<format::torch_file::File>(data_[0].file.content).tree, to);
}

const Tensor& TensorReader::tensor(std::size_t item) const {
    const Item& its = items_[item];
    return std::get<Header>(file(its.described_by).content).tensors[its.place];
}

// Not std::call_once(): an exception that leaves its call passes through the C library, which takes
// memory to let the first one pass, and ends the process if it gets none.
const std::optional<SumTable>& TensorReader::sums(std::size_t file) const {
    const Data& data = data_[file];
    const std::lock_guard lock(data.mutex);
    if (!data.is_parsed) {
        if (const auto* const header = std::get_if<Header>(&data.file.content)) {
            data.sums = parse_sum_table(*header, data.file.path);
        }
        data.is_parsed = true;
    }
    return data.sums;
}

std::vector<TensorReader::Seen> TensorReader::tensors() const {
    std::vector<Seen> out;
    if (const auto* const torch = torch_file()) {
        for (StateView& view : views_of(torch->tree)) {
            const format::TensorValue& t = torch->tree.tensors[view.tensor];
            const format::TorchType& type = *format::torch_type(t.type);
            out.push_back({std::move(view.name), type.torch, t.shape,
                           begin_ + items_[t.storage].offset + t.offset * type.torch_bytes(),
                           view_bytes(t), ""});
        }
        return out;
    }
    for (std::size_t i = 0; i < items_.size(); ++i) {
        const Tensor& t = tensor(i);
        out.push_back({t.name, format::safetensors::name_of(t.type), t.shape,
                       begin_ + items_[i].offset, items_[i].bytes, shard(i)});
    }
    return out;
}

TensorReader::ItemRange TensorReader::checkable(const ItemRange& part) const {
    const Item& item = items_[part.item];
    const auto& table = sums(item.described_by);
    if (!table || part.bytes == 0) {
        return part;
    }
    const std::uint64_t piece = table->piece_bytes;
    const std::uint64_t begin = part.begin / piece * piece;
    const std::uint64_t pieces = (part.begin + part.bytes - begin + piece - 1) / piece;
    return {part.item, begin, std::min(pieces * piece, item.bytes - begin)};
}

stream::Wanted TensorReader::wanted_of(const ItemRange& part, const Memory& into,
                                       bool verify) const {
    const Item& item = items_[part.item];
    PENSTOCK_ASSERT(part.begin <= item.bytes && part.bytes <= item.bytes - part.begin);
    stream::Wanted out{.offset = part.begin,
                       .into = {into.data, part.bytes, into.kind, into.device}};
    if (verify) {
        out.crc = part.bytes == item.bytes ? item.crc : 0;
        if (const auto& table = sums(item.described_by)) {
            add_sums(out, std::get<Header>(file(item.described_by).content), *table, item.place);
        }
    }
    const OpenUpdatePtr& update = file(item.described_by).update;
    const std::uint64_t end = part.begin + part.bytes;
    if (verify && item.file >= headers_ && out.crc == 0 && out.sums.empty() &&
        part.begin % kUpdatePieceBytes == 0 &&
        (end % kUpdatePieceBytes == 0 || end == item.bytes)) {
        const auto sums = update->sums(*update->range_at(item.offset));
        out.piece_bytes = kUpdatePieceBytes;
        out.sums = sums.subspan(part.begin / kUpdatePieceBytes,
                                (part.bytes + kUpdatePieceBytes - 1) / kUpdatePieceBytes);
    }
    out.offset += item.offset + begin_;
    return out;
}

void TensorReader::read(std::span<const ItemRange> parts, std::span<const Memory> into,
                        const stream::ReadFileOptions& options, const Progress& progress) const {
    if (!is_swapped()) {
        read_as_is(parts, into, options, progress);
        return;
    }
    // Through the host, where the bytes of each number are turned around.
    MemoryPool pool;
    stream::ProgressClock clock(progress, "load", file(0).path);
    clock.set_total(
        std::accumulate(parts.begin(), parts.end(), std::uint64_t{0},
                        [](auto sum, const ItemRange& part) { return sum + part.bytes; }));
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::size_t unit = std::max<std::size_t>(items_[parts[i].item].swap_unit, 1);
        PENSTOCK_ASSERT(parts[i].begin % unit == 0 && parts[i].bytes % unit == 0);
        const Buffer here = pool.take(std::max<std::uint64_t>(parts[i].bytes, 1));
        const std::span<std::byte> bytes = here.bytes().first(parts[i].bytes);
        const Memory memory(bytes);
        read_as_is({&parts[i], 1}, {&memory, 1}, options, {});
        for (std::size_t at = 0; at + unit <= bytes.size(); at += unit) {
            std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                         bytes.begin() + static_cast<std::ptrdiff_t>(at + unit));
        }
        const MemoryCopy copy{into[i], bytes};
        copy_memory({&copy, 1});
        clock.add(parts[i].bytes);
        clock.tick(i + 1 == parts.size());
    }
}

void TensorReader::read_as_is(std::span<const ItemRange> parts, std::span<const Memory> into,
                              const stream::ReadFileOptions& options,
                              const Progress& progress) const {
    std::vector<std::vector<stream::Wanted>> wanted(data_.size());
    std::vector<std::vector<std::size_t>> items(data_.size());
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::uint32_t file = items_[parts[i].item].file;
        wanted[file].push_back(wanted_of(parts[i], into[i], options.verify));
        items[file].push_back(parts[i].item);
        total += parts[i].bytes;
    }
    std::uint64_t before = 0;
    for (std::uint32_t i = 0; i < data_.size(); ++i) {
        if (wanted[i].empty()) {
            continue;
        }
        const auto wrong =
            read_file(file(i), wanted[i], options, [&](std::uint64_t done, std::uint64_t of_file) {
                return !progress || progress(before + done, data_.size() > 1 ? total : of_file);
            });
        check_unchanged(data_[i]);
        if (wrong) {
            damaged(file(i).path, wrong->offset,
                    fmt::format("{}: its {} bytes from {} on have the checksum {:08x}, and the "
                                "file says {:08x}: they were damaged; restore the file from a copy",
                                name_of(items[i][wrong->wanted]), wrong->bytes, wrong->offset,
                                wrong->found, wrong->expected));
        }
        for (const stream::Wanted& one : wanted[i]) {
            before += one.into.bytes;
        }
    }
}

std::optional<stream::WrongSum> TensorReader::read_file(const TensorFile& from,
                                                        std::span<const stream::Wanted> wanted,
                                                        const stream::ReadFileOptions& options,
                                                        const Progress& progress) const {
    if (!engine_) {
        for (const stream::Wanted& one : wanted) {
            const MemoryCopy copy{one.into, bytes_.subspan(one.offset, one.into.bytes)};
            copy_memory({&copy, 1});
        }
        return stream::check_sums(wanted);
    }
    try {
        return stream::read_file(*engine_, from.file.is_open() ? from.file : files_.open(from.path),
                                 wanted, options, progress);
    } catch (const Error& error) {
        if (error.reason() != ErrorCode::kEndOfFile) {
            throw;
        }
        damaged(from.path, kNoOffset, "the file became shorter while it was read");
    }
}

// Nothing where no path leads to the file any more. One that is open is asked itself: its name may
// lead to another by now, and to a third later with the inode of the second.
std::optional<FileStatus> TensorReader::status_of(const TensorFile& file) const {
    if (!engine_) {
        return std::nullopt;
    }
    try {
        return file.file.is_open() ? file.file.status() : files_.status(files_.resolve(file.path));
    } catch (const Error&) {
        return std::nullopt;
    }
}

// Ignores that another file has the name by now.
void TensorReader::check_unchanged(const Data& data) const {
    const std::optional<FileStatus> now = status_of(data.file);
    const std::optional<FileStatus>& before = data.status;
    if (now && before && now->device == before->device && now->inode == before->inode &&
        (now->bytes != before->bytes || now->modified_ns != before->modified_ns)) {
        damaged(data.file.path, kNoOffset,
                "the file was written to while it was read; load it again when that is over");
    }
}

bool TensorReader::is_still(bool by_name) const {
    return !index_ || !(by_name || index_->too_many) || state::is_still(*engine_, files_, *index_);
}

std::string TensorReader::name_of(std::size_t item) const {
    const auto* const torch = torch_file();
    if (torch == nullptr) {
        return "tensor " + format::shown(tensor(item).name);
    }
    for (const StateView& view : views_of(torch->tree)) {
        if (torch->tree.tensors[view.tensor].storage == item) {
            return "tensor " + format::shown(view.name);
        }
    }
    return fmt::format("the storage at {}", begin_ + items_[item].offset);
}

}  // namespace penstock::state
