// What "the same" means on a GPU, to the bit: every logit of a sequence of steps, compared between
// runs, between servers with and without adapters, and between batches with and without them.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>

#include "adapter/peft_reader.h"
#include "cuda/check.h"
#include "cuda/cuda_backend.h"
#include "engine/testing/step_driver.h"
#include "served.h"

namespace medley {
namespace {

using namespace testing;

constexpr int kMaxSeqs = 16;
constexpr int kMaxLen = 64;
constexpr int kNumPages = kMaxSeqs * kMaxLen / 16;

// A golden model on the GPU, with all its adapters in slots or as a server of the base alone.
class Stepped {
 public:
  Stepped(const fs::path& folder, bool has_adapters)
      : spec_(read_model_spec(read_text(folder / "config.json")).value()),
        checkpoint_(Checkpoint::open_folder(folder.string()).value()),
        backend_(make_cuda_backend().value()) {
    const ModelWeights weights = read_model_weights(spec_, checkpoint_.tensors()).value();
    const StepDesc step{.max_rows = 64, .max_seqs = kMaxSeqs, .max_pages = kNumPages};
    auto model = Model::create(spec_, weights, *backend_,
                               {.max_rows = step.max_rows, .max_seqs = step.max_seqs})
                     .value();
    logits_ = model->logits();
    std::vector<fs::path> folders;
    if (has_adapters) {
      for (const auto& adapter : sorted_folders(folder / "adapters", "adapter_config.json")) {
        if (!is_dora(adapter)) folders.push_back(adapter);
      }
      num_adapters_ = static_cast<int>(folders.size());
      EXPECT_TRUE(
          backend_->make_lora_table({.max_slots = num_adapters_, .num_layers = spec_.num_layers()})
              .ok());
    }
    executor_ =
        make_model_executor(*backend_, std::move(model), {.step = step, .num_pages = kNumPages})
            .value();
    for (int slot = 0; slot < num_adapters_; ++slot) {
      const AdapterWeights read =
          read_peft_adapter(folders[slot].string(), spec_, &checkpoint_.tensors()).value();
      packed_.push_back(backend_->pack_adapter(read.modules).value());
      uploaded_.push_back(backend_->upload_adapter(*packed_.back()).value());
      backend_->set_adapter(slot, *uploaded_.back(), executor_->stream());
    }
  }

  int num_adapters() const { return num_adapters_; }

  // Prompts of eight sequences, decode steps, prompts of four more beside decodes, decode steps of
  // all. Every second sequence is `adapted`: its rows take the adapters in turn. The logits of all
  // steps, by sequence.
  std::vector<std::vector<float>> run(bool adapted) {
    StepDriver driver(*executor_, kMaxLen);
    std::vector<std::vector<float>> logits(kMaxSeqs);
    const auto start = [&](int seq) {
      const bool has_adapter = adapted && seq % 2 == 1;
      driver.restart(seq, has_adapter ? (seq / 2) % num_adapters_ : kNoAdapter);
      StepDriver::Piece piece = {.seq = seq};
      for (int i = 0; i < 3 + seq % 5; ++i) {
        piece.tokens.push_back((31 * seq + 17 * i + 5) % static_cast<int>(spec_.vocab_size));
      }
      return piece;
    };
    std::vector<StepDriver::Piece> pieces;
    const auto step = [&] {
      driver.run(pieces);
      read_logits(pieces, logits);
      for (auto& piece : pieces) piece.tokens.clear();
    };
    for (int seq = 0; seq < 8; ++seq) pieces.push_back(start(seq));
    for (int i = 0; i < 6; ++i) step();
    for (int seq = 8; seq < 12; ++seq) pieces.push_back(start(seq));
    for (int i = 0; i < 6; ++i) step();
    return logits;
  }

 private:
  void read_logits(const std::vector<StepDriver::Piece>& pieces,
                   std::vector<std::vector<float>>& logits) const {
    const size_t vocab_size = spec_.vocab_size;
    std::vector<float> rows(pieces.size() * vocab_size);
    MEDLEY_CUDA_CHECK(
        cudaMemcpy(rows.data(), logits_.data, rows.size() * sizeof(float), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < pieces.size(); ++i) {
      auto& of_seq = logits[pieces[i].seq];
      of_seq.insert(of_seq.end(), rows.begin() + i * vocab_size,
                    rows.begin() + (i + 1) * vocab_size);
    }
  }

  ModelSpec spec_;
  Checkpoint checkpoint_;
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<PackedAdapter>> packed_;
  std::vector<std::unique_ptr<DeviceAdapter>> uploaded_;
  ConstTensorView logits_;
  std::unique_ptr<Executor> executor_;
  int num_adapters_ = 0;
};

void expect_bitwise_equal(const std::vector<float>& a, const std::vector<float>& b, int seq) {
  ASSERT_EQ(a.size(), b.size()) << "sequence " << seq;
  ASSERT_FALSE(a.empty()) << "sequence " << seq;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(std::isfinite(a[i])) << "sequence " << seq << " logit " << i;
    ASSERT_EQ(std::memcmp(&a[i], &b[i], sizeof(float)), 0)
        << "sequence " << seq << " logit " << i << ": " << a[i] << " and " << b[i];
  }
}

class NumericsGpu : public ::testing::TestWithParam<std::string> {
 protected:
  fs::path folder() const { return golden_dir() / GetParam(); }
};

TEST_P(NumericsGpu, RunToRunBitwiseWithAdaptersInTheBatch) {
  Stepped first(folder(), /*has_adapters=*/true);
  Stepped second(folder(), /*has_adapters=*/true);
  const auto expected = first.run(/*adapted=*/true);
  const auto again = first.run(/*adapted=*/true);
  const auto other = second.run(/*adapted=*/true);
  for (int seq = 0; seq < 12; ++seq) {
    expect_bitwise_equal(expected[seq], again[seq], seq);
    expect_bitwise_equal(expected[seq], other[seq], seq);
  }
}

TEST_P(NumericsGpu, BaseRowsBitwiseWithAndWithoutAdaptersInTheServer) {
  Stepped with(folder(), /*has_adapters=*/true);
  Stepped without(folder(), /*has_adapters=*/false);
  const auto expected = without.run(/*adapted=*/false);
  const auto found = with.run(/*adapted=*/false);
  for (int seq = 0; seq < 12; ++seq) expect_bitwise_equal(expected[seq], found[seq], seq);
}

TEST_P(NumericsGpu, BaseRowsBitwiseWithAndWithoutAdapterRowsInTheBatch) {
  Stepped stepped(folder(), /*has_adapters=*/true);
  ASSERT_GT(stepped.num_adapters(), 2);
  const auto expected = stepped.run(/*adapted=*/false);
  const auto found = stepped.run(/*adapted=*/true);
  int num_changed = 0;
  for (int seq = 0; seq < 12; ++seq) {
    if (seq % 2 == 0) {
      expect_bitwise_equal(expected[seq], found[seq], seq);
    } else {
      num_changed += expected[seq] != found[seq] ? 1 : 0;
    }
  }
  EXPECT_GE(num_changed, 4) << "adapters must change what they serve";
}

INSTANTIATE_TEST_SUITE_P(Models, NumericsGpu, ::testing::ValuesIn(golden_models()),
                         golden_test_name);

}  // namespace
}  // namespace medley
