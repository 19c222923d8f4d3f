// For every processor: vectors of four floats, which the compiler maps to the available instructions.
#define RIGL_LANES 4
#include "train_body.h"

const rigl::TrainKernels* rigl::portable_train_kernels() { return &kTable; }
