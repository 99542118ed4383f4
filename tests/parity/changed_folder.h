// Golden vision-language folders with a change to config.json, and what loading them says.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "coppice/core/error.h"
#include "coppice/core/json.h"
#include "coppice/core/mapped_file.h"
#include "coppice/loader/checkpoint.h"
#include "coppice/models/load.h"
#include "coppice/models/vision_tower.h"
#include "tests/support/scratch_folder.h"

namespace coppice::golden {

// A copy of `folder` in `scratch` whose config.json has `patch`.
inline std::string changed_folder(const testing::ScratchFolder& scratch, const std::string& folder,
                                  const Json& patch) {
  namespace fs = std::filesystem;
  const std::string copy = scratch.file("changed");
  fs::create_directories(copy);
  for (const auto& item : fs::directory_iterator(folder))
    fs::copy_file(item.path(), fs::path(copy) / item.path().filename(),
                  fs::copy_options::overwrite_existing);
  Json config = parse_json(read_text_file(copy + "/config.json"), "config.json");
  config.merge_patch(patch);
  std::ofstream(copy + "/config.json") << config;
  return copy;
}

// What loading text and vision side is refused with; empty where it is not.
inline std::string refusal(const std::string& folder, const Json& patch) {
  const testing::ScratchFolder scratch;
  try {
    const Checkpoint checkpoint = Checkpoint::open(changed_folder(scratch, folder, patch));
    load_model(checkpoint, WeightMode::kFloat32);
    load_vision(checkpoint, WeightMode::kFloat32);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

}  // namespace coppice::golden
