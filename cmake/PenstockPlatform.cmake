# SPDX-License-Identifier: Apache-2.0
# What cannot build Penstock is reported before anything else, in a sentence and with what to do.

# All that a build needs, as Debian and Ubuntu call it: tools/apt-packages.txt, the set "build".
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../tools/apt-packages.txt" lines REGEX "^build ")
list(TRANSFORM lines REPLACE "^build +" "")
list(JOIN lines " " packages)
string(CONCAT PENSTOCK_APT "On Debian 12, Ubuntu 24.04 and later:\n\n  sudo apt-get install ${packages}\n\n"
       "or take a wheel, which needs no compiler.")

# penstock_check_platform(<system> <processor> <libc>): as `uname -s`, `uname -m`, and "glibc" or "musl".
function(penstock_check_platform system processor libc)
    if(NOT system STREQUAL "Linux" OR NOT processor MATCHES "^(x86_64|AMD64|amd64)$" OR NOT libc STREQUAL "glibc")
        message(FATAL_ERROR
            "Penstock runs on Linux on x86-64 with glibc, and this is ${system} on ${processor} (${libc}): "
            "use such a machine, or a container or virtual machine of Debian 12 or Ubuntu 24.04 for it.")
    endif()
endfunction()

if(NOT CMAKE_CROSSCOMPILING AND NOT CMAKE_TOOLCHAIN_FILE)
    cmake_host_system_information(RESULT system QUERY OS_NAME)
    cmake_host_system_information(RESULT processor QUERY OS_PLATFORM)
    file(GLOB musl "/lib/ld-musl-*.so.1")
    set(libc glibc)
    if(musl AND NOT EXISTS "/lib64/ld-linux-x86-64.so.2")
        set(libc musl)
    endif()
    penstock_check_platform("${system}" "${processor}" "${libc}")
endif()

if(NOT CMAKE_CXX_COMPILER AND NOT DEFINED ENV{CXX})
    find_program(PENSTOCK_ANY_COMPILER NAMES c++ g++ clang++)
    if(NOT PENSTOCK_ANY_COMPILER)
        message(FATAL_ERROR
            "Penstock is compiled by GCC 12 or Clang 14 or later, and no C++ compiler was found. ${PENSTOCK_APT}")
    endif()
endif()
