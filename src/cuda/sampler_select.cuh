#pragma once

#include "cuda/sampler_block.cuh"

// Finds tokens of a row's ranking by count or by cumulative weight without sorting the row: bins
// tell where the running sum crosses its target, and only the tokens of that bin are looked at
// further, until few enough are left to be sorted.

namespace medley::cuda {

// A token's weight relative to the best token's: exp((logit - best) / temperature), as a multiple
// of 2^-45. Integers, so that sums do not depend on their order.
struct Weigher {
  static constexpr double kUnit = 0x1p45;
  static constexpr float kSpan = 31.75f;  // exp(-31.75) is just over half a unit

  double inverse_temperature;
  float best_logit;
  float span;  // further below the best than this a token weighs nothing

  __device__ Weigher(float logit, float temperature, double inverse)
      : inverse_temperature(inverse), best_logit(logit), span(kSpan * temperature) {}
  __device__ double relative(float logit) const {
    return exp((logit - static_cast<double>(best_logit)) * inverse_temperature);
  }
  __device__ uint64_t operator()(float logit) const {
    return best_logit - logit > span ? 0 : __double2ull_rn(relative(logit) * kUnit);
  }
};

// What a thread knows of its bin: the bin's own sums and those of all bins before.
struct SampleBin {
  uint32_t count = 0;
  uint32_t count_before = 0;
  uint64_t weight = 0;
  uint64_t weight_before = 0;
};

struct SampleTarget {
  uint64_t value;  // the first place whose running count or weight reaches it is wanted
  bool by_count;
};

// Places falling orders [low, high] into bins of equal width.
struct OrderBins {
  uint32_t high;
  uint32_t low;
  uint32_t width;
  __device__ OrderBins(uint32_t first, uint32_t last)
      : high(first), low(last), width((first - last) / kBins + 1) {}
  __device__ int operator()(float logit) const {
    const uint32_t order = order_of(logit);
    return order > high || order < low ? -1 : static_cast<int>((high - order) / width);
  }
};

// Places logits by their distance from the best.
struct DistanceBins {
  float best;
  float scale;
  __device__ DistanceBins(const Weigher& weigher, float least) : best(weigher.best_logit) {
    const float range = fminf(weigher.span, best - least);
    scale = range > 1e-30f ? kBins * 0.999999f / range : 0.0f;
  }
  __device__ int operator()(float logit) const {
    return logit > -INFINITY ? min(kBins - 1, static_cast<int>((best - logit) * scale)) : -1;
  }
};

// The logits of one of those bins.
struct InDistanceBin {
  float best;
  float scale;
  float first;
  float end;
  __device__ InDistanceBin(const DistanceBins& bins, int bin)
      : best(bins.best),
        scale(bins.scale),
        first(static_cast<float>(bin)),
        end(bin == kBins - 1 ? INFINITY : first + 1.0f) {}
  __device__ bool operator()(float logit) const {
    const float place = (best - logit) * scale;
    return place >= first && place < end;
  }
};

// The logits from `low` to `high`.
struct InRange {
  float low;
  float high;
  __device__ bool operator()(float logit) const { return logit >= low && logit <= high; }
};

// Called by whole warps; lanes whose weight is 0 add nothing.
__device__ __forceinline__ void add_to_bin(SampleShared& s, int bin, uint64_t weight) {
  const uint32_t active = __ballot_sync(0xffffffffu, weight > 0);
  if (active == 0) return;
  const int leader = __ffs(active) - 1;
  const int leaders_bin = __shfl_sync(0xffffffffu, bin, leader);
  uint32_t count = 1;
  if (__all_sync(0xffffffffu, weight == 0 || bin == leaders_bin)) {
    weight = warp_reduce(weight, Total());
    if (threadIdx.x % kWarpSize != leader) return;
    count = __popc(active);
  }
  if (weight == 0) return;
  constexpr uint32_t kPart = (1u << 15) - 1;
  atomicAdd(&s.bins.counts[bin], count);
  atomicAdd(&s.bins.low[bin], static_cast<uint32_t>(weight) & kPart);
  atomicAdd(&s.bins.middle[bin], static_cast<uint32_t>(weight >> 15) & kPart);
  atomicAdd(&s.bins.high[bin], static_cast<uint32_t>(weight >> 30));
}

// Turns count and weight of thread i into running sums over the block's threads.
__device__ inline void scan_bins(SampleShared& s, SampleBin& bin) {
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  uint32_t count = bin.count;
  uint64_t weight = bin.weight;
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const uint32_t other_count = __shfl_up_sync(0xffffffffu, count, offset);
    const uint64_t other_weight = __shfl_up_sync(0xffffffffu, weight, offset);
    if (lane >= offset) {
      count += other_count;
      weight += other_weight;
    }
  }
  if (lane == kWarpSize - 1) {
    s.warp_counts[warp] = count;
    s.warp_weights[warp] = weight;
  }
  __syncthreads();
  bin.count_before = count - bin.count;
  bin.weight_before = weight - bin.weight;
  for (int w = 0; w < warp; ++w) {
    bin.count_before += s.warp_counts[w];
    bin.weight_before += s.warp_weights[w];
  }
  __syncthreads();
}

