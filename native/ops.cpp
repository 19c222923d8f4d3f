// The kernels as operators of ONNX Runtime: SparseConv, SparseMatMul and SparseGRU in the domain
// "rigl_compress", and next to them DepthwiseConv, which keeps the layout.
#include <array>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "conv.h"
#include "cpu.h"
#include "depthwise.h"
#include "gru.h"
#include "matmul.h"
#include "ort_api.h"

#if defined(_WIN32)
#define RIGL_EXPORT extern "C" __declspec(dllexport)
#else
#define RIGL_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace {

using namespace rigl;
constexpr const char* kDomain = "rigl_compress";

struct Problem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void check(const ort::Api& api, ort::Status* status, const char* what) {
  if (status == nullptr) return;
  api.release_status(status);
  throw Problem(what);
}

// A tensor as the kernels see it. One that is given may be without data: it is empty.
struct Tensor {
  float* data = nullptr;
  std::vector<std::int64_t> shape;
  bool given = false;
};

std::vector<std::int64_t> shape_of(const ort::Api& api, const ort::Value* value) {
  ort::ShapeInfo* info = nullptr;
  check(api, api.shape_info(value, &info), "an input without a shape");
  std::size_t rank = 0;
  ort::Status* status = api.rank(info, &rank);
  std::vector<std::int64_t> shape(rank);
  if (status == nullptr) status = api.dimensions(info, shape.data(), rank);
  api.release_shape_info(info);
  check(api, status, "an input without a shape");
  return shape;
}

std::size_t count_of(const std::vector<std::int64_t>& shape) {
  std::size_t count = 1;
  for (const std::int64_t each : shape) count *= static_cast<std::size_t>(each);
  return count;
}

void* data_of(const ort::Api& api, const ort::Value* value) {
  void* data = nullptr;
  check(api, api.data(const_cast<ort::Value*>(value), &data), "an input without data");
  return data;
}

Tensor input(const ort::Api& api, const ort::KernelContext* context, std::size_t index) {
  std::size_t count = 0;
  check(api, api.input_count(context, &count), "inputs cannot be counted");
  const ort::Value* value = nullptr;
  if (index >= count) return {};
  check(api, api.input(context, index, &value), "an input cannot be read");
  if (value == nullptr) return {};
  return {static_cast<float*>(data_of(api, value)), shape_of(api, value), true};
}

float* output(const ort::Api& api, ort::KernelContext* context, const std::vector<std::int64_t>& shape,
              std::size_t index = 0) {
  ort::Value* value = nullptr;
  check(api, api.output(context, index, shape.data(), shape.size(), &value), "an output cannot be made");
  return static_cast<float*>(data_of(api, value));
}

template <class Number>
Number attribute(const ort::Api& api, const ort::KernelInfo* info, const char* name, Number otherwise) {
  Number value = otherwise;
  ort::Status* status = api.attribute(info, name, &value);
  if (status == nullptr) return value;
  api.release_status(status);
  return otherwise;
}

std::vector<std::int64_t> integers(const ort::Api& api, const ort::KernelInfo* info, const char* name) {
  std::size_t size = 0;
  check(api, api.attribute(info, name, nullptr, &size), "an attribute is missing");
  std::vector<std::int64_t> values(size);
  if (size > 0) check(api, api.attribute(info, name, values.data(), &size), "an attribute cannot be read");
  return values;
}

const ort::Value* weight_tensor(const ort::Api& api, const ort::KernelInfo* info) {
  int is_constant = 0;
  const ort::Value* value = nullptr;
  check(api, api.constant_input(info, 1, &is_constant, &value), "the packed weights cannot be read");
  if (is_constant == 0 || value == nullptr) throw Problem("the packed weights must be an initializer");
  return value;
}

SparseMatrix weights(const ort::Api& api, const ort::KernelInfo* info) {
  const ort::Value* value = weight_tensor(api, info);
  SparseMatrix matrix;
  const std::string wrong = read_packed(data_of(api, value), count_of(shape_of(api, value)), &matrix);
  if (!wrong.empty()) throw Problem(wrong);
  return matrix;
}

// What all operators share: limits of the output, and how many threads the session has.
struct Settings {
  ort::Api api;
  Clip clip;
  int threads;

  Settings(const ort::Api& of, const ort::KernelInfo* info) : api(of) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    clip = {attribute(api, info, "low", -kInfinity), attribute(api, info, "high", kInfinity)};
    const auto wanted = attribute<std::int64_t>(api, info, "threads", 0);
    const auto here = static_cast<std::int64_t>(std::thread::hardware_concurrency());
    threads = static_cast<int>(std::clamp<std::int64_t>(wanted > 0 ? wanted : here, 1, 256));
  }
};

struct Pool {
  const ort::Api* api;
  const ort::KernelContext* context;
};

