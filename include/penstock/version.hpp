// SPDX-License-Identifier: Apache-2.0
//
// The version of Penstock: the one place that says it. CMake, the Python package and `penstock
// --version` read it here.
#pragma once

#define PENSTOCK_VERSION_MAJOR 0
#define PENSTOCK_VERSION_MINOR 1
#define PENSTOCK_VERSION_PATCH 0

#define PENSTOCK_STRINGIFY_(x) #x
#define PENSTOCK_STRINGIFY(x) PENSTOCK_STRINGIFY_(x)
#define PENSTOCK_VERSION                       \
    PENSTOCK_STRINGIFY(PENSTOCK_VERSION_MAJOR) \
    "." PENSTOCK_STRINGIFY(PENSTOCK_VERSION_MINOR) "." PENSTOCK_STRINGIFY(PENSTOCK_VERSION_PATCH)