// The cluster's bins of all weighing tokens that `bin_of` places; thread i gets bin i. No block may
// still read earlier bins of another.
template <class BinOf>
__device__ SampleBin fill_bins(SampleRow& row, const Weigher& weigher, const BinOf& bin_of) {
  SampleShared& s = row.shared;
  s.bins.counts[threadIdx.x] = 0;
  s.bins.low[threadIdx.x] = 0;
  s.bins.middle[threadIdx.x] = 0;
  s.bins.high[threadIdx.x] = 0;
  __syncthreads();
  // Several exponentials at a time: one is a long chain.
  constexpr int kTogether = 4;
  const int lane = threadIdx.x % kWarpSize;
  for (int base = threadIdx.x - lane; base < row.count; base += kTogether * kSampleThreads) {
    int bins[kTogether];
    uint64_t weights[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int at = base + j * kSampleThreads + lane;
      const float logit = at < row.count ? row.values[at] : -INFINITY;
      bins[j] = bin_of(logit);
      weights[j] = bins[j] >= 0 ? weigher(logit) : 0;
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) add_to_bin(s, bins[j], weights[j]);
  }
  cluster_sync();
  SampleBin bin;
#pragma unroll 2
  for (int block = 0; block < kSampleBlocks; ++block) {
    const auto* bins = in_block(&s.bins, block);
    bin.count += bins->counts[threadIdx.x];
    bin.weight += (uint64_t{bins->high[threadIdx.x]} << 30) +
                  (uint64_t{bins->middle[threadIdx.x]} << 15) + bins->low[threadIdx.x];
  }
  scan_bins(s, bin);
  return bin;
}

// The thread whose bin reaches the target tells all of its block. The target must be reached.
__device__ inline SamplePlace find_place(SampleShared& s, const SampleBin& bin,
                                         const SampleTarget& target) {
  const uint64_t before = target.by_count ? bin.count_before : bin.weight_before;
  const uint64_t own = target.by_count ? bin.count : bin.weight;
  if (before < target.value && target.value <= before + own) {
    s.place = {.weight_before = bin.weight_before,
               .weight = bin.weight_before + bin.weight,
               .count_before = bin.count_before,
               .count = bin.count,
               .index = static_cast<int32_t>(threadIdx.x)};
  }
  __syncthreads();
  const SamplePlace place = s.place;
  __syncthreads();
  return place;
}

// The `skip`-th (from 0) token by id of those with this order. Rare, and apart so that its
// variables take no registers of the rest.
__device__ __noinline__ int32_t nth_equal(SampleRow row, uint32_t order, uint32_t skip) {
  SampleShared& s = row.shared;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int share = (row.count + kSampleThreads - 1) / kSampleThreads * kWarpSize;
  const int begin = warp * share;
  const int end = min(row.count, begin + share);
  uint32_t count = 0;
  for (int base = begin; base < end; base += kWarpSize) {
    const bool equal = base + lane < end && order_of(row.values[base + lane]) == order;
    count += __popc(__ballot_sync(0xffffffffu, equal));
  }
  cluster_sync();
  if (lane == 0) s.warp_counts[warp] = count;
  if (threadIdx.x == 0) s.token = -1;
  cluster_sync();
  uint32_t before = 0;
#pragma unroll 1
  for (int i = 0; i < row.block * kSampleWarps + warp; ++i) {
    before += in_block(s.warp_counts, i / kSampleWarps)[i % kSampleWarps];
  }
  if (before <= skip && skip < before + count) {
    for (int base = begin; base < end; base += kWarpSize) {
      const bool equal = base + lane < end && order_of(row.values[base + lane]) == order;
      const uint32_t members = __ballot_sync(0xffffffffu, equal);
      const uint32_t place = before + __popc(members & ((1u << lane) - 1));
      if (equal && place == skip) s.token = row.first_id + base + lane;
      before += __popc(members);
    }
  }
  cluster_sync();
  int32_t token = -1;
  for (int block = 0; block < kSampleBlocks; ++block)
    token = max(token, *in_block(&s.token, block));
  cluster_sync();
  return token;
}

