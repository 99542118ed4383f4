// A drawing as SVG text. Shapes carry classes and no colours: plot_css() gives those, so one
// drawing serves a report in light and dark and a file of its own.
//
// Classes: what (line, dot, area, label, ..) and a colour: "s-NAME" strokes, "f-NAME" fills.
// Lengths are pixels, y goes down. Text is escaped.
#pragma once

#include <string>
#include <string_view>

namespace coppice {

std::string escape_markup(std::string_view text);

class Svg final {
 public:
  // label: what a screen reader says of the whole.
  Svg(double width, double height, std::string label);

  void line(std::string_view classes, double x1, double y1, double x2, double y2);
  void path(std::string_view classes, const std::string& data);
  // hint: shown where the pointer rests; none if empty.
  void rect(std::string_view classes, double x, double y, double width, double height,
            std::string_view hint = {});
  void circle(std::string_view classes, double x, double y, double radius,
              std::string_view hint = {});
  // anchor: start, middle or end; x and y: of the baseline.
  void text(std::string_view classes, double x, double y, std::string_view anchor,
            std::string_view text);
  void open_group(std::string_view classes);
  void close_group();

  std::string inside_html() const;
  std::string file() const;  // with the light colours and a background

 private:
  std::string head() const;

  double width_, height_;
  std::string label_, body_;
};

// The rules of the classes above for pages, with the dark colours where the reader's system is
// dark.
std::string plot_css();

}  // namespace coppice
