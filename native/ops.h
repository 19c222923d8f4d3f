// The operators of the domain "rigl_compress".
#pragma once

#include "ort_api.h"

namespace rigl {

ort::CustomOp attention_op();
ort::CustomOp conv_op();
ort::CustomOp depthwise_op();
ort::CustomOp gru_op();
ort::CustomOp layer_norm_op();
ort::CustomOp lstm_op();
ort::CustomOp matmul_op();
ort::CustomOp rnn_op();
ort::CustomOp sparse_depthwise_op();
ort::CustomOp spread_op();

}  // namespace rigl
