//! Every buffer that a tape names, with the engine function that makes it. Where two functions are
//! given the first is SGLang's, the second vLLM's.

use super::event::Buffer;

/// Declares buffers as `CONSTANT: "name", "source";`.
macro_rules! buffers {
    ($($constant:ident: $name:literal, $source:literal;)*) => {
        $(pub(super) const $constant: &Buffer = &Buffer::new($name, $source);)*
    };
}

buffers! {
    // Embedding.
    EMBED_TEST: "embed_tokens.range_test", "vocab_parallel_embedding.get_masked_input_and_mask";
    EMBED_MASK: "embed_tokens.vocab_mask", "vocab_parallel_embedding.get_masked_input_and_mask";
    EMBED_OFFSET: "embed_tokens.offset", "vocab_parallel_embedding.get_masked_input_and_mask";
    EMBED_IDS: "embed_tokens.masked_ids", "vocab_parallel_embedding.get_masked_input_and_mask";
    EMBED: "embed_tokens", "vocab_parallel_embedding.forward (0.5.8: unquant.embedding; 0.5.23 with tp > 1: one fused lookup)";
    EMBED_REDUCED: "embed_tokens.all_reduce", "communication_op.tensor_model_parallel_all_reduce";
    ZERO_ALLOCATOR: "zero_allocator", "models/deepseek_v2.forward, BumpAllocator of 2 floats a layer";
    // A layer's norm and GQA.
    INPUT_NORM: "input_layernorm", "layernorm.forward_cuda of layer 0; later layers add and norm in place";
    QKV: "self_attn.qkv_proj", "linear.QKVParallelLinear.forward";
    Q_NORM: "self_attn.q_norm", "vLLM layernorm.forward_cuda";
    K_NORM: "self_attn.k_norm", "vLLM layernorm.forward_cuda";
    ATTN: "self_attn.attn", "radix_attention.forward; vLLM attention.forward";
    O_PROJ: "self_attn.o_proj", "linear.RowParallelLinear.forward";
    ATTN_REDUCED: "self_attn.all_reduce", "communication_op all-reduce of the attention output, by the linear or by the layer's communicator";
    // Dense MLP.
    GATE_UP: "mlp.gate_up_proj", "linear.MergedColumnParallelLinear.forward";
    ACT: "mlp.act_fn", "activation.SiluAndMul.forward_cuda";
    DOWN: "mlp.down_proj", "linear.RowParallelLinear.forward";
    MLP_REDUCED: "mlp.all_reduce", "communication_op all-reduce of the MLP or MoE output";
    // Mixture of experts: routing.
    SHARED_GATE_UP: "mlp.shared_experts.gate_up_proj", "models/deepseek_v2 shared experts";
    SHARED_ACT: "mlp.shared_experts.act_fn", "models/deepseek_v2 shared experts";
    SHARED_DOWN: "mlp.shared_experts.down_proj", "models/deepseek_v2 shared experts";
    ROUTER: "mlp.gate", "linear.ReplicatedLinear.forward; models/deepseek_v2.MoEGate";
    ROUTER_F32: "mlp.topk.scores", "topk.biased_grouped_topk_gpu, cast to float32 (0.5.8)";
    TOPK_WEIGHTS: "mlp.topk.weights", "topk.fused_topk or biased_grouped_topk_gpu; vLLM fused_topk_router.fused_topk";
    TOPK_IDS: "mlp.topk.ids", "topk.fused_topk or biased_grouped_topk_gpu; vLLM fused_topk_router.fused_topk";
    TOPK_SOURCE: "mlp.topk.token_expert_indices", "vLLM fused_topk_router.fused_topk";
    GATE_SCALAR: "mlp.topk.dummy", "moe_fused_gate, made once in a process (0.5.23)";
    SORTED_IDS: "mlp.experts.sorted_token_ids", "moe_align_block_size";
    EXPERT_IDS: "mlp.experts.expert_ids", "moe_align_block_size";
    PADDED_COUNT: "mlp.experts.num_tokens_post_pad", "moe_align_block_size";
    EXPERT_COUNTERS: "mlp.experts.cumsum_buffer", "moe_align_block_size";
    // Mixture of experts: GEMMs.
    CACHE13: "mlp.experts.intermediate_cache13", "fused_moe.fused_experts_impl (0.5.8); fused_marlin_moe: one buffer for first and last GEMM";
    CACHE1: "mlp.experts.intermediate_cache1", "fused_moe, first GEMM (0.5.23)";
    CACHE2: "mlp.experts.intermediate_cache2", "fused_moe.fused_experts_impl; fused_marlin_moe: activation";
    CACHE3: "mlp.experts.intermediate_cache3", "fused_moe, second GEMM (0.5.23)";
    QUANT_INPUT: "mlp.experts.fp8_input", "fp8_kernel.sglang_per_token_group_quant_fp8";
    QUANT_SCALES: "mlp.experts.fp8_scales", "fp8_kernel.create_per_token_group_quant_fp8_output_scale";
    MARLIN_LOCKS: "mlp.experts.workspace", "fused_marlin_moe (0.5.8); marlin_utils.marlin_make_workspace (0.5.23)";
    MARLIN_REDUCE: "mlp.experts.c_tmp", "Marlin GEMM without atomic add: fp32 partial sums";
    EXPERTS_OUT: "mlp.experts.out", "fused_marlin_moe; fused_moe not in place; vLLM modular_kernel.apply";
    VLLM_WORKSPACE: "moe.workspace", "vLLM workspace.get_simultaneous, kept for all layers";
    // Multi-head latent attention.
    LATENT: "self_attn.fused_qkv_a_proj_with_mqa", "models/deepseek_v2 attention, forward_prepare";
    Q_A_NORM: "self_attn.q_a_layernorm", "models/deepseek_v2 attention, forward_prepare";
    Q_B: "self_attn.q_b_proj", "models/deepseek_v2 attention, forward_prepare";
    KV_A_NORM: "self_attn.kv_a_layernorm", "models/deepseek_v2 attention, forward_prepare";
    PREFIX_LATENT: "self_attn.prefix_kv_a", "forward_mha._get_mla_kv_buffer";
    PREFIX_ROPE: "self_attn.prefix_k_pe", "forward_mha._get_mla_kv_buffer";
    KV_B: "self_attn.kv_b_proj", "forward_mha.forward_normal_prepare";
    MHA_K: "self_attn.k", "forward_mha._concat_and_cast_mha_k";
    MHA_LSE: "self_attn.lse", "forward_mha, chunked prefix: log-sum-exp";
    MERGED: "self_attn.merge_state.out", "forward_mha, chunked prefix: merge of two outputs";
    MERGED_LSE: "self_attn.merge_state.lse", "forward_mha, chunked prefix: merge of two outputs";
    Q_NOPE_ABSORBED: "self_attn.q_nope_out", "forward_mla.forward_absorb_prepare";
    MLA_Q: "self_attn.q", "forward_mla.forward_absorb_core, concatenation";
    MLA_K: "self_attn.k_mqa", "forward_mla.forward_absorb_core, concatenation";
    MLA_V: "self_attn.attn_bmm_output", "forward_mla.forward_absorb_core";
    // Sparse indexer.
    INDEXER_SCORES: "indexer.logits", "sparse attention indexer, scores in float32";
    INDEXER_MASK: "indexer.mask", "sparse attention indexer, dense form";
    // Logits.
    LAST_CUMSUM: "logits.last_index", "logits_processor, end of each request";
    LAST_ROWS: "logits.pruned_states", "logits_processor, last row of each request";
    LOGITS: "logits", "logits_processor lm_head; vLLM LogitsProcessor";
    LOGITS_GATHERED: "logits.all_gather", "communication_op.tensor_model_parallel_all_gather";
    LOGITS_CONTIGUOUS: "logits.all_gather.contiguous", "communication_op.tensor_model_parallel_all_gather, copy";
    LOGITS_F32: "logits.float32", "logits_processor, cast (a static buffer under CUDA graphs)";
    // Input logprobs.
    SAMPLE_INDEX: "logprobs.sample_indices", "logits_processor, rows to sample from";
    INPUT_INDEX: "logprobs.input_indices", "logits_processor, rows of the prompt";
    CHUNK_MASK: "logprobs.chunk_mask", "logits_processor.process_input_logprobs_by_chunk";
    CHUNK_INDEX: "logprobs.chunk_indices", "logits_processor.process_input_logprobs_by_chunk; logprob_processor (0.5.23)";
    SAMPLED_LOGITS: "logprobs.sampled_logits", "logits_processor, rows to sample from";
    INPUT_LOGITS: "logprobs.input_logits", "logits_processor, rows of the prompt, float32";
    LOG_SOFTMAX: "logprobs.log_softmax", "logprob.compute_temp_top_p_normalized_logprobs";
    TOP_VALUES: "logprobs.top_values", "logprob top-k values";
    TOP_INDEX: "logprobs.top_indices", "logprob top-k indices";
    LSE: "logprobs.logsumexp", "logsumexp.row_logsumexp_topk (0.5.23)";
    ARANGE: "logprobs.arange", "row numbers for the token's own logprob";
    TOKEN_LOGPROBS: "logprobs.token_logprobs", "the token's own logprob";
    // Sampler.
    POSITIONS: "sampler.positions", "int64 positions of the batch, made before the sampler";
    ARGMAX: "sampler.next_token_ids", "sampler.forward, greedy";
    PROBS: "sampler.softmax", "sampler.forward, copied back over the logits";
    NOISE: "sampler.exponential", "sampler.sampling_from_probs_torch (0.5.23)";
    RATIO: "sampler.probs_over_noise", "sampler.sampling_from_probs_torch (0.5.23)";
    DRAWN: "sampler.sampled_index", "sampler.sampling_from_probs_torch";
    PRESENCE: "sampler.cumulated_presence_penalties", "penaltylib/presence_penalty, float32 rows × vocabulary, kept while a request asks for it";
    FREQUENCY: "sampler.cumulated_frequency_penalties", "penaltylib/frequency_penalty, float32 rows × vocabulary, kept while a request asks for it";
    NEXT_IDS: "sampler.next_token_ids_int32", "sampler.forward";
    RENORM: "sampler.renormalised_probs", "sampler.forward, top-k and top-p before min-p";
    LOG: "sampler.log_probs", "sampler.forward";
    CLAMP: "sampler.log_probs_clamped", "sampler.forward (0.5.8)";
    SORT_VALUES: "sort.values", "torch.sort, first output";
    SORT_INDEX: "sort.indices", "torch.sort, second output (int64)";
    SORT_INDEX_COPY: "sort.scratch.indices", "torch.sort on CUDA, 128 rows and more: index copy";
    SORT_PAIRS: "sort.scratch.pairs", "torch.sort on CUDA, under 128 rows: pairs";
    SORT_KEYS: "sort.scratch.keys", "torch.sort on CUDA, under 128 rows: keys";
    SORT_RADIX: "sort.scratch.radix", "torch.sort on CUDA: double buffers of keys and values";
    // The batch, before the layers.
    META_IDS: "input_ids", "ScheduleBatch, int64 ids of the new tokens";
    META_LENGTHS: "seq_lens", "ScheduleBatch, int64 lengths and rows of the request table";
    META_SLOTS: "out_cache_loc", "ScheduleBatch, int64 slots of the new tokens";
    META_POSITIONS: "positions", "ForwardBatch.init_new, int64 positions";
    PREFIX_SLOTS: "prefix_indices", "ScheduleBatch.prepare_for_extend, int64 slots of cached prefixes";
    KV_INDPTR: "kv_indptr", "attention backends, int32 offsets of each request";
    KV_INDICES: "kv_indices", "FlashInfer (int32) and Triton (int64) backends, slots of all keys";
    PAGE_TABLE: "page_table", "FlashAttention and TRT-LLM backends, int32 pages of each request";
    HOST_INDEX: "hicache.indices", "hierarchical cache, int64 indices of a transfer";
    CUBLAS_WORKSPACE: "cublas.workspace", "PyTorch, getCUDABlasLtWorkspace of the capturing stream";
    // Closed-form peaks as one buffer; named by `estimate::activation::Instant`.
    PEAK_DENSE: "dense MLP", "closed form of estimate::activation";
    PEAK_EXPERTS: "experts", "closed form of estimate::activation";
    PEAK_ATTENTION: "attention", "closed form of estimate::activation";
    PEAK_PREFIX_KEYS: "attention over the prefix (keys)", "closed form of estimate::activation";
    PEAK_PREFIX_OUTPUT: "attention over the prefix (output)", "closed form of estimate::activation";
    PEAK_ABSORBED: "absorbed attention", "closed form of estimate::activation";
    PEAK_LOGITS: "logits", "closed form of estimate::activation";
    // SGLang on MLX, assumed.
    MLX_REQUEST_KV: "mlx.request_kv", "hardware_backend/mlx contiguous cache, the used part";
    MLX_HIDDEN: "mlx.hidden", "hardware_backend/mlx model call, embedding";
    MLX_ATTENTION: "mlx.attention", "hardware_backend/mlx attention wrapper, projections and output";
    MLX_JOINED_KV: "mlx.joined_kv", "hardware_backend/mlx attention wrapper, padded and joined keys and values";
    MLX_MLP: "mlx.mlp", "MLP or experts of the layers in flight";
    MLX_LOGITS: "mlx.logits", "hardware_backend/mlx model call, head over all tokens";
    MLX_LAST_LOGITS: "mlx.last_logits", "hardware_backend/mlx sampling, rows in float32";
}
