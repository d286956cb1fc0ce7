// SPDX-License-Identifier: Apache-2.0
#include "weight_arguments.hpp"

#include "arguments.hpp"
#include "buffer_object.hpp"
#include "file_object.hpp"
#include "names.hpp"

#include <utility>

namespace penstock::python {

std::vector<WeightUnit> units_of(nb::handle list) {
    std::vector<WeightUnit> out;
    for (const nb::handle pair : nb::iter(list)) {
        WeightUnit& unit = out.emplace_back();
        unit.name = word_of(nb::object(pair[0]), "units");
        for (const nb::handle name : nb::iter(nb::object(pair[1]))) {
            unit.tensors.push_back(word_of(name, "units"));
        }
    }
    return out;
}

std::vector<std::string> folders_of(nb::handle paths) {
    std::vector<std::string> out;
    for (const nb::handle path : nb::iter(paths)) {
        out.push_back(path_bytes(path, "folder", ""));
    }
    return out;
}

// From (tensor, offset, bytes).
std::vector<TensorPart> tensor_parts_of(nb::handle list) {
    std::vector<TensorPart> out;
    for (const nb::handle part : nb::iter(list)) {
        out.push_back({word_of(nb::object(part[0]), "parts"),
                       count_of(nb::object(part[1]), "parts", "bytes"),
                       count_of(nb::object(part[2]), "parts", "bytes")});
    }
    return out;
}

// From (name, shape, [(tensor, offset, bytes)]).
std::vector<JoinedTensor> joined_of(nb::handle list) {
    std::vector<JoinedTensor> out;
    for (const nb::handle one : nb::iter(list)) {
        JoinedTensor& joined = out.emplace_back();
        joined.name = word_of(nb::object(one[0]), "joined");
        joined.shape = counts_of(nb::object(one[1]), "joined", "elements");
        joined.parts = tensor_parts_of(nb::object(one[2]));
    }
    return out;
}

WeightFolders joined_folders(const std::shared_ptr<Engine>& engine,
                             const std::vector<std::string>& folders,
                             const std::vector<JoinedTensor>& joined) {
    WeightFolders out = inspect_folders(engine, folders);
    join_tensors(out.table, joined);
    return out;
}

nb::list folder_stats_of(const std::vector<WeightFolderStats>& folders) {
    nb::list out;
    for (const WeightFolderStats& folder : folders) {
        out.append(nb::make_tuple(folder.bytes_per_second, folder.bytes_read, folder.buffered_bytes,
                                  nb::str(folder.buffered_because.c_str())));
    }
    return out;
}

std::optional<std::int32_t> gpu_of(nb::handle number) {
    if (number.is_none()) {
        return std::nullopt;
    }
    return static_cast<std::int32_t>(count_of(number, "device", "GPUs", 1024));
}

SpareMemory spare_of(nb::handle reserve, std::optional<std::int32_t> gpu) {
    if (reserve.is_none()) {
        return {};
    }
    const std::uint64_t bytes = count_of(reserve, "reserve", "bytes");
    return gpu ? spare_gpu_memory(*gpu, bytes) : spare_memory(bytes);
}

namespace {

// Keeps memory of a GPU allocated for as long as a tensor refers to it.
struct GpuMemoryOwner {
    std::shared_ptr<void> owner;
};

nb::object host_tensor(const std::shared_ptr<void>& owner, const ConstMemory& memory,
                       const ArrayType& type, std::span<const std::uint64_t> shape) {
    BufferObject out;
    out.owner = owner;
    out.data = const_cast<std::byte*>(memory.data);
    out.bytes = memory.bytes;
    out.type = &type;
    out.pinned_reason = "it is memory of streamed weights";
    Py_ssize_t stride = type.bits / 8;
    out.strides_bytes.resize(shape.size());
    for (std::size_t d = shape.size(); d-- > 0;) {
        out.strides_bytes[d] = stride;
        stride *= static_cast<Py_ssize_t>(shape[d]);
    }
    out.shape.assign(shape.begin(), shape.end());
    return nb::cast(std::move(out));
}

}  // namespace

void bind_gpu_owner(nb::module_& m) {
    nb::class_<GpuMemoryOwner>(m, "GpuMemoryOwner", "Private.");
}

nb::object tensor_in(const std::shared_ptr<void>& owner, const ConstMemory& memory,
                     const TensorEntry& entry, std::span<const std::uint64_t> shape) {
    const ArrayType* const type =
        tensor::find_row([&](const auto& row) { return row.name == entry.dtype; });
    if (type == nullptr || type->torch[0] == '\0') {
        raise_type("tensor '" + entry.name + "' has the element type " + entry.dtype +
                   ", which torch does not have");
    }
    if (memory.kind == MemoryKind::kHost) {
        return host_tensor(owner, memory, *type, shape);
    }
    nb::list dimensions;
    for (const std::uint64_t one : shape) {
        dimensions.append(one);
    }
    return nb::make_tuple(reinterpret_cast<std::uintptr_t>(memory.data), memory.bytes,
                          nb::str(type->torch), nb::tuple(dimensions),
                          nb::cast(GpuMemoryOwner{owner}));
}

}  // namespace penstock::python
