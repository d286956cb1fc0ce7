// SPDX-License-Identifier: Apache-2.0
#include "base/host_memory.hpp"
#include "base/raise.hpp"
#include "features/files/block_writer.hpp"
#include "features/files/feature_layout.hpp"
#include "features/files/feature_set.hpp"
#include "format/fault.hpp"
#include "format/utf8.hpp"
#include "stream/checksum.hpp"

#include <penstock/features.hpp>
#include <penstock/tensor.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock {

namespace features {

namespace {

constexpr std::string_view kWrite = "write features";

[[noreturn]] void refuse_table(const std::string& message, const std::string& path) {
    base::raise(base::error(ErrorCode::kInvalidArgument, kWrite, message, path));
}

}  // namespace

class FileOfTables {
public:
    FileOfTables(std::shared_ptr<Engine> its, const std::string& path,
                 const FeatureWriterOptions& wanted, const FileSystem& files)
        : engine(std::move(its)),
          options(wanted),
          set(*engine, files, path, wanted.folders),
          name(path) {
        directory.parts.resize(std::max<std::size_t>(1, set.paths().size()));
        for (std::size_t i = 0; i < directory.parts.size(); ++i) {
            directory.parts[i].path = set.is_striped() ? set.paths()[i] : std::string();
            queues.emplace_back(engine, file(i), kBlockBytes);
        }
    }

    File& file(std::size_t part) { return set.is_striped() ? set.part(part) : set.main(); }

    [[nodiscard]] Table& current() {
        if (!open_table) {
            refuse_table("no table was begun; call begin_table() first", name);
        }
        return directory.tables.back();
    }

    void check(const NewFeatureTable& table, Table& its) const {
        if (table.name.empty() || table.name.size() > kNameBytesMax ||
            !format::is_utf8(table.name) || table.name.find('\0') != std::string::npos) {
            refuse_table(fmt::format("table {}: expected a name of 1 to {} bytes of UTF-8",
                                     format::shown(table.name), kNameBytesMax),
                         name);
        }
        for (const Table& other : directory.tables) {
            if (other.name == table.name) {
                refuse_table(fmt::format("table {} comes twice; give each a name of its own",
                                         format::shown(table.name)),
                             name);
            }
        }
        const auto type = element_type_named(table.dtype);
        if (!type) {
            refuse_table(
                fmt::format("table {}: there is no dtype {}; expected F32, BF16, I64 and such, or "
                            "their names in torch",
                            format::shown(table.name), format::shown(table.dtype)),
                name);
        }
        its.dtype = name_of(*type);
        its.row_bytes = row_bytes_of(its.dtype, table.row_shape);
        if (its.row_bytes == 0 || table.row_shape.size() > kDimensionsMax) {
            refuse_table(
                fmt::format("table {}: rows of shape [{}] and dtype {}; expected 1 to "
                            "2^40 - 1 whole bytes a row",
                            format::shown(table.name), fmt::join(table.row_shape, ", "), its.dtype),
                name);
        }
    }

    void begin(const NewFeatureTable& table) {
        Table its;
        check(table, its);
        end_table();
        if (directory.tables.size() == kTablesMax) {
            refuse_table(fmt::format("a feature file has at most {} tables", kTablesMax), name);
        }
        its.name = table.name;
        its.row_shape = table.row_shape;
        its.stride_bytes = stride_for(its.row_bytes);
        its.stripe_rows = stripe_rows_for(its.stride_bytes);
        for (BlockWriter& queue : queues) {
            its.bases.push_back(queue.at());
            queue.begin_sums();
        }
        directory.tables.push_back(std::move(its));
        open_table = true;
    }

    void append(ConstMemory rows) {
        if (rows.kind != MemoryKind::kHost) {
            base::raise(base::not_host_memory(kWrite.data(), "append", rows, name));
        }
        Table& table = current();
        if (rows.data == nullptr && rows.bytes != 0) {
            refuse_table(fmt::format("table {}: {} bytes have no memory (null pointer)",
                                     format::shown(table.name), rows.bytes),
                         name);
        }
        if (rows.bytes % table.row_bytes != 0) {
            refuse_table(fmt::format("table {}: {} bytes came, and a row has {}; append whole rows",
                                     format::shown(table.name), rows.bytes, table.row_bytes),
                         name);
        }
        std::span<const std::byte> left = rows.span();
        const std::uint64_t gap = table.stride_bytes - table.row_bytes;
        while (!left.empty()) {
            const RowPlace place = place_of(table.rows, table.stripe_rows, queues.size());
            const std::uint64_t in_stripe = table.stripe_rows - table.rows % table.stripe_rows;
            // Without gaps, rows that follow one another in a part are one piece.
            const std::uint64_t count = gap != 0
                                            ? 1
                                            : std::min(left.size() / table.row_bytes,
                                                       queues.size() == 1 ? UINT64_MAX : in_stripe);
            queues[place.part].put(left.first(count * table.row_bytes));
            queues[place.part].put_zeros(gap);
            left = left.subspan(count * table.row_bytes);
            table.rows += count;
            bytes += count * table.row_bytes;
        }
    }

