# medley_rust: the static library that cargo builds from rust/. All build folders share one target
# folder, because no option of the C++ build changes it; cargo locks it against concurrent builds.
set(MEDLEY_RUST_TARGET_DIR "${PROJECT_SOURCE_DIR}/build/rust" CACHE PATH "Where cargo builds")

set(cargo_hints "$ENV{HOME}/.cargo/bin")
if(DEFINED ENV{CARGO_HOME})
  list(PREPEND cargo_hints "$ENV{CARGO_HOME}/bin")
endif()
find_program(MEDLEY_CARGO cargo HINTS ${cargo_hints})
if(NOT MEDLEY_CARGO)
  message(FATAL_ERROR "cargo not found: install Rust 1.85 or newer (Debian 12: cargo-web rustc-web)")
endif()
execute_process(COMMAND ${MEDLEY_CARGO} --version OUTPUT_VARIABLE cargo_version
                OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REGEX MATCH "[0-9]+\\.[0-9]+" cargo_version_number "${cargo_version}")
if(cargo_version_number VERSION_LESS 1.85)
  message(FATAL_ERROR "${MEDLEY_CARGO} is ${cargo_version}: 1.85 or newer is needed "
                      "(Debian 12: cargo-web rustc-web)")
endif()

set(rust_dir ${PROJECT_SOURCE_DIR}/rust)
set(rust_library ${MEDLEY_RUST_TARGET_DIR}/release/libmedley_ffi.a)
file(GLOB rust_sources CONFIGURE_DEPENDS ${rust_dir}/src/*.rs)
add_custom_command(
  OUTPUT ${rust_library}
  COMMAND ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${MEDLEY_RUST_TARGET_DIR}
          ${MEDLEY_CARGO} build --release --locked --quiet
  COMMAND ${CMAKE_COMMAND} -E touch ${rust_library}
  WORKING_DIRECTORY ${rust_dir}
  DEPENDS ${rust_sources} ${rust_dir}/Cargo.toml ${rust_dir}/Cargo.lock
  COMMENT "Building the Rust library (about a minute the first time)"
  VERBATIM)
add_custom_target(medley_rust_build DEPENDS ${rust_library})

add_library(medley_rust STATIC IMPORTED GLOBAL)
set_target_properties(medley_rust PROPERTIES
  IMPORTED_LOCATION ${rust_library}
  INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
add_dependencies(medley_rust medley_rust_build)
