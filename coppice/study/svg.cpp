#include "coppice/study/svg.h"

#include <fmt/format.h>

#include <array>

namespace coppice {
namespace {

struct Colour {
  const char* name;
  const char* light;
  const char* dark;
};

// ours, m0..: lines of policies; q0..q9: little to much; d0..d10: less than its share, even, more.
constexpr std::array kColours = {
    Colour{"page", "#ffffff", "#15181d"}, Colour{"ink", "#1c2127", "#e6e9ee"},
    Colour{"soft", "#66707c", "#97a1ae"}, Colour{"grid", "#e4e7eb", "#2a3038"},
    Colour{"ours", "#d9480f", "#ff8c4a"}, Colour{"rest", "#c3c8cf", "#48505b"},
    Colour{"m0", "#1864ab", "#6cb2f2"},   Colour{"m1", "#2b8a3e", "#69c77e"},
    Colour{"m2", "#6741b0", "#b49df2"},   Colour{"m3", "#a87b00", "#e0b441"},
    Colour{"m4", "#0b7285", "#4fc3d0"},   Colour{"m5", "#b0215a", "#f27fa8"},
    Colour{"bar", "#8aa4bf", "#56718d"},  Colour{"full", "#1c2127", "#e6e9ee"},
    Colour{"q0", "#f1f4f7", "#1d232b"},   Colour{"q1", "#dce8f2", "#1f2f40"},
    Colour{"q2", "#c2d9eb", "#213c54"},   Colour{"q3", "#a3c7e2", "#254a69"},
    Colour{"q4", "#80b1d6", "#2b5a7f"},   Colour{"q5", "#5c99c8", "#356d96"},
    Colour{"q6", "#3d80b6", "#4884ad"},   Colour{"q7", "#27669d", "#659fc3"},
    Colour{"q8", "#174c7d", "#8cbcd8"},   Colour{"q9", "#0b3358", "#bfdcec"},
    Colour{"d0", "#1f5a96", "#5aa0e0"},   Colour{"d1", "#4a82b8", "#4179ab"},
    Colour{"d2", "#7ea9d1", "#325b80"},   Colour{"d3", "#b0cbe3", "#27425b"},
    Colour{"d4", "#dbe6f0", "#202d3a"},   Colour{"d5", "#f4f4f2", "#20242a"},
    Colour{"d6", "#fae3d3", "#3a2a20"},   Colour{"d7", "#f5c09b", "#5d3a24"},
    Colour{"d8", "#ec9560", "#874d28"},   Colour{"d9", "#d96a2b", "#b8652f"},
    Colour{"d10", "#ab4508", "#f2914e"}};

constexpr const char* kShapes =
    "svg text{font-family:system-ui,'Segoe UI','DejaVu Sans',sans-serif;font-size:12px}"
    "svg .small{font-size:11px}svg .strong{font-weight:600}"
    "svg .line{fill:none;stroke-width:1.8;stroke-linejoin:round}svg .thin{stroke-width:1.1}"
    "svg .thick{stroke-width:3}svg .hair{stroke-width:1}svg .whisker{stroke-width:1.2;opacity:.6}"
    "svg .dash{stroke-dasharray:5 4}";

std::string colour_rules(bool dark) {
  std::string css;
  for (const Colour& colour : kColours) {
    const char* value = dark ? colour.dark : colour.light;
    css += fmt::format("svg .s-{0}{{stroke:{1}}}svg .f-{0}{{fill:{1}}}", colour.name, value);
  }
  return css;
}

std::string hinted(const std::string& shape, std::string_view hint, const char* name) {
  if (hint.empty()) return shape + "/>\n";
  return fmt::format("{}><title>{}</title></{}>\n", shape, escape_markup(hint), name);
}

}  // namespace

std::string escape_markup(std::string_view text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  return out;
}

Svg::Svg(double width, double height, std::string label)
    : width_(width), height_(height), label_(std::move(label)) {}

void Svg::line(std::string_view classes, double x1, double y1, double x2, double y2) {
  body_ +=
      fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                  classes, x1, y1, x2, y2);
}

void Svg::path(std::string_view classes, const std::string& data) {
  body_ += fmt::format("<path class=\"{}\" d=\"{}\"/>\n", classes, data);
}

void Svg::rect(std::string_view classes, double x, double y, double width, double height,
               std::string_view hint) {
  body_ += hinted(
      fmt::format("<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"",
                  classes, x, y, width, height),
      hint, "rect");
}

void Svg::circle(std::string_view classes, double x, double y, double radius,
                 std::string_view hint) {
  body_ += hinted(fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\"",
                              classes, x, y, radius),
                  hint, "circle");
}

void Svg::text(std::string_view classes, double x, double y, std::string_view anchor,
               std::string_view text) {
  body_ +=
      fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n",
                  classes, x, y, anchor, escape_markup(text));
}

void Svg::open_group(std::string_view classes) {
  body_ += fmt::format("<g class=\"{}\">\n", classes);
}

void Svg::close_group() { body_ += "</g>\n"; }

std::string Svg::head() const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\" aria-label=\"{2}\">\n",
      width_, height_, escape_markup(label_));
}

std::string Svg::inside_html() const { return head() + body_ + "</svg>\n"; }

std::string Svg::file() const {
  return head() + "<style>" + kShapes + colour_rules(false) + "</style>\n" +
         fmt::format("<rect class=\"f-page\" width=\"{:.0f}\" height=\"{:.0f}\"/>\n", width_,
                     height_) +
         body_ + "</svg>\n";
}

std::string plot_css() {
  return std::string(kShapes) + colour_rules(false) + "@media(prefers-color-scheme:dark){" +
         colour_rules(true) + "}";
}

}  // namespace coppice