void run_in_pool(void* pool, void (*task)(void*, std::size_t), std::size_t total, void* user) {
  const Pool& mine = *static_cast<const Pool*>(pool);
  check(*mine.api, mine.api->parallel_for(mine.context, task, total, 0, user), "the thread pool refuses work");
}

const float* bias_of(const Tensor& bias, std::size_t rows) {
  if (bias.given && count_of(bias.shape) != rows) throw Problem("the bias does not fit the packed weights");
  return bias.data;
}

ConvShape conv_shape(const ort::Api& api, const ort::KernelInfo* info) {
  const auto kernel = integers(api, info, "kernel_shape"), strides = integers(api, info, "strides");
  const auto pads = integers(api, info, "pads"), dilations = integers(api, info, "dilations");
  const std::size_t axes = kernel.size();
  if (axes < 1 || axes > 2 || strides.size() != axes || dilations.size() != axes || pads.size() != 2 * axes) {
    throw Problem("a convolution whose attributes do not fit each other");
  }
  const auto axis = [&](std::size_t a) { return Axis{kernel[a], strides[a], dilations[a], pads[a], pads[a + axes]}; };
  return axes == 1 ? ConvShape{Axis{}, axis(0)} : ConvShape{axis(0), axis(1)};
}

struct ConvKernel {
  Settings settings;
  bool flat;  // one axis only
  std::unique_ptr<SparseConv> conv;

  static constexpr const char* kName = "SparseConv";
  static constexpr std::size_t kInputs = 4, kOutputs = 1;
  static constexpr ort::ElementType kWeights = ort::kUint8;

  ConvKernel(const ort::Api& api, const ort::KernelInfo* info)
      : settings(api, info), flat(integers(api, info, "kernel_shape").size() == 1) {
    const ConvShape shape = conv_shape(api, info);
    SparseMatrix matrix = weights(api, info);
    const std::string wrong = check_conv(matrix, shape);
    if (!wrong.empty()) throw Problem(wrong);
    conv = std::make_unique<SparseConv>(std::move(matrix), shape, kernels());
  }

  void compute(ort::KernelContext* context) {
    const Tensor x = input(settings.api, context, 0), bias = input(settings.api, context, 2);
    const Tensor residual = input(settings.api, context, 3);
    const std::size_t rank = flat ? 3 : 4;
    if (x.shape.size() != rank || x.shape[1] != static_cast<std::int64_t>(conv->channels())) {
      throw Problem("the input of a convolution does not fit the packed weights");
    }
    const std::int64_t height = flat ? 1 : x.shape[2], width = x.shape[rank - 1];
    const std::int64_t out_height = conv->shape().rows.output(height), out_width = conv->shape().columns.output(width);
    if (out_height < 1 || out_width < 1) throw Problem("the input of a convolution is smaller than its kernel");
    std::vector<std::int64_t> out = {x.shape[0], static_cast<std::int64_t>(conv->rows())};
    if (!flat) out.push_back(out_height);
    out.push_back(out_width);
    if (residual.given && residual.shape != out) throw Problem("the residual does not have the output's shape");
    float* y = output(settings.api, context, out);
    Pool pool = {&settings.api, context};
    conv->run({x.data, static_cast<std::size_t>(x.shape[0]), height, width, bias_of(bias, conv->rows()),
              residual.data, y, settings.clip},
             {settings.threads, run_in_pool, &pool});
  }
};

std::vector<float> filters(const ort::Api& api, const ort::KernelInfo* info) {
  const ort::Value* value = weight_tensor(api, info);
  const auto* data = static_cast<const float*>(data_of(api, value));
  return std::vector<float>(data, data + count_of(shape_of(api, value)));
}

struct DepthwiseKernel {
  Settings settings;
  std::unique_ptr<DepthwiseConv> conv;

  static constexpr const char* kName = "DepthwiseConv";
  static constexpr std::size_t kInputs = 3, kOutputs = 1;
  static constexpr ort::ElementType kWeights = ort::kFloat;

  DepthwiseKernel(const ort::Api& api, const ort::KernelInfo* info)
      : settings(api, info) {
    const ConvShape shape = conv_shape(api, info);
    std::vector<float> weights = filters(api, info);
    const std::string wrong = check_depthwise(weights, shape);
    if (!wrong.empty()) throw Problem(wrong);
    conv = std::make_unique<DepthwiseConv>(std::move(weights), shape, kernels());
  }

