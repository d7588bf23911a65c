#include "cuda/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/sampler_kernel.h"
#include "cuda/staging_ring.h"
#include "cuda/step.h"

namespace medley::cuda {
namespace {

static_assert(kMaxSlotEdits == kMaxLogitEdits);
static_assert(kMaxTopTokens == kMaxTopLogprobs);
static_assert(kSampleToken < 0, "any known token is not");

constexpr int kIdsPerBlock = 4;  // so that blocks' shares of a row begin at whole vectors
constexpr size_t kStagingBytes = size_t{4} << 20;

SlotState make_state(const SamplerParams& params) {
  SlotState state = {
      .seed = params.seed,
      .inverse_temperature = params.temperature > 0.0f ? 1.0 / params.temperature : 0.0,
      .temperature = params.temperature,
      .top_p = params.top_p,
      .min_p = params.min_p,
      .top_k = params.top_k,
      .repetition_penalty = params.repetition_penalty,
      .frequency_penalty = params.frequency_penalty,
      .presence_penalty = params.presence_penalty,
      .has_penalties = params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f ||
                       params.presence_penalty != 0.0f,
      .num_top_logprobs = params.num_top_logprobs,
      .num_prompt_logprobs = params.num_prompt_logprobs,
      .num_edits = static_cast<int32_t>(params.edits.size()),
      .num_outputs = static_cast<int32_t>(params.output_ids.size())};
  for (const LogitEdit& edit : params.edits) {
    state.edits_end = std::max(state.edits_end, edit.num_outputs);
  }
  return state;
}

class CudaSampler : public Sampler {
 public:
  CudaSampler(Context& context, const SamplerDesc& desc)
      : context_(context),
        desc_(desc),
        results_on_device_(SampleOutput::Memory(nullptr, [](void*) {}), 0),
        staging_(kStagingBytes) {}

  Result<void> allocate() {
    const size_t slots = desc_.max_seqs;
    MEDLEY_TRY_ASSIGN(slots_, DeviceBuffer::allocate(slots * sizeof(SlotRecord)));
    MEDLEY_TRY_ASSIGN(counts_, DeviceBuffer::allocate(slots * desc_.vocab_size * sizeof(uint32_t)));
    MEDLEY_TRY_ASSIGN(results_, DeviceBuffer::allocate(SampleOutput::num_bytes(desc_.max_seqs)));
    slots_.fill_zero();
    results_.fill_zero();
    results_on_device_ =
        SampleOutput(SampleOutput::Memory(results_.data(), [](void*) {}), desc_.max_seqs);
    return {};
  }

  SampleOutput make_output() const override {
    void* block = nullptr;
    MEDLEY_CUDA_CHECK(cudaMallocHost(&block, SampleOutput::num_bytes(desc_.max_seqs)));
    return {SampleOutput::Memory(block, [](void* memory) { cudaFreeHost(memory); }),
            desc_.max_seqs};
  }

  void set_slot(int slot, const SamplerParams& params, Stream& stream) override {
    MEDLEY_CHECK(slot >= 0 && slot < desc_.max_seqs, fmt::format("slot {}", slot));
    MEDLEY_CHECK_LE(params.num_top_logprobs, kMaxTopLogprobs);
    MEDLEY_CHECK_LE(params.num_prompt_logprobs, kMaxTopLogprobs);
    MEDLEY_CHECK_LE(params.edits.size(), size_t{kMaxLogitEdits});
    const SlotState state = make_state(params);
    const size_t num_bytes = sizeof(SlotState) + params.edits.size() * sizeof(SlotEdit);
    std::byte* staged = staging_.take(num_bytes, stream);
    std::memcpy(staged, &state, sizeof(state));
    stage_edits(params.edits, {reinterpret_cast<SlotEdit*>(staged + offsetof(SlotRecord, edits)),
                               params.edits.size()});
    MEDLEY_CUDA_CHECK(cudaMemcpyAsync(slots_.as<SlotRecord>() + slot, staged, num_bytes,
                                      cudaMemcpyHostToDevice, cuda_stream(stream)));
    if (state.has_penalties != 0) set_counts(slot, params, stream);
  }

