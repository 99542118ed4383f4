// Gate files of every format: our safetensors, the published names, and torch.save archives, whose
// pickle is also fed by itself, since a changed one no longer has its checksum.
#include <ATen/core/Tensor.h>

#include <map>

#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/loader/gate_format.h"
#include "coppice/loader/safetensors_file.h"
#include "coppice/loader/torch_archive.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/rival_gates.h"
#include "tests/support/scratch_folder.h"

namespace {

using namespace coppice;

template <typename Call>
void allow_errors(const Call& call) {
  try {
    call();
  } catch (const Error&) {
  }
}

GateTensors named(std::vector<StoredTensor> tensors) {
  GateTensors result;
  for (StoredTensor& tensor : tensors) {
    std::string name = tensor.name;
    result.emplace(std::move(name), std::move(tensor));
  }
  return result;
}

void read_as_safetensors(std::span<const std::byte> bytes) {
  const SafetensorsFile file = SafetensorsFile::parse(bytes, nullptr, "input");
  std::vector<StoredTensor> tensors;
  for (const SafetensorsEntry& entry : file.entries()) tensors.push_back(file.weight(entry));
  const GateTensors gate = named(std::move(tensors));
  if (gate.empty()) return;
  allow_errors([&] { read_own_gate(gate, file.metadata(), "input"); });
  allow_errors([&] { read_published_gate(gate, Json::object(), {}, "input"); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  allow_errors([&] { read_as_safetensors(bytes); });
  allow_errors([&] {
    const GateTensors gate = named(read_torch_archive(bytes, nullptr, "input"));
    if (!gate.empty()) read_published_gate(gate, Json::object(), {}, "input");
  });
  static const std::string storage(256, '\0');
  std::map<std::string, std::span<const std::byte>, std::less<>> members;
  for (const char* name :
       {"r/data/0", "r/data/1", "r/data/2", "r/data/3", "r/data/4", "r/data/5"}) {
    members.emplace(name, std::as_bytes(std::span(storage)));
  }
  allow_errors([&] {
    const GateTensors gate = named(read_tensor_pickle(bytes, "r", members, nullptr, "input"));
    if (!gate.empty()) read_published_gate(gate, Json::object(), {}, "input");
  });
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  const testing::ScratchFolder folder;
  for (const char* name : {"gate_rg10.pth", "gate_rg.pth"}) {
    const std::string path = std::string(COPPICE_SOURCE_DIR "/tests/golden/") + name;
    seeds.push_back(read_text_file(path));
    const MappedFile file = MappedFile::open(path);
    for (const auto& [member, bytes] : read_zip(file.bytes(), path)) {
      if (!member.ends_with("/data.pkl")) continue;
      seeds.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    import_gate(path, folder.file("gate"));
    seeds.push_back(read_text_file(folder.file("gate")));
    std::vector<SafetensorsEntry> published;
    for (const StoredTensor& tensor : read_torch_archive(file.bytes(), file.owner(), path)) {
      published.push_back({tensor.name, std::string(dtype_of_weight_type(tensor.type)),
                           tensor.shape, tensor.bytes});
    }
    write_safetensors(folder.file("published"), published, {{"variant", ""}});
    seeds.push_back(read_text_file(folder.file("published")));
  }
  for (const GateSpec& spec : testing::rival_specs({2, 2, 4, 4})) {
    save_gate(folder.file("gate"), testing::random_rival_gate(spec), StorageType::kF32);
    seeds.push_back(read_text_file(folder.file("gate")));
  }
  return seeds;
}
