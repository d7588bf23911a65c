#include "cpu/rope.h"

namespace medley::cpu {

void apply_rope(const RopeTable& table, int64_t position, float* head) {
  const float* cos = table.cos.data() + position * table.half;
  const float* sin = table.sin.data() + position * table.half;
  for (int i = 0; i < table.half; ++i) {
    const float a = head[i];
    const float b = head[i + table.half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + table.half] = b * cos[i] + a * sin[i];
  }
}

}  // namespace medley::cpu
