#include "cpu/parallel.h"
#include "cpu/planned_ops.h"
#include "cpu/simd.h"
#include "cpu/step.h"

namespace medley::cpu {
namespace {

constexpr LoraSite kSite{LoraModule::kEmbed, 0};

class CpuEmbed : public Embed {
 public:
  CpuEmbed(Context& context, const EmbedDesc& desc) : context_(context), desc_(desc) {}

  void run(const EmbedArgs& args, const Step& generic, Stream&) override {
    const CpuStep& step = cpu_step(generic);
    const auto& table = static_cast<const PackedTable&>(*args.table);
    MEDLEY_CHECK_EQ(table.cols, desc_.hidden_size);
    MEDLEY_CHECK_EQ(table.rows, desc_.vocab_size);
    const int64_t n = desc_.hidden_size;
    const int rank = context_.lora.max_rank();
    float* rows = context_.workspace.acc.reserve(step.num_rows() * n);
    float* s = context_.workspace.lora_s.reserve(static_cast<int64_t>(step.num_rows()) * rank);
    parallel_rows(context_.pool, step.num_rows(), n, [&](int64_t row) {
      const int32_t token = token_of(step, row);
      MEDLEY_CHECK(token >= 0 && token < desc_.vocab_size, fmt::format("token {}", token));
      float* out = rows + row * n;
      const float* found = load_row(table.data.data(), table.dtype, token * n, n, out);
      if (found != out) std::copy_n(found, n, out);
      if (desc_.lora && step.adapter_of_row[row] != kNoAdapter) {
        add_lora(step.adapter_of_row[row], token, s + row * rank, out);
      }
      store_row(out, args.residual.data, desc_.dtype, row * n, n);
    });
  }

 private:
  int32_t token_of(const CpuStep& step, int64_t row) const {
    const int32_t token = step.token_ids[row];
    if (token != kTokenFromSampler) return token;
    return context_.sampled_ids[step.sampler_slots[step.seq_of_row[row]]];
  }

  void add_lora(int slot, int32_t token, float* s, float* out) const {
    const PackedModule* module = context_.lora.find(slot, kSite);
    if (module == nullptr) return;
    for (const PackedPair& pair : module->pairs) {
      const PackedTable& a = pair.a_table;
      const float* found =
          load_row(a.data.data(), a.dtype, static_cast<int64_t>(token) * pair.rank, pair.rank, s);
      for (int j = 0; j < pair.rank; ++j) {
        s[j] = found[j] * pair.scale[j];
        if (desc_.dtype == DType::kBF16) s[j] = round_to_bf16(s[j]);
      }
      const float* const x[] = {s};
      float* const outs[] = {out + pair.row_begin};
      gemm({.weight = &pair.b[0], .x = x, .out = outs, .num_rows = 1, .accumulate = true});
    }
  }

  Context& context_;
  EmbedDesc desc_;
};

}  // namespace

Result<std::unique_ptr<Embed>> make_embed(Context& context, const EmbedDesc& desc) {
  MEDLEY_TRY(check_dtype(desc.dtype));
  context.workspace.acc.reserve(static_cast<int64_t>(context.step.max_rows) * desc.hidden_size);
  return std::unique_ptr<Embed>(std::make_unique<CpuEmbed>(context, desc));
}

}  // namespace medley::cpu