// Lists the tokens that `contains` and returns how many the cluster has. Up to kListSize of them
// are then in s.merged by falling standing, in each block.
template <class Contains>
__device__ inline int list_tokens(SampleRow& row, const Contains& contains) {
  SampleShared& s = row.shared;
  const int phase = row.phase;
  row.phase ^= 1;
  if (threadIdx.x == 0) s.list_size[phase] = 0;
  __syncthreads();
  for_each_logit(row, [&](float logit, int at) {
    if (!contains(logit)) return;
    const uint32_t place = atomicAdd(&s.list_size[phase], 1u);
    if (place < kListSize) s.list[phase][place] = standing(logit, row.first_id + at);
  });
  cluster_sync();
  uint64_t mine = 0;
  int size = 0;
#pragma unroll 1
  for (int block = 0; block < kSampleBlocks; ++block) {
    const int at = static_cast<int>(threadIdx.x) - size;
    const int block_size = static_cast<int>(*in_block(&s.list_size[phase], block));
    if (at >= 0 && at < min(block_size, kListSize)) mine = in_block(s.list[phase], block)[at];
    size += block_size;
  }
  if (size > kListSize) return size;
  s.merged[threadIdx.x] = mine;
  __syncthreads();
  int better = 0;
#pragma unroll 4
  for (int i = 0; i < size; ++i) better += s.merged[i] > mine;
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < size) s.merged[better] = mine;
  __syncthreads();
  return size;
}

// Where the target is reached: the token, and the weight of the ranking up to and with it.
struct SampleCut {
  uint64_t weight;
  int32_t token;
};

// The place within the at most kListSize tokens that `contains`, all of which weigh something or
// come last.
template <class Contains>
__device__ inline SampleCut cut_in_list(SampleRow& row, const Weigher& weigher,
                                        const SampleTarget& target, const SamplePlace& place,
                                        const Contains& contains) {
  SampleShared& s = row.shared;
  const int size = list_tokens(row, contains);
  SampleBin each;
  if (static_cast<int>(threadIdx.x) < size) {
    each.weight = weigher(logit_of_standing(s.merged[threadIdx.x]));
    each.count = each.weight > 0 ? 1 : 0;
  }
  scan_bins(s, each);
  each.count_before += place.count_before;
  each.weight_before += place.weight_before;
  const SamplePlace found = find_place(s, each, target);
  return {.weight = found.weight, .token = id_of(s.merged[found.index])};
}

// The same for a bin of any number of tokens: cut down to few enough, or to equal ones. Apart, as
// nth_equal().
__device__ __noinline__ SampleCut cut_in_bin(SampleRow row, const Weigher& weigher,
                                             const SampleTarget& target, SamplePlace place,
                                             const InDistanceBin& contains) {
  uint64_t ends = 0;  // the highest order of the bin, the lowest inverted
  for_each_logit(row, [&](float logit, int) {
    if (!contains(logit) || weigher(logit) == 0) return;
    const uint32_t order = order_of(logit);
    ends = LargestHalves()(ends, uint64_t{order} << 32 | ~order);
  });
  ends = cluster_reduce(row, ends, LargestHalves());
  auto high = static_cast<uint32_t>(ends >> 32);
  uint32_t low = ~static_cast<uint32_t>(ends);
  while (place.count > kListSize && low < high) {
    const OrderBins bins(high, low);
    SampleBin part = fill_bins(row, weigher, bins);
    part.count_before += place.count_before;
    part.weight_before += place.weight_before;
    place = find_place(row.shared, part, target);
    high -= place.index * bins.width;
    if (high - low >= bins.width) low = high - (bins.width - 1);
    cluster_sync();  // all have read these bins
  }
  if (place.count <= kListSize) {
    const InRange range = {logit_of(low), logit_of(high)};
    const SampleCut cut = cut_in_list(row, weigher, target, place, range);
    cluster_sync();  // all have read this list, whose phase the caller does not know
    return cut;
  }
  // Equal logits only: as many as do not reach the target, and one more.
  const uint64_t weight = weigher(logit_of(low));
  uint32_t skip = 0;
  for (uint32_t bit = kMaxSampledVocab / 2; bit > 0; bit /= 2) {
    const bool reached = target.by_count
                             ? place.count_before + skip + bit >= target.value
                             : place.weight_before + (skip + bit) * weight >= target.value;
    if (!reached) skip += bit;
  }
  return {.weight = place.weight_before + (skip + 1) * weight, .token = nth_equal(row, low, skip)};
}

