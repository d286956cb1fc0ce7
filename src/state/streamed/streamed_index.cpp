// SPDX-License-Identifier: Apache-2.0
#include "state/streamed/streamed_index.hpp"

#include "base/align.hpp"
#include "base/raise.hpp"
#include "format/json.hpp"
#include "format/safetensors.hpp"
#include "format/utf8.hpp"
#include "state/index/index_writer.hpp"
#include "state/streamed/streamed_file.hpp"
#include "state/sum_table.hpp"
#include "state/writing/file_writer.hpp"
#include "state/writing/state_image.hpp"
#include "stream/checksum.hpp"
#include "stream/progress_clock.hpp"

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace penstock::state {

namespace {

constexpr std::uint64_t kHoldBytes = 8 * base::kMiB;
constexpr std::uint64_t kEvenBytes = 8;  // the largest element
constexpr std::uint64_t kNamesBytesMin = 16 * base::kKiB;
constexpr std::uint64_t kNamesBytesMax = base::kMiB;
constexpr std::uint64_t kNamesOfShard = 64;  // a byte of room for so many of the shard
constexpr std::uint64_t kSummedBytesMax = 64 * base::kGiB;  // that a header has room for, at first
constexpr std::uint64_t kSumDigits = 16;
constexpr std::uint64_t kEntryBytes = 128;  // of a tensor in the header, without name and shape
constexpr std::uint64_t kExtentBytes = 21;
constexpr std::uint64_t kTableBytes = 128;  // of the table of sums, without them

bool is_even(std::uint64_t bytes) {
    return bytes % kEvenBytes == 0;
}

std::uint64_t pieces_of(std::uint64_t bytes, std::uint64_t piece_bytes) {
    return bytes / piece_bytes + (bytes % piece_bytes != 0 ? 1 : 0);
}

// One shard on its way: first in the hold alone, then in its file.
class StreamedShard {
public:
    struct Options {
        std::uint64_t shard_bytes = 0;
        bool checksums = true;
        bool sync = true;
        const format::safetensors::Metadata* metadata = nullptr;
        std::uint64_t metadata_bytes = 0;  // in the header
    };

    StreamedShard(Engine& engine, const FileSystem& files, const std::string& index,
                  const Options& options, stream::ProgressClock& clock, MemoryPool& pool,
                  Memory hold)
        : engine_(engine),
          files_(files),
          options_(options),
          clock_(clock),
          pool_(pool),
          hold_(hold),
          file_(std::make_unique<Replacement>(files, index, Abandoned::kLeave)) {}

    // Whether a further tensor has a place here. The first has.
    [[nodiscard]] bool takes(const StateTensor& tensor) const {
        return tensors_.empty() ||
               (!ended_ &&
                tensor.data.bytes <=
                    options_.shard_bytes - std::min(options_.shard_bytes, bytes_) &&
                header_bytes_ + entry_bytes(tensor) <= room_);
    }

    void add(const StateTensor& tensor, Arrivals& arrivals) {
        if (tensors_.empty()) {
            plan(tensor);
        }
        const std::uint64_t bytes = tensor.data.bytes;
        header_bytes_ += entry_bytes(tensor);
        bytes_ += bytes;
        tensors_.push_back(
            {tensor.name, *format::safetensors::type_named(tensor.dtype), tensor.shape, 0, 0});
        sums_.emplace_back();
        const std::size_t number = tensors_.size() - 1;
        if (bytes > hold_.bytes - held_bytes_) {
            send_even();
        }
        if (bytes <= hold_.bytes - held_bytes_ && !(writer_ && is_even(bytes))) {
            arrivals.copy(tensor, hold_.data + held_bytes_);
            held_.push_back({number, {hold_.data + held_bytes_, bytes}});
            held_bytes_ += bytes;
            return;
        }
        if (is_even(bytes)) {
            send(number, [&](std::uint64_t at) {
                return arrivals.write(*writer_, at, tensor, piece_sums());
            });
            return;
        }
        // It is at the end, with those of the hold around it.
        send_held(std::countr_zero(bytes));
        send(number,
             [&](std::uint64_t at) { return arrivals.write(*writer_, at, tensor, piece_sums()); });
        send_held(0);
        ended_ = true;
    }

    // Writes what is left, and the header; durable, if it is to be.
    void finish() {
        if (writer_) {
            send_held(0);
            writer_->finish();
            write_header();
            writer_.reset();
        } else {
            write_held();
        }
        if (options_.sync) {
            file_->file().sync_data();
        }
    }

    [[nodiscard]] Replacement& file() { return *file_; }
    [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }
    [[nodiscard]] std::uint64_t data_bytes() const { return bytes_; }
    [[nodiscard]] const std::vector<format::safetensors::Tensor>& tensors() const {
        return tensors_;
    }

private:
    struct Held {
        std::size_t number;
        ConstMemory bytes;
    };

    [[nodiscard]] std::uint64_t entry_bytes(const StateTensor& tensor) const {
        std::string name;
        format::append_json_string(name, tensor.name);
        const std::uint64_t sums =
            options_.checksums ? kSumDigits * pieces_of(tensor.data.bytes, piece_bytes_) : 0;
        return name.size() + kEntryBytes + kExtentBytes * tensor.shape.size() + sums;
    }

    // The room of the header, for shards as large as they may be.
    void plan(const StateTensor& first) {
        const std::uint64_t bytes =
            std::max(std::min(options_.shard_bytes, kSummedBytesMax), first.data.bytes);
        piece_bytes_ = table_piece_bytes(bytes);
        header_bytes_ = options_.metadata_bytes + kTableBytes;
        const std::uint64_t names =
            std::clamp(options_.shard_bytes / kNamesOfShard, kNamesBytesMin, kNamesBytesMax);
        room_ = header_bytes_ + entry_bytes(first) + names +
                (options_.checksums ? kSumDigits * pieces_of(bytes, piece_bytes_) : 0);
        room_ =
            std::min(base::align_up(8 + room_, base::kPageBytes) - 8,
                     base::align_down(format::safetensors::kHeaderBytesMax, base::kPageBytes) - 8);
    }

    [[nodiscard]] stream::PieceSums piece_sums() const {
        if (options_.checksums) {
            return {piece_bytes_, stream::content_hash};
        }
        return {};
    }

    template <typename Write>
    void send(std::size_t number, const Write& write) {
        if (!writer_) {
            writer_.emplace(engine_, file_->file(), clock_, pool_);
        }
        order_.push_back(number);
        sums_[number] = write(8 + room_ + sent_bytes_);
        sent_bytes_ += *bytes_of(tensors_[number].type, tensors_[number].shape);
    }

    void send_one(const Held& held) {
        send(held.number,
             [&](std::uint64_t at) { return writer_->write(at, held.bytes, piece_sums()); });
    }

    // The even ones of the hold go to the file, the others move together.
    void send_even() {
        std::vector<Held> odd;
        std::uint64_t odd_bytes = 0;
        for (const Held& held : held_) {
            if (is_even(held.bytes.bytes)) {
                send_one(held);
            }
        }
        for (const Held& held : held_) {
            if (!is_even(held.bytes.bytes)) {
                std::copy_n(held.bytes.data, held.bytes.bytes, hold_.data + odd_bytes);
                odd.push_back({held.number, {hold_.data + odd_bytes, held.bytes.bytes}});
                odd_bytes += held.bytes.bytes;
            }
        }
        held_ = std::move(odd);
        held_bytes_ = odd_bytes;
    }

    // Those that are at least so even, the most even first.
    void send_held(int shift) {
        const auto evenness = [](const Held& held) { return std::countr_zero(held.bytes.bytes); };
        std::stable_sort(held_.begin(), held_.end(),
                         [&](const Held& a, const Held& b) { return evenness(a) > evenness(b); });
        const auto rest = std::find_if(held_.begin(), held_.end(),
                                       [&](const Held& held) { return evenness(held) < shift; });
        std::for_each(held_.begin(), rest, [&](const Held& held) { send_one(held); });
        held_.erase(held_.begin(), rest);
    }

    void write_header() {
        std::vector<format::safetensors::Tensor> tensors;
        std::vector<FileImage::Payload> payloads;
        for (const std::size_t number : order_) {
            tensors.push_back(tensors_[number]);
            payloads.emplace_back(nullptr, *bytes_of(tensors.back().type, tensors.back().shape));
        }
        FileImage image =
            FileImage::safetensors(std::move(tensors), *options_.metadata, std::move(payloads),
                                   options_.checksums, {8 + room_, piece_bytes_});
        for (std::size_t i = 0; options_.checksums && i < order_.size(); ++i) {
            image.set_sums(i, sums_[order_[i]], {});
        }
        stream::StagedWriter header(engine_, file_->file(), clock_, pool_);
        write_texts(header, image.file(), {0, 8 + room_});
        header.finish();
        file_bytes_ = image.file().total_bytes();
    }

    void write_held() {
        std::vector<FileImage::Payload> payloads;
        for (const Held& held : held_) {
            payloads.push_back(held.bytes);
        }
        FileImage image = FileImage::safetensors(tensors_, *options_.metadata, std::move(payloads),
                                                 options_.checksums);
        image.set_copies(std::vector<bool>(held_.size(), true));
        write_image(engine_, files_, file_->file(), image);
        clock_.add(image.file().total_bytes());
        file_bytes_ = image.file().total_bytes();
    }

    Engine& engine_;
    const FileSystem& files_;
    const Options options_;
    stream::ProgressClock& clock_;
    MemoryPool& pool_;
    const Memory hold_;
    std::unique_ptr<Replacement> file_;
    std::optional<stream::StagedWriter> writer_;        // once the hold was full
    std::vector<format::safetensors::Tensor> tensors_;  // as they came
    std::vector<std::vector<std::uint64_t>> sums_;      // of each, once it is written
    std::vector<std::size_t> order_;                    // in the file
    std::vector<Held> held_;
    std::uint64_t held_bytes_ = 0;
    std::uint64_t piece_bytes_ = 0;
    std::uint64_t header_bytes_ = 0;  // at most, so far
    std::uint64_t room_ = 0;          // for the JSON
    std::uint64_t bytes_ = 0;         // of the tensors
    std::uint64_t sent_bytes_ = 0;
    std::uint64_t file_bytes_ = 0;
    bool ended_ = false;
};

class StreamedIndex {
public:
    StreamedIndex(Engine& engine, const FileSystem& files, const std::string& path,
                  Arrivals& arrivals, const format::safetensors::Metadata& metadata,
                  const SaveFileOptions& options)
        : engine_(engine),
          files_(files),
          arrivals_(arrivals),
          sync_(options.sync),
          note_(options.note),
          commit_(engine, files, path, options.sync),
          clock_(options.progress, "save", commit_.folder().index()),
          pool_(window_pool()),
          hold_(pool_.take(kHoldBytes)) {
        of_shard_ = {std::max<std::uint64_t>(options.shard_bytes, 1), options.checksums,
                     options.sync, &metadata, 64};
        for (const auto& [key, value] : metadata) {
            std::string text;
            format::append_json_string(text, key);
            format::append_json_string(text, value);
            of_shard_.metadata_bytes += text.size() + 2;
        }
        index_.total_bytes = 0;
    }

    void run() {
        commit_.refuse_checkpoint();
        while (const auto arrival = arrivals_.next()) {
            add(arrival->tensor);
        }
        if (!shards_.empty()) {
            end_shard();
        }
        try {
            name();
            const std::string note = commit_.commit();
            if (note_ != nullptr) {
                *note_ = note;
            }
        } catch (...) {
            commit_.give_up();
            throw;
        }
        clock_.end();
    }

private:
    void add(const StateTensor& tensor) {
        if (tensor.name == "__metadata__" || !format::is_utf8(tensor.name)) {
            refuse_tensor(tensor, "save", "the format does not allow this name");
        }
        if (shards_.empty() || !shards_.back()->takes(tensor)) {
            if (!shards_.empty()) {
                end_shard();
            }
            shards_.push_back(
                std::make_unique<StreamedShard>(engine_, files_, commit_.folder().index(),
                                                of_shard_, clock_, pool_, Memory(hold_.bytes())));
        }
        shards_.back()->add(tensor, arrivals_);
        index_.weight_map.emplace_back(tensor.name, "");
        shard_of_.push_back(shards_.size() - 1);
        clock_.tick();
    }

    void end_shard() {
        shards_.back()->finish();
        index_.total_bytes = *index_.total_bytes + shards_.back()->data_bytes();
        bytes_.push_back(shards_.back()->file_bytes());
    }

    // Gives the shards their names.
    void name() {
        const std::vector<std::string>& names = commit_.begin(std::move(index_), shard_of_, bytes_);
        for (std::size_t i = 0; i < shards_.size(); ++i) {
            commit_.shard_begins();
            shards_[i]->file().commit_as(names[i], sync_);
            commit_.shard_made();
        }
    }

    Engine& engine_;
    const FileSystem& files_;
    Arrivals& arrivals_;
    const bool sync_;
    std::string* note_;
    IndexCommit commit_;
    stream::ProgressClock clock_;
    MemoryPool pool_;
    Buffer hold_;
    StreamedShard::Options of_shard_;
    format::ShardIndex index_;
    std::vector<std::size_t> shard_of_;  // of each tensor
    std::vector<std::uint64_t> bytes_;   // of each shard
    std::vector<std::unique_ptr<StreamedShard>> shards_;
};

}  // namespace

void save_streamed_index(Engine& engine, const FileSystem& files, const std::string& path,
                         Arrivals& arrivals,
                         const std::vector<std::pair<std::string, std::string>>& metadata,
                         const SaveFileOptions& options) {
    StreamedIndex(engine, files, path, arrivals, metadata, options).run();
}

}  // namespace penstock::state
