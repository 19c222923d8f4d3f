"""The stage `export`: from a run or an ONNX file to a small ONNX file."""
