#include "coppice/vision/resample.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <utility>

#include "coppice/core/error.h"

namespace coppice {
namespace {

constexpr int kWeightBits = 22;  // 8 bits of pixel and 2 of headroom beside them in 32
constexpr int32_t kHalf = 1 << (kWeightBits - 1);

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

// Half the width of a filter, in source pixels at scale 1.
double reach_of(ResampleFilter filter) {
  return filter == ResampleFilter::kBilinear ? 1.0 : filter == ResampleFilter::kBicubic ? 2.0 : 3.0;
}

double weight_of(ResampleFilter filter, double x) {
  x = std::fabs(x);
  switch (filter) {
    case ResampleFilter::kBilinear:
      return x < 1.0 ? 1.0 - x : 0.0;
    case ResampleFilter::kBicubic: {  // Keys, a = -0.5
      constexpr double a = -0.5;
      if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
      return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
    }
    case ResampleFilter::kLanczos:
      return x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
  }
  return 0.0;
}

// What each result of one axis reads: weights[first_weight ..] of source[begin .. begin + count).
struct Taps {
  struct Tap {
    int64_t begin = 0, count = 0;
    std::size_t first_weight = 0;
  };
  std::vector<Tap> taps;
  std::vector<int32_t> weights;
};

// Results begin .. begin + count - 1 of an axis of `from` pixels that becomes `to`.
Taps make_taps(int64_t from, int64_t to, int64_t begin, int64_t count, ResampleFilter filter) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double widened = std::max(scale, 1.0);
  const double reach = reach_of(filter) * widened;
  const double narrow = 1.0 / widened;
  Taps result;
  std::vector<double> plain;
  for (int64_t i = begin; i < begin + count; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(0, static_cast<int64_t>(centre - reach + 0.5));
    const int64_t last = std::min(from, static_cast<int64_t>(centre + reach + 0.5));
    plain.clear();
    double sum = 0.0;
    for (int64_t s = first; s < last; ++s) {
      plain.push_back(weight_of(filter, (static_cast<double>(s) - centre + 0.5) * narrow));
      sum += plain.back();
    }
    result.taps.push_back({first, last - first, result.weights.size()});
    for (double weight : plain) {
      if (sum != 0.0) weight /= sum;
      const double fixed = weight * (1 << kWeightBits);
      result.weights.push_back(static_cast<int32_t>(fixed < 0 ? fixed - 0.5 : fixed + 0.5));
    }
  }
  return result;
}

uint8_t rounded(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

// The part of an axis that taps read, or that a window takes of an axis that keeps its length.
struct Range {
  int64_t begin = 0, count = 0;
};

Range range_of(const Taps& taps) {
  int64_t begin = taps.taps.front().begin, end = 0;
  for (const Taps::Tap& tap : taps.taps) {
    begin = std::min(begin, tap.begin);
    end = std::max(end, tap.begin + tap.count);
  }
  return {begin, end - begin};
}

// An axis that keeps its length is not filtered.
struct Axis {
  std::optional<Taps> taps;
  Range read;

  Axis(int64_t from, int64_t to, int64_t begin, int64_t count, ResampleFilter filter)
      : read{begin, count} {
    if (from == to) return;
    taps = make_taps(from, to, begin, count, filter);
    read = range_of(*taps);
  }
};

// `picture` holds the pixels from read.begin on of the axis that the taps speak of.
Picture resize_columns(Picture picture, const Axis& axis) {
  if (!axis.taps) return picture;
  const Taps& taps = *axis.taps;
  Picture result{static_cast<int64_t>(taps.taps.size()), picture.height, {}};
  result.rgb.resize(static_cast<std::size_t>(result.width * result.height * 3));
  uint8_t* to = result.rgb.data();
  for (int64_t y = 0; y < result.height; ++y) {
    const uint8_t* row = picture.rgb.data() + (y * picture.width - axis.read.begin) * 3;
    for (const Taps::Tap& tap : taps.taps) {
      const uint8_t* from = row + tap.begin * 3;
      const int32_t* weight = taps.weights.data() + tap.first_weight;
      int32_t sums[3] = {kHalf, kHalf, kHalf};
      for (int64_t k = 0; k < tap.count; ++k, from += 3)
        for (int c = 0; c < 3; ++c) sums[c] += from[c] * weight[k];
      for (int c = 0; c < 3; ++c) *to++ = rounded(sums[c]);
    }
  }
  return result;
}

Picture resize_rows(Picture picture, const Axis& axis) {
  if (!axis.taps) return picture;
  const Taps& taps = *axis.taps;
  const int64_t values = picture.width * 3;
  Picture result{picture.width, static_cast<int64_t>(taps.taps.size()), {}};
  result.rgb.resize(static_cast<std::size_t>(values * result.height));
  uint8_t* to = result.rgb.data();
  std::vector<int32_t> sums(static_cast<std::size_t>(values));
  for (const Taps::Tap& tap : taps.taps) {
    std::fill(sums.begin(), sums.end(), kHalf);
    for (int64_t k = 0; k < tap.count; ++k) {
      const uint8_t* row = picture.rgb.data() + (tap.begin - axis.read.begin + k) * values;
      const int32_t weight = taps.weights[tap.first_weight + static_cast<std::size_t>(k)];
      for (int64_t i = 0; i < values; ++i) sums[i] += row[i] * weight;
    }
    for (int64_t i = 0; i < values; ++i) *to++ = rounded(sums[i]);
  }
  return result;
}

// A window of a picture as it stands.
Picture cut(const Picture& picture, const PixelWindow& window) {
  Picture result{window.width, window.height, {}};
  for (int64_t y = 0; y < window.height; ++y) {
    const auto row = picture.rgb.begin() + ((window.y + y) * picture.width + window.x) * 3;
    result.rgb.insert(result.rgb.end(), row, row + window.width * 3);
  }
  return result;
}

}  // namespace

Picture resize_picture(const Picture& picture, int64_t width, int64_t height, ResampleFilter filter,
                       const PixelWindow& window) {
  if (width < 1 || height < 1 || window.x < 0 || window.y < 0 || window.width < 1 ||
      window.height < 1 || window.width > width - window.x || window.height > height - window.y)
    fail_argument("resize: expected a window inside {} x {}, got {} x {} at {}, {}", width, height,
                  window.width, window.height, window.x, window.y);
  const Axis columns(picture.width, width, window.x, window.width, filter);
  const Axis rows(picture.height, height, window.y, window.height, filter);
  Picture part =
      cut(picture, {columns.read.begin, rows.read.begin, columns.read.count, rows.read.count});
  // Pixels are rounded between the passes, so their order shows. Pillow 13, as its results tell,
  // starts with rows where that takes off more than twice as many lines as columns.
  const bool rows_first =
      height < picture.height && picture.height - height > 2 * (picture.width - width);
  if (rows_first) return resize_columns(resize_rows(std::move(part), rows), columns);
  return resize_rows(resize_columns(std::move(part), columns), rows);
}

Picture resize_picture(const Picture& picture, int64_t width, int64_t height,
                       ResampleFilter filter) {
  return resize_picture(picture, width, height, filter, {0, 0, width, height});
}

}  // namespace coppice
