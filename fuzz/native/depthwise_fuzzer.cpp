// Depthwise convolutions with any window, against loops over the filter taps.
#include "../../native/depthwise.h"
#include "harness.h"

using namespace harness;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  const rigl::KernelTable& table = kernels(bytes.byte());
  Integers integers(bytes.byte());
  const rigl::ConvShape shape = conv_shape(&bytes);
  Images images{};
  images.channels = images.rows = static_cast<std::size_t>(bytes.range(1, 9));
  if (!valid(shape)) {
    if (rigl::check_depthwise({1.0f}, shape).empty()) std::abort();
    return 0;
  }
  if (shape.taps() > 100000) return 0;
  const std::size_t taps = static_cast<std::size_t>(shape.taps());
  const std::vector<float> weights = integers.numbers(images.channels * taps);
  if (!rigl::check_depthwise(weights, shape).empty()) return 0;  // more padding than the kernel reaches
  rigl::DepthwiseConv conv(weights, shape, table);
  for (int run = 0; run < 6; ++run) {
    images.resize(&bytes);
    const int threads = 1 + static_cast<int>(bytes.byte() % 4);
    const bool with_bias = bytes.flag();
    const rigl::Clip clip = harness::clip(&bytes);
    if (!images.fit(shape, 2e6 / static_cast<double>(taps))) continue;
    const std::vector<float> x = integers.numbers(images.inputs()), bias = integers.numbers(images.channels);
    std::vector<float> y(images.outputs(), 0.5f), expected(y.size());
    conv.run({x.data(), images.batch, images.height, images.width, with_bias ? bias.data() : nullptr, nullptr, y.data(),
              clip},
             serial_threads(threads));
    const std::int64_t pixels = images.out_height * images.out_width;
    for (std::size_t i = 0; i < y.size(); ++i) {
      const std::size_t plane = i / static_cast<std::size_t>(pixels), channel = plane % images.channels;
      const std::int64_t p = static_cast<std::int64_t>(i) % pixels;
      const float* image = x.data() + plane * static_cast<std::size_t>(images.height * images.width);
      double sum = with_bias ? static_cast<double>(bias[channel]) : 0.0;
      for (std::size_t t = 0; t < taps; ++t) {
        const std::int64_t pixel = images.pixel(shape, p, static_cast<std::int64_t>(t));
        if (pixel >= 0) sum += static_cast<double>(weights[channel * taps + t] * image[pixel]);
      }
      expected[i] = clipped(sum, clip);
    }
    check("depthwise convolution", y, expected, 0.0f);
    if (bytes.rest() <= 0) break;
  }
  return 0;
}