// `bin` and `bin_of` are those of the whole row.
__device__ inline SampleCut find_cut(SampleRow& row, const Weigher& weigher,
                                     const DistanceBins& bin_of, const SampleBin& bin,
                                     const SampleTarget& target) {
  const SamplePlace place = find_place(row.shared, bin, target);
  const InDistanceBin contains(bin_of, place.index);
  // The last bin may hold any number of tokens without weight beside.
  if (place.count > kListSize || place.index == kBins - 1) {
    return cut_in_bin(row, weigher, target, place, contains);
  }
  return cut_in_list(row, weigher, target, place, contains);
}

// The weight of the tokens that min_p leaves, by themselves.
__device__ inline uint64_t weight_above(SampleRow& row, const Weigher& weigher, float min_p) {
  uint64_t sum = 0;
  for_each_logit(row, [&](float logit, int) {
    if (weigher.best_logit - logit > weigher.span) return;
    const double weight = weigher.relative(logit);
    if (weight >= min_p) sum += __double2ull_rn(weight * Weigher::kUnit);
  });
  sum = cluster_reduce(row, sum, Total());
  const auto best = static_cast<uint64_t>(Weigher::kUnit);
  return sum > best ? sum : best;  // the best token stays
}

// Philox4x32-10: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). The first
// word of counter (position, 0, 0, 0) under the key `seed`, as a number in (0, 1).
__device__ inline double uniform_draw(uint64_t seed, uint32_t position) {
  uint32_t c0 = position, c1 = 0, c2 = 0, c3 = 0;
  auto k0 = static_cast<uint32_t>(seed);
  auto k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t a_high = __umulhi(0xD2511F53u, c0);
    const uint32_t a_low = 0xD2511F53u * c0;
    const uint32_t b_high = __umulhi(0xCD9E8D57u, c2);
    const uint32_t b_low = 0xCD9E8D57u * c2;
    c0 = b_high ^ c1 ^ k0;
    c1 = b_low;
    c2 = a_high ^ c3 ^ k1;
    c3 = a_low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return (c0 + 0.5) * 0x1p-32;
}

// Draws from the filtered distribution by inverting its cumulative weight along the ranking; what
// the filters leave is a prefix of the ranking, so its weight is all that has to be known of them.
__device__ __noinline__ int32_t draw_token(SampleRow row, const SlotState& state, float best,
                                           float least, const int32_t* position, int vocab_size) {
  enum Cut : int { kTopK, kTopP, kDraw };
  const Weigher weigher(best, state.temperature, state.inverse_temperature);
  const DistanceBins bin_of(weigher, least);
  const SampleBin bin = fill_bins(row, weigher, bin_of);
  SampleShared& s = row.shared;
  if (threadIdx.x == kSampleThreads - 1) {
    s.place = {.weight = bin.weight_before + bin.weight, .count = bin.count_before + bin.count};
  }
  __syncthreads();
  SampleCut kept = {.weight = s.place.weight, .token = 0};
  const bool has_top_k = state.top_k > 0 && state.top_k < vocab_size &&
                         static_cast<uint32_t>(state.top_k) < s.place.count;
  __syncthreads();
#pragma unroll 1
  for (int cut = has_top_k ? kTopK : kTopP; cut <= kDraw; ++cut) {
    SampleTarget target = {.value = 1, .by_count = cut == kTopK};
    if (cut == kTopK) {
      target.value = static_cast<uint64_t>(state.top_k);
    } else if (cut == kTopP) {
      if (state.top_p >= 1.0f) continue;
      const auto total = static_cast<double>(kept.weight);
      target.value = max(target.value, static_cast<uint64_t>(__double2ull_ru(state.top_p * total)));
    } else {
      if (state.min_p > 0.0f) {
        kept.weight = min(kept.weight, weight_above(row, weigher, state.min_p));
      }
      const double uniform = uniform_draw(state.seed, static_cast<uint32_t>(*position));
      target.value += __double2ull_rd(uniform * static_cast<double>(kept.weight));
    }
    kept = find_cut(row, weigher, bin_of, bin, target);
  }
  return kept.token;
}

}  // namespace medley::cuda
