// operators.hpp - which operators are special.
#pragma once
#include <algorithm>
#include <cstddef>
#include <string_view>

namespace oomph_values
{

// Some names of operators.
class Names
{
  public:
    constexpr Names() = default;
    template <size_t N>
    constexpr Names(const std::string_view (&names)[N]) : names_(names), count_(N)
    {
    }
    bool contain(std::string_view name) const
    {
        return std::find(names_, names_ + count_, name) != names_ + count_;
    }

  private:
    const std::string_view *names_ = nullptr;
    size_t count_ = 0;
};

// They only describe memory, or the driver moves the bytes.
inline constexpr std::string_view LEFT_ALONE[] = {
    "_cudnn_init_dropout_state",
    "_efficientzerotensor",
    "_fused_sdp_choice",
    "_pin_memory",
    "_cudnn_rnn_flatten_weight", // copies by operators that have values
    "_use_cudnn_ctc_loss",
    "_use_cudnn_ctc_loss.Tensor",
    "_use_miopen_ctc_loss",
    "_use_miopen_ctc_loss.Tensor",
    "empty.memory_format",
    "empty_strided",
    "is_pinned",
    "is_set_to",
    "record_stream",
    "resize_",
    "set_",
    "set_.source_Storage",
    "set_.source_Storage_storage_offset",
    "set_.source_Tensor",
};

// The size of the result depends on values.
inline constexpr std::string_view SIZED_BY_VALUES[] = {
    "_unique",
    "_unique2",
    "bincount",
    "masked_select",
    "masked_select.out",
    "nonzero",
    "nonzero.out",
    "repeat_interleave.Tensor",
    "unique_consecutive",
    "unique_dim",
    "unique_dim_consecutive",
};

// What the CUDA kernel does depends on values.
inline constexpr std::string_view NEED_VALUES[] = {
    "_ctc_loss",   "equal",           "histc",          "histc.out",      "mode",
    "multinomial", "multinomial.out", "nonzero_static", "segment_reduce",
};

// They have no CUDA kernel of their own, and would be decomposed in another way than on
// the CPU.
inline constexpr std::string_view TAKEN_WHOLE[] = {"convolution",
                                                   "convolution_backward", "copy_"};

// Of those, what takes time by itself.
inline constexpr std::string_view COPIED[] = {"copy_"};

// Of sparse tensors: they only describe, or call operators on the parts.
inline constexpr std::string_view LEFT_ALONE_IF_SPARSE[] = {
    "_coalesced_",
    "_dimI",
    "_dimV",
    "_indices",
    "_nnz",
    "_sparse_coo_tensor_with_dims",
    "_sparse_coo_tensor_with_dims_and_tensors",
    "_values",
    "ccol_indices",
    "clone",
    "col_indices",
    "copy_",
    "copy_sparse_to_sparse_",
    "crow_indices",
    "dense_dim",
    "empty.memory_format",
    "empty_like",
    "indices",
    "is_coalesced",
    "resize_",
    "resize_as_sparse_",
    "row_indices",
    "sparse_dim",
    "sparse_resize_",
    "sparse_resize_and_clear_",
    "values",
    "zero_",
};

// Of nested tensors.
inline constexpr std::string_view LEFT_ALONE_IF_NESTED[] = {
    "_fused_sdp_choice",
    "_nested_tensor_size",
    "_nested_tensor_storage_offsets",
    "_nested_tensor_strides",
    "clone",
    "copy_",
    "detach",
    "empty_like",
    "is_same_size",
    "values",
};

} // namespace oomph_values
