#include "coppice/train/training_state.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <filesystem>

#include "coppice/core/error.h"
#include "coppice/loader/safetensors_file.h"
#include "coppice/train/state_fields.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "coppice-training";

struct Part {
  const char* name;
  at::Tensor& tensor;
};

std::array<Part, 3> parts_of(AdamW& optimizer) {
  return {{{"values", optimizer.values()},
           {"first_moment", optimizer.first_moment()},
           {"second_moment", optimizer.second_moment()}}};
}

const std::string& text_of(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end())
    fail_argument("{}: not a training state: it has no \"{}\"", file.path(), key);
  return found->second;
}

}  // namespace

void save_state(const std::string& path, const TrainingState& state, AdamW& optimizer) {
  std::vector<at::Tensor> host;
  std::vector<SafetensorsEntry> entries;
  for (const Part& part : parts_of(optimizer)) {
    host.push_back(part.tensor.detach().to(at::kCPU).contiguous());
    const at::Tensor& tensor = host.back();
    entries.push_back({part.name,
                       "F32",
                       {tensor.numel()},
                       {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}});
  }
  const Json counters = {{"step", state.step},
                         {"tokens", state.tokens},
                         {"seconds", state.seconds},
                         {"updates", optimizer.updates()}};
  write_safetensors(path, entries,
                    {{"format", kFormat},
                     {"layout", optimizer.layout()},
                     {"config", dump_json(state.config)},
                     {"data", dump_json(state.data)},
                     {"counters", dump_json(counters)}});
}

TrainingState load_state(const std::string& path, AdamW& optimizer) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  if (text_of(file, "format") != kFormat)
    fail_argument("{}: not a training state, but \"{}\"", path, text_of(file, "format"));
  TrainingState state;
  state.config = parse_json(text_of(file, "config"), path + ": config");
  state.data = parse_json(text_of(file, "data"), path + ": data");
  const Json counters = parse_json(text_of(file, "counters"), path + ": counters");
  state.step = count_field(counters, "step");
  state.tokens = count_field(counters, "tokens");
  const int64_t updates = count_field(counters, "updates");
  const auto seconds = counters.find("seconds");
  if (seconds != counters.end() && seconds->is_number()) state.seconds = seconds->get<double>();
  if (text_of(file, "layout") != optimizer.layout())
    fail_argument("{}: it holds other parameters than the run trains", path);
  for (const Part& part : parts_of(optimizer)) {
    const SafetensorsEntry* entry = file.find(part.name);
    if (entry == nullptr || entry->dtype != "F32" || entry->bytes.size() != part.tensor.nbytes())
      fail_argument("{}: expected {} of {} float32 values", path, part.name, part.tensor.numel());
  }
  const torch::NoGradGuard no_gradient;
  for (Part part : parts_of(optimizer)) {
    at::Tensor host = torch::empty({part.tensor.numel()}, torch::kFloat);
    std::memcpy(host.mutable_data_ptr(), file.find(part.name)->bytes.data(), host.nbytes());
    part.tensor.copy_(host);
  }
  optimizer.set_updates(updates);
  return state;
}

void remove_drafts(const std::string& path) {
  const fs::path whole(path);
  const fs::path folder = whole.has_parent_path() ? whole.parent_path() : fs::path(".");
  const std::string start = whole.filename().string() + ".";
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(start) || name.size() != start.size() + 6) continue;
    const bool random = std::all_of(name.begin() + static_cast<std::ptrdiff_t>(start.size()),
                                    name.end(), [](unsigned char c) { return std::isalnum(c); });
    if (random) fs::remove(entry.path(), ignored);
  }
}

void check_same_run(const Json& saved, const Json& now, const std::string& path) {
  if (saved == now) return;
  for (const auto& [key, value] : now.items()) {
    const Json before = saved.contains(key) ? saved[key] : Json();
    if (before != value)
      fail_argument(
          "{} is the state of another run: {} was {}, and is {} now; give the same options, "
          "another "
          "--out, or --restart to begin anew",
          path, key, dump_json(before), dump_json(value));
  }
  for (const auto& [key, value] : saved.items())
    if (!now.contains(key))
      fail_argument("{} is the state of another run: it has the option {} = {}", path, key,
                    dump_json(value));
}

}  // namespace coppice
