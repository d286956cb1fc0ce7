// SPDX-License-Identifier: Apache-2.0
// A file made of Python's objects and not written yet: the image, and what keeps its payloads where
// they are. Made and destroyed with the GIL; written without it.
#pragma once

#include "nanobind.hpp"
#include "state.hpp"
#include "state/index/index_writer.hpp"
#include "state/writing/file_image.hpp"

#include <span>
#include <vector>

namespace penstock::python {

struct FileImageObject {
    state::FileImage image;
    std::vector<StorageMemory> payloads;  ///< as many as the image's; drop them once it has copies
    std::vector<StreamHandle> streams;    ///< see streams_of(); of now
};

/// A `.pt` of any state. TypeError with the place of what cannot be saved.
[[nodiscard]] FileImageObject image_of_state(nb::handle object, nb::handle folder,
                                             nb::handle other);

/// Tensors of a `.safetensors`, and what keeps their memory.
struct GivenTensors {
    state::NamedTensors named;
    std::vector<StorageMemory> memory;
    std::vector<StreamHandle> streams;  ///< see streams_of(); of now
};

/// `tensors`: (name, type as the format spells it, shape, address, owner) each; `metadata`: (key,
/// value) each.
[[nodiscard]] GivenTensors rows_of(nb::handle tensors, nb::handle metadata);
/// A `.safetensors` of such rows.
[[nodiscard]] FileImageObject image_of_tensors(nb::handle tensors, nb::handle metadata,
                                               bool checksums);

}  // namespace penstock::python
