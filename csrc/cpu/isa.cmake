# Sources of the CPU kernels, and the compiler flags of each ISA's file. CMakeLists.txt includes
# this file and adds PENSTOCK_CPU_ISA_SOURCES to the target. PENSTOCK_BASELINE applies to all other
# files.

set(PENSTOCK_CPU_DIR ${CMAKE_CURRENT_LIST_DIR})
set(PENSTOCK_CPU_ISA_SOURCES ${PENSTOCK_CPU_DIR}/isa/isa.cc ${PENSTOCK_CPU_DIR}/pack/pack.cc
    ${PENSTOCK_CPU_DIR}/pack/pack_tile.cc ${PENSTOCK_CPU_DIR}/pack/weight_memory.cc)

# Fused multiply-adds only in calls of fma: the order of roundings is part of a kernel's contract.
# Kernels do not throw, and an ISA's file must not export symbols for exceptions.
set(PENSTOCK_ISA_FLAGS -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -fno-exceptions
    -Wno-psabi)
set(PENSTOCK_V3_FLAGS -mavx2 -mfma -mf16c -mbmi -mbmi2 -mlzcnt -mpopcnt)
set(PENSTOCK_AVX512_FLAGS
    ${PENSTOCK_V3_FLAGS} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
    -mprefer-vector-width=512)

# The baseline for all other files, and the ISAs of this architecture.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(PENSTOCK_BASELINE -march=x86-64-v2)
  set(PENSTOCK_CPU_ISAS scalar avx2 avx_vnni avx512 avx512_bf16 amx)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(PENSTOCK_BASELINE -march=armv8-a)
  set(PENSTOCK_CPU_ISAS scalar neon)
else()
  set(PENSTOCK_BASELINE "")
  set(PENSTOCK_CPU_ISAS scalar)
endif()

# `host` builds faster, and only for the build machine: it selects the ISAs of this processor (a
# measurement chooses among them at run time), without avx_vnni if the processor has AVX-512.
set(PENSTOCK_ISAS "all" CACHE STRING "Instruction sets to build: all or host")
if(PENSTOCK_ISAS STREQUAL "host")
  file(STRINGS /proc/cpuinfo flags REGEX "^(flags|Features)" LIMIT_COUNT 1)
  if(flags MATCHES " fma .*f16c .*bmi1 .*avx2 .*bmi2 " OR flags MATCHES " asimddp") # as Linux lists them
    list(REMOVE_ITEM PENSTOCK_CPU_ISAS scalar)
  endif()
  if(NOT flags MATCHES " asimddp")
    list(REMOVE_ITEM PENSTOCK_CPU_ISAS neon)
  endif()
  if(NOT flags MATCHES " avx_vnni" OR flags MATCHES " avx512_vnni")
    list(REMOVE_ITEM PENSTOCK_CPU_ISAS avx_vnni)
  endif()
  if(NOT flags MATCHES " avx512_vnni")
    list(REMOVE_ITEM PENSTOCK_CPU_ISAS avx512 avx512_bf16 amx)
  elseif(NOT flags MATCHES " avx512_bf16")
    list(REMOVE_ITEM PENSTOCK_CPU_ISAS avx512_bf16 amx)
  elseif(NOT flags MATCHES " amx_int8")
    list(REMOVE_ITEM PENSTOCK_CPU_ISAS amx)
  endif()
endif()

include(CheckCXXCompilerFlag)

# Adds an ISA and defines PENSTOCK_HAS_<ISA> for isa.cc, unless PENSTOCK_CPU_ISAS lacks it or the
# compiler does not support it.
function(penstock_add_isa name)
  if(NOT name IN_LIST PENSTOCK_CPU_ISAS)
    return()
  endif()
  string(JOIN " " flags ${ARGN})
  check_cxx_compiler_flag("${flags}" PENSTOCK_COMPILES_${name})
  if(NOT PENSTOCK_COMPILES_${name})
    message(WARNING "Kernels for ${name} are not built: the compiler does not support ${flags}")
    return()
  endif()
  set(source ${PENSTOCK_CPU_DIR}/isa/${name}.cc)
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${PENSTOCK_ISA_FLAGS};${ARGN}")
  set(PENSTOCK_CPU_ISA_SOURCES ${PENSTOCK_CPU_ISA_SOURCES} ${source} PARENT_SCOPE)
  string(TOUPPER PENSTOCK_HAS_${name} define)
  set_property(SOURCE ${PENSTOCK_CPU_DIR}/isa/isa.cc APPEND PROPERTY COMPILE_DEFINITIONS ${define})
endfunction()

# Builders start files in this order, so those that compile longest come first.
penstock_add_isa(avx512 ${PENSTOCK_AVX512_FLAGS})
penstock_add_isa(avx2 ${PENSTOCK_V3_FLAGS})
# -O3 takes longer, and the speed of this ISA does not matter.
penstock_add_isa(scalar ${PENSTOCK_BASELINE} -O2)
penstock_add_isa(neon -march=armv8.2-a+dotprod)
penstock_add_isa(avx512_bf16 ${PENSTOCK_AVX512_FLAGS} -mavx512bf16)
penstock_add_isa(amx ${PENSTOCK_AVX512_FLAGS} -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16)
penstock_add_isa(avx_vnni ${PENSTOCK_V3_FLAGS} -mavxvnni)

# Emulated ISAs, for tests on machines without the wide instructions; only tests select them.
option(PENSTOCK_EMULATED "Build the emulated ISAs" OFF)
if(PENSTOCK_EMULATED AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  list(APPEND PENSTOCK_CPU_ISAS emulated_avx512 emulated_avx512_bf16 emulated_amx)
  penstock_add_isa(emulated_avx512 ${PENSTOCK_V3_FLAGS} -O1)
  penstock_add_isa(emulated_avx512_bf16 ${PENSTOCK_V3_FLAGS} -O1)
  penstock_add_isa(emulated_amx ${PENSTOCK_V3_FLAGS} -O1)
endif()
