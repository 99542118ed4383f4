// Documents of a data file as evaluations read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/runtime.h"
#include "coppice/eval/eval_documents.h"
#include "coppice/train/document_file.h"
#include "coppice/train/encode_document.h"

namespace coppice {

// Documents of at least `shortest` tokens, cut to `longest`.
std::vector<EvalDocument> read_documents(const DocumentFile& file, const DocumentEncoder& encoder,
                                         int64_t shortest, int64_t longest);

}  // namespace coppice