  void run(const ConstTensorView& logits, const Step& generic, Stream& stream) override {
    const auto& step = static_cast<const CudaStep&>(generic);
    MEDLEY_CHECK_LE(step.num_logit_rows(), desc_.max_seqs);
    if (step.launch_logit_rows() == 0) return;
    const int vocab_size = static_cast<int>(desc_.vocab_size);
    constexpr int kIds = kSampleBlocks * kIdsPerBlock;
    const StepArrays& arrays = step.device();
    launch_sample({.logits = logits.as<float>(),
                   .vocab_size = vocab_size,
                   .block_size = (vocab_size + kIds - 1) / kIds * kIdsPerBlock,
                   .num_rows = arrays.num_logit_rows,
                   .logit_rows = arrays.logit_rows,
                   .logit_seqs = arrays.logit_seqs,
                   .logit_targets = arrays.logit_targets,
                   .positions = arrays.positions,
                   .sampler_slots = arrays.sampler_slots,
                   .slots = slots_.as<SlotRecord>(),
                   .counts = counts_.as<uint32_t>(),
                   .last_token = context_.last_token_of_slot.as<int32_t>(),
                   .token_ids = results_on_device_.token_ids.data(),
                   .logprobs = results_on_device_.logprobs.data(),
                   .ranks = results_on_device_.ranks.data(),
                   .top_ids = results_on_device_.top_ids.data(),
                   .top_logprobs = results_on_device_.top_logprobs.data()},
                  step.launch_logit_rows(), cuda_stream(stream));
  }

  void copy_output(const Step& step, Stream& stream, SampleOutput& out) override {
    if (step.num_logit_rows() == 0) return;
    MEDLEY_CHECK_EQ(out.token_ids.size(), static_cast<size_t>(desc_.max_seqs));
    MEDLEY_CUDA_CHECK(cudaMemcpyAsync(out.memory.get(), results_.data(), results_.num_bytes(),
                                      cudaMemcpyDeviceToHost, cuda_stream(stream)));
  }

 private:
  // Edits of one token next to each other, in their order.
  void stage_edits(std::span<const LogitEdit> edits, std::span<SlotEdit> staged) const {
    for (size_t i = 0; i < edits.size(); ++i) {
      const LogitEdit& edit = edits[i];
      MEDLEY_CHECK(edit.token_id >= 0 && edit.token_id < desc_.vocab_size,
                   fmt::format("edit of token {}", edit.token_id));
      staged[i] = {.token_id = edit.token_id, .add = edit.add, .num_outputs = edit.num_outputs};
    }
    std::ranges::stable_sort(staged, {}, &SlotEdit::token_id);
  }

  void set_counts(int slot, const SamplerParams& params, Stream& stream) {
    uint32_t* counts = counts_.as<uint32_t>() + slot * desc_.vocab_size;
    MEDLEY_CUDA_CHECK(
        cudaMemsetAsync(counts, 0, desc_.vocab_size * sizeof(uint32_t), cuda_stream(stream)));
    const auto each_piece = [&](std::span<const int32_t> ids, auto enqueue) {
      while (!ids.empty()) {
        const auto piece = ids.first(std::min(ids.size(), staging_.half_bytes() / sizeof(int32_t)));
        auto* staged = reinterpret_cast<int32_t*>(staging_.take(piece.size_bytes(), stream));
        std::ranges::copy(piece, staged);
        enqueue(staged, static_cast<int>(piece.size()), counts, cuda_stream(stream));
        ids = ids.subspan(piece.size());
      }
    };
    for (const auto ids : {params.prompt_ids, params.output_ids}) {
      for (const int32_t id : ids) {
        MEDLEY_CHECK(id >= 0 && id < desc_.vocab_size, fmt::format("token {}", id));
      }
    }
    each_piece(params.prompt_ids, launch_mark_prompt);
    each_piece(params.output_ids, launch_count_outputs);
  }

  Context& context_;
  const SamplerDesc desc_;
  DeviceBuffer slots_;   // (max_seqs) SlotRecord
  DeviceBuffer counts_;  // (max_seqs, V)
  DeviceBuffer results_;
  SampleOutput results_on_device_;  // of device pointers
  StagingRing staging_;
};

}  // namespace

Result<std::unique_ptr<Sampler>> plan_sampler(Context& context, const SamplerDesc& desc) {
  if (desc.max_seqs < 1 || desc.vocab_size < 1) {
    return invalid_argument(fmt::format("sampler of {} slots and {} tokens: expected at least 1",
                                        desc.max_seqs, desc.vocab_size));
  }
  if (desc.max_seqs > kMaxSamplerSlots || desc.vocab_size > kMaxSampledVocab) {
    return unsupported(fmt::format("sampler on CUDA: up to {} slots and {} tokens, found {} and {}",
                                   kMaxSamplerSlots, kMaxSampledVocab, desc.max_seqs,
                                   desc.vocab_size));
  }
  auto sampler = std::make_unique<CudaSampler>(context, desc);
  MEDLEY_TRY(sampler->allocate());
  return std::unique_ptr<Sampler>(std::move(sampler));
}

}  // namespace medley::cuda
