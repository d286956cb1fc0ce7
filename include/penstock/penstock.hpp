// SPDX-License-Identifier: Apache-2.0
// All of the public API.
#pragma once

#include <penstock/checkpoint.hpp>
#include <penstock/device_array.hpp>
#include <penstock/engine.hpp>
#include <penstock/error.hpp>
#include <penstock/features.hpp>
#include <penstock/file.hpp>
#include <penstock/gpu.hpp>
#include <penstock/graph.hpp>
#include <penstock/memory.hpp>
#include <penstock/plan.hpp>
#include <penstock/plan_model.hpp>
#include <penstock/ranks.hpp>
#include <penstock/state_file.hpp>
#include <penstock/tensor.hpp>
#include <penstock/tensor_table.hpp>
#include <penstock/types.hpp>
#include <penstock/version.hpp>
#include <penstock/weights.hpp>
