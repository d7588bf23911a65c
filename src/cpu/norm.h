#pragma once

#include "backend/ops.h"
#include "cpu/context.h"

namespace medley::cpu {

// y = x / sqrt(mean(x^2) + eps) * weight; x and y may be the same.
void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* y);

// The add_norm op, which add_norm_route begins with. The norm reads the residual as stored, that
// is, after rounding.
void run_add_norm(Context& context, const AddNormDesc& desc, const AddNormArgs& args, int num_rows);

}  // namespace medley::cpu
