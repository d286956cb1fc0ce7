// SPDX-License-Identifier: Apache-2.0
#include "file_image_object.hpp"

#include "base/raise.hpp"
#include "format/safetensors.hpp"
#include "names.hpp"
#include "without_gil.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <span>

namespace penstock::python {

namespace {

std::vector<checkpoint::FileImage::Payload> spans_of(const std::vector<StorageMemory>& memory) {
    std::vector<checkpoint::FileImage::Payload> out;
    out.reserve(memory.size());
    for (const StorageMemory& m : memory) {
        out.emplace_back(m.data, m.bytes);
    }
    return out;
}

}  // namespace

FileImageObject image_of_state(nb::handle object, const std::string& folder) {
    State state = state_of(object);
    auto spans = spans_of(state.storages);
    const WithoutGil nogil;
    return {checkpoint::FileImage::torch_zip(state.tree, folder, std::move(spans)),
            std::move(state.storages)};
}

FileImageObject image_of_tensors(nb::handle tensors,
                                 std::vector<std::pair<std::string, std::string>> metadata,
                                 bool checksums) {
    std::vector<format::safetensors::Tensor> list;
    std::vector<StorageMemory> payloads;
    for (const nb::handle row : nb::iter(tensors)) {
        format::safetensors::Tensor t;
        t.name = nb::cast<std::string>(row[0]);
        const auto type = format::safetensors::type_named(nb::cast<std::string>(row[1]));
        if (!type) {
            raise_value("save: tensor '" + t.name + "': the format has no such type");
        }
        t.type = *type;
        t.shape = nb::cast<std::vector<std::uint64_t>>(row[2]);
        const auto bytes = format::safetensors::bytes_of(t.type, t.shape);
        if (!bytes) {
            raise_value("save: tensor '" + t.name + "': its shape is no possible size");
        }
        payloads.push_back({reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(row[3])),
                            static_cast<std::size_t>(*bytes), nb::borrow(row[4])});
        list.push_back(std::move(t));
    }
    auto spans = spans_of(payloads);
    const WithoutGil nogil;
    return {checkpoint::FileImage::safetensors(std::move(list), std::move(metadata),
                                               std::move(spans), checksums),
            std::move(payloads)};
}

}  // namespace penstock::python