  void compute(ort::KernelContext* context) {
    const Tensor x = input(settings.api, context, 0), bias = input(settings.api, context, 2);
    if (x.shape.size() != 4 || x.shape[1] != static_cast<std::int64_t>(conv->channels())) {
      throw Problem("the input of a convolution does not fit its filters");
    }
    const std::int64_t height = conv->shape().rows.output(x.shape[2]), width = conv->shape().columns.output(x.shape[3]);
    if (height < 1 || width < 1) throw Problem("the input of a convolution is smaller than its kernel");
    float* y = output(settings.api, context, {x.shape[0], x.shape[1], height, width});
    Pool pool = {&settings.api, context};
    conv->run({x.data, static_cast<std::size_t>(x.shape[0]), x.shape[2], x.shape[3], bias_of(bias, conv->channels()),
              nullptr, y, settings.clip},
             {settings.threads, run_in_pool, &pool});
  }
};

struct MatMulKernel {
  Settings settings;
  SparseMatMul product;
  bool x_by_column, y_by_column;

  static constexpr const char* kName = "SparseMatMul";
  static constexpr std::size_t kInputs = 3, kOutputs = 1;
  static constexpr ort::ElementType kWeights = ort::kUint8;

  MatMulKernel(const ort::Api& api, const ort::KernelInfo* info)
      : settings(api, info), product(weights(api, info), kernels()) {
    x_by_column = attribute<std::int64_t>(api, info, "x_by_column", 0) != 0;
    y_by_column = attribute<std::int64_t>(api, info, "y_by_column", 0) != 0;
  }

  void compute(ort::KernelContext* context) {
    const Tensor x = input(settings.api, context, 0), bias = input(settings.api, context, 2);
    if (x.shape.empty() || x.shape.back() != static_cast<std::int64_t>(product.matrix().columns)) {
      throw Problem("the input of a product does not fit the packed weights");
    }
    std::vector<std::int64_t> out = x.shape;
    out.back() = product.matrix().rows;
    float* y = output(settings.api, context, out);
    const std::size_t batch = count_of(x.shape) / product.matrix().columns;
    Pool pool = {&settings.api, context};
    product.run({x.data, batch, bias_of(bias, product.matrix().rows), y, x_by_column, y_by_column, settings.clip},
                {settings.threads, run_in_pool, &pool});
  }
};

struct GruKernel {
  Settings settings;
  std::unique_ptr<SparseGru> gru;

  static constexpr const char* kName = "SparseGRU";
  static constexpr std::size_t kInputs = 5, kOutputs = 2;
  static constexpr ort::ElementType kWeights = ort::kUint8;

  // Attributes: for each direction whether it runs backward, and whether the state is reset after its product.
  GruKernel(const ort::Api& api, const ort::KernelInfo* info) : settings(api, info) {
    const auto backward = integers(api, info, "backward"), reset_after = integers(api, info, "reset_after");
    if (backward.empty() || backward.size() > 2 || reset_after.size() != 1) {
      throw Problem("a GRU whose attributes do not fit each other");
    }
    GruShape shape;
    shape.directions = static_cast<std::int32_t>(backward.size());
    for (std::size_t d = 0; d < backward.size(); ++d) shape.backward[d] = backward[d] != 0;
    shape.reset_after = reset_after[0] != 0;
    const SparseMatrix matrix = weights(api, info);
    const std::string wrong = check_gru(matrix, shape);
    if (!wrong.empty()) throw Problem(wrong);
    gru = std::make_unique<SparseGru>(matrix, shape, kernels());
  }

  // Inputs: the products of the inputs, packed weights, bias of the new state, initial state, lengths of the samples.
  void compute(ort::KernelContext* context) {
    const Tensor x = input(settings.api, context, 0), bias = input(settings.api, context, 2);
    const Tensor initial = input(settings.api, context, 3), lengths = input(settings.api, context, 4);
    const auto size = static_cast<std::int64_t>(gru->size()), ways = static_cast<std::int64_t>(gru->directions());
    if (x.shape.size() != 3 || x.shape[2] != ways * 3 * size) throw Problem("the input does not fit the packed weights");
    const std::vector<std::int64_t> last = {ways, x.shape[1], size};
    if (initial.given && initial.shape != last) throw Problem("the initial state has a wrong shape");
    const auto* ends = reinterpret_cast<const std::int32_t*>(lengths.data);  // the one input that is not of floats
    if (lengths.given) check_lengths(ends, lengths.shape, x.shape);
    float* y = output(settings.api, context, {x.shape[0], ways, x.shape[1], size});
    float* end = output(settings.api, context, last, 1);
    Pool pool = {&settings.api, context};
    gru->run({x.data, static_cast<std::size_t>(x.shape[0]), static_cast<std::size_t>(x.shape[1]),
              bias_of(bias, gru->directions() * gru->size()), initial.data, ends, y, end},
             {settings.threads, run_in_pool, &pool});
  }

