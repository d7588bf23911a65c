# The CUDA language and the flags of every kernel. The toolkit is the one tools/cuda-toolkit installs, else the system's.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  set(MEDLEY_CUDA_ROOT "${PROJECT_SOURCE_DIR}/.cache/cuda/root" CACHE PATH "CUDA toolkit (tools/cuda-toolkit)")
  if(EXISTS "${MEDLEY_CUDA_ROOT}/bin/nvcc")
    set(CMAKE_CUDA_COMPILER "${MEDLEY_CUDA_ROOT}/bin/nvcc")
  endif()
endif()
# sm_90a machine code only: wgmma needs the "a", and "90a" alone would embed PTX as well.
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)

# CMake before 3.25.2 does not know that nvcc 12 and later compile C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

# A kernel that spills registers fails its build. Kernels' files include no header that uses fmt: nvcc cannot compile it.
set(MEDLEY_CUDA_FLAGS -lineinfo --expt-relaxed-constexpr
  -Xptxas=--warn-on-spills,--warning-as-error -Werror=all-warnings -Xcompiler=-Wall)

find_package(CUDAToolkit REQUIRED)

set(MEDLEY_FLASHINFER_INCLUDE "${PROJECT_SOURCE_DIR}/.cache/flashinfer/include" CACHE PATH "FlashInfer headers (tools/flashinfer)")
if(NOT EXISTS "${MEDLEY_FLASHINFER_INCLUDE}/flashinfer/attention/prefill.cuh")
  message(FATAL_ERROR "no FlashInfer headers in ${MEDLEY_FLASHINFER_INCLUDE}: run tools/flashinfer")
endif()

# GCC 13 sees overruns in fmt 9 that are not there.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  target_compile_options(medley_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-error=array-bounds -Wno-error=stringop-overflow>)
endif()
