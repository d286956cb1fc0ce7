# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: headers, library, find_package(penstock) and penstock.pc.
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/penstock")
set(libraries penstock)
if(PENSTOCK_STATIC)
    list(APPEND libraries penstock_static)
endif()

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/penstock" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        COMPONENT development FILES_MATCHING PATTERN "*.hpp")
install(TARGETS ${libraries} EXPORT penstock_targets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
install(EXPORT penstock_targets NAMESPACE penstock:: DESTINATION "${package_dir}"
        FILE penstockTargets.cmake COMPONENT development)
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/penstockConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/penstockConfig.cmake"
                              INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/penstockConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/penstockConfig.cmake"
              "${PROJECT_BINARY_DIR}/penstockConfigVersion.cmake"
        DESTINATION "${package_dir}" COMPONENT development)
# Relative to where it lies, so that `cmake --install --prefix` and moving the folder are both right.
file(RELATIVE_PATH PENSTOCK_PC_TO_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" PENSTOCK_PC_TO_PREFIX "${PENSTOCK_PC_TO_PREFIX}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/penstock.pc.in" "${PROJECT_BINARY_DIR}/penstock.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/penstock.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig"
        COMPONENT development)
if(TARGET penstock_exe)
    install(TARGETS penstock_exe RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT program)
endif()
