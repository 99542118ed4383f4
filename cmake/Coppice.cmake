# Build rules that every folder shares: compiler flags, parts from packages, one library per folder.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(COPPICE_CCACHE ccache)
if(COPPICE_CCACHE)
  # Precompiled headers need these to be cacheable.
  # A clone in another folder shares what this one has compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${COPPICE_CCACHE})
endif()
find_program(COPPICE_MOLD mold)
if(COPPICE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# -Wrestrict: GCC 12 warns falsely about std::string (its bug 105651).
# -fPIC everywhere, programs included: a precompiled header fits one setting only.
add_compile_options(-Wall -Wextra -Wno-restrict -fpch-preprocess -fPIC)
if(COPPICE_WERROR)
  add_compile_options(-Werror)
endif()
if(COPPICE_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined
                      -fno-omit-frame-pointer -Wno-maybe-uninitialized)  # false with sanitizers
  add_link_options(-fsanitize=address,undefined)
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
# The torch wheel brings headers of another fmt: those that libfmt and spdlog are built with go first.
find_path(COPPICE_FMT_INCLUDE fmt/format.h PATHS /usr/include NO_DEFAULT_PATH REQUIRED)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/first)
file(CREATE_LINK ${COPPICE_FMT_INCLUDE}/fmt ${CMAKE_BINARY_DIR}/first/fmt SYMBOLIC)
include_directories(BEFORE SYSTEM ${CMAKE_BINARY_DIR}/first)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(HTTPLIB REQUIRED IMPORTED_TARGET cpp-httplib)

# libtorch, from the Python wheel that scripts/setup installs.
set(COPPICE_TORCH_DIR "$ENV{COPPICE_TORCH_DIR}" CACHE PATH "torch folder of the installed wheel")
if(NOT COPPICE_TORCH_DIR)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/torch-dir OUTPUT_VARIABLE COPPICE_TORCH_DIR
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT EXISTS "${COPPICE_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "There is no libtorch at \"${COPPICE_TORCH_DIR}\": run scripts/setup, or set COPPICE_TORCH_DIR")
endif()
list(APPEND CMAKE_PREFIX_PATH "${COPPICE_TORCH_DIR}")
find_package(Torch REQUIRED)
add_library(coppice_torch INTERFACE)
target_include_directories(coppice_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_link_libraries(coppice_torch INTERFACE ${TORCH_LIBRARIES})

# torch/torch.h, compiled once for every target that asks for it.
file(WRITE ${CMAKE_BINARY_DIR}/coppice_pch.cpp "")
add_library(coppice_pch STATIC ${CMAKE_BINARY_DIR}/coppice_pch.cpp)
target_link_libraries(coppice_pch PUBLIC coppice_torch)
target_precompile_headers(coppice_pch PRIVATE <torch/torch.h>)

if(COPPICE_TESTS)
  find_package(GTest REQUIRED)
  enable_testing()
  include(GoogleTest)
endif()

# coppice_folder(NAME [TORCH] [PCH] DEPS a b ...)
# One static library coppice_NAME from the .cpp files beside the CMakeLists.txt that calls it, and one
# test program coppice_NAME_test from the *_test.cpp files among them.
#   TORCH  links libtorch        PCH  also compiles with torch/torch.h precompiled
function(coppice_folder name)
  cmake_parse_arguments(ARG "TORCH;PCH" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  if(sources)
    add_library(coppice_${name} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(coppice_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(coppice_${name} ${scope} ${PROJECT_SOURCE_DIR})
  target_link_libraries(coppice_${name} ${scope} ${ARG_DEPS} fmt::fmt)
  if(ARG_TORCH)
    target_link_libraries(coppice_${name} ${scope} coppice_torch)
  endif()
  if(ARG_PCH AND sources)
    target_precompile_headers(coppice_${name} REUSE_FROM coppice_pch)
  endif()
  if(COPPICE_TESTS AND tests)
    coppice_test(coppice_${name}_test SOURCES ${tests} DEPS coppice_${name} PCH ${ARG_PCH})
  endif()
endfunction()

# coppice_test(NAME SOURCES ... DEPS ... [PCH bool] [LABELS ...]): one GoogleTest program, which runs in
# the top folder (COPPICE_SOURCE_DIR is ".", so that what it compiles to is the same in every clone).
function(coppice_test name)
  cmake_parse_arguments(ARG "" "PCH" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE COPPICE_SOURCE_DIR=".")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gtest_main)
  if(ARG_PCH)
    target_precompile_headers(${name} REUSE_FROM coppice_pch)
  endif()
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # libtorch is not instrumented, which container checks and leak checks mistake for faults of ours; its
  # own threads would only wait on each other beside other tests.
  set_tests_properties(${name} PROPERTIES TIMEOUT 900 LABELS "${ARG_LABELS}"
    ENVIRONMENT "ASAN_OPTIONS=detect_container_overflow=0:detect_leaks=0;OMP_NUM_THREADS=1;UBSAN_OPTIONS=print_stacktrace=1")
endfunction()
