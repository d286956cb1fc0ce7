// SPDX-License-Identifier: Apache-2.0
#include "torch_objects.hpp"

#include "names.hpp"

#include <penstock/error.hpp>

#include <fmt/format.h>

#include <string_view>

namespace penstock::python {

namespace {

using format::Rebuilt;

nb::object shape_of(nb::handle tensor) {
    return tensor.attr("shape");
}

void require(bool good, const char* what) {
    if (!good) {
        throw Error(ErrorCode::kDamaged, 0, "load", "", kNoOffset,
                    fmt::format("load: the file is damaged: {}", what));
    }
}

bool has_data(nb::handle tensor) {
    return !truth(tensor.attr("is_meta"));
}

nb::object set(nb::handle torch, nb::handle dtype, nb::handle storage, nb::handle offset,
               nb::handle shape, nb::handle strides) {
    return torch
        .attr("empty")(nb::make_tuple(0), nb::arg("dtype") = dtype,
                       nb::arg("device") = storage.attr("device"))
        .attr("set_")(storage, offset, shape, strides);
}

nb::object typed_storage(nb::handle torch, nb::handle untyped, nb::handle dtype) {
    return torch.attr("storage").attr("TypedStorage")(
        nb::arg("wrap_storage") = untyped, nb::arg("dtype") = dtype, nb::arg("_internal") = true);
}

std::int64_t number(nb::handle object) {
    return nb::cast<std::int64_t>(nb::int_(nb::borrow(object)));
}

// All of them are in [0, end).
void check_indices(nb::handle indices, std::int64_t end) {
    if (number(indices.attr("numel")()) != 0) {
        require(number(indices.attr("min")()) >= 0 && number(indices.attr("max")()) < end,
                "a sparse tensor has an index past its size");
    }
}

nb::object sparse_coo(nb::handle torch, const std::vector<nb::object>& parts) {
    if (has_data(parts[0])) {
        try {
            torch.attr("_validate_sparse_coo_tensor_args")(parts[0], parts[1], parts[2]);
        } catch (const nb::python_error&) {
            require(false, "a sparse tensor has an index past its size, or parts of other shapes");
        }
    }
    return torch.attr("sparse_coo_tensor")(parts[0], parts[1], parts[2],
                                           nb::arg("check_invariants") = false,
                                           nb::arg("is_coalesced") = parts[3]);
}

// Checks what torch relies on when it uses the tensor. The indices of a row may have any order, as
// in torch.
void check_compressed(bool by_rows, bool blocks, const std::vector<nb::object>& parts) {
    const nb::object &ends = parts[0], &indices = parts[1], &values = parts[2];
    const auto batches = number(ends.attr("dim")()) - 1;
    const auto rank = static_cast<std::int64_t>(nb::len(parts[3]));
    const std::int64_t inner = blocks ? 2 : 0;
    require(batches >= 0 && number(indices.attr("dim")()) == batches + 1 && rank >= batches + 2 &&
                number(values.attr("dim")()) == rank - 1 + inner,
            "a sparse tensor has parts of other ranks");
    const auto size = [&](std::int64_t d) { return number(nb::object(parts[3][batches + d])); };
    const auto block = [&](std::int64_t d) {
        return blocks ? number(values.attr("size")(batches + 1 + d)) : 1;
    };
    const std::int64_t along = by_rows ? 0 : 1;
    require(block(0) > 0 && block(1) > 0, "a sparse tensor has empty blocks");
    const std::int64_t stored = number(indices.attr("size")(-1));
    require(number(ends.attr("size")(-1)) == size(along) / block(along) + 1 &&
                number(values.attr("size")(batches)) == stored,
            "a sparse tensor has more values than places, or fewer");
    check_indices(indices, size(1 - along) / block(1 - along));
    const nb::object first = ends.attr("select")(-1, 0);
    const nb::object last = ends.attr("select")(-1, -1);
    const nb::object steps = ends.attr("diff")();
    require(truth(first.attr("eq")(0).attr("all")()) &&
                truth(last.attr("eq")(stored).attr("all")()) &&
                truth(steps.attr("ge")(0).attr("all")()),
            "a sparse tensor has rows that do not follow each other");
}

nb::object sparse_compressed(nb::handle torch, const format::RebuiltRow& row,
                             const std::vector<nb::object>& parts) {
    const bool by_rows = row.rebuilt == Rebuilt::kSparseCsr || row.rebuilt == Rebuilt::kSparseBsr;
    const bool blocks = row.rebuilt == Rebuilt::kSparseBsr || row.rebuilt == Rebuilt::kSparseBsc;
    if (has_data(parts[0])) {
        check_compressed(by_rows, blocks, parts);
    }
    return torch.attr("sparse_compressed_tensor")(
        parts[0], parts[1], parts[2], parts[3],
        nb::arg("layout") = torch.attr(std::string(row.tag).c_str()),
        nb::arg("check_invariants") = false);
}

nb::object quantized(nb::handle torch, const std::vector<nb::object>& parts) {
    const nb::object storage = parts[0].attr("untyped_storage")();
    const nb::object device = storage.attr("device");
    nb::object made;
    if (parts[8].is_none()) {
        made = torch.attr("_empty_affine_quantized")(
            parts[3], nb::arg("scale") = parts[6], nb::arg("zero_point") = parts[7],
            nb::arg("dtype") = parts[1], nb::arg("device") = device);
    } else {
        // Lists are of torch before 1.3, tensors of later ones.
        const bool of_floats = parts[5].is(torch.attr("per_channel_affine_float_qparams"));
        const auto tensor = [&](const nb::object& list, const char* dtype) {
            return nb::isinstance<nb::list>(list)
                       ? torch.attr("tensor")(list, nb::arg("dtype") = torch.attr(dtype),
                                              nb::arg("device") = device)
                       : list;
        };
        const nb::object scales = tensor(parts[6], of_floats ? "float32" : "float64");
        const nb::object zeros = tensor(parts[7], of_floats ? "float32" : "int64");
        const std::int64_t extent = number(nb::object(parts[3][number(parts[8])]));
        require(number(scales.attr("numel")()) == extent && number(zeros.attr("numel")()) == extent,
                "a quantized tensor has more scales than channels, or fewer");
        made = torch.attr("_empty_per_channel_affine_quantized")(
            parts[3], nb::arg("scales") = scales, nb::arg("zero_points") = zeros,
            nb::arg("axis") = parts[8], nb::arg("dtype") = parts[1], nb::arg("device") = device);
    }
    return made.attr("set_")(typed_storage(torch, storage, parts[1]), parts[2], parts[3], parts[4]);
}

// torch's function does not look whether the parts lie in the buffer. In float64, where products
// of hostile sizes cannot overflow.
nb::object nested(nb::handle torch, const std::vector<nb::object>& parts) {
    const nb::object &buffer = parts[0], &sizes = parts[1], &strides = parts[2];
    require(number(buffer.attr("dim")()) == 1 && truth(buffer.attr("is_contiguous")()) &&
                number(sizes.attr("dim")()) == 2 && shape_of(sizes).equal(shape_of(strides)) &&
                number(parts[3].attr("dim")()) == 1 &&
                number(parts[3].attr("size")(0)) == number(sizes.attr("size")(0)),
            "a nested tensor has parts of other shapes");
    const nb::object size = sizes.attr("double")();
    const nb::object stride = strides.attr("double")();
    const nb::object begin = parts[3].attr("double")();
    const auto negative = [](const nb::object& of) {
        return truth(of.attr("lt")(0).attr("any")());
    };
    const nb::object last =
        size.attr("sub")(1).attr("mul")(stride).attr("sum")(1).attr("add")(begin);
    const nb::object empty = size.attr("eq")(0).attr("any")(1);
    const nb::object outside = last.attr("ge")(buffer.attr("numel")());
    require(!negative(size) && !negative(stride) && !negative(begin) &&
                !truth(outside.attr("logical_and")(empty.attr("logical_not")()).attr("any")()),
            "a nested tensor does not lie in its buffer");
    return torch.attr("_nested_view_from_buffer")(buffer, sizes, strides, parts[3]);
}

// Torch does not look whether offsets and lengths lie in the values, and its kernels read there.
void check_jagged(const std::vector<nb::object>& parts) {
    const nb::object &values = parts[0], &offsets = parts[1], &lengths = parts[2];
    const std::int64_t extent = number(values.attr("size")(number(parts[5]) - 1));
    const auto all = [](const nb::object& of) { return truth(of.attr("all")()); };
    const nb::object begin = offsets.attr("long")();
    bool good = all(begin.attr("ge")(0)) && all(begin.attr("le")(extent));
    if (good && lengths.is_none()) {
        good = all(begin.attr("diff")().attr("ge")(0));
    } else if (good) {
        const nb::object length = lengths.attr("long")();
        good = all(length.attr("ge")(0)) && all(length.attr("le")(extent)) &&
               all(begin[nb::slice(nb::none(), nb::int_(-1), nb::none())].attr("add")(length).attr(
                   "le")(extent));
    }
    require(good, "a jagged tensor does not lie in its values");
}

nb::object jagged(const std::vector<nb::object>& parts) {
    if (has_data(parts[0]) && has_data(parts[1])) {
        check_jagged(parts);
    }
    const nb::module_ module = nb::module_::import_("torch.nested._internal.nested_tensor");
    nb::dict cache;
    // Torch before 2.5 has numbers there, and computes them again.
    if (nb::hasattr(module, "_store_val_in_tensor")) {
        if (!parts[3].is_none()) {
            cache["min_seqlen"] = parts[3];
        }
        if (!parts[4].is_none()) {
            cache["max_seqlen"] = parts[4];
        }
    }
    return module.attr("NestedTensor")(
        parts[0], parts[1], nb::arg("lengths") = parts[2], nb::arg("_ragged_idx") = parts[5],
        nb::arg("_metadata_cache") = cache, nb::arg("requires_grad") = parts[6]);
}

nb::object whole_of(nb::handle torch, nb::handle storage, const format::HeldType* held,
                    const nb::object& dtype) {
    const nb::object as =
        held == nullptr ? dtype : nb::object(torch.attr(tensor::row_of(held->held).torch));
    const std::int64_t bytes = number(storage.attr("nbytes")());
    const std::int64_t each = number(as.attr("itemsize"));
    return set(torch, as, storage, nb::int_(0), nb::make_tuple(bytes / each), nb::make_tuple(1));
}

const format::HeldType* held_type(nb::handle dtype) {
    constexpr std::size_t kTorch = 6;  // "torch."
    return format::held_type_named(text(dtype).substr(kTorch));
}

TorchParts parts_of_quantized(nb::handle torch, nb::handle o) {
    const nb::object dtype = o.attr("dtype");
    const nb::object scheme = o.attr("qscheme")();
    TorchParts out{"quantized",
                   {whole_of(torch, o.attr("untyped_storage")(), held_type(dtype), dtype), dtype,
                    o.attr("storage_offset")(), o.attr("size")(),
                    nb::object(torch.attr("Size")(o.attr("stride")())), scheme}};
    if (text(scheme) == "torch.per_tensor_affine") {
        out.parts.insert(out.parts.end(),
                         {o.attr("q_scale")(), o.attr("q_zero_point")(), nb::none()});
    } else {
        out.parts.insert(out.parts.end(),
                         {o.attr("q_per_channel_scales")(), o.attr("q_per_channel_zero_points")(),
                          o.attr("q_per_channel_axis")()});
    }
    out.parts.emplace_back(nb::bool_(false));
    return out;
}

}  // namespace

nb::object torch_constant(nb::handle torch, const std::string& name, const std::string& place) {
    nb::object at = nb::borrow(torch);
    std::string_view rest = name;
    while (!rest.empty()) {
        const std::string step(rest.substr(0, rest.find('.')));
        rest.remove_prefix(std::min(step.size() + 1, rest.size()));
        at = nb::getattr(at, step.c_str(), nb::none());
        if (at.is_none()) {
            throw Error(ErrorCode::kUnsupported, 0, "load", "", kNoOffset,
                        fmt::format("load: {} is of torch.{}, which torch {} does not have; load "
                                    "the rest by `names`, or use a torch that has it",
                                    place, name, text(torch.attr("__version__"))));
        }
    }
    return at;
}

nb::object torch_object(nb::handle torch, const format::RebuiltRow& row,
                        const std::vector<nb::object>& parts) {
    switch (row.rebuilt) {
        case Rebuilt::kStorage:
            return typed_storage(
                torch, parts[0].attr("untyped_storage")(),
                parts[1].is_none() ? nb::object(parts[0].attr("dtype")) : parts[1]);
        case Rebuilt::kView:
            return set(torch, parts[1], parts[0].attr("untyped_storage")(),
                       parts[0].attr("storage_offset")(), shape_of(parts[0]),
                       parts[0].attr("stride")());
        case Rebuilt::kSparseCoo:
            return sparse_coo(torch, parts);
        case Rebuilt::kSparseCsr:
        case Rebuilt::kSparseCsc:
        case Rebuilt::kSparseBsr:
        case Rebuilt::kSparseBsc:
            return sparse_compressed(torch, row, parts);
        case Rebuilt::kQuantized:
            return quantized(torch, parts);
        case Rebuilt::kNested:
            return nested(torch, parts);
        case Rebuilt::kJagged:
            return jagged(parts);
        case Rebuilt::kMeta:
            return torch.attr("empty_strided")(parts[1], parts[2], nb::arg("dtype") = parts[0],
                                               nb::arg("device") = "meta",
                                               nb::arg("requires_grad") = parts[3]);
        case Rebuilt::kParameter:
            return torch.attr("nn").attr("Parameter")(parts[0], parts[1]);
    }
    return nb::none();
}

nb::object without_compile_hints(const nb::object& attributes) {
    nb::dict kept;
    for (const auto [name, item] : nb::cast<nb::dict>(attributes)) {
        if (!nb::isinstance<nb::str>(name) || !format::is_compile_hint(text(name))) {
            kept[name] = item;
        }
    }
    return kept;
}

TorchParts jagged_parts(nb::handle o) {
    nb::dict own = nb::cast<nb::dict>(without_compile_hints(o.attr("__dict__")));
    for (const char* part : {"_values", "_offsets", "_lengths", "_ragged_idx", "_metadata_cache",
                             "_size", "_strides", "_sym_sizes_capsule", "_sym_sizes_capsule_len",
                             "_sym_strides_capsule", "_sym_strides_capsule_len"}) {
        PyObject_DelItemString(own.ptr(), part);
    }
    PyErr_Clear();
    const nb::object cache = o.attr("_metadata_cache");
    const auto extreme = [&](const char* name) {
        nb::object known = cache.attr("get")(name);
        return nb::isinstance<nb::int_>(known) ? nb::none() : known;
    };
    return {"jagged",
            {o.attr("_values"), o.attr("_offsets"), o.attr("_lengths"), extreme("min_seqlen"),
             extreme("max_seqlen"), o.attr("_ragged_idx"), o.attr("requires_grad")},
            own};
}

TorchParts torch_parts(nb::handle torch, nb::handle o) {
    if (!nb::hasattr(o, "layout")) {
        const nb::object dtype = o.attr("dtype");
        const format::HeldType* held = held_type(dtype);
        return {"storage",
                {whole_of(torch, o.attr("_untyped_storage"), held, dtype),
                 held == nullptr ? nb::none() : dtype}};
    }
    const nb::object dtype = o.attr("dtype");
    const std::string layout = text(o.attr("layout")).substr(6);
    const format::RebuiltRow* sparse = format::sparse_of_layout(layout);
    const bool is_quantized = truth(o.attr("is_quantized"));
    const bool is_nested = truth(o.attr("is_nested"));
    const format::HeldType* held = held_type(dtype);
    if (sparse == nullptr && !is_quantized && !is_nested && held == nullptr) {
        return {};
    }
    if (o.type().is(torch.attr("nn").attr("Parameter"))) {
        return {"parameter", {o.attr("data"), o.attr("requires_grad")}};
    }
    const nb::object plain = o.attr("detach")();
    if (is_quantized) {
        return parts_of_quantized(torch, plain);
    }
    if (is_nested) {
        return {"nested",
                {plain.attr("values")(), plain.attr("_nested_tensor_size")(),
                 plain.attr("_nested_tensor_strides")(),
                 plain.attr("_nested_tensor_storage_offsets")()}};
    }
    if (sparse == nullptr) {
        const nb::object bits = set(torch, torch.attr(tensor::row_of(held->held).torch),
                                    plain.attr("untyped_storage")(), plain.attr("storage_offset")(),
                                    shape_of(plain), plain.attr("stride")());
        return {"view", {bits, dtype}};
    }
    if (sparse->rebuilt == Rebuilt::kSparseCoo) {
        return {layout,
                {plain.attr("_indices")(), plain.attr("_values")(), plain.attr("size")(),
                 plain.attr("is_coalesced")()}};
    }
    return {layout,
            {plain.attr(std::string(sparse->parts[0].name).c_str())(),
             plain.attr(std::string(sparse->parts[1].name).c_str())(), plain.attr("values")(),
             plain.attr("size")()}};
}

}  // namespace penstock::python
