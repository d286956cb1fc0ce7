// SPDX-License-Identifier: Apache-2.0
// The version of the headers. CMake and the Python package read it from here.
#pragma once

#define PENSTOCK_VERSION_MAJOR 0
#define PENSTOCK_VERSION_MINOR 1
#define PENSTOCK_VERSION_PATCH 0
#define PENSTOCK_VERSION "0.1.0"
