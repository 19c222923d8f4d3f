"""One-shot pruning of ONNX files: no training code, no labels."""