  static void check_lengths(const std::int32_t* ends, const std::vector<std::int64_t>& shape,
                            const std::vector<std::int64_t>& x) {
    if (shape.size() != 1 || shape[0] != x[1]) throw Problem("there must be one length for each sample");
    for (std::int64_t b = 0; b < shape[0]; ++b) {
      if (ends[b] < 0 || ends[b] > x[0]) throw Problem("a sample is longer than the input, or shorter than nothing");
    }
  }
};

// No exception may pass the border to the runtime, which may be of another compiler.
template <class Body>
ort::Status* guarded(const ort::Api& api, const char* name, const Body& body) {
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    return api.create_status(ort::kInvalidArgument, (std::string(name) + ": " + error.what()).c_str());
  }
}

template <class Kernel>
ort::CustomOp describe() {
  ort::CustomOp op{};
  op.version = ort::kApiVersion;
  op.get_name = [](const ort::CustomOp*) { return Kernel::kName; };
  op.get_provider = [](const ort::CustomOp*) -> const char* { return "CPUExecutionProvider"; };
  op.get_input_type = [](const ort::CustomOp*, std::size_t i) {
    if (std::is_same<Kernel, GruKernel>::value && i == 4) return ort::kInt32;  // lengths
    return i == 1 ? Kernel::kWeights : ort::kFloat;
  };
  op.get_input_count = [](const ort::CustomOp*) { return Kernel::kInputs; };
  op.get_output_type = [](const ort::CustomOp*, std::size_t) { return ort::kFloat; };
  op.get_output_count = [](const ort::CustomOp*) { return Kernel::kOutputs; };
  op.destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  op.get_input_characteristic = [](const ort::CustomOp*, std::size_t i) {
    return i < 2 ? ort::kRequired : ort::kOptional;
  };
  op.get_output_characteristic = [](const ort::CustomOp*, std::size_t) { return ort::kRequired; };
  op.get_input_memory = [](const ort::CustomOp*, std::size_t) { return 0; };
  op.get_variadic_input_arity = [](const ort::CustomOp*) { return 1; };
  op.get_variadic_input_homogeneity = [](const ort::CustomOp*) { return 1; };
  op.get_variadic_output_arity = [](const ort::CustomOp*) { return 1; };
  op.get_variadic_output_homogeneity = [](const ort::CustomOp*) { return 1; };
  op.create_kernel_v2 = [](const ort::CustomOp*, ort::Table table, const ort::KernelInfo* info, void** out) {
    const ort::Api api{table};
    return guarded(api, Kernel::kName, [&] { *out = new Kernel(api, info); });
  };
  op.compute_v2 = [](void* kernel, ort::KernelContext* context) {
    auto* mine = static_cast<Kernel*>(kernel);
    return guarded(mine->settings.api, Kernel::kName, [&] { mine->compute(context); });
  };
  op.get_start_version = [](const ort::CustomOp*) { return 1; };
  op.get_end_version = [](const ort::CustomOp*) { return std::numeric_limits<int>::max(); };
  op.get_may_inplace = [](int**, int**) { return std::size_t{0}; };
  op.release_may_inplace = [](int*, int*) {};
  op.get_alias_map = [](int**, int**) { return std::size_t{0}; };
  op.release_alias_map = [](int*, int*) {};
  return op;
}

// The sum may take the place of the residual: each piece of it is read before it is written.
ort::CustomOp describe_conv() {
  ort::CustomOp op = describe<ConvKernel>();
  op.get_may_inplace = [](int** inputs, int** outputs) {
    *inputs = new int(3);
    *outputs = new int(0);
    return std::size_t{1};
  };
  op.release_may_inplace = [](int* inputs, int* outputs) {
    delete inputs;
    delete outputs;
  };
  return op;
}

}  // namespace

// Called by the runtime when a session registers the library.
RIGL_EXPORT ort::Status* RegisterCustomOps(ort::SessionOptions* options, const ort::ApiBase* base) {
  const ort::Table table = base->get_api(ort::kApiVersion);
  if (table == nullptr) {
    // Every runtime answers for version 1, and a status looks the same in all of them.
    return ort::Api{base->get_api(1)}.create_status(ort::kFail, "rigl_compress needs ONNX Runtime 1.18 or newer");
  }
  const ort::Api api{table};
  static const std::array<ort::CustomOp, 4> ops = {describe_conv(), describe<MatMulKernel>(), describe<GruKernel>(),
                                                   describe<DepthwiseKernel>()};
  // Sessions do not own the domain: one serves them all, for as long as the process lives.
  static std::mutex mutex;
  static ort::CustomOpDomain* domain = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (domain == nullptr) {
    ort::CustomOpDomain* fresh = nullptr;
    if (ort::Status* status = api.create_domain(kDomain, &fresh)) return status;
    for (const ort::CustomOp& op : ops) {
      if (ort::Status* status = api.add_op(fresh, &op)) return status;
    }
    domain = fresh;
  }
  return api.add_domain(options, domain);
}
