# medley_library(folder SOURCES ... DEPS ...): static library medley_<folder>, alias medley::<folder>, from src/<folder>.
# medley_test(name SOURCES ... DEPS ... [LABELS unit] [ENV A=b ...]): one GoogleTest binary registered with CTest as <name>.

function(medley_library folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(medley_${folder} STATIC ${ARG_SOURCES})
    target_include_directories(medley_${folder} PUBLIC ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(medley_${folder} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS} medley_warnings)
  else()
    add_library(medley_${folder} INTERFACE)
    target_include_directories(medley_${folder} INTERFACE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(medley_${folder} INTERFACE ${ARG_DEPS})
  endif()
  add_library(medley::${folder} ALIAS medley_${folder})
endfunction()

function(medley_test name)
  if(NOT MEDLEY_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LABELS;ENV" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} medley_warnings GTest::gtest GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES
    LABELS "${ARG_LABELS}"
    ENVIRONMENT "MEDLEY_SOURCE_DIR=${PROJECT_SOURCE_DIR};MEDLEY_TOKENIZERS_DIR=${MEDLEY_TOKENIZERS_DIR};${ARG_ENV}"
    TIMEOUT 600)
endfunction()
