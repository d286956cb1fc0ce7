// SPDX-License-Identifier: Apache-2.0
// An open .pt, .npz, .safetensors or index with its shards, recognised by content; what it says of
// its tensors; and their bytes, read at the speed of the device and checked. All that read tensors
// of files do so through it.
//
//   item   bytes that lie together in a file: a storage of a .pt, a tensor of a .safetensors. After
//   an
//          update that did not come to its end they may lie in its log (update/find_update.hpp)
//   part   the bytes of an item that are wanted
#pragma once

#include "state/index/index_shards.hpp"
#include "state/subtree.hpp"
#include "state/sum_table.hpp"
#include "state/tensor_file.hpp"
#include "stream/file_reader.hpp"

#include <penstock/engine.hpp>
#include <penstock/file.hpp>
#include <penstock/types.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::state {

/// Thread-safe.
class TensorReader {
public:
    struct Item {
        std::uint32_t file = 0;    ///< that has its bytes
        std::uint64_t offset = 0;  ///< from where the file begins
        std::uint64_t bytes = 0;
        std::uint32_t crc = 0;           ///< of all of it; 0: not known
        std::size_t place = 0;           ///< in the header of a .safetensors
        std::uint8_t swap_unit = 0;      ///< of a big-endian .pt: bytes that are turned together
        std::uint32_t described_by = 0;  ///< the file that has its header
    };
    struct ItemRange {
        std::size_t item = 0;
        std::uint64_t begin = 0;
        std::uint64_t bytes = 0;
    };
    /// A tensor as inspect() has it.
    struct Seen {
        std::string name;
        std::string_view type;  ///< torch's name in a .pt ("float32"), else safetensors' ("F32")
        std::vector<std::uint64_t> shape;
        std::uint64_t offset = 0;  ///< of the first element, in the file
        std::uint64_t bytes = 0;   ///< of its elements
        std::string_view shard;    ///< the path of the file, where that is not the one given
    };

    /// By its path; one that ends in .json is an index. `choose`, `hold_all`: see open_index(); of
    /// a .pt all is there in any case. Throws Error: kDamaged, and what the system refuses.
    TensorReader(std::shared_ptr<Engine> engine, const FileSystem& files, const std::string& path,
                 const Choose& choose, bool hold_all = false);
    /// A file that is open, from byte `begin` on. `path`: for messages; where it `is_named` so, an
    /// index finds its shards by it.
    TensorReader(std::shared_ptr<Engine> engine, const File& file, const std::string& path,
                 bool is_named, std::uint64_t begin, const Choose& choose);
    /// Bytes in memory, which outlive this.
    TensorReader(std::span<const std::byte> bytes, const std::string& path, const Choose& choose);

    /// The content of a .pt; else nullptr.
    [[nodiscard]] const format::torch_file::File* torch_file() const;
    /// Makes a part of its state all that a .pt has.
    void keep_only(Subtree part);
    /// Gives the tensors of a .pt a type: see set_types() in subtree.hpp. Of another: nothing.
    std::vector<std::optional<ElementType>> set_types(ElementType to);
    [[nodiscard]] bool is_index() const { return index_.has_value(); }
    /// The one given, or the shards of an index; then the logs of updates that have items.
    [[nodiscard]] std::size_t files() const { return data_.size(); }
    /// Those of them that are no logs.
    [[nodiscard]] std::size_t headers() const { return headers_; }
    /// For people: of logs that are left alone and, with `all`, of updates that did not come to
    /// their end; or empty.
    [[nodiscard]] std::string note(bool all) const;
    [[nodiscard]] const TensorFile& file(std::size_t number) const { return data_[number].file; }
    /// Nothing if the file has no checksums of ours. Throws Error: kDamaged where they do not match
    /// the header.
    [[nodiscard]] const std::optional<SumTable>& sums(std::size_t file) const;
    /// Offset of the first byte in the file.
    [[nodiscard]] std::uint64_t begin() const { return begin_; }
    [[nodiscard]] const std::vector<Item>& items() const { return items_; }
    /// Not of a .pt: what the header says of an item.
    [[nodiscard]] const format::safetensors::Tensor& tensor(std::size_t item) const;
    [[nodiscard]] std::vector<Seen> tensors() const;
    /// The path of the shard or log that has an item; empty: the one file that was given.
    [[nodiscard]] std::string_view shard(std::size_t item) const {
        const bool is_there = !index_ && items_[item].file == 0;
        return is_there ? std::string_view() : file(items_[item].file).path;
    }

    /// Its numbers are big-endian in the file; read() turns them.
    [[nodiscard]] bool is_swapped() const {
        return torch_file() != nullptr && torch_file()->big_endian;
    }
    /// The part to read so that the one given can be checked.
    [[nodiscard]] ItemRange checkable(const ItemRange& part) const;
    /// into[i] has parts[i].bytes of the host or of a GPU. Throws Error: kDamaged, naming the
    /// tensor, for a checksum that is wrong; for a file that is written to meanwhile.
    void read(std::span<const ItemRange> parts, std::span<const Memory> into,
              const stream::ReadFileOptions& options, const Progress& progress) const;
    /// False: the index was saved again, and its shards were not kept open (they were too many), or
    /// the caller opened them `by_name`: what was read may be of several saves.
    [[nodiscard]] bool is_still(bool by_name) const;

private:
    struct Data {
        explicit Data(TensorFile its) : file(std::move(its)) {}
        TensorFile file;
        std::optional<FileStatus> status;
        mutable std::mutex mutex;  // of what follows
        mutable bool is_parsed = false;
        mutable std::optional<SumTable> sums;
    };
    void take(TensorFile file, bool is_named, const Choose& choose, bool hold_all = false);
    void read_as_is(std::span<const ItemRange> parts, std::span<const Memory> into,
                    const stream::ReadFileOptions& options, const Progress& progress) const;
    void take_updates();
    [[nodiscard]] stream::Wanted wanted_of(const ItemRange& part, const Memory& into,
                                           bool verify) const;
    [[nodiscard]] std::optional<stream::WrongSum> read_file(const TensorFile& from,
                                                            std::span<const stream::Wanted> wanted,
                                                            const stream::ReadFileOptions& options,
                                                            const Progress& progress) const;
    [[nodiscard]] std::optional<FileStatus> status_of(const TensorFile& file) const;
    void check_unchanged(const Data& data) const;
    [[nodiscard]] std::string name_of(std::size_t item) const;

    std::shared_ptr<Engine> engine_;  // nullptr: in memory
    FileSystem files_ = FileSystem::any();
    std::span<const std::byte> bytes_;
    std::uint64_t begin_ = 0;
    std::optional<IndexShards> index_;  // but for its shards
    std::deque<Data> data_;
    std::size_t headers_ = 0;
    std::vector<Item> items_;
};

}  // namespace penstock::state
