# The CUDA library: static cudart, no torch, no Python; one file per CUDA major version.
# Machine code for sm_80 and sm_90a; PTX for later architectures.
enable_language(CUDA)

file(GLOB PENSTOCK_CUDA_SOURCES CONFIGURE_DEPENDS csrc/cuda/*.cu csrc/cuda/*/*.cu)
add_library(penstock_cuda SHARED ${PENSTOCK_CUDA_SOURCES} csrc/cuda/modules.cc)
target_include_directories(penstock_cuda PRIVATE csrc)
set_target_properties(penstock_cuda PROPERTIES
  CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF
  CUDA_ARCHITECTURES OFF CUDA_RUNTIME_LIBRARY Static
  CUDA_VISIBILITY_PRESET hidden)
target_compile_options(penstock_cuda PRIVATE
  -O3 $<$<COMPILE_LANGUAGE:CUDA>:
  $<$<BOOL:${PENSTOCK_WERROR}>:--Werror=all-warnings>
  "--compiler-options=-Wall,-Wextra$<$<BOOL:${PENSTOCK_WERROR}>:,-Werror>"
  "-gencode=arch=compute_80,code=[sm_80,compute_80]"
  -gencode=arch=compute_90a,code=sm_90a>
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${PENSTOCK_WERROR}>>:-Werror>)
target_link_libraries(penstock_cuda PRIVATE ${CMAKE_DL_LIBS})
target_link_options(penstock_cuda PRIVATE -Wl,--exclude-libs,ALL)

# Install into the package of the CUDA distribution (packaging/), where the loader looks.
if(SKBUILD_PROJECT_NAME)
  string(REPLACE "-" "_" PENSTOCK_CUDA_PACKAGE ${SKBUILD_PROJECT_NAME})
  install(TARGETS penstock_cuda LIBRARY DESTINATION ${PENSTOCK_CUDA_PACKAGE})
  # Triton kernels compiled by penstock.kernels.triton.compile.package; see `make wheel CUDA=13`.
  if(PENSTOCK_KERNELS)
    file(GLOB PENSTOCK_KERNEL_ARCHIVES ${PENSTOCK_KERNELS}/kernels_*.zip)
    install(FILES ${PENSTOCK_KERNEL_ARCHIVES} DESTINATION ${PENSTOCK_CUDA_PACKAGE})
  endif()
endif()
