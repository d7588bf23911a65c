#pragma once

namespace medley::cuda {

// Which segment (m) and which of its tiles (n) a block has.
struct GroupedTile {
  int m;
  int n;
};

// Blocks in launch order go over all tiles of `group` segments, the segments fastest; with a group
// of 1 that is segment by segment.
__device__ __forceinline__ GroupedTile grouped_tile(int block, int num_m, int num_n, int group) {
  const int first = block / (group * num_n) * group;
  const int at = block - first * num_n;
  const int members = min(group, num_m - first);
  return {first + at % members, at / members};
}

}  // namespace medley::cuda
