"""FlashInfer's two paged wrappers as published in 0.7.4: the same calls, and what they promise, computed plainly."""

from __future__ import annotations

import torch
import torch.nn.functional as fn

__version__ = "stand-in"


class _Wrapper:
    _causal = True
    _graph = None

    def _remember(self, queries, indptr, indices, last_page_len, heads, kv_heads, head_dim, page_size):
        assert {one.dtype for one in (indptr, indices, last_page_len)} == {torch.int32}
        assert len(indices) == int(indptr[-1])
        assert bool(((last_page_len >= 1) & (last_page_len <= page_size)).all())
        self._table = [one.tolist() for one in (queries, indptr, indices, last_page_len)]
        self._sizes = (heads, kv_heads, head_dim, page_size)

    def run(self, q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None):
        """NHD: q [rows, heads, head_dim]; paged_kv_cache [pages, 2, page_size, kv_heads, head_dim]."""
        heads, kv_heads, head_dim, page_size = self._sizes
        assert q.is_contiguous()
        assert q.shape[1:] == (heads, head_dim)
        assert paged_kv_cache.shape[1:] == (2, page_size, kv_heads, head_dim)
        queries, indptr, indices, last = self._table
        parts = []
        for at in range(len(last)):
            pages = indices[indptr[at] : indptr[at + 1]]
            size = (len(pages) - 1) * page_size + last[at]
            keys, values = (paged_kv_cache[pages, which].reshape(-1, kv_heads, head_dim)[:size] for which in (0, 1))
            rows = q[queries[at] : queries[at + 1]]
            seen = torch.ones(len(rows), size, dtype=torch.bool).tril(size - len(rows))
            parts.append(
                fn.scaled_dot_product_attention(
                    rows.transpose(0, 1),
                    keys.transpose(0, 1).repeat_interleave(heads // kv_heads, 0),
                    values.transpose(0, 1).repeat_interleave(heads // kv_heads, 0),
                    attn_mask=seen,
                ).transpose(0, 1)
            )
        return torch.cat(parts)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        use_tensor_cores=False,
        paged_kv_indptr_buffer=None,
        paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None,
        backend="auto",
        jit_args=None,
        jit_kwargs=None,
    ):
        assert kv_layout == "NHD"
        if use_cuda_graph:
            self._graph = (len(paged_kv_last_page_len_buffer), len(paged_kv_indices_buffer))
            assert len(paged_kv_indptr_buffer) == self._graph[0] + 1

    def plan(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        *,
        pos_encoding_mode="NONE",
        window_left=-1,
        q_data_type="float16",
        kv_data_type=None,
        sm_scale=None,
        non_blocking=True,
    ):
        rows = len(last_page_len)
        if self._graph is not None:
            assert rows == self._graph[0], "The batch size should be fixed in cudagraph mode"
            assert len(indices) <= self._graph[1], "The size of indices should be at most the allocated buffer"
        sizes = (num_qo_heads, num_kv_heads, head_dim, page_size)
        self._remember(torch.arange(rows + 1), indptr, indices, last_page_len, *sizes)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, backend="auto"):
        assert kv_layout == "NHD"

    def plan(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        head_dim_vo=None,
        custom_mask=None,
        packed_custom_mask=None,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        sm_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        rope_scale=None,
        rope_theta=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        non_blocking=True,
    ):
        assert causal
        assert qo_indptr.dtype == torch.int32
        sizes = (num_qo_heads, num_kv_heads, head_dim_qk, page_size)
        self._remember(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, *sizes)
