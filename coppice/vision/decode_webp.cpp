// WebP through libwebp: still pictures and the first frame of animations.
#include <webp/decode.h>
#include <webp/demux.h>

#include <cstring>
#include <memory>

#include "coppice/core/error.h"
#include "coppice/vision/decoders.h"

namespace coppice::vision {
namespace {

WebPData data_of(std::span<const std::byte> file) {
  return {reinterpret_cast<const uint8_t*>(file.data()), file.size()};
}

int stored_orientation(std::span<const std::byte> file) {
  const WebPData data = data_of(file);
  const std::unique_ptr<WebPDemuxer, void (*)(WebPDemuxer*)> demuxer(WebPDemux(&data),
                                                                     WebPDemuxDelete);
  if (!demuxer) return 1;
  WebPChunkIterator chunk;
  int orientation = 1;
  if (WebPDemuxGetChunk(demuxer.get(), "EXIF", 1, &chunk) != 0) {
    orientation =
        exif_orientation({reinterpret_cast<const std::byte*>(chunk.chunk.bytes), chunk.chunk.size});
    WebPDemuxReleaseChunkIterator(&chunk);
  }
  return orientation;
}

void read_first_frame(std::span<const std::byte> file, StoredPicture& stored) {
  const WebPData data = data_of(file);
  WebPAnimDecoderOptions options;
  if (WebPAnimDecoderOptionsInit(&options) == 0) fail_argument("picture: libwebp does not fit");
  options.color_mode = MODE_RGBA;
  options.use_threads = 0;
  const std::unique_ptr<WebPAnimDecoder, void (*)(WebPAnimDecoder*)> decoder(
      WebPAnimDecoderNew(&data, &options), WebPAnimDecoderDelete);
  WebPAnimInfo info;
  uint8_t* frame = nullptr;
  int time = 0;
  if (!decoder || WebPAnimDecoderGetInfo(decoder.get(), &info) == 0 ||
      info.canvas_width != stored.width || info.canvas_height != stored.height ||
      WebPAnimDecoderGetNext(decoder.get(), &frame, &time) == 0)
    fail_argument("picture: the animated WebP is damaged");
  std::memcpy(stored.rgba.data(), frame, stored.rgba.size());
}

}  // namespace

StoredPicture decode_webp(std::span<const std::byte> file, const PictureLimits& limits) {
  const WebPData data = data_of(file);
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(data.bytes, data.size, &features) != VP8_STATUS_OK)
    fail_argument("picture: the WebP is damaged: its header cannot be read");
  StoredPicture stored;
  set_size(stored, features.width, features.height, limits);
  stored.orientation = stored_orientation(file);
  if (features.has_animation != 0) {
    read_first_frame(file, stored);
  } else if (WebPDecodeRGBAInto(data.bytes, data.size, stored.rgba.data(), stored.rgba.size(),
                                static_cast<int>(stored.width * 4)) == nullptr) {
    fail_argument("picture: the WebP is damaged, or ends too early");
  }
  return stored;
}

}  // namespace coppice::vision
