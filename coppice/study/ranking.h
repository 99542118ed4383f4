// Who is best, and what the data say in words.
//
// A cell is one panel at one budget. In a cell policies are ranked by value; equal values share the
// mean of their ranks. Two policies differ clearly where their 95 % intervals are apart; without
// intervals nothing is called clear.
#pragma once

#include <string>
#include <vector>

#include "coppice/study/panel.h"

namespace coppice {

struct Standing {
  std::string policy;
  double mean_rank = 0.0;  // 1 is best; over the cells that it has a value in
  int64_t cells = 0;
  int64_t first = 0;                              // cells in which no other has a better value
  int64_t clearly_first = 0;                      // and in which each other is clearly worse
  int64_t clearly_beats = 0, clearly_beaten = 0;  // pairs with `ours`, as seen from the policy
};

// By mean rank, best first; equal ones in order of appearance. ours: whom the others are compared
// with.
std::vector<Standing> rank_policies(const std::vector<Panel>& panels, const std::string& ours);

// Sentences: who leads overall; per panel who is best at which budgets, by how much, and whether
// that is beyond the intervals; everything in which another policy than `ours` has the better value
// is named.
std::vector<std::string> findings(const std::vector<Panel>& panels, const std::string& ours);

}  // namespace coppice
