// The Kernels table of the functions that are written for any instruction set.
#pragma once

#include "kernels/isa/activations-inl.h"
#include "kernels/isa/attention-inl.h"
#include "kernels/isa/delta-inl.h"
#include "kernels/isa/nested-inl.h"
#include "kernels/isa/ops-inl.h"
#include "kernels/isa/paged-inl.h"
#include "kernels/isa/product_portable-inl.h"
#include "kernels/isa/sampling-inl.h"
#include "kernels/kernels.h"

namespace specqd {
namespace {

constexpr AccumulatePlain& accumulate_generic = accumulate_plain_by<InRowGroups<GenericExact>>;

constexpr Kernels generic_table(const char* name) {
  return {.name = name,
          .exact_row_bytes = exact_row_bytes,
          .draft_row_bytes = draft_row_bytes,
          .prepare_exact = prepare_exact,
          .prepare_draft = prepare_draft,
          .exact_product = exact_product_by<InRowGroups<GenericExact>>,
          .draft_product = draft_product,
          .score_keys = score_keys_by<accumulate_generic>,
          .sum_values = sum_values_by<accumulate_generic, kFloatBlockBytes>,
          .add_products = add_products,
          .encode_tile = encode_tile,
          .decode_tile = decode_tile,
          .rms_norm = rms_norm,
          .layer_norm = layer_norm,
          .add = add,
          .add_bf16 = add_bf16,
          .silu_times = silu_times,
          .gelu_times = gelu_times,
          .gelu_tanh_times = gelu_tanh_times,
          .relu_squared_times = relu_squared_times,
          .clamped_swiglu = clamped_swiglu,
          .xielu = xielu,
          .soft_cap = soft_cap,
          .panel_maxima = panel_maxima,
          .rotate = rotate,
          .round_bf16 = round_bf16,
          .round_bf16_finite = round_bf16_finite,
          .softmax_part = softmax_part_by<NoLines>,
          .merge_part = merge_part,
          .scale = scale,
          .sigmoid_gate = sigmoid_gate,
          .short_conv = short_conv,
          .delta_rows = delta_rows,
          .delta_advance = delta_advance,
          .sampling = &sampling::kKernels,
          .read_bytes = read_bytes};
}

}  // namespace
}  // namespace specqd
