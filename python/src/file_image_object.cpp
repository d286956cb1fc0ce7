// SPDX-License-Identifier: Apache-2.0
#include "file_image_object.hpp"

#include "arguments.hpp"
#include "base/raise.hpp"
#include "collected.hpp"
#include "format/safetensors.hpp"
#include "names.hpp"

#include <algorithm>
#include <cstdint>
#include <span>

namespace penstock::python {

namespace {

std::vector<state::FileImage::Payload> spans_of(const std::vector<StorageMemory>& memory) {
    std::vector<state::FileImage::Payload> out;
    out.reserve(memory.size());
    for (const StorageMemory& m : memory) {
        out.push_back(m.memory());
    }
    return out;
}

std::vector<bool> copies_of(const std::vector<StorageMemory>& memory) {
    std::vector<bool> out;
    out.reserve(memory.size());
    for (const StorageMemory& m : memory) {
        out.push_back(m.copied);
    }
    return out;
}

// Names the module in which the running NumPy has its functions.
format::PickleOptions pickle_options(const format::ValueTree& tree) {
    format::PickleOptions options;
    const bool wanted = std::any_of(tree.values.begin(), tree.values.end(), [](const auto& v) {
        return v.kind == format::ValueKind::kNumpyScalar ||
               v.kind == format::ValueKind::kNumpyArray;
    });
    if (wanted) {
        const nb::object array = nb::module_::import_("numpy").attr("empty")(0);
        options.numpy_module =
            text(nb::object(nb::object(array.attr("__reduce__")()[0]).attr("__module__")));
    }
    return options;
}

// The name of a tensor: lone surrogates have no UTF-8.
std::string tensor_name(nb::handle name) {
    Py_ssize_t bytes = 0;
    const char* text = PyUnicode_AsUTF8AndSize(name.ptr(), &bytes);
    if (text == nullptr) {
        PyErr_Clear();
        raise_value("save: state[" + shown(name) +
                    "]: this name is not UTF-8 (it has half a character), which a .safetensors is "
                    "written in");
    }
    return {text, static_cast<std::size_t>(bytes)};
}

}  // namespace

FileImageObject image_of_state(nb::handle object, nb::handle folder, nb::handle other) {
    const std::string name = word_of(folder, "folder");
    State state = state_of(object, other);
    auto spans = spans_of(state.storages);
    const format::PickleOptions options = pickle_options(state.tree);
    std::vector<StreamHandle> streams = streams_of(state.storages);
    const nb::gil_scoped_release nogil;
    FileImageObject made{
        state::FileImage::torch_zip(std::move(state.tree), name, std::move(spans), options),
        std::move(state.storages), std::move(streams)};
    made.image.set_copies(copies_of(made.payloads));
    return made;
}

GivenTensors rows_of(nb::handle tensors, nb::handle metadata) {
    GivenTensors out;
    for (const nb::handle row : nb::iter(tensors)) {
        format::safetensors::Tensor t;
        t.name = tensor_name(nb::object(row[0]));
        const auto type = format::safetensors::type_named(word_of(row[1], "type"));
        if (!type) {
            raise_value("save: tensor '" + t.name + "': the format has no such type");
        }
        t.type = *type;
        t.shape = counts_of(row[2], "shape", "elements");
        const auto bytes = format::safetensors::bytes_of(t.type, t.shape);
        if (!bytes) {
            raise_value("save: tensor '" + t.name + "': its shape is no possible size");
        }
        out.memory.push_back({reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(row[3])),
                              static_cast<std::size_t>(*bytes), nb::borrow(row[4])});
        StorageMemory& memory = out.memory.back();
        memory.copied = is_collected(row[4]);
        if (truth(nb::getattr(row[4], "is_cuda", nb::bool_(false))) &&
            !place_on_gpu(memory, reinterpret_cast<std::uintptr_t>(memory.data))) {
            memory.keep = row[4].attr("cpu")();
            memory.copied = true;
            memory.data = reinterpret_cast<std::byte*>(
                nb::cast<std::uintptr_t>(memory.keep.attr("data_ptr")()));
        }
        if (!memory.copied && nb::hasattr(row[4], "untyped_storage")) {
            memory.belongs_to(nb::object(row[4].attr("untyped_storage")()));
            memory.holds(row[4]);
        }
        out.named.tensors.push_back(std::move(t));
    }
    out.named.payloads = spans_of(out.memory);
    out.named.copies = copies_of(out.memory);
    out.streams = streams_of(out.memory);
    out.named.metadata = word_pairs_of(metadata, "metadata");
    return out;
}

FileImageObject image_of_tensors(nb::handle tensors, nb::handle metadata, bool checksums) {
    GivenTensors rows = rows_of(tensors, metadata);
    const nb::gil_scoped_release nogil;
    FileImageObject made{
        state::FileImage::safetensors(std::move(rows.named.tensors), std::move(rows.named.metadata),
                                      std::move(rows.named.payloads), checksums),
        std::move(rows.memory), std::move(rows.streams)};
    made.image.set_copies(std::move(rows.named.copies));
    return made;
}

}  // namespace penstock::python
