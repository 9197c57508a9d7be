// A second kind of device for tests: memory of its own, and kernels that refuse what a GPU refuses.
//
// Its kernels are the CPU's, run on copies. What matters is the border: operands on different devices, generators of
// another device and memory beyond a limit are errors here as they are on a GPU, and autocast casts what it casts there.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/SDPBackend.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_set>

namespace {

using at::Tensor;
constexpr auto kDevice = c10::DeviceType::PrivateUse1;

// ---- memory -------------------------------------------------------------------------------------------------------

std::atomic<int64_t> live{0};
std::atomic<int64_t> peak{0};
std::atomic<int64_t> limit{0};

struct Block {
  void* data;
  int64_t bytes;
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  live -= block->bytes;
  c10::free_cpu(block->data);
  delete block;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const int64_t now = live += static_cast<int64_t>(bytes);
    if (limit > 0 && now > limit) {
      live -= static_cast<int64_t>(bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "second device out of memory: tried to allocate ", bytes, " bytes");
    }
    int64_t seen = peak;
    while (now > seen && !peak.compare_exchange_weak(seen, now)) {
    }
    auto* block = new Block{c10::alloc_cpu(bytes), static_cast<int64_t>(bytes)};
    return {block->data, block, &free_block, c10::Device(kDevice, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
};

DeviceAllocator allocator;
REGISTER_ALLOCATOR(kDevice, &allocator);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kDevice> {
  c10::Device exchangeDevice(c10::Device) const override {
    return {kDevice, 0};
  }
  c10::Device getDevice() const override {
    return {kDevice, 0};
  }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(kDevice, 0));
  }
  c10::Stream exchangeStream(c10::Stream) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(kDevice, 0));
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return 1;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetCPUAllocator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto fresh = allocator.allocate(bytes);
    std::memcpy(fresh.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};
Hooks hooks;
const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

// ---- tensors ------------------------------------------------------------------------------------------------------

Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

// The same memory as a tensor of the CPU.
Tensor seen_by_cpu(const Tensor& tensor) {
  if (tensor.device().type() != kDevice) {
    return tensor;
  }
  Tensor seen = at::detail::empty_cpu({0}, tensor.options().device(at::kCPU));
  // an alias of the whole storage, so that any strides and offset are within it
  auto storage = c10::Storage(
      c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
      c10::DataPtr(const_cast<void*>(tensor.storage().data()), c10::Device(at::kCPU)), nullptr, false);
  at::native::set_storage_cpu_(seen, storage, tensor.storage_offset(), tensor.sizes(), tensor.strides());
  if (tensor.is_conj()) seen = seen.conj();
  if (tensor.is_neg()) seen = seen._neg_view();
  return seen;
}

Tensor copy_from(const Tensor& self, const Tensor& dst, bool) {
  auto to = seen_by_cpu(dst);
  to.copy_(seen_by_cpu(self));
  return dst;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  at::native::resize_(dst, self.sizes(), std::nullopt);
  return copy_from(self, dst, false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  return seen_by_cpu(self).item();
}

Tensor& set_storage(
    Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

Tensor& set_whole_storage(Tensor& self, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return at::native::set_storage_cpu_(self, std::move(source), 0, {count}, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return at::native::set_tensor_(self, source);
}

Tensor to_device(const Tensor& tensor) {
  return tensor.defined() ? tensor.to(c10::Device(kDevice, 0)) : tensor;
}

std::optional<Tensor> on_cpu(const std::optional<Tensor>& tensor) {
  return tensor && tensor->defined() ? std::optional<Tensor>(seen_by_cpu(*tensor)) : std::nullopt;
}

void together(const char* op, std::initializer_list<const Tensor*> tensors) {
  for (const auto* tensor : tensors) {
    TORCH_CHECK(
        !tensor->defined() || tensor->device().type() == kDevice,
        "second device: expected all tensors to be on the same device in ", op, ", but one is on ", tensor->device());
  }
}

Tensor convolution(
    const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  together("convolution", {&input, &weight});
  TORCH_CHECK(input.scalar_type() == weight.scalar_type(), "second device: input type and weight type differ");
  return to_device(at::convolution(
      seen_by_cpu(input), seen_by_cpu(weight), on_cpu(bias), stride, padding, dilation, transposed, output_padding,
      groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> mask) {
  together("convolution_backward", {&grad, &input, &weight});
  at::OptionalIntArrayRef bias_sizes = std::nullopt;
  std::vector<int64_t> bias{transposed ? weight.size(1) * groups : weight.size(0)};
  if (mask[2]) bias_sizes = bias;
  auto [a, b, c] = at::convolution_backward(
      seen_by_cpu(grad), seen_by_cpu(input), seen_by_cpu(weight), bias_sizes, stride, padding, dilation, transposed,
      output_padding, groups, mask);
  return {to_device(a), to_device(b), to_device(c)};
}

// ---- attention in one kernel: nothing of the size of queries times keys is held on the device ---------------------

int64_t sdp_choice(
    const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double dropout, bool,
    std::optional<double>, bool grouped) {
  return static_cast<int64_t>(grouped || dropout > 0 ? at::SDPBackend::math : at::SDPBackend::overrideable);
}

double scale_of(const Tensor& query, std::optional<double> scale) {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
}

// Probabilities (B, H, Lq, Lk) and the logarithm of what they were divided by, in float32 or wider, on the CPU.
std::tuple<Tensor, Tensor> probabilities(
    const Tensor& query, const Tensor& key, const std::optional<Tensor>& bias, bool causal, double scale) {
  const auto wide = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Tensor logits = at::matmul(query.to(wide), key.to(wide).transpose(-2, -1)) * scale;
  if (bias) logits = logits + bias->to(wide);
  if (causal) {
    auto hidden = at::ones({query.size(-2), key.size(-2)}, query.options().dtype(at::kBool)).triu(1);
    logits = logits.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }
  auto sums = at::logsumexp(logits, {-1});
  // a query that sees no key gets zeros, as on a GPU
  auto blind = sums.isinf().unsqueeze(-1);
  return {(logits - sums.unsqueeze(-1)).exp().masked_fill(blind, 0.0), sums};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& bias, double, bool causal,
    bool, std::optional<double> scale) {
  together("attention", {&query, &key, &value});
  TORCH_CHECK(
      query.scalar_type() == key.scalar_type() && key.scalar_type() == value.scalar_type(),
      "second device: query, key and value types differ");
  auto [weights, sums] =
      probabilities(seen_by_cpu(query), seen_by_cpu(key), on_cpu(bias), causal, scale_of(query, scale));
  auto out = at::matmul(weights, seen_by_cpu(value).to(weights.scalar_type())).to(query.scalar_type());
  return {to_device(out), to_device(sums), Tensor(), Tensor(), query.size(-2), key.size(-2), Tensor(), Tensor(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
    std::array<bool, 4> wanted, const Tensor&, const Tensor&, const Tensor&, const Tensor&, c10::SymInt, c10::SymInt,
    double, bool causal, const Tensor&, const Tensor&, std::optional<double> given) {
  const auto type = query.scalar_type();
  const auto scale = scale_of(query, given);
  auto q = seen_by_cpu(query), k = seen_by_cpu(key);
  auto weights = std::get<0>(probabilities(q, k, on_cpu(bias), causal, scale));
  const auto wide = weights.scalar_type();
  auto up = seen_by_cpu(grad).to(wide), v = seen_by_cpu(value).to(wide);
  auto d_weights = at::matmul(up, v.transpose(-2, -1));
  auto d_logits = weights * (d_weights - (d_weights * weights).sum({-1}, true));
  auto d_q = at::matmul(d_logits, k.to(wide)) * scale;
  auto d_k = at::matmul(d_logits.transpose(-2, -1), q.to(wide)) * scale;
  auto d_v = at::matmul(weights.transpose(-2, -1), up);
  Tensor d_bias;
  if (wanted[3]) d_bias = to_device(at::sum_to(d_logits, bias.sizes()).to(bias.scalar_type()));
  return {to_device(d_q.to(type)), to_device(d_k.to(type)), to_device(d_v.to(type)), d_bias};
}

// ---- everything else ------------------------------------------------------------------------------------------------

// Operations that take tensors of the CPU beside those of a GPU.
const std::unordered_set<std::string> mixed{
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};

void check(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  const auto begin = stack.size() - count;
  std::string name = schema.name();
  const bool mix = mixed.count(name);
  auto one = [&](const Tensor& tensor) {
    if (tensor.defined() && tensor.device().type() != kDevice && tensor.dim() > 0 && !mix) {
      TORCH_CHECK(
          false, "second device: expected all tensors to be on the same device in ", name, ", but one of shape ",
          tensor.sizes(), " is on ", tensor.device());
    }
  };
  for (size_t i = 0; i < count; ++i) {
    const auto& value = stack[begin + i];
    if (value.isTensor()) {
      one(value.toTensor());
    } else if (value.isTensorList()) {
      for (const Tensor& tensor : value.toTensorList()) one(tensor);
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorList()) {
        if (tensor) one(*tensor);
      }
    } else if (value.isGenerator()) {
      TORCH_CHECK(
          !value.toGenerator().defined() || value.toGenerator().device().type() == kDevice,
          "second device: expected a generator of this device in ", name, ", but found one of the CPU");
    }
  }
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check(op, *stack);
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

}  // namespace

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &sdp_choice)
}  // namespace at::native

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("view.dtype", &at::native::view_dtype);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("unfold", &at::native::unfold);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &at::native::resize_);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("_scaled_dot_product_fused_attention_overrideable", &attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", &attention_backward);
  // these have a general version in many operations, that would be taken first
  for (const char* name : {"native_group_norm", "native_layer_norm", "native_layer_norm_backward", "silu_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

// Copies read what is lazily conjugated or negated as it is.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

namespace at::autocast {

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
#undef LOWER
#define WIDE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(WIDE)
#undef WIDE
#define WIDE_SET(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(WIDE_SET)
#undef WIDE_SET
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(PROMOTE)
#undef PROMOTE
}

}  // namespace at::autocast

extern "C" {
int64_t second_device_live() {
  return live;
}
int64_t second_device_peak() {
  return peak;
}
void second_device_reset_peak() {
  peak = live.load();
}
void second_device_set_limit(int64_t bytes) {
  limit = bytes;
}
}
