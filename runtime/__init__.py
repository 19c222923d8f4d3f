"""Running: sparse networks inside ONNX Runtime, on kernels that skip the zeros."""
