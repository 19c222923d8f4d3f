"""Sparse inference: run networks inside ONNX Runtime on kernels that skip zeros."""
