// SPDX-License-Identifier: Apache-2.0
#include "tensor_stream.hpp"

#include "arguments.hpp"
#include "base/align.hpp"
#include "base/unique_fd.hpp"
#include "engine_object.hpp"
#include "errors.hpp"
#include "file_object.hpp"
#include "names.hpp"
#include "progress.hpp"
#include "request.hpp"
#include "state/update/update_plan.hpp"
#include "streams.hpp"

#include <penstock/state_file.hpp>
#include <penstock/tensor.hpp>

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

namespace penstock::python {

namespace {

constexpr std::uint64_t kLookBytes = std::uint64_t{32} << 20;

// 0 where it cannot be read.
std::uint64_t resident_bytes() {
    const base::UniqueFd fd(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
    char text[128] = {};
    if (!fd || ::read(fd.get(), text, sizeof text - 1) <= 0) {
        return 0;
    }
    char* end = nullptr;
    std::strtoull(text, &end, 10);  // the size; resident pages are next
    return std::strtoull(end, nullptr, 10) * base::kPageBytes;
}

// Of (name, type, shape, address, owner). Adds its memory, which holds the owner.
StateTensor tensor_of(const nb::object& row, const std::string& verb,
                      std::vector<StorageMemory>& held) {
    StateTensor tensor;
    tensor.name = word_of(row[0], "name");
    tensor.dtype = word_of(row[1], "type");
    tensor.shape = counts_of(row[2], "shape", "elements");
    const auto type = element_type_named(tensor.dtype);
    const auto bytes = type ? bytes_of(*type, tensor.shape) : std::nullopt;
    if (!bytes) {
        raise_value(verb + ": tensor '" + tensor.name + "': its type or shape is no possible size");
    }
    const nb::object owner = row[4];
    held.push_back({reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(row[3])),
                    static_cast<std::size_t>(*bytes), owner});
    StorageMemory& memory = held.back();
    if (truth(nb::getattr(owner, "is_cuda", nb::bool_(false))) &&
        !place_on_gpu(memory, reinterpret_cast<std::uintptr_t>(memory.data))) {
        memory.keep = owner.attr("cpu")();
        memory.data =
            reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(memory.keep.attr("data_ptr")()));
    }
    tensor.data = memory.memory();
    return tensor;
}

}  // namespace

void LeftMemory::left(std::uint64_t bytes) {
    bytes_ += bytes;
    if (bytes_ < kLookBytes) {
        return;
    }
    bytes_ = 0;
#ifdef __GLIBC__
    if (level_ == 0 || resident_bytes() >= level_ + kLookBytes) {
        ::malloc_trim(0);
        level_ = resident_bytes();
    }
#endif
}

GivenStream::GivenStream(nb::handle items, nb::handle row)
    : items_(nb::borrow(items)), row_(nb::borrow(row)) {}

std::optional<StateTensor> GivenStream::next() {
    std::optional<StateTensor> given;
    {
        const nb::gil_scoped_acquire gil;
        try {
            given = next_row();
        } catch (nb::python_error& error) {
            raised_.emplace(std::move(error));
        }
        if (raised_) {
            throw Error(ErrorCode::kCancelled, 0, "save", "", kNoOffset, "Python raised");
        }
    }
    wait_for_streams(streams_);
    return given;
}

void GivenStream::raise_failure() {
    if (raised_) {
        throw nb::python_error(std::move(*raised_));
    }
}

std::optional<StateTensor> GivenStream::next_row() {
    const std::uint64_t left = memory_.empty() ? 0 : memory_.front().bytes;
    memory_.clear();  // before the next tensor is made
    streams_.clear();
    left_.left(left);
    if (PyErr_CheckSignals() != 0) {
        throw nb::python_error();
    }
    nb::object item = nb::steal(PyIter_Next(items_.ptr()));
    if (!item.is_valid()) {
        if (PyErr_Occurred() != nullptr) {
            throw nb::python_error();
        }
        return std::nullopt;
    }
    const nb::object row = row_(count_++, item);
    item = nb::object();
    StateTensor tensor = tensor_of(row, "save", memory_);
    streams_ = streams_of(memory_);
    return tensor;
}

std::optional<std::vector<StateTensor>> announced(nb::handle rows) {
    if (rows.is_none()) {
        return std::nullopt;
    }
    std::vector<StateTensor> out;
    for (const nb::handle row : nb::iter(rows)) {
        StateTensor tensor;
        tensor.name = word_of(row[0], "name");
        tensor.dtype = word_of(row[1], "type");
        tensor.shape = counts_of(row[2], "shape", "elements");
        out.push_back(std::move(tensor));
    }
    return out;
}

void save_stream(nb::handle path, const TensorStream& stream, nb::handle progress,
                 const SaveFileOptions& options) {
    const std::string name = path_bytes(path, "path", "");
    const std::shared_ptr<Engine> engine = opened(default_engine());
    std::string note;
    SaveFileOptions with_progress = options;
    with_progress.note = &note;
    run_with_progress(progress, [&](const Progress& report) {
        with_progress.progress = report;
        save_file(engine, name, stream, with_progress);
    });
    warn_of(note);
}

void update_given(nb::handle to, nb::handle rows, nb::handle progress) {
    const std::string path = path_bytes(to, "path", "");
    std::vector<StorageMemory> held;
    std::vector<StateTensor> tensors;
    for (const nb::handle row : nb::iter(rows)) {
        tensors.push_back(tensor_of(nb::borrow(row), "update", held));
    }
    UpdateFileOptions options{.streams = streams_of(held)};
    const std::shared_ptr<Engine> engine = opened(default_engine());
    try {
        run_with_progress(progress, [&](const Progress& report) {
            options.progress = report;
            update_file(engine, path, tensors, options);
        });
    } catch (const state::UnknownTensor& error) {
        PyErr_SetObject(PyExc_KeyError, path_object(error.what()).ptr());
        throw nb::python_error();
    }
}

void save_given(nb::handle to, nb::handle items, nb::handle row, nb::handle like,
                nb::handle metadata, std::uint64_t shard_bytes, nb::handle progress, bool sync,
                nb::handle changing) {
    GivenStream given(items, row);
    const TensorStream stream{.next = [&given] { return given.next(); },
                              .like = announced(like),
                              .metadata = word_pairs_of(metadata, "metadata")};
    try {
        save_stream(to, stream, progress,
                    {.shard_bytes = shard_bytes, .sync = sync, .changing = changing_of(changing)});
    } catch (const Error&) {
        given.raise_failure();
        throw;
    }
}

}  // namespace penstock::python
