// Reads what torch.save wrote of a flat dictionary of tensors, without running any of it.
//
// The file is a zip archive of stored (never compressed) members: <root>/data.pkl holds a pickle,
// <root>/data/<key> the bytes of each storage. The pickle is read by a machine that knows only what
// a dictionary of names to contiguous CPU tensors needs; any other instruction, class or object is
// refused. Memory stays in proportion to the file. Only F32, F16 and BF16 tensors.
// Source: the zip and pickle formats, and torch.serialization's layout.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/stored_tensor.h"

namespace coppice {

// Tensors in the order of the dictionary. Throws kInvalidArgument saying what is malformed.
std::vector<StoredTensor> read_torch_archive(std::span<const std::byte> bytes,
                                             std::shared_ptr<const void> owner,
                                             const std::string& what);

// The members of a zip archive by name. Compressed, encrypted and multi-disk archives are refused.
std::map<std::string, std::span<const std::byte>, std::less<>> read_zip(
    std::span<const std::byte> bytes, const std::string& what);

// The pickle of `archive`'s dictionary; storages are looked up in `members` under `root`/data/.
std::vector<StoredTensor> read_tensor_pickle(
    std::span<const std::byte> pickle, const std::string& root,
    const std::map<std::string, std::span<const std::byte>, std::less<>>& members,
    std::shared_ptr<const void> owner, const std::string& what);

}  // namespace coppice
