#include "coppice/nn/batch.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "coppice/core/error.h"

namespace coppice {
namespace {

Batch sound() {
  Batch batch;
  batch.token_ids = torch::arange(5, torch::kLong);
  batch.positions = torch::arange(5, torch::kLong);
  batch.sequence_ids = {4, 9};
  batch.cu_seqlens = {0, 2, 5};
  return batch;
}

void expect_refused(const Batch& batch, const std::string& part) {
  try {
    validate(batch);
    ADD_FAILURE() << "accepted, expected a refusal about " << part;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Batch, accepts_ids_or_embeddings_and_both_kinds_of_positions) {
  Batch batch = sound();
  EXPECT_NO_THROW(validate(batch));
  EXPECT_EQ(batch.num_tokens(), 5);
  EXPECT_EQ(batch.num_sequences(), 2);
  batch.token_ids = at::Tensor();
  batch.embeddings = torch::randn({5, 8});
  batch.positions = torch::zeros({3, 5}, torch::kLong);
  batch.modality = torch::zeros({5}, torch::kByte);
  EXPECT_NO_THROW(validate(batch));
}

TEST(Batch, refuses_parts_that_disagree) {
  Batch batch = sound();
  batch.cu_seqlens = {0, 2};
  expect_refused(batch, "offsets");
  batch.cu_seqlens = {1, 2, 5};
  expect_refused(batch, "start at 0");
  batch.cu_seqlens = {0, 5, 5};
  expect_refused(batch, "rise");
  batch = sound();
  batch.sequence_ids = {4, 4};
  expect_refused(batch, "twice");
  batch = sound();
  batch.cu_seqlens = {0, 2, 6};
  expect_refused(batch, "token ids");
  batch = sound();
  batch.token_ids = batch.token_ids.to(torch::kInt);
  expect_refused(batch, "token ids");
  batch.token_ids = at::Tensor();
  expect_refused(batch, "none");
  batch = sound();
  batch.embeddings = torch::randn({5, 8});
  expect_refused(batch, "both");
  batch.token_ids = at::Tensor();
  batch.embeddings = torch::randn({4, 8});
  expect_refused(batch, "embeddings");
  batch = sound();
  batch.positions = torch::arange(4, torch::kLong);
  expect_refused(batch, "positions");
  batch.positions = torch::zeros({2, 5}, torch::kLong);
  expect_refused(batch, "positions");
  batch.positions = at::Tensor();
  expect_refused(batch, "positions");
  batch = sound();
  batch.modality = torch::zeros({5}, torch::kLong);
  expect_refused(batch, "modality");
  EXPECT_THROW(validate(Batch()), Error);
}

}  // namespace
}  // namespace coppice
