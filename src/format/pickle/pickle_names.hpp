// SPDX-License-Identifier: Apache-2.0
// The names that are read in pickles: one table, which docs/formats.md lists, too.
#pragma once

#include "format/rebuilt.hpp"
#include "format/torch_types.hpp"

#include <array>
#include <cstdint>
#include <string_view>

namespace penstock::format {

enum PickleFunction : std::int64_t {
    kOrderedDictClass,
    kDefaultDictClass,
    kCounterClass,
    kSetClass,
    kFrozenSetClass,
    kByteArrayClass,
    kBytesClass,
    kComplexClass,
    kEncode,
    kSizeClass,
    kDeviceClass,
    kGetLayout,
    kRebuildTensorV1,
    kRebuildTensor,
    kRebuildTensorV3,
    kRebuildParameter,
    kRebuildParameterWithState,
    kRebuildSparse,
    kRebuildQuantized,
    kRebuildNested,
    kRebuildJagged,
    kRebuildMeta,
    kRebuildFromCpu,
    kRebuildFromType,
    kTensorClass,
    kTypedTensorClass,
    kParameterClass,
    kJaggedClass,
    kReconstruct,
    kFromBuffer,
    kScalar,
    kNdarray,
    kNumpyDtypeClass,
    kLoads,
    kFactory,         // one of kFactories that is not callable otherwise
    kUntypedStorage,  // and from here on: a storage class, + its row in kTorchTypes + 1, or + its
                      // row in kHeldTypes behind those
};

struct PickleName {
    std::string_view module;
    std::string_view name;
    PickleFunction function;
    std::string_view gives;  ///< for people
};

/// Read, too: classes of storages, dtypes, schemes (torch_constant()), classes of tensors.
inline constexpr std::array kPickleNames{
    PickleName{"collections", "OrderedDict", kOrderedDictClass, "OrderedDict"},
    PickleName{"collections", "defaultdict", kDefaultDictClass, "defaultdict"},
    PickleName{"collections", "Counter", kCounterClass, "Counter"},
    PickleName{"builtins", "set", kSetClass, "set"},
    PickleName{"builtins", "frozenset", kFrozenSetClass, "frozenset"},
    PickleName{"builtins", "bytearray", kByteArrayClass, "bytearray"},
    PickleName{"builtins", "bytes", kBytesClass, "empty bytes"},
    PickleName{"builtins", "complex", kComplexClass, "complex"},
    PickleName{"_codecs", "encode", kEncode, "bytes"},
    PickleName{"torch", "Size", kSizeClass, "torch.Size"},
    PickleName{"torch", "device", kDeviceClass, "torch.device"},
    PickleName{"torch.serialization", "_get_layout", kGetLayout, "torch.layout"},
    PickleName{"torch._utils", "_rebuild_tensor", kRebuildTensorV1, "tensor (before torch 0.4)"},
    PickleName{"torch._utils", "_rebuild_tensor_v2", kRebuildTensor, "tensor"},
    PickleName{"torch._utils", "_rebuild_tensor_v3", kRebuildTensorV3,
               "tensor of the types since torch 2.0"},
    PickleName{"torch._utils", "_rebuild_parameter", kRebuildParameter, "Parameter"},
    PickleName{"torch._utils", "_rebuild_parameter_with_state", kRebuildParameterWithState,
               "Parameter with attributes"},
    PickleName{"torch._utils", "_rebuild_sparse_tensor", kRebuildSparse, "sparse tensor"},
    PickleName{"torch._utils", "_rebuild_qtensor", kRebuildQuantized, "quantized tensor"},
    PickleName{"torch._utils", "_rebuild_nested_tensor", kRebuildNested, "nested tensor"},
    PickleName{"torch.nested._internal.nested_tensor", "_rebuild_njt", kRebuildJagged,
               "jagged tensor (since torch 2.6)"},
    PickleName{"torch.nested._internal.nested_tensor", "NestedTensor", kJaggedClass,
               "its class; jagged tensor (torch 2.2 to 2.5)"},
    PickleName{"torch._utils", "_rebuild_meta_tensor_no_storage", kRebuildMeta,
               "tensor of the meta device"},
    PickleName{"torch._utils", "_rebuild_device_tensor_from_cpu_tensor", kRebuildFromCpu,
               "tensor of a device without storages (XLA)"},
    PickleName{"torch._tensor", "_rebuild_from_type_v2", kRebuildFromType,
               "tensor with attributes; nn.Buffer"},
    PickleName{"torch", "Tensor", kTensorClass, "the class"},
    PickleName{"torch.nn.parameter", "Parameter", kParameterClass, "Parameter"},
    PickleName{"torch.storage", "UntypedStorage", kUntypedStorage, "class of storages"},
    PickleName{"_pickle", "loads", kLoads, "penstock.Pickled"},
    PickleName{"numpy", "ndarray", kNdarray, "array"},
    PickleName{"numpy", "dtype", kNumpyDtypeClass, "NumPy's dtype, of a scalar or an array"},
    PickleName{"numpy.core.multiarray", "_reconstruct", kReconstruct, "array"},
    PickleName{"numpy.core.multiarray", "scalar", kScalar, "NumPy scalar"},
    PickleName{"numpy.core.numeric", "_frombuffer", kFromBuffer, "array"},
};

/// Whether the name is read, by the table or as one of the others.
[[nodiscard]] bool is_name_read(std::string_view module, std::string_view name);

}  // namespace penstock::format
