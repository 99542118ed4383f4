// Work spread over threads: one pool for the process, dynamic hand-out, short spin then sleep.
//
// A range is handed out in pieces of `grain`; whoever is free takes the next one, the calling
// thread included, so a thread that the system holds back delays at most the piece it has taken.
// Threads that wait spin for some tens of microseconds, then sleep, and never burn a time slice.
//
// A loop inside a piece runs on its own thread alone. Two threads that call at once do not mix: the
// second one runs its loop by itself. What fn throws reaches the caller (the first of several);
// remaining pieces are then skipped. Thread-safe.
#pragma once

#include <cstdint>
#include <type_traits>

namespace coppice::ops {

// Threads that take part, the caller included. At first: the processors this process may use, by
// affinity and by cgroup limit.
int num_threads();

// REQUIRES: no loop runs meanwhile. Throws kInvalidArgument unless 1 <= count <= 1024.
void set_num_threads(int count);

namespace detail {
using PieceFn = void (*)(const void* context, int64_t begin, int64_t end);
struct Loop {
  int64_t begin, end;
  int64_t grain;
  bool guided;
};
void run_pieces(const Loop& loop, PieceFn fn, const void* context);

template <typename Fn>
void run_loop(const Loop& loop, const Fn& fn) {
  run_pieces(
      loop,
      [](const void* context, int64_t from, int64_t to) {
        (*static_cast<const Fn*>(context))(from, to);
      },
      &fn);
}
}  // namespace detail

// Calls fn(piece_begin, piece_end) until [begin, end) is done. Pieces hold `grain` items (the last
// one fewer); grain below 1 counts as 1. An empty range calls nothing.
template <typename Fn>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Fn& fn) {
  detail::run_loop({begin, end, grain, false}, fn);
}

// The same for items of equal cost whose neighbours are better done by one thread (memory read in
// one stream): pieces begin large, with a share of what is left, and shrink to `grain`.
template <typename Fn>
void parallel_for_guided(int64_t begin, int64_t end, int64_t grain, const Fn& fn) {
  detail::run_loop({begin, end, grain, true}, fn);
}

}  // namespace coppice::ops
