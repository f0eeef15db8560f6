# The launcher of sandboxes, installed as penstock/bin/penstock-sandbox. Linux only.
#
# Without CMake, for a tree that runs from its sources:
#   mkdir -p python/penstock/bin
#   g++ -std=c++20 -Os -fno-exceptions -fno-rtti -Icsrc csrc/sandbox/*.cc -static -s \
#     -ffunction-sections -Wl,--gc-sections -o python/penstock/bin/penstock-sandbox
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR
   NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|aarch64)$")
  return()
endif()

# A static program starts faster and keeps one small process per container. Some build images
# have no static C library.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LINK_OPTIONS -static)
check_cxx_source_compiles("#include <string>\nint main() { return std::string().size(); }"
                          PENSTOCK_STATIC_LIBC)
unset(CMAKE_REQUIRED_LINK_OPTIONS)

file(GLOB PENSTOCK_SANDBOX_SOURCES CONFIGURE_DEPENDS csrc/sandbox/*.cc)
add_executable(penstock-sandbox ${PENSTOCK_SANDBOX_SOURCES})
target_include_directories(penstock-sandbox PRIVATE csrc)
target_compile_options(penstock-sandbox PRIVATE
  -Os -fno-exceptions -fno-rtti -ffunction-sections
  -Wall -Wextra $<$<BOOL:${PENSTOCK_WERROR}>:-Werror>)
target_link_options(penstock-sandbox PRIVATE -s -Wl,--gc-sections
  $<IF:$<BOOL:${PENSTOCK_STATIC_LIBC}>,-static,-static-libstdc++$<SEMICOLON>-static-libgcc>)
if(PENSTOCK_PYTHON)
  install(TARGETS penstock-sandbox RUNTIME DESTINATION penstock/bin)
endif()
