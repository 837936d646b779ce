// backward.hpp - backward within the calling thread, for a process that was forked.
//
// PyTorch's engine has a thread for each GPU, which no forked child has, so it refuses
// to run there. A child that only reckons with shapes (python/oomph/replay) needs no
// such thread. Order, sums and the release of what was saved are the engine's; streams
// and the hooks that follow a node are left out.
#pragma once
#include "torch/base/python.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <queue>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace oomph_torch
{

class Backward
{
  public:
    using Node = torch::autograd::Node;
    using List = torch::autograd::variable_list;

    // What `wanted` says is captured instead of being summed up in leaves.
    Backward(const List &roots, List gradients, const List &wanted, bool keeps)
        : keeps_(keeps), captures_(!wanted.empty()), captured_(wanted.size())
    {
        for (const auto &tensor : wanted)
            wanted_.push_back(torch::autograd::impl::gradient_edge(tensor));
        for (size_t i = 0; i < roots.size(); i++) {
            auto edge = torch::autograd::impl::gradient_edge(roots[i]);
            if (!edge.is_valid())
                throw std::runtime_error("a root of backward has no graph");
            count_uses(edge.function);
            starts_.emplace_back(std::move(edge), std::move(gradients[i]));
        }
    }

    List run()
    {
        for (auto &[edge, gradient] : starts_)
            add(edge, std::move(gradient));
        for (const auto &[edge, gradient] : starts_)
            if (uses_[edge.function.get()] == 0 &&
                queued_.insert(edge.function.get()).second)
                ready_.push(edge.function);
        starts_.clear();
        while (!ready_.empty()) {
            NodePointer node = ready_.top();
            ready_.pop();
            pass(std::move(node));
        }
        return std::move(captured_);
    }

  private:
    struct Later {
        bool operator()(const NodePointer &a, const NodePointer &b) const
        {
            return a->sequence_nr() < b->sequence_nr();
        }
    };

    void count_uses(const NodePointer &root)
    {
        std::vector<Node *> open;
        if (seen_.insert(root.get()).second)
            open.push_back(root.get());
        while (!open.empty()) {
            Node *node = open.back();
            open.pop_back();
            for (const auto &edge : node->next_edges()) {
                if (!edge.is_valid())
                    continue;
                uses_[edge.function.get()]++;
                if (seen_.insert(edge.function.get()).second)
                    open.push_back(edge.function.get());
            }
        }
    }

    void add(const torch::autograd::Edge &edge, at::Tensor gradient)
    {
        auto &inputs = inputs_[edge.function.get()];
        inputs.resize(edge.function->num_inputs());
        at::Tensor &sum = inputs[edge.input_nr];
        if (!gradient.defined())
            return;
        // Besides this one, an object of Python's may hold it, which nobody else does.
        // A view, such as a weight's gradient that was transposed, holds its base.
        if (!sum.defined())
            sum = std::move(gradient);
        else if (!c10::GradMode::is_enabled() && sum.use_count() <= 2 &&
                 !sum.is_sparse() && !sum.is_view() &&
                 sum.is_non_overlapping_and_dense())
            sum.add_(gradient);
        else
            sum = sum + gradient;
    }

    void pass(NodePointer node)
    {
        List inputs = std::move(inputs_[node.get()]);
        inputs_.erase(node.get());
        inputs.resize(node->num_inputs());
        for (const auto &hook : node->tensor_pre_hooks())
            inputs = (*hook)(inputs);
        for (const auto &hook : node->pre_hooks())
            inputs = (*hook)(inputs);
        for (size_t i = 0; i < wanted_.size(); i++)
            if (wanted_[i].function == node)
                captured_[i] = inputs[wanted_[i].input_nr];
        const bool is_leaf = node->num_outputs() == 0;
        List outputs;
        if (!(is_leaf && captures_))
            outputs = (*node)(std::move(inputs));
        outputs.resize(node->num_outputs());
        torch::autograd::validate_outputs(
            node->next_edges(), outputs, [&](const std::string &what) {
                return node->name() + " returned an invalid gradient: " + what;
            });
        if (!keeps_ && !is_leaf)
            node->release_variables();
        for (size_t i = 0; i < outputs.size(); i++) {
            const auto &edge = node->next_edge(i);
            if (!edge.is_valid())
                continue;
            add(edge, std::move(outputs[i]));
            if (--uses_[edge.function.get()] == 0)
                ready_.push(edge.function);
        }
    }

    bool keeps_, captures_;
    List captured_;
    std::vector<torch::autograd::Edge> wanted_;
    std::vector<std::pair<torch::autograd::Edge, at::Tensor>> starts_;
    std::unordered_set<Node *> seen_, queued_;
    std::unordered_map<Node *, size_t> uses_;
    std::unordered_map<Node *, List> inputs_;
    std::priority_queue<NodePointer, std::vector<NodePointer>, Later> ready_;
};

inline torch::autograd::variable_list tensors_in(PyObject *list)
{
    torch::autograd::variable_list tensors;
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        PyObject *item = PyList_GetItem(list, i);
        TORCH_CHECK_TYPE(Py_IsNone(item) || is_tensor(item), "expected tensors");
        tensors.push_back(Py_IsNone(item) ? at::Tensor() : tensor_in(item));
    }
    return tensors;
}

// (roots, gradients, wanted, keep_graph, create_graph): lists of tensors and None.
inline PyObject *backward_here(PyObject *, PyObject *arguments)
{
    PyObject *roots = nullptr, *gradients = nullptr, *wanted = nullptr;
    int keeps = 0, creates = 0;
    if (!PyArg_ParseTuple(arguments, "O!O!O!pp", &PyList_Type, &roots, &PyList_Type,
                          &gradients, &PyList_Type, &wanted, &keeps, &creates))
        return nullptr;
    return or_raise([&] {
        TORCH_CHECK_TYPE(PyList_Size(roots) == PyList_Size(gradients),
                         "expected as many gradients as roots");
        c10::AutoGradMode mode(creates != 0);
        const auto captured = Backward(tensors_in(roots), tensors_in(gradients),
                                       tensors_in(wanted), keeps != 0)
                                  .run();
        PyObject *list =
            make_list(captured.size(), [&](size_t i) { return wrap(captured[i]); });
        PyObject *tuple = list != nullptr ? PyList_AsTuple(list) : nullptr;
        Py_XDECREF(list);
        return tuple;
    });
}

} // namespace oomph_torch
