#include "coppice/nn/recompute.h"

#include <torch/torch.h>

#include <utility>

namespace coppice::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SegmentHolder final : torch::CustomClassHolder {
  explicit SegmentHolder(Segment segment_in) : segment(std::move(segment_in)) {}
  Segment segment;
};

// The inputs of apply(): the holder, the segment's inputs, and the anchor last.
struct Recompute final : torch::autograd::Function<Recompute> {
  static variable_list forward(AutogradContext* context,
                               const c10::intrusive_ptr<SegmentHolder>& to, at::TensorList inputs) {
    const variable_list own = inputs.slice(0, inputs.size() - 1).vec();
    context->saved_data["segment"] = c10::IValue::make_capsule(to);
    context->save_for_backward(own);
    return to->segment(own);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto holder = c10::static_intrusive_pointer_cast<SegmentHolder>(
        context->saved_data["segment"].toCapsule());
    variable_list inputs;
    for (const at::Tensor& saved : context->get_saved_variables())
      inputs.push_back(saved.detach().requires_grad_(true));
    variable_list results = {at::Tensor()};  // of the holder
    {
      const at::AutoGradMode with_gradient(true);
      variable_list outputs = holder->segment(inputs);
      variable_list roots, slopes;
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
        roots.push_back(outputs[i]);
        slopes.push_back(gradients[i]);
      }
      if (!roots.empty()) torch::autograd::backward(roots, slopes);
    }
    for (const at::Tensor& input : inputs) results.push_back(input.grad());
    results.emplace_back();  // the anchor's reaches it inside
    return results;
  }
};

}  // namespace

std::vector<at::Tensor> recompute(Segment segment, const std::vector<at::Tensor>& inputs,
                                  const at::Tensor& anchor) {
  // Autograd takes defined tensors alone.
  variable_list all;
  std::vector<bool> defined;
  for (const at::Tensor& input : inputs) {
    defined.push_back(input.defined());
    if (input.defined()) all.push_back(input);
  }
  all.push_back(anchor);
  const auto expand = [segment = std::move(segment), defined](const variable_list& given) {
    variable_list own;
    auto next = given.begin();
    for (const bool there : defined) own.push_back(there ? *next++ : at::Tensor());
    return segment(own);
  };
  return Recompute::apply(c10::make_intrusive<SegmentHolder>(expand), at::TensorList(all));
}

}  // namespace coppice::nn
