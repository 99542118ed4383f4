// JPEG through libjpeg-turbo. Its errors jump, so what has a destructor lives outside the readers.
// jpeglib.h wants FILE and size_t.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <csetjmp>

#include "coppice/core/error.h"
#include "coppice/vision/decoders.h"

namespace coppice::vision {
namespace {

// A progressive picture may be sent in many passes over all its pixels: bounds their number, and
// with it the time.
constexpr int kMaxScans = 100;
constexpr int64_t kMaxScannedPixels = 1'000'000'000;

struct JpegReader {
  jpeg_decompress_struct jpeg = {};
  jpeg_error_mgr errors = {};
  jpeg_progress_mgr progress = {};
  std::jmp_buf failed = {};
  char message[JMSG_LENGTH_MAX] = "";
  bool too_many_scans = false;

  JpegReader() = default;
  ~JpegReader() { jpeg_destroy_decompress(&jpeg); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;
};

extern "C" void jpeg_failed(j_common_ptr common) {
  auto* reader = static_cast<JpegReader*>(common->client_data);
  common->err->format_message(common, reader->message);
  std::longjmp(reader->failed, 1);
}

// libjpeg only warns when the data end too early, and goes on with grey.
extern "C" void jpeg_noted(j_common_ptr common, int level) {
  if (level < 0 && common->err->msg_code == JWRN_JPEG_EOF) jpeg_failed(common);
}

extern "C" void jpeg_progressed(j_common_ptr common) {
  auto* reader = static_cast<JpegReader*>(common->client_data);
  const jpeg_decompress_struct& jpeg = reader->jpeg;
  const int64_t pixels = int64_t{jpeg.image_width} * jpeg.image_height;
  if (jpeg.input_scan_number <= kMaxScans &&
      jpeg.input_scan_number * pixels <= kMaxScannedPixels + pixels)
    return;
  reader->too_many_scans = true;
  std::longjmp(reader->failed, 1);
}

bool read_header(JpegReader& reader, std::span<const std::byte> file) {
  reader.jpeg.err = jpeg_std_error(&reader.errors);
  reader.errors.error_exit = jpeg_failed;
  reader.errors.emit_message = jpeg_noted;
  reader.jpeg.client_data = &reader;
  if (setjmp(reader.failed)) return false;
  jpeg_create_decompress(&reader.jpeg);
  reader.jpeg.client_data = &reader;
  reader.jpeg.progress = &reader.progress;
  reader.progress.progress_monitor = jpeg_progressed;
  jpeg_mem_src(&reader.jpeg, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_save_markers(&reader.jpeg, JPEG_APP0 + 1, 0xFFFF);
  jpeg_read_header(&reader.jpeg, TRUE);
  return true;
}

bool read_pixels(JpegReader& reader, uint8_t* rgba) {
  if (setjmp(reader.failed)) return false;
  jpeg_start_decompress(&reader.jpeg);
  while (reader.jpeg.output_scanline < reader.jpeg.output_height) {
    JSAMPROW row = rgba + std::size_t{reader.jpeg.output_scanline} * reader.jpeg.output_width * 4;
    jpeg_read_scanlines(&reader.jpeg, &row, 1);
  }
  return true;
}

// Inverted C, M, Y, K, in place. As Pillow: colours are the paper's white less ink, less black.
void cmyk_to_rgba(std::vector<uint8_t>& pixels) {
  for (std::size_t i = 0; i < pixels.size(); i += 4) {
    const int white = pixels[i + 3];  // 255 - K
    for (std::size_t c = 0; c < 3; ++c) {
      const int ink = (255 - pixels[i + c]) * white + 128;
      const int value = white - ((ink + (ink >> 8)) >> 8);
      pixels[i + c] = static_cast<uint8_t>(value < 0 ? 0 : value);
    }
    pixels[i + 3] = 255;
  }
}

int stored_orientation(const jpeg_decompress_struct& jpeg) {
  for (const jpeg_marker_struct* marker = jpeg.marker_list; marker; marker = marker->next) {
    const int found =
        exif_orientation({reinterpret_cast<const std::byte*>(marker->data), marker->data_length});
    if (found != 1) return found;
  }
  return 1;
}

}  // namespace

StoredPicture decode_jpeg(std::span<const std::byte> file, const PictureLimits& limits) {
  JpegReader reader;
  StoredPicture stored;
  const auto check = [&reader](bool good) {
    if (good) return;
    if (reader.too_many_scans)
      fail(ErrorCode::kCapacity, "picture: the JPEG comes in too many scans; expected at most {}",
           kMaxScans);
    fail_argument("picture: the JPEG is damaged: {}", reader.message);
  };
  check(read_header(reader, file));
  jpeg_decompress_struct& jpeg = reader.jpeg;
  if (jpeg.num_components != 1 && jpeg.num_components != 3 && jpeg.num_components != 4)
    fail_argument("picture: expected a JPEG of 1, 3 or 4 components, got {}", jpeg.num_components);
  set_size(stored, jpeg.image_width, jpeg.image_height, limits);
  stored.orientation = stored_orientation(jpeg);
  const bool cmyk = jpeg.num_components == 4;
  jpeg.out_color_space = cmyk ? JCS_CMYK : JCS_EXT_RGBA;
  check(read_pixels(reader, stored.rgba.data()));
  if (cmyk) cmyk_to_rgba(stored.rgba);
  return stored;
}

}  // namespace coppice::vision
