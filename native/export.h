// Marks the functions that the library exports.
#pragma once

#define RIGL_EXPORT extern "C" __attribute__((visibility("default")))
