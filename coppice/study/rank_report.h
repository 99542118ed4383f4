// The report of a ranking: one HTML page without scripts or links to elsewhere, and its plots.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "coppice/study/rank_output.h"
#include "coppice/study/svg.h"

namespace coppice {

struct RankReport {
  std::string html;
  std::vector<std::pair<std::string, Svg>> plots;           // by file name without its ending
  std::vector<std::pair<std::string, std::string>> tables;  // CSV text by file name
};

RankReport make_rank_report(const RankStudy& study);

}  // namespace coppice
