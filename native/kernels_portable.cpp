// For every processor: vectors of four floats, which the compiler maps to the available instructions.
#define RIGL_LANES 4
#define RIGL_NAME "portable"
#include "kernels_body.h"

const rigl::KernelTable* rigl::portable_kernels() { return &kTable; }
