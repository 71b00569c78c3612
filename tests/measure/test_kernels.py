"""Kernels by kind, with names as PyTorch 2.11 on an H200 prints them."""

import pytest

from harness.measure.kernels import REST, SHOWN, by_kernel, kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopA_NTT", "matmul"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matmul"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "attention"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>",
            "optimizer",
        ),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, int>, float>", "optimizer"),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<LpNormFunctor<float>>",
            "clipping and casts",
        ),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<CopyFunctor<float>>", "clipping and casts"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>", "loss"),
        ("void at::native::(anonymous namespace)::chunk_cat_cuda_kernel<float, c10::BFloat16>", "shard copies"),
        ("triton_poi_fused_mul_silu_0", "fused pointwise"),
        ("void at::native::vectorized_elementwise_kernel<4, MulFunctor<float>>", REST),
        ("void at::native::reduce_kernel<512, 1, ReduceOp<float>>", REST),
        ("Memset (Device)", "memcpy and memset"),
    ],
)
def test_kind_of_a_kernel(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_kinds_add_up_and_the_longest_come_first() -> None:
    kernels = [("gemm_a", 3.0), ("gemm_a", 3.0), ("gemm_b", 2.0), ("elementwise", 1.0)]
    found = by_kernel(kernels, steps=2)
    assert found["kernel_kinds_s"] == {"matmul": 4.0, REST: 0.5}
    assert found["top_kernels"][0] == {"name": "gemm_a", "count": 1.0, "time_s": 3.0}
    assert [kernel["name"] for kernel in found["top_kernels"]] == ["gemm_a", "gemm_b", "elementwise"]


def test_the_list_of_names_is_short() -> None:
    found = by_kernel([(f"kernel_{'x' * 400}_{i}", 1.0) for i in range(100)], steps=1)
    assert len(found["top_kernels"]) == SHOWN
    assert all(len(kernel["name"]) <= 120 for kernel in found["top_kernels"])
