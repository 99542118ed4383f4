// The first frame of a GIF, through giflib, on its canvas.
#include <gif_lib.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "coppice/core/error.h"
#include "coppice/vision/decoders.h"

namespace coppice::vision {
namespace {

extern "C" int gif_take(GifFileType* gif, GifByteType* to, int bytes) {
  auto* rest = static_cast<std::span<const std::byte>*>(gif->UserData);
  const std::size_t count = std::min(rest->size(), static_cast<std::size_t>(std::max(bytes, 0)));
  std::memcpy(to, rest->data(), count);
  *rest = rest->subspan(count);
  return static_cast<int>(count);
}

[[noreturn]] void fail_gif(int code) {
  const char* message = GifErrorString(code);
  fail_argument("picture: the GIF is damaged: {}", message != nullptr ? message : "no picture");
}

void close_gif(GifFileType* gif) { DGifCloseFile(gif, nullptr); }
using Gif = std::unique_ptr<GifFileType, void (*)(GifFileType*)>;

void check(const Gif& gif, int result) {
  if (result == GIF_ERROR) fail_gif(gif->Error);
}

// Reads up to the first frame; -> its transparent colour, or -1.
int find_frame(const Gif& gif) {
  int transparent = -1;
  for (;;) {
    GifRecordType record = UNDEFINED_RECORD_TYPE;
    check(gif, DGifGetRecordType(gif.get(), &record));
    if (record == IMAGE_DESC_RECORD_TYPE) return transparent;
    if (record != EXTENSION_RECORD_TYPE) fail_gif(D_GIF_ERR_NO_IMAG_DSCR);
    int code = 0;
    GifByteType* block = nullptr;
    check(gif, DGifGetExtension(gif.get(), &code, &block));
    GraphicsControlBlock control;
    if (code == GRAPHICS_EXT_FUNC_CODE && block != nullptr &&
        DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK)
      transparent = control.TransparentColor;
    while (block != nullptr) check(gif, DGifGetExtensionNext(gif.get(), &block));
  }
}

struct Colours {
  const ColorMapObject* map;  // null: a ramp of grey
  int transparent;

  void put(int index, uint8_t* rgba) const {
    rgba[3] = index == transparent ? 0 : 255;
    if (map == nullptr) {
      std::memset(rgba, index, 3);
    } else if (index < map->ColorCount) {
      rgba[0] = map->Colors[index].Red;
      rgba[1] = map->Colors[index].Green;
      rgba[2] = map->Colors[index].Blue;
    } else {
      std::memset(rgba, 0, 3);
    }
  }
};

void read_frame(const Gif& gif, const Colours& colours, StoredPicture& stored) {
  constexpr int kFirst[] = {0, 4, 2, 1}, kStep[] = {8, 8, 4, 2};
  const GifImageDesc& frame = gif->Image;
  std::vector<GifPixelType> line(static_cast<std::size_t>(frame.Width));
  const auto read_line = [&](int y) {
    check(gif, DGifGetLine(gif.get(), line.data(), frame.Width));
    const int64_t row = int64_t{frame.Top} + y;
    if (row < 0 || row >= stored.height) return;
    for (int64_t x = 0; x < frame.Width; ++x) {
      const int64_t column = frame.Left + x;
      if (column < 0 || column >= stored.width) continue;
      colours.put(line[x], stored.rgba.data() + (row * stored.width + column) * 4);
    }
  };
  if (frame.Interlace) {
    for (int pass = 0; pass < 4; ++pass)
      for (int y = kFirst[pass]; y < frame.Height; y += kStep[pass]) read_line(y);
  } else {
    for (int y = 0; y < frame.Height; ++y) read_line(y);
  }
}

}  // namespace

StoredPicture decode_gif(std::span<const std::byte> file, const PictureLimits& limits) {
  int error = 0;
  std::span<const std::byte> rest = file;
  const Gif gif(DGifOpen(&rest, gif_take, &error), close_gif);
  if (!gif) fail_gif(error);
  StoredPicture stored;
  set_size(stored, gif->SWidth, gif->SHeight, limits);
  const int transparent = find_frame(gif);
  check(gif, DGifGetImageDesc(gif.get()));
  const GifImageDesc& frame = gif->Image;
  if (frame.Width < 1 || frame.Height < 1 || frame.Width > limits.max_pixels / frame.Height)
    fail(ErrorCode::kCapacity, "picture: expected a GIF frame of at most {} pixels, got {} x {}",
         limits.max_pixels, frame.Width, frame.Height);
  const Colours colours{frame.ColorMap != nullptr ? frame.ColorMap : gif->SColorMap, transparent};
  // What the frame leaves free is transparent, or of the background's colour.
  for (int64_t i = 0; i < stored.width * stored.height; ++i)
    colours.put(transparent >= 0 ? transparent : gif->SBackGroundColor, stored.rgba.data() + i * 4);
  read_frame(gif, colours, stored);
  return stored;
}

}  // namespace coppice::vision
