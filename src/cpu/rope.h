#pragma once

#include <cstdint>

#include "spec/rope_table.h"

namespace medley::cpu {

// Rotates one head in place.
void apply_rope(const RopeTable& table, int64_t position, float* head);

}  // namespace medley::cpu
