// SPDX-License-Identifier: Apache-2.0
// All of the public API.
#pragma once

#include <penstock/checkpoint.hpp>
#include <penstock/engine.hpp>
#include <penstock/error.hpp>
#include <penstock/expert_stream.hpp>
#include <penstock/file.hpp>
#include <penstock/joined_tensors.hpp>
#include <penstock/machine.hpp>
#include <penstock/memory.hpp>
#include <penstock/npy.hpp>
#include <penstock/options.hpp>
#include <penstock/page_cache.hpp>
#include <penstock/progress.hpp>
#include <penstock/state_file.hpp>
#include <penstock/tensor.hpp>
#include <penstock/tensor_rows.hpp>
#include <penstock/tensor_table.hpp>
#include <penstock/transfer_group.hpp>
#include <penstock/transfer_options.hpp>
#include <penstock/types.hpp>
#include <penstock/version.hpp>
#include <penstock/weight_folders.hpp>
#include <penstock/weight_plan.hpp>
#include <penstock/weight_stream.hpp>
