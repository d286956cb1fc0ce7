// SPDX-License-Identifier: Apache-2.0
// Objects of torch that are made of others (format/rebuilt.hpp): sparse, quantized and nested
// tensors, bare storages. Made of their parts here, and taken apart again.
#pragma once

#include "format/rebuilt.hpp"
#include "nanobind.hpp"

#include <string>
#include <vector>

namespace penstock::python {

/// torch's object of that name, "float32" or "cuda.FloatTensor". Throws Error (kUnsupported) if
/// the torch at hand does not have it. `place`: of the value in the state.
[[nodiscard]] nb::object torch_constant(nb::handle torch, const std::string& name,
                                        const std::string& place);

/// `parts`: as the row has them.
[[nodiscard]] nb::object torch_object(nb::handle torch, const format::RebuiltRow& row,
                                      const std::vector<nb::object>& parts);

struct TorchParts {
    std::string tag;  ///< empty: a dense tensor
    std::vector<nb::object> parts;
    nb::object own = {};  ///< of a jagged tensor: a dict of its attributes that are no parts
};
/// Without what torch.compile notes of a tensor; see format::is_compile_hint().
[[nodiscard]] nb::object without_compile_hints(const nb::object& attributes);
/// Takes an object of torch's class of jagged tensors apart.
[[nodiscard]] TorchParts jagged_parts(nb::handle object);
/// Takes a torch.Tensor, a Parameter or a TypedStorage apart.
[[nodiscard]] TorchParts torch_parts(nb::handle torch, nb::handle object);

}  // namespace penstock::python
