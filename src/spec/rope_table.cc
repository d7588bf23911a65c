#include "spec/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace medley {
namespace {

// Index of the pair that turns `rotations` times over the original context.
double correction_dim(const RopeSpec& spec, double rotations) {
  return spec.rotary_dim *
         std::log(spec.original_max_position / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(spec.theta));
}

double yarn(const RopeSpec& spec, int i, double frequency) {
  double low = correction_dim(spec, spec.beta_fast);
  double high = correction_dim(spec, spec.beta_slow);
  if (spec.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, spec.rotary_dim - 1.0);
  if (low == high) high += 0.001;
  const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
  return frequency / spec.factor * ramp + frequency * (1 - ramp);
}

double llama3(const RopeSpec& spec, double frequency) {
  const double original = static_cast<double>(spec.original_max_position);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength > original / spec.low_freq_factor) return frequency / spec.factor;
  if (wavelength < original / spec.high_freq_factor) return frequency;
  const double smooth = (original / wavelength - spec.low_freq_factor) /
                        (spec.high_freq_factor - spec.low_freq_factor);
  return (1 - smooth) * frequency / spec.factor + smooth * frequency;
}

bool same(const RopeSpec& a, const RopeSpec& b) {
  return a.theta == b.theta && a.rotary_dim == b.rotary_dim && a.scaling == b.scaling &&
         a.factor == b.factor && a.original_max_position == b.original_max_position &&
         a.beta_fast == b.beta_fast && a.beta_slow == b.beta_slow && a.truncate == b.truncate &&
         a.attention_factor == b.attention_factor && a.low_freq_factor == b.low_freq_factor &&
         a.high_freq_factor == b.high_freq_factor;
}

RopeTable make_table(const RopeSpec& spec, int64_t max_position) {
  const std::vector<double> frequencies = rope_frequencies(spec);
  RopeTable table{.half = spec.rotary_dim / 2, .cos = {}, .sin = {}};
  table.cos.reserve(max_position * table.half);
  table.sin.reserve(max_position * table.half);
  for (int64_t position = 0; position < max_position; ++position) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      table.cos.push_back(static_cast<float>(std::cos(angle) * spec.attention_factor));
      table.sin.push_back(static_cast<float>(std::sin(angle) * spec.attention_factor));
    }
  }
  return table;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeSpec& spec) {
  std::vector<double> out;
  for (int i = 0; i < spec.rotary_dim / 2; ++i) {
    const double frequency = std::pow(spec.theta, -2.0 * i / spec.rotary_dim);
    switch (spec.scaling) {
      case RopeScaling::kNone:
        out.push_back(frequency);
        break;
      case RopeScaling::kLinear:
        out.push_back(frequency / spec.factor);
        break;
      case RopeScaling::kYarn:
        out.push_back(yarn(spec, i, frequency));
        break;
      case RopeScaling::kLlama3:
        out.push_back(llama3(spec, frequency));
        break;
    }
  }
  return out;
}

std::shared_ptr<const RopeTable> RopeTables::get(const RopeSpec& spec, int64_t max_position) {
  for (const Entry& entry : entries_) {
    if (entry.max_position == max_position && same(entry.spec, spec)) return entry.table;
  }
  auto table = std::make_shared<const RopeTable>(make_table(spec, max_position));
  entries_.push_back({spec, max_position, table});
  return table;
}

}  // namespace medley
