# The sources of the CPU kernels and the flags of each level file. Include from CMakeLists.txt, add
# PENSTOCK_CPU_LEVEL_SOURCES to the target; everything else is compiled with PENSTOCK_BASELINE.

set(PENSTOCK_CPU_DIR ${CMAKE_CURRENT_LIST_DIR})
set(PENSTOCK_CPU_LEVEL_SOURCES ${PENSTOCK_CPU_DIR}/level.cc ${PENSTOCK_CPU_DIR}/pack.cc
    ${PENSTOCK_CPU_DIR}/pack_panel.cc ${PENSTOCK_CPU_DIR}/weight_memory.cc)

# Fused multiply-adds only where written: the order of roundings is part of a kernel's contract.
# Kernels throw nothing, and a level exports nothing for exceptions either.
set(PENSTOCK_LEVEL_FLAGS -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -fno-exceptions
    -Wno-psabi)
set(PENSTOCK_V3_FLAGS -mavx2 -mfma -mf16c -mbmi -mbmi2 -mlzcnt -mpopcnt)
set(PENSTOCK_AVX512_FLAGS
    ${PENSTOCK_V3_FLAGS} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
    -mprefer-vector-width=512)

# What all else is compiled for, and the levels that there are.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(PENSTOCK_BASELINE -march=x86-64-v2)
  set(PENSTOCK_CPU_LEVELS scalar avx2 avx_vnni avx512 avx512_bf16 amx)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(PENSTOCK_BASELINE -march=armv8-a)
  set(PENSTOCK_CPU_LEVELS scalar neon)
else()
  set(PENSTOCK_BASELINE "")
  set(PENSTOCK_CPU_LEVELS scalar)
endif()

# `host` builds faster, for a machine that runs what it builds: the levels that this processor has,
# among which a measurement chooses, except avx_vnni beside AVX-512.
set(PENSTOCK_LEVELS "all" CACHE STRING "Instruction-set levels to build: all or host")
if(PENSTOCK_LEVELS STREQUAL "host")
  file(STRINGS /proc/cpuinfo flags REGEX "^(flags|Features)" LIMIT_COUNT 1)
  if(flags MATCHES " fma .*f16c .*bmi1 .*avx2 .*bmi2 " OR flags MATCHES " asimddp") # as Linux lists them
    list(REMOVE_ITEM PENSTOCK_CPU_LEVELS scalar)
  endif()
  if(NOT flags MATCHES " asimddp")
    list(REMOVE_ITEM PENSTOCK_CPU_LEVELS neon)
  endif()
  if(NOT flags MATCHES " avx_vnni" OR flags MATCHES " avx512_vnni")
    list(REMOVE_ITEM PENSTOCK_CPU_LEVELS avx_vnni)
  endif()
  if(NOT flags MATCHES " avx512_vnni")
    list(REMOVE_ITEM PENSTOCK_CPU_LEVELS avx512 avx512_bf16 amx)
  elseif(NOT flags MATCHES " avx512_bf16")
    list(REMOVE_ITEM PENSTOCK_CPU_LEVELS avx512_bf16 amx)
  elseif(NOT flags MATCHES " amx_int8")
    list(REMOVE_ITEM PENSTOCK_CPU_LEVELS amx)
  endif()
endif()

include(CheckCXXCompilerFlag)

# Leaves out a level that is not listed, or that the compiler is too old for; tells level.cc of the
# others.
function(penstock_add_level name)
  if(NOT name IN_LIST PENSTOCK_CPU_LEVELS)
    return()
  endif()
  string(JOIN " " flags ${ARGN})
  check_cxx_compiler_flag("${flags}" PENSTOCK_COMPILES_${name})
  if(NOT PENSTOCK_COMPILES_${name})
    message(WARNING "The kernels of the level ${name} are left out: the compiler lacks ${flags}")
    return()
  endif()
  set(source ${PENSTOCK_CPU_DIR}/level_${name}.cc)
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${PENSTOCK_LEVEL_FLAGS};${ARGN}")
  set(PENSTOCK_CPU_LEVEL_SOURCES ${PENSTOCK_CPU_LEVEL_SOURCES} ${source} PARENT_SCOPE)
  string(TOUPPER PENSTOCK_HAS_${name} define)
  set_property(SOURCE ${PENSTOCK_CPU_DIR}/level.cc APPEND PROPERTY COMPILE_DEFINITIONS ${define})
endfunction()

# Inlined array loops take minutes at -O3, for a speed that nobody needs.
penstock_add_level(scalar ${PENSTOCK_BASELINE} -O2)
penstock_add_level(neon -march=armv8.2-a+dotprod)
penstock_add_level(avx2 ${PENSTOCK_V3_FLAGS})
penstock_add_level(avx_vnni ${PENSTOCK_V3_FLAGS} -mavxvnni)
penstock_add_level(avx512 ${PENSTOCK_AVX512_FLAGS})
penstock_add_level(avx512_bf16 ${PENSTOCK_AVX512_FLAGS} -mavx512bf16)
penstock_add_level(amx ${PENSTOCK_AVX512_FLAGS} -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16)

# For tests on machines without the wide instructions: slow to compile, and never chosen otherwise.
option(PENSTOCK_EMULATED "Build the emulated levels" OFF)
if(PENSTOCK_EMULATED AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  list(APPEND PENSTOCK_CPU_LEVELS emulated_avx512 emulated_avx512_bf16 emulated_amx)
  penstock_add_level(emulated_avx512 ${PENSTOCK_V3_FLAGS} -O1)
  penstock_add_level(emulated_avx512_bf16 ${PENSTOCK_V3_FLAGS} -O1)
  penstock_add_level(emulated_amx ${PENSTOCK_V3_FLAGS} -O1)
endif()
