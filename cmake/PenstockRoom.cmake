# SPDX-License-Identifier: Apache-2.0
# Rooms and their tests.
#
#   penstock_room(engine/uring DEPENDS engine os LIBS penstock_liburing)
#
# makes the object library penstock_engine_uring of src/engine/uring/*.cpp, and of the FOLDERS below it. A room whose
# folder does not exist or holds no source is no target of its own: headers alone need none. A target that links objects
# asks penstock_rooms_closure() for a room and everything under it.
#
# With PENSTOCK_UNITY the files of a room or a test are compiled several at a time, which takes 60 % of the time.
# APART names those with names of their own file that others have too (kFields in each answer of plan). FIRST names
# those that are compiled with one another: they include what costs much to compile, and the others do not.
set(PENSTOCK_ROOMS "" CACHE INTERNAL "")

function(penstock_compile_together target)
    if(PENSTOCK_UNITY)
        set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 7)
        set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
        # GCC takes an included file for a header, where types of its own would be a mistake.
        target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
    endif()
endfunction()

function(penstock_room name)
    cmake_parse_arguments(arg "" "PCH" "DEPENDS;LIBS;EXCLUDE;FOLDERS;FIRST;APART" ${ARGN})
    if(NOT arg_PCH)
        set(arg_PCH ROOMS)
    endif()
    string(REPLACE "/" "_" target "penstock_${name}")
    file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${name}/*.cpp")
    foreach(folder ${arg_FOLDERS})
        file(GLOB more CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${name}/${folder}/*.cpp")
        list(APPEND sources ${more})
    endforeach()
    foreach(file ${arg_EXCLUDE})
        list(REMOVE_ITEM sources "${PROJECT_SOURCE_DIR}/src/${name}/${file}")
    endforeach()
    if(arg_FIRST)
        list(TRANSFORM arg_FIRST PREPEND "${PROJECT_SOURCE_DIR}/src/${name}/")
        list(REMOVE_ITEM sources ${arg_FIRST})
        list(PREPEND sources ${arg_FIRST})
    endif()
    set_property(GLOBAL PROPERTY PENSTOCK_ROOM_DEPENDS_${name} ${arg_DEPENDS})
    if(NOT sources)
        return()
    endif()
    add_library(${target} OBJECT ${sources})
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src"
                                                 "${PROJECT_SOURCE_DIR}/include")
    target_link_libraries(${target} PRIVATE Threads::Threads tl::expected penstock_fmt
                                            ${arg_LIBS})
    penstock_precompiled(${target} ${arg_PCH})
    list(TRANSFORM arg_APART PREPEND "${PROJECT_SOURCE_DIR}/src/${name}/")
    penstock_compile_together(${target} ${arg_APART})
    set_property(GLOBAL APPEND PROPERTY PENSTOCK_ROOMS ${name})
    set_property(GLOBAL PROPERTY PENSTOCK_ROOM_TARGET_${name} ${target})
    set_property(GLOBAL PROPERTY PENSTOCK_ROOM_LIBS_${name} ${arg_LIBS})
endfunction()

# The rooms named and all below them, each once.
function(penstock_rooms_closure out)
    set(open ${ARGN})
    set(seen "")
    while(open)
        list(POP_FRONT open room)
        if(room IN_LIST seen)
            continue()
        endif()
        list(APPEND seen ${room})
        get_property(below GLOBAL PROPERTY PENSTOCK_ROOM_DEPENDS_${room})
        list(APPEND open ${below})
    endwhile()
    set(${out} ${seen} PARENT_SCOPE)
endfunction()

# Puts the objects of the rooms (and of all below them) and their libraries into a target.
function(penstock_link_rooms target)
    penstock_rooms_closure(rooms ${ARGN})
    foreach(room ${rooms})
        get_property(objects GLOBAL PROPERTY PENSTOCK_ROOM_TARGET_${room})
        get_property(libs GLOBAL PROPERTY PENSTOCK_ROOM_LIBS_${room})
        if(objects)
            target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
        endif()
        target_link_libraries(${target} PRIVATE ${libs})
    endforeach()
    target_sources(${target} PRIVATE ${PENSTOCK_FMT_OBJECTS})
    target_link_libraries(${target} PRIVATE Threads::Threads)
endfunction()

# A program of ours that sees the inside: tests, fuzzers, benchmarks, the command line.
function(penstock_program target)
    cmake_parse_arguments(arg "" "PCH" "SOURCES;ROOMS;LIBS" ${ARGN})
    if(NOT arg_PCH)
        set(arg_PCH ROOMS)
    endif()
    add_executable(${target} ${arg_SOURCES})
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src"
                                                 "${PROJECT_SOURCE_DIR}/include")
    target_link_libraries(${target} PRIVATE tl::expected penstock_fmt ${arg_LIBS})
    penstock_precompiled(${target} ${arg_PCH})
    penstock_link_rooms(${target} ${arg_ROOMS})
endfunction()

# penstock_test(engine ROOMS simulation): tests/engine/*.cpp become engine_test, linked with the room, all below it and
# the rooms named. Nothing happens while the folder is absent.
function(penstock_test name)
    cmake_parse_arguments(arg "" "" "ROOMS;LIBS;APART" ${ARGN})
    file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${name}/*.cpp")
    if(NOT sources)
        return()
    endif()
    string(REPLACE "/" "_" target "${name}_test")
    penstock_program(${target} PCH TESTS SOURCES ${sources} ROOMS ${name} ${arg_ROOMS}
                     LIBS ${arg_LIBS} penstock_test_support GTest::gmock GTest::gtest_main)
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
    list(TRANSFORM arg_APART PREPEND "${PROJECT_SOURCE_DIR}/tests/${name}/")
    penstock_compile_together(${target} ${arg_APART})
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY
                                               "${PROJECT_BINARY_DIR}/tests")
    add_test(NAME ${target} COMMAND ${target})
endfunction()