    void end_table() {
        if (!std::exchange(open_table, false)) {
            return;
        }
        for (BlockWriter& queue : queues) {
            const std::vector<std::uint64_t> made = queue.end_sums();
            all_sums.insert(all_sums.end(), made.begin(), made.end());
        }
    }

    void commit() {
        end_table();
        for (std::size_t i = 0; i < queues.size(); ++i) {
            queues[i].finish();
            directory.parts[i].data_end = queues[i].at();
            directory.parts[i].file_bytes = set.is_striped() ? queues[i].at() : 0;
        }
        for (std::uint32_t i = 0; set.is_striped() && i < queues.size(); ++i) {
            const Block block =
                encode(PartPreamble{.file_bytes = queues[i].at(),
                                    .id = set.id(),
                                    .part = i,
                                    .parts = static_cast<std::uint32_t>(queues.size())});
            write_block(set.part(i), block);
        }
        write_directory();
        set.commit(options.sync);
    }

    // The first block of a file, of which the rest is zeros.
    void write_block(File& its, const Block& block) {
        Buffer memory = pool.take(kBlockBytes);
        std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{});
        std::copy(block.begin(), block.end(), memory.bytes().begin());
        engine->write(its, memory.bytes());
    }

    void write_directory() {
        directory.sums_offset = set.is_striped() ? kBlockBytes : queues[0].at();
        directory.sums = all_sums.size();
        const std::span<const std::byte> sum_bytes = std::as_bytes(std::span(all_sums));
        directory.sums_sum = stream::content_hash(sum_bytes);
        const std::vector<std::byte> text = encode(directory);
        if (text.size() > kDirectoryBytesMax) {
            refuse_table("the names and shapes of the tables have more than 64 MiB", name);
        }
        const Preamble preamble{
            .file_bytes = directory.sums_offset + sum_bytes.size() + text.size(),
            .directory_offset = directory.sums_offset + sum_bytes.size(),
            .directory_bytes = text.size(),
            .directory_sum = stream::content_hash(text),
            .id = set.id()};
        engine->write(set.main(), sum_bytes, directory.sums_offset);
        engine->write(set.main(), std::span(text), preamble.directory_offset);
        write_block(set.main(), encode(preamble));
    }

    std::shared_ptr<Engine> engine;
    FeatureWriterOptions options;
    FeatureSet set;
    std::string name;  ///< the path, for messages
    MemoryPool pool;
    Directory directory;
    std::vector<BlockWriter> queues;  ///< after `set`: its files outlive their transfers
    std::vector<std::uint64_t> all_sums;
    std::uint64_t bytes = 0;
    bool open_table = false;
};

}  // namespace features

struct FeatureWriter::Impl {
    features::FileOfTables file;
    bool failed = false;
};

namespace {

std::shared_ptr<Engine> checked_engine(std::shared_ptr<Engine> engine, const std::string& path) {
    if (engine == nullptr) {
        base::raise(
            base::error(ErrorCode::kInvalidArgument, "write features", "there is no engine", path));
    }
    if (path.ends_with(".npy")) {
        base::raise(base::error(ErrorCode::kInvalidArgument, "write features",
                                "a feature file would replace a .npy, or be taken for one; give it "
                                "another name",
                                path));
    }
    return engine;
}

// After an error the state of the files is unknown.
template <typename Impl, typename Step>
void step_of(std::unique_ptr<Impl>& impl, const Step& step) {
    if (impl == nullptr || impl->failed) {
        base::raise(base::error(ErrorCode::kClosed, "write features",
                                impl == nullptr
                                    ? "this writer is done; make another for another file"
                                    : "an earlier call failed, and nothing was written; make "
                                      "another writer"));
    }
    if (!impl->file.set.is_of_this_process()) {
        base::raise(base::error(ErrorCode::kClosed, "write features",
                                "this writer is of the process that made it; a child of fork() "
                                "makes one of its own",
                                impl->file.name));
    }
    try {
        step(impl->file);
    } catch (...) {
        impl->failed = true;
        throw;
    }
}

}  // namespace

FeatureWriter::FeatureWriter(std::shared_ptr<Engine> engine, const std::string& path,
                             const FeatureWriterOptions& options, const FileSystem& files)
    : impl_(new Impl{
          features::FileOfTables(checked_engine(std::move(engine), path), path, options, files)}) {}

FeatureWriter::FeatureWriter(FeatureWriter&& other) noexcept = default;
FeatureWriter& FeatureWriter::operator=(FeatureWriter&& other) noexcept = default;
FeatureWriter::~FeatureWriter() = default;

void FeatureWriter::begin_table(const NewFeatureTable& table) {
    step_of(impl_, [&table](features::FileOfTables& file) { file.begin(table); });
}

void FeatureWriter::append(ConstMemory rows) {
    step_of(impl_, [&rows](features::FileOfTables& file) { file.append(rows); });
}

void FeatureWriter::commit() {
    step_of(impl_, [](features::FileOfTables& file) { file.commit(); });
    impl_.reset();
}

std::uint64_t FeatureWriter::row_bytes() const {
    return impl_ == nullptr || !impl_->file.open_table
               ? 0
               : impl_->file.directory.tables.back().row_bytes;
}

std::uint64_t FeatureWriter::bytes() const {
    return impl_ == nullptr ? 0 : impl_->file.bytes;
}

}  // namespace penstock
