"""Names of real kernels at their full length: they are a large share of a trace's text."""

from __future__ import annotations

_NATIVE = "void at::native::"
_ANONYMOUS = "void at::native::(anonymous namespace)::"

COPY_BF16 = (
    f"{_NATIVE}vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda"
    "(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul> >(int, at::native::"
    "bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul>)"
)
COPY_FLOAT = (
    f"{_NATIVE}unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
    "::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}, "
    "std::array<char*, 2ul>, 4, TrivialOffsetCalculator<1, unsigned int>, TrivialOffsetCalculator<1, "
    "unsigned int>, at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> >(int)"
)
ADD = (
    f"{_NATIVE}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
GELU = (
    f"{_NATIVE}vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
    "at::native::GeluType)::{lambda()#2}::operator()() const::{lambda()#4}::operator()() const::"
    "{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int)"
)
GELU_BACKWARD = GELU.replace("GeluCUDAKernelImpl", "GeluBackwardCUDAKernelImpl")
SUM = (
    f"{_NATIVE}reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t"
    "<c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, c10::BFloat16>::operator()"
    "(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, c10::BFloat16, 4, 8> >"
    "(at::native::ReduceOp)"
)
LAYER_NORM = (
    f"{_ANONYMOUS}vectorized_layer_norm_kernel<float, float, false>(int, float, float const*, "
    "float const*, float const*, float*, float*, float*)"
)
LAYER_NORM_INPUT = (
    f"{_ANONYMOUS}layer_norm_grad_input_kernel_vectorized<float, float, false>(float const*, float const*, "
    "float const*, float const*, float const*, float*, int)"
)
LAYER_NORM_WEIGHT = (
    f"{_ANONYMOUS}GammaBetaBackwardCUDAKernelTemplate<float, float, 32u, 32u, 256u, false, true, false>"
    "(long, long, float const*, float const*, float const*, float const*, float*, float*)"
)
EMBEDDING = (
    f"{_NATIVE}vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"
)
LOG_SOFTMAX = (
    f"{_ANONYMOUS}cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16, at::native::"
    "(anonymous namespace)::LogSoftMaxForwardEpilogue>(c10::BFloat16*, c10::BFloat16 const*, int)"
)
NLL_LOSS = (
    f"{_ANONYMOUS}nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*, float const*, "
    "long const*, float const*, bool, long, long, long, long)"
)
FOREACH_ADD = (
    f"{_ANONYMOUS}multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<1>, "
    "at::native::(anonymous namespace)::BinaryOpScalarFunctor<float, 1, 1, 0>, std::plus<float>, float>()"
)
ADAM = (
    f"{_ANONYMOUS}multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::"
    "FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>, "
    "float const*, double, double, double, double, double, bool>()"
)
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
